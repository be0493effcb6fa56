"""The rational law of the algorithm, and that the checker tells lossless rules from lossy ones."""

from fractions import Fraction

import pytest
from hypothesis import given

from specdec_proofs import strategies
from specdec_proofs.enumerate import (
    completed,
    emitted_lengths,
    expected_emitted,
    greedy,
    is_lossless,
    joint,
    residual,
    token,
    token_acceptance,
    total_variation,
)
from specdec_proofs.mutants import catalogue, equivalents
from specdec_proofs.worlds import World, cold, declared_one_hot, greedy_draft, independent, normalised, prefixes, toy

F = Fraction


@given(strategies.worlds())
def test_token_verification_is_lossless_on_any_world(world: World) -> None:
    law = token(world)
    assert sum(law.values()) == 1
    assert is_lossless(law, world)
    assert total_variation(completed(law, world), joint(world)) == 0


def test_toy_lengths_and_mean() -> None:
    """L16: the emitted length from state 0 of the toy bigram, K = 2."""
    law = token(toy())
    assert emitted_lengths(law) == {1: F(1, 4), 2: F(59, 240), 3: F(121, 240)}
    assert expected_emitted(law) == F(541, 240) == token_acceptance(toy()) + 1


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_constant_acceptance_gives_the_geometric_sum(k: int) -> None:
    """L16: p = (1/3, 2/3) against its reverse accepts 2/3 of the time, so 1 + a + ... + a^K tokens are emitted."""
    world = independent([1, 2], [2, 1], k)
    assert token_acceptance(world) + 1 == sum(F(2, 3) ** i for i in range(k + 1))


def test_identical_laws_accept_everything() -> None:
    """D6: p = q leaves a residual of 0, which is never drawn from."""
    world = independent([1, 2, 3], [1, 2, 3], 3)
    assert emitted_lengths(token(world)) == {4: 1}
    assert residual(*[normalised([1, 2, 3])] * 2) == normalised([1, 2, 3])


P, Q = normalised([1, 6, 3]), normalised([5, 2, 3])


def test_greedy_draft_scored_with_its_softmax_loses_the_target_law() -> None:
    """D1, D7: p = (.1, .6, .3), q = (.5, .2, .3), the draft is always q's argmax. One-hot is exact; soft q gives (.2, .8, 0), TV .3."""
    honest = greedy_draft(independent(P, Q))
    assert is_lossless(token(honest), honest)
    lying = honest._replace(soft=True, told=lambda prefix: Q)
    first = {t: sum(m for x, m in completed(token(lying), lying).items() if x[0] == t) for t in range(3)}
    assert first == {0: F(1, 5), 1: F(4, 5), 2: 0}
    assert total_variation(completed(token(lying), lying), joint(lying)) == F(3, 10)


def test_raw_law_in_the_ratio_after_top_k_drafting_loses_the_target_law() -> None:
    """D2: top-2 on both sides; the raw q in the ratio gives (13/16, 3/16, 0, 0) in place of (5/8, 3/8, 0, 0), TV .1875."""
    raw = normalised([4, 2, 3, 1])
    honest = independent([5, 3, 0, 0], [4, 0, 3, 0])
    assert is_lossless(token(honest), honest)
    assert token_acceptance(honest) == F(4, 7)
    lying = honest._replace(told=lambda prefix: raw)
    law = completed(token(lying), lying)
    assert sum(m for x, m in law.items() if x[0] == 0) == F(13, 16)
    assert total_variation(law, joint(lying)) == F(3, 16)


def test_unfiltered_target_puts_mass_outside_the_top_two() -> None:
    """D3: the target scored without its own top-2 puts .2 where nothing may be."""
    filtered, unfiltered = independent([5, 3, 0, 0], [4, 0, 3, 0]), independent([50, 30, 15, 5], [4, 0, 3, 0])
    law = completed(token(unfiltered), unfiltered)
    assert sum(m for x, m in law.items() if x[0] > 1) == F(1, 5)
    assert total_variation(law, joint(filtered)) > F(1, 5)


def test_sampled_draft_declared_one_hot_is_exact_and_slower() -> None:
    """D10: a positive control: accept with probability p(t), else p without t."""
    world = independent(P, Q)
    law = token(declared_one_hot(world))
    assert is_lossless(law, world)
    assert expected_emitted(law) < expected_emitted(token(world))


def test_the_laws_of_the_mutants_are_laws_and_are_lossy() -> None:
    """D23: wrong rows for ratio, residual or bonus are told apart from the right ones."""
    for mutant in catalogue():
        world = mutant.world()
        law = mutant.law(world)
        assert sum(law.values()) == 1, mutant.name
        assert not is_lossless(law, world), mutant.name


def test_the_checker_does_not_reject_lossless_rules() -> None:
    """D9: emitting the target's own sample, accepted iff equal, is lossless."""
    for control in equivalents():
        world = control.world()
        assert is_lossless(control.law(world), world), control.name
        assert expected_emitted(control.law(world)) < expected_emitted(token(world)), control.name


def test_chain_mutants_have_the_right_first_token() -> None:
    """Why only joint tests count: the first token of each chain mutant is exactly right."""
    chains = [mutant for mutant in catalogue() if mutant.number is None]
    assert len(chains) == 6
    for mutant in chains:
        world = mutant.world()
        law = completed(mutant.law(world), world)
        for t in range(world.vocab):
            assert sum(m for x, m in law.items() if x[0] == t) == world.target(())[t], mutant.name


@given(strategies.worlds())
def test_greedy_law_is_the_token_law_at_temperature_0(world: World) -> None:
    frozen = cold(world)
    sequence = next(iter(joint(frozen)))
    assert all(x == sequence[: len(x)] for x in greedy(world))
    if world.soft is False:
        assert token(frozen) == greedy(world)


def test_a_sequence_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 to 3 tokens"):
        completed({(0, 0, 0, 0): F(1)}, toy())


def test_is_lossless_looks_at_every_sequence() -> None:
    law = dict(token(toy()))
    a, b = [x for x in law if len(x) == 3][:2]
    law[a], law[b] = law[a] + F(1, 10**30), law[b] - F(1, 10**30)
    assert not is_lossless(law, toy())
    assert len(list(prefixes(toy(), 3))) == 27
