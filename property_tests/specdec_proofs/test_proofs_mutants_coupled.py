"""Mutants of coupled verification: sampled, against the target's law, which must be rejected, and against their own, which must not."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given

from specdec_fn.random import key
from specdec_fn.speculate import verifiers
from specdec_proofs import strategies
from specdec_proofs.chi2 import pearson
from specdec_proofs.coupling import race_pair
from specdec_proofs.enumerate import completed, joint, total_variation
from specdec_proofs.mutants import SAMPLED, Mutant, catalogue
from specdec_proofs.mutants.coupling import deaf
from specdec_proofs.mutants.laws_coupled import both_winners, following
from specdec_proofs.power import needed, plan, pool
from specdec_proofs.sample import PASSES, cells, histogram, sample
from specdec_proofs.worlds import Law

TV = {
    "coupled: one noise row for every position": 0.16881,
    "coupled: noise keyed by the pass, not by the position": 0.16881,
    "coupled: winner by the noise alone": 0.08784,
    "coupled: races on the row before": 0.09123,
    "coupled: match against the winner one row on": 0.24475,
}


def test_figures() -> None:
    found = {}
    for mutant in catalogue("coupled"):
        world = mutant.world()
        law = mutant.law(world)
        assert sum(law.values()) == 1
        assert mutant.killers == (SAMPLED,)
        found[mutant.name] = round(float(total_variation(completed(law, world), joint(world))), 5)
    assert found == TV


@pytest.mark.parametrize("mutant", catalogue("coupled"), ids=lambda mutant: mutant.name)
def test_a_planned_sample_rejects_the_mutant_and_not_its_law_nor_the_rule(mutant: Mutant) -> None:
    world = mutant.world()
    p, wrong = cells(world, joint(world), mutant.length), cells(world, completed(mutant.law(world), world), mutant.length)
    test = plan(p, wrong, least=math.ceil(needed(p, wrong)), most=100_000)
    tokens = sample(mutant.decide(), world, key(51), test.n, tape=mutant.tape()).tokens
    assert pearson(histogram(tokens, world.vocab, mutant.length), p, test.pool).p_value <= 1e-6
    many = histogram(sample(mutant.decide(), world, key(52), 50_000, tape=mutant.tape()).tokens, world.vocab, mutant.length)
    assert pearson(many, wrong, pool(wrong, 50_000)).p_value > 1e-3
    rule = verifiers["coupled"]
    fair = histogram(sample(rule.decide, world, key(53), 50_000, tape=rule.tape).tokens, world.vocab, mutant.length)
    assert pearson(fair, p, pool(p, 50_000)).p_value > 1e-3


def test_noise_that_does_not_hear_the_position_shows_between_passes() -> None:
    """Each pass has the target's law; two passes of one request are to be independent, and here the second repeats the first."""
    mutant, rule = deaf(), verifiers["coupled"]
    world = mutant.world()
    p = cells(world, joint(world), 1)
    pairs = np.outer(p, p).ravel()
    assert total_variation(completed(mutant.law(world), world), joint(world)) == 0
    values, alone = [], []
    for decide, tape in ((mutant.decide(), mutant.tape()), (rule.decide, rule.tape)):
        first = sample(decide, world, key(54), PASSES * 300, tape=tape).tokens[:, 0].reshape(-1, PASSES)
        two = torch.stack([first[:, ::2].flatten(), first[:, 1::2].flatten()], 1)
        values.append(pearson(histogram(two, world.vocab, 2), pairs, pool(pairs, len(two))).p_value)
        alone.append(pearson(histogram(first[:, :1], world.vocab, 1), p, pool(p, len(first))).p_value)
    assert values[0] <= 1e-6 < 1e-3 < values[1]
    assert min(alone) > 1e-3


@given(strategies.laws(4), strategies.laws(4))
def test_two_rooms_agree_on_two_races_with_one_noise(p: Law, q: Law) -> None:
    pairs = race_pair(p, q)
    assert {(i, j): mass for i in range(4) for j in range(4) if (mass := both_winners(p, q, i, j))} == pairs
    assert sum(pairs.values()) == 1


def test_the_right_row_gives_the_target() -> None:
    world = catalogue("coupled")[2].world()
    assert completed(following(world), world) == joint(world)
