"""The lossy rules: their laws from the decisions, their bias in closed form, and that the checker calls them what they are."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_proofs import strategies
from specdec_proofs.enumerate import completed, is_lossless, joint, token, total_variation
from specdec_proofs.lossy import lenient, lenient_bias, lenient_law, typical, typical_bias, typical_law, typical_set
from specdec_proofs.worlds import World, chain_reference, declared_one_hot, independent, mixed_tables, normalised, pair_reference

F = Fraction
PAIRS = st.integers(2, 5).flatmap(lambda vocab: st.tuples(strategies.laws(vocab), strategies.laws(vocab)))


def first(world: World, law) -> tuple[Fraction, ...]:
    reached = completed(law, world)
    return tuple(sum((mass for x, mass in reached.items() if x[0] == t), F(0)) for t in range(world.vocab))


def apart(a, b) -> Fraction:
    return sum((abs(x - y) for x, y in zip(a, b, strict=True)), F(0)) / 2


@given(PAIRS)
def test_closed_forms_are_what_the_decisions_give(pair: tuple) -> None:
    p, q = pair
    world = independent(p, q)
    kept = typical_set(p)
    assert first(world, typical(world)) == typical_law(p, q, kept)
    assert apart(typical_law(p, q, kept), p) == typical_bias(p, q, kept)
    for lenience in (F(1), F(4, 5), F(1, 3)):
        assert first(world, lenient(world, lenience)) == lenient_law(p, q, lenience)
        assert apart(lenient_law(p, q, lenience), p) == lenient_bias(p, q, lenience)
    assert lenient_bias(p, q, F(1)) == 0


def test_bias_on_the_reference_pair() -> None:
    """V = 16: typical .289, lenience .105, as the catalogue of mutants lists them."""
    world = pair_reference()
    p, q = world.target(()), world.draft(())
    assert float(typical_bias(p, q, typical_set(p))) == pytest.approx(0.289, abs=5e-4)
    assert float(lenient_bias(p, q)) == pytest.approx(0.105, abs=5e-4)


def test_the_threshold() -> None:
    """min(.09, .3 e^-H): a uniform row of 4 has e^-H = 1/4 and keeps everything above .075; a tight epsilon binds on a peaked one."""
    assert typical_set(normalised([1] * 4)) == {0, 1, 2, 3}
    assert typical_set(normalised([92, 8])) == {0}
    assert typical_set(normalised([90, 10])) == {0, 1}
    assert typical_set(normalised([0, 1])) == {1}
    assert typical_set(normalised([1, 1]), epsilon=0.5, delta=1.0) == frozenset()


@pytest.mark.parametrize("world", [chain_reference(), declared_one_hot(chain_reference())], ids=lambda world: world.name)
def test_they_are_lossy(world: World) -> None:
    for law in (typical(world), lenient(world)):
        assert sum(law.values()) == 1
        assert not is_lossless(law, world)
        assert total_variation(completed(law, world), joint(world)) > F(1, 100)


def test_lenience_of_one_is_token_verification() -> None:
    for seed in range(6):
        for world in (mixed_tables(seed, 3, 2), declared_one_hot(mixed_tables(seed, 3, 2))):
            assert lenient(world, F(1)) == token(world)
