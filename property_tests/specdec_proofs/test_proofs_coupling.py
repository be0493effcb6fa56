"""Races on one noise, in fractions: the law of the pair of winners, and that what is emitted is the target's law for any drafter."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_proofs import strategies
from specdec_proofs.coupling import coupled, coupled_acceptance, independent_winners, race_pair, same_winner
from specdec_proofs.enumerate import expected_emitted, is_lossless
from specdec_proofs.worlds import World, chain_reference, declared_one_hot, greedy_draft, independent, mixed_tables, normalised, stopping

F = Fraction
PAIRS = st.integers(2, 5).flatmap(lambda vocab: st.tuples(strategies.laws(vocab), strategies.laws(vocab)))


@given(PAIRS)
def test_the_pair_of_winners_has_both_laws_as_marginals(pair: tuple) -> None:
    """A full check of the integral: rows sum to p, columns to q, the diagonal is the closed form; three separate computations."""
    p, q = pair
    law = race_pair(p, q)
    for token in range(len(p)):
        assert sum(mass for (y, _), mass in law.items() if y == token) == p[token]
        assert sum(mass for (_, t), mass in law.items() if t == token) == q[token]
        assert law.get((token, token), 0) == same_winner(p, q)[token]


@given(PAIRS)
def test_agreement_lies_between_its_bounds(pair: tuple) -> None:
    """(1 - TV) / (1 + TV) <= sum of 1 / sum of max <= 1 - TV."""
    p, q = pair
    apart = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    agree = sum(same_winner(p, q))
    assert (1 - apart) / (1 + apart) <= agree <= 1 - apart
    assert agree >= 1 - 2 * apart


def test_agreement_of_two_laws_over_four_tokens() -> None:
    """The figure .55833, and what a simulation of the races gives."""
    draw = np.random.default_rng(0)
    p, q = (normalised(draw.dirichlet(np.ones(4)).tolist()) for _ in range(2))
    assert float(sum(same_winner(p, q))) == pytest.approx(0.55833, abs=5e-6)
    noise = draw.exponential(size=(200_000, 4))
    winners = [(noise / np.array([float(x) for x in law])).argmin(1) for law in (p, q)]
    law = race_pair(p, q)
    for y in range(4):
        for t in range(4):
            exact = float(law.get((y, t), 0))
            assert abs(np.mean((winners[0] == y) & (winners[1] == t)) - exact) <= 5 * (exact * (1 - exact) / 200_000) ** 0.5


@pytest.mark.parametrize("meeting", [same_winner, independent_winners])
@pytest.mark.parametrize(
    "world",
    [
        *(mixed_tables(seed, 3, 3) for seed in range(6)),
        chain_reference(),
        stopping(mixed_tables(2, 4, 3)),
        declared_one_hot(chain_reference()),
        greedy_draft(mixed_tables(3, 3, 2)),
    ],
    ids=lambda world: world.name,
)
def test_what_is_emitted_has_the_target_law(world: World, meeting) -> None:
    law = coupled(world, meeting)
    assert sum(law.values()) == 1
    assert is_lossless(law, world)
    assert coupled_acceptance(world, meeting) == expected_emitted(law) - 1


def test_a_drafter_that_knows_the_target_always_agrees() -> None:
    world = independent([1, 2, 4], [1, 2, 4], 3)
    assert coupled_acceptance(world) == 3
    assert coupled_acceptance(world, independent_winners) == sum(F(21, 49) ** i for i in (1, 2, 3))


def test_only_where_the_pass_ends_may_depend_on_the_draft() -> None:
    """Any chance to go on gives the target's law; emitting the drafted token where the races disagree does not."""
    world = mixed_tables(0, 3, 1)
    assert is_lossless(coupled(world, lambda p, q: tuple(x / 7 for x in p)), world)
    p = world.target(())
    wrong: dict[tuple[int, ...], Fraction] = {}
    for (y, t), mass in race_pair(p, world.draft(())).items():
        for x, share in ({(t,): F(1)} if y != t else {(t, bonus): share for bonus, share in enumerate(world.target((t,)))}).items():
            wrong[x] = wrong.get(x, F(0)) + mass * share
    assert sum(wrong.values()) == 1
    assert not is_lossless(wrong, world)
