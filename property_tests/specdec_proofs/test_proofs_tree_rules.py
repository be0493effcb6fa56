"""Trees in fractions: both ways to verify them are lossless, for soft and one-hot siblings; figures; wrong variants."""

import functools
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings

from specdec_proofs import strategies
from specdec_proofs.block_rule import block
from specdec_proofs.enumerate import completed, expected_emitted, is_lossless, joint, token, total_variation
from specdec_proofs.siblings import k_seq, with_replacement, without_replacement
from specdec_proofs.tree_rules import drafted_trees, top_down, traversal, traversal_of
from specdec_proofs.worlds import World, chain_reference, declared_one_hot, greedy_draft, independent, mixed_tables, normalised, prefixes, stopping

F = Fraction


def table_world(vocab: int, k: int, target: str, draft: str) -> World:
    """A world from rows of digits, one row a prefix, prefixes by length and then in order."""
    places = [x for length in range(k + 1) for x in prefixes(independent([1] * vocab, [1] * vocab), length)]
    laws = [{x: normalised(map(int, row)) for x, row in zip(places, rows.split(), strict=True)} for rows in (target, draft)]
    return World(f"V={vocab} depth {k}", vocab, k, laws[0].__getitem__, laws[1].__getitem__)


# Worlds on which an independent script (fractions too, other code) gives the mean accepted tokens of traversal, and of block on a chain.
FIGURES = (
    (
        table_world(3, 2, "984 935 484 174 917 391 511 525 926 922 557 228 344", "961 683 126 375 663 541 722 875 782 268 576 639 823"),
        False,
        1.778344671201814,
        1.513454131652661,
    ),
    (
        table_world(3, 2, "936 843 391 699 644 621 972 978 725 672 771 742 455", "345 635 319 632 875 615 451 446 843 778 991 846 325"),
        True,
        1.5143703854836472,
        1.3103646353646354,
    ),
    (
        table_world(3, 2, "033 304 057 977 111 111 113 111 500 111 205 111 111", "552 005 010 300 111 111 130 111 764 111 006 111 111"),
        False,
        1.105848861283644,
        0.8221618357487923,
    ),
    (
        table_world(2, 3, "95 58 22 72 52 62 22 65 99 65 78 84 45 27 97", "71 54 31 37 11 54 17 59 96 91 31 41 52 54 43"),
        False,
        3.0,
        2.086113972832723,
    ),
)
WORLDS = (
    *(mixed_tables(seed, 3, 2) for seed in range(6)),
    chain_reference(),
    stopping(mixed_tables(7, 3, 2), 1),
    stopping(chain_reference(), 2),
    declared_one_hot(chain_reference()),
    *(declared_one_hot(mixed_tables(seed, 3, 2)) for seed in range(8, 12)),
    declared_one_hot(stopping(mixed_tables(8, 3, 2))),
    greedy_draft(mixed_tables(9, 3, 2)),
)
both = pytest.mark.parametrize("replacement", [True, False], ids=["with", "without"])


@both
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize("verify", [top_down, traversal])
def test_trees_of_two_branches_are_verified_losslessly(world: World, verify, replacement: bool) -> None:
    law = verify(world, [2, 2], replacement=replacement)
    assert sum(law.values()) == 1
    assert is_lossless(law, world)


@pytest.mark.parametrize(
    ("branches", "replacement"), [((1, 3), False), ((1, 3), True), ((3, 1), True), ((4, 1), False), ((2, 0), True), ((2, 0), False), ((0, 0), True)]
)
@pytest.mark.parametrize("verify", [top_down, traversal])
def test_other_shapes(verify, branches: Sequence[int], replacement: bool) -> None:
    """Uneven trees, supports that are exhausted (four children of three tokens), leaves before the last depth, and no draft at all."""
    for world in (chain_reference(), mixed_tables(1, 3, 2), declared_one_hot(chain_reference())):
        assert is_lossless(verify(world, branches, replacement=replacement), world), world.name


@both
@pytest.mark.parametrize("verify", [top_down, traversal])
def test_depth_three(verify, replacement: bool) -> None:
    for world in (mixed_tables(3, 2, 3), declared_one_hot(mixed_tables(4, 2, 3)), FIGURES[3][0]):
        assert is_lossless(verify(world, [2, 2, 1], replacement=replacement), world), world.name


@settings(max_examples=15)
@given(world=strategies.worlds())
def test_any_small_world(world: World) -> None:
    for replacement in (True, False):
        branches = [2, 1][: world.k]
        laws = top_down(world, branches, replacement=replacement), traversal(world, branches, replacement=replacement)
        assert all(is_lossless(law, world) for law in laws)
        if world.k == 1 and (world.soft or not replacement):
            assert expected_emitted(laws[0]) == expected_emitted(laws[1])


@pytest.mark.parametrize("world", [chain_reference(), mixed_tables(2, 3, 3), declared_one_hot(chain_reference())], ids=lambda world: world.name)
def test_one_branch_is_a_chain(world: World) -> None:
    """Top-down is then token verification, traversal block verification: the same laws."""
    for replacement in (True, False):
        assert top_down(world, [1] * world.k, replacement=replacement) == token(world)
        assert traversal(world, [1] * world.k, replacement=replacement) == block(world)


@pytest.mark.parametrize("world", [declared_one_hot(chain_reference()), declared_one_hot(mixed_tables(4, 3, 2))], ids=lambda world: world.name)
def test_one_hot_siblings_are_verified_losslessly_tree_by_tree(world: World) -> None:
    """Why one-hot is right for siblings of any origin: the law is the target's for every single tree, duplicates among them."""
    trees = [tree for tree, _ in drafted_trees(independent([1] * 3, [1] * 3, 2), [2, 2], replacement=True)]
    assert len(trees) == 729
    for tree in trees[::4]:
        assert is_lossless(traversal_of(world, tree, replacement=True), world), tree
        assert traversal_of(world, tree, replacement=False) == traversal_of(world, tree, replacement=True)
    soft = world._replace(soft=True, draft=independent([1] * 3, [1] * 3, 2).draft)
    assert not all(is_lossless(traversal_of(soft, tree, replacement=True), world) for tree in trees[::40])


@pytest.mark.parametrize(("world", "replacement", "tree", "chain"), FIGURES, ids=lambda value: getattr(value, "name", None))
def test_figures(world: World, replacement: bool, tree: float, chain: float) -> None:
    """1.778 accepted tokens against 1.514 of block on a chain, and three more."""
    branches = [2] * world.k
    law = traversal(world, branches, replacement=replacement)
    assert is_lossless(law, world)
    assert float(expected_emitted(law)) - 1 == pytest.approx(tree, abs=1e-12)
    assert float(expected_emitted(block(world))) - 1 == pytest.approx(chain, abs=1e-12)
    assert expected_emitted(top_down(world, branches, replacement=replacement)) <= expected_emitted(law)


def test_k_seq_at_every_node() -> None:
    for world in (chain_reference(), mixed_tables(4, 3, 2)):
        assert is_lossless(top_down(world, [2, 2], replacement=True, rule=k_seq), world)
    wrong = functools.partial(k_seq, rho=F(1))
    assert not is_lossless(top_down(chain_reference(), [2, 2], replacement=True, rule=wrong), chain_reference())


def test_wrong_variants_are_seen() -> None:
    """A draft law that is not renormalised, and siblings drawn without replacement that are judged as if drawn with."""
    world = chain_reference()
    unscaled = functools.partial(without_replacement, renormalise=False)
    wrong = {
        "top-down, no renormalising": top_down(world, [2, 2], replacement=False, rule=unscaled),
        "top-down, drawn without, judged with": top_down(world, [2, 2], replacement=False, rule=with_replacement),
        "traversal, no renormalising": traversal(world, [2, 2], replacement=False, renormalise=False),
    }
    for name, law in wrong.items():
        assert not is_lossless(law, world), name
        assert total_variation(completed(law, world), joint(world)) > F(1, 1000), name


def test_trees_are_drawn_with_their_probability() -> None:
    world = chain_reference()
    for replacement in (True, False):
        trees = list(drafted_trees(world, [2, 1], replacement=replacement))
        assert sum(mass for _, mass in trees) == 1
        for tree, mass in trees:
            (a, below_a), (b, below_b) = tree
            q = world.draft(())
            second = q[b] if replacement else q[b] / (1 - q[a])
            assert mass == q[a] * second * world.draft((a,))[below_a[0][0]] * world.draft((b,))[below_b[0][0]]
