"""Mutants of the rules for drafts that branch: the code emits the law on paper, which is not the target's."""

import pytest
import torch

from specdec_proofs.enumerate import Emitted, completed, is_lossless, joint, total_variation
from specdec_proofs.mutants import BOTH, Mutant, catalogue
from specdec_proofs.mutants.laws_tree import k_seq, top_down, traversal
from specdec_proofs.mutants.trees import siblings, sparse
from specdec_proofs.tree_rules import top_down as top_down_by_the_book
from specdec_proofs.tree_rules import traversal as traversal_by_the_book
from specdec_proofs.worlds import World, mixed_tables

TV = {
    "tree: removed sibling leaves a law that does not sum to 1": 0.01603,  # published range at one position: .015 to .078
    "tree: removed sibling stays in the law": 0.01603,
    "tree: a rejection does not change what is left of p": 0.07127,
    "tree: children tried against the row before their parent": 0.05046,
    "tree: bonus from the row before the leaf": 0.20265,
    "traversal: a child's weight starts from 1": 0.06288,
    "traversal: a deletion leaves the parent's weight": 0.09158,
    "traversal: residual without the weight": 0.01244,
    "traversal: removed sibling leaves a law that does not sum to 1": 0.18182,
    "traversal: scan from the root": 0.10522,
    "multi_draft: siblings drawn with replacement removed": 0.02219,
    "k_seq: scale 1": 0.08136,  # published range: .03 to .09
    "k_seq: residual after one try": 0.04919,
}


def distance(law: Emitted, world: World) -> float:
    return float(total_variation(completed(law, world), joint(world)))


def test_figures() -> None:
    assert {mutant.name: round(distance(mutant.law(mutant.world()), mutant.world()), 5) for mutant in catalogue("tree")} == TV


@pytest.mark.parametrize("mutant", catalogue("tree"), ids=lambda mutant: mutant.name)
def test_the_edited_code_emits_the_law_on_paper(mutant: Mutant) -> None:
    world = mutant.world()
    law = mutant.law(world)
    assert sum(law.values()) == 1
    assert mutant.killers == BOTH
    measured = mutant.measured()
    assert measured.violations == ()
    assert total_variation(measured.emitted, law) < 1e-12
    assert float(measured.tv) == pytest.approx(TV[mutant.name], abs=1e-5)


def test_without_an_edit_the_mutants_are_the_rules() -> None:
    """In float32: what is measured of the rule that ships, by the same road, is the target's law."""
    for mutant in catalogue("tree"):
        if mutant.name.startswith(("tree: removed sibling stays", "multi_draft")):
            measured = mutant._replace(edits=()).measured(torch.float32)
            assert measured.violations == ()
            assert measured.tv < 1e-6


@pytest.mark.parametrize("world", [siblings(), sparse(), mixed_tables(1, 3, 2)], ids=lambda world: world.name)
def test_with_no_part_exchanged_the_laws_are_the_rules(world: World) -> None:
    for replacement in (False, True):
        law = top_down(world, 2, replacement=replacement)
        assert is_lossless(law, world)
        assert law == top_down_by_the_book(world, [2] * world.k, replacement=replacement)
    assert is_lossless(traversal(world, 2), world)
    assert traversal(world, 2) == traversal_by_the_book(world, [2] * world.k, replacement=False)
    if world.k == 1:
        assert is_lossless(k_seq(world, 2), world)


def test_a_law_that_does_not_sum_to_1_as_another_room_has_it() -> None:
    for world in (siblings(), sparse()):
        assert traversal(world, 2, "unnormalised") == traversal_by_the_book(world, [2] * world.k, replacement=False, renormalise=False)


def test_over_three_tokens_a_residual_without_its_weight_is_not_seen() -> None:
    """After a rejection and a removal the excess has one token left, so its scale is nothing: why the reference trees have four tokens."""
    for seed in (1, 3):
        world = mixed_tables(seed, 3, 2, zeros=0)
        assert distance(traversal(world, 2, "residual"), world) == 0
