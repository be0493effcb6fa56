"""Worlds: exact laws, the published reference pair, and that every kind of row which breaks verifiers occurs."""

from fractions import Fraction

import pytest
from hypothesis import given

from specdec_proofs import strategies
from specdec_proofs.worlds import (
    World,
    chain_reference,
    cold,
    declared_one_hot,
    drafts,
    greedy_draft,
    mixed_tables,
    normalised,
    pair_reference,
    prefixes,
    softmax,
    stopping,
    toy,
)


def test_reference_pair_is_the_one_of_the_reference_laws() -> None:
    world = pair_reference()
    p, q = world.target(()), world.draft(())
    assert float(sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2) == pytest.approx(0.2720, abs=5e-5)
    assert float(max(p)) == pytest.approx(0.3294, abs=5e-5)
    assert float(min(p)) == pytest.approx(0.00996949758937275, rel=1e-12)


@given(strategies.worlds())
def test_drafts_are_a_law_over_prefix_free_sequences(world: World) -> None:
    made = dict(drafts(world))
    assert sum(made.values()) == 1
    assert all(len(x) <= world.k for x in made)
    assert not any(a != b and b[: len(a)] == a for a in made for b in made), "a draft that stops there cannot also go on"


def test_every_row_is_a_law() -> None:
    for world in (
        toy(),
        chain_reference(),
        softmax(0, 4, 2),
        mixed_tables(1),
        cold(softmax(1, 4, 2)),
        greedy_draft(mixed_tables(2)),
        stopping(mixed_tables(3)),
    ):
        for length in range(world.k + 1):
            for prefix in prefixes(world, length):
                for law in (world.target(prefix), world.draft(prefix)):
                    assert len(law) == world.vocab
                    assert min(law) >= 0
                    assert sum(law) == 1


def test_mixed_tables_hold_what_breaks_verifiers() -> None:
    pairs = [(w.target(x), w.draft(x)) for w in map(mixed_tables, range(4)) for i in range(3) for x in prefixes(w, i)]
    assert any(p == q for p, q in pairs)
    assert any(max(p) == 1 for p, _ in pairs)
    assert any(max(q) == 1 for _, q in pairs)
    assert any(len(set(p)) == 1 for p, _ in pairs)
    assert any(not any(a and b for a, b in zip(p, q, strict=True)) for p, q in pairs)
    zeros = sum(not a for p, _ in pairs for a in p) / sum(len(p) for p, _ in pairs)
    assert 0.25 < zeros < 0.55


def test_a_world_gives_the_same_rows_whatever_was_asked_before() -> None:
    first, second = softmax(5), softmax(5)
    second.target((3, 2, 1))
    assert first.target((0, 1)) == second.target((0, 1))
    assert mixed_tables(7).target((1,)) == mixed_tables(7).target((1,))


def test_stopping_drafts_vary_in_length() -> None:
    assert len({len(x) for x, _ in drafts(stopping(softmax(0, 4, 3)))}) > 1


def test_declared_one_hot_keeps_the_drafts() -> None:
    assert dict(drafts(declared_one_hot(toy()))) == dict(drafts(toy()))


@pytest.mark.parametrize("weights", [[0, 0], [1, -1, 3]])
def test_normalised_refuses_what_is_no_law(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="expected numbers of 0 or more"):
        normalised(weights)


def test_normalised_reads_floats_as_the_rationals_they_are() -> None:
    assert normalised([0.1, 0.1]) == (Fraction(1, 2), Fraction(1, 2))
    assert normalised([0.1, 0.2, 0.3])[2] != Fraction(1, 2), "the floats .1 + .2 is not the float .3"
