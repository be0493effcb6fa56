"""Mutants of block verification: their laws on several worlds, their code against those laws, and the rule itself by the same room of laws."""

import math

import pytest
import torch

from specdec_fn.random import key
from specdec_fn.speculate import verifiers
from specdec_proofs.block_rule import block as by_the_book
from specdec_proofs.chi2 import pearson
from specdec_proofs.enumerate import completed, is_lossless, joint, total_variation
from specdec_proofs.integrate import measure
from specdec_proofs.mutants import Mutant, below_gate, catalogue, equivalents
from specdec_proofs.mutants.blocks import reference
from specdec_proofs.mutants.laws_block import block
from specdec_proofs.power import needed, plan
from specdec_proofs.sample import cells, histogram, sample
from specdec_proofs.worlds import chain_reference, mixed_tables, softmax, toy

BOOK = {"coin": "naive", "residual": "token_residual", "scan": "first_failure", "uncapped": "uncapped"}


def tv(mutant: Mutant, number: int = 0) -> float:
    world = (mutant.world, *mutant.others)[number]()
    return float(total_variation(completed(mutant.law(world), world), joint(world)))


def test_each_mutant_is_judged_on_four_worlds_or_more_and_seen_on_its_own() -> None:
    found = {mutant.name: [round(tv(mutant, number), 4) for number in range(1 + len(mutant.others))] for mutant in catalogue("block")}
    assert found == {
        "block: inner coin w_i": [0.1188, 0.1512, 0.1, 0.0889, 0.1065],
        "block: residual of token verification": [0.0144, 0.0, 0.0, 0.04, 0.0106],  # invisible on two worlds, as the catalogue warns
        "block: stops at the first failure": [0.3207, 0.3478, 0.1667, 0.1026, 0.1979],
        "block: last coin from the uncapped ratio": [0.0364, 0.0428, 0.0625, 0.0, 0.0384],
    }


def test_the_uncapped_last_step_on_the_published_toy() -> None:
    """p = (1/3, 2/3), q reversed, K = 2: total variation exactly 1/9, Pr[1, 0] = 1/3 in place of 2/9, mean accepted 4/3."""
    from fractions import Fraction

    from specdec_proofs.enumerate import expected_emitted
    from specdec_proofs.worlds import independent

    world = independent([1, 2], [2, 1], 2)
    law = block(world, "uncapped")
    whole = completed(law, world)
    assert total_variation(whole, joint(world)) == Fraction(1, 9)
    assert sum(mass for x, mass in whole.items() if x[:2] == (1, 0)) == Fraction(1, 3)
    assert expected_emitted(law) == 1 + Fraction(4, 3)
    assert expected_emitted(block(world)) == 1 + Fraction(11, 9)


@pytest.mark.parametrize("seed", range(4))
def test_two_rooms_of_laws_agree(seed: int) -> None:
    for world in (mixed_tables(seed, 3, 2), mixed_tables(seed, 3, 3), softmax(seed, 3, 2)):
        assert is_lossless(block(world), world)
        assert block(world) == by_the_book(world)
        for wrong, flag in BOOK.items():
            assert block(world, wrong) == by_the_book(world, **{flag: True}), wrong


@pytest.mark.parametrize("mutant", [*catalogue("block"), *equivalents("block")], ids=lambda mutant: mutant.name)
def test_the_edited_code_emits_the_law_on_paper(mutant: Mutant) -> None:
    for place, world in enumerate(made() for made in (mutant.world, *mutant.others)):
        law = mutant.law(world)
        measured = mutant.measured(torch.float64 if place else torch.float32, world)
        assert measured.violations == ()
        assert total_variation(measured.emitted, law) < (1e-12 if place else 1e-6), world.name
        exact = total_variation(completed(law, world), joint(world))
        assert abs(measured.tv - exact) < (1e-12 if place else 1e-6)


@pytest.mark.parametrize("mutant", catalogue("block"), ids=lambda mutant: mutant.name)
def test_a_planned_sample_rejects_the_mutant_and_not_the_rule(mutant: Mutant) -> None:
    world = mutant.world()
    p, wrong = cells(world, joint(world), mutant.length), cells(world, completed(mutant.law(world), world), mutant.length)
    test = plan(p, wrong, least=math.ceil(needed(p, wrong)), most=100_000)
    values = []
    for decide in (mutant.decide(), verifiers["block"].decide):
        tokens = sample(decide, world, key(41), test.n, tape=mutant.tape()).tokens
        values.append(pearson(histogram(tokens, world.vocab, mutant.length), p, test.pool).p_value)
    assert values[0] <= 1e-6 < 1e-4 < values[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_grid_point_too_many_is_seen_by_impossible_mass_alone(dtype: torch.dtype) -> None:
    (mutant,) = below_gate("block")
    measured = mutant.measured(dtype)
    assert measured.violations == ()
    assert measured.tv <= {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
    assert 0 < measured.impossible <= 8 * {torch.float32: 2.0**-24, torch.float64: 2.0**-53}[dtype]
    assert measure(verifiers["block"].decide, mutant.world(), dtype).impossible == 0


def test_the_worlds_are_those_named() -> None:
    assert reference().name == "tables V=4 K=2 seed 12"
    assert [made().name for made in catalogue("block")[0].others][:2] == [chain_reference().name, toy().name]
