"""Drafts that branch: every tree with its probability, and the exact law of float code on them, held against a rule written here."""

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn.sampling import draw
from specdec_fn.speculate import Draft, Tape, Verdict, verifiers
from specdec_proofs.enumerate import emitted_lengths, residual, token, total_variation
from specdec_proofs.integrate import law, measure, measure_tree, tree_law, tree_tensors
from specdec_proofs.trees import Tree, family, grow, heads, tree_drafts
from specdec_proofs.worlds import World, declared_one_hot, drafts, independent, mixed_tables, softmax, stopping, toy


def reference(tape: Tape, target_probs: torch.Tensor, draft: Draft, *, replacement: bool = False, renormalise: bool = True) -> Verdict:
    """Top-down recursive rejection: first what every node's siblings leave of its law, then who is accepted; nothing of the shipped rules."""
    nodes, vocab = draft.tokens.shape[0], target_probs.shape[1]
    assert draft.parents is not None
    rest, left = target_probs, torch.zeros_like(target_probs)
    tried = torch.zeros(nodes + 1, dtype=torch.bool)
    reached, taken = torch.arange(nodes + 1) == 0, torch.zeros(nodes + 1, dtype=torch.bool)
    for i in range(nodes):
        row = torch.arange(nodes + 1) == draft.parents[i] + 1
        there = i < draft.length
        t = torch.where(there, draft.tokens[i], 0)
        r = torch.where(row[:, None], rest, 0).sum(0)
        fresh = torch.nn.functional.one_hot(t, vocab).to(r.dtype) if draft.probs is None else draft.probs[i]
        again = (row & tried).any() & (not replacement) & (draft.probs is not None)
        q = torch.where(again, torch.where(row[:, None], left, 0).sum(0), fresh)
        at = torch.arange(vocab) == t
        passes = there & (tape.accept[i] * torch.where(at, q, 0).sum() < torch.where(at, r, 0).sum())
        hit = passes & (row & reached & ~taken).any()
        taken = taken | (row & hit)
        reached = reached | ((torch.arange(nodes + 1) == i + 1) & hit)
        excess = torch.clamp(r - q, min=0)
        smaller = torch.where(at, 0, q)
        smaller = smaller / torch.where(smaller.sum() > 0, smaller.sum(), 1) if renormalise else smaller
        changes = (row & there)[:, None]
        rest = torch.where(changes & (excess.sum() > 0), excess / torch.where(excess.sum() > 0, excess.sum(), 1), rest)
        left, tried = torch.where(changes, smaller, left), tried | (row & there)
    last = torch.where(reached, torch.arange(nodes + 1), 0).max()
    final = draw(tape.final, torch.where((torch.arange(nodes + 1) == last)[:, None], rest, 0).sum(0))
    accepted = reached[1:].sum()
    order = torch.where(reached[1:], torch.arange(nodes), nodes).sort().values
    lane = torch.arange(nodes + 1)
    path = torch.where(lane[:nodes] < accepted, order, -1)
    kept = torch.nn.functional.pad(draft.tokens.gather(0, order.clamp(max=nodes - 1)), (0, 1), value=-1)
    tokens = torch.where(lane < accepted, kept, torch.where(lane == accepted, final, -1))
    return Verdict(tokens, accepted, accepted + 1, path)


with_replacement = functools.partial(reference, replacement=True)
not_renormalised = functools.partial(reference, renormalise=False)


def rare(vocab: int, k: int) -> World:
    """Tables with zeros and one-hots, which exhaust."""
    return mixed_tables(5, vocab, k, zeros=0.5)


def test_the_trees_of_the_brief_case() -> None:
    """V=3, depth 2, 2 branches: 6**3 trees without replacement and 9**3 with; probabilities from their product formula."""
    world = softmax(0, 3, 2)
    made = dict(tree_drafts(world, 2, replacement=False))
    assert len(made) == 216
    assert sum(made.values()) == 1
    for tree, mass in made.items():
        assert tree.parents == (-1, 0, 0, -1, 3, 3)
        wanted = Fraction(1)
        for first, second, head in ((0, 3, ()), (1, 2, tree.tokens[:1]), (4, 5, tree.tokens[3:4])):
            q = world.draft(head)
            wanted *= q[tree.tokens[first]] * q[tree.tokens[second]] / (1 - q[tree.tokens[first]])
        assert mass == wanted
    again = dict(tree_drafts(world, 2, replacement=True))
    assert len(again) == 729
    assert sum(again.values()) == 1
    twice = Tree((1, 0, 0, 1, 2, 0), (-1, 0, 0, -1, 3, 3))
    q, below = world.draft(()), world.draft((1,))
    assert again[twice] == q[1] ** 2 * below[0] ** 3 * below[2]


def test_one_branch_is_a_chain() -> None:
    for world in (stopping(toy(3)), rare(4, 2)):
        for replacement in (False, True):
            assert {tree.tokens: mass for tree, mass in tree_drafts(world, 1, replacement=replacement)} == dict(drafts(world))


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(2, 3), st.integers(0, 2), st.integers(1, 3), st.booleans())
def test_trees_are_a_law_in_a_lawful_order(seed: int, vocab: int, depth: int, branches: int, replacement: bool) -> None:
    world = stopping(mixed_tables(seed, vocab, depth))
    if branches == 3 and depth == 2:
        branches = 2
    total = Fraction(0)
    for tree, mass in tree_drafts(world, branches, replacement=replacement):
        total += mass
        above = heads(tree)
        for i, (parent, head) in enumerate(zip(tree.parents, above, strict=True)):
            assert parent < i
            own = [tree.tokens[j] for j, other in enumerate(tree.parents) if other == parent]
            support = sum(share > 0 for share in world.draft(head))
            assert len(own) == (branches if replacement else min(branches, support)), "fewer children only where nothing is left"
            assert replacement or len(set(own)) == len(own)
            assert not world.stop(head)
    assert total == 1


def test_breadth_first_is_another_order_of_the_same_trees() -> None:
    world = softmax(0, 3, 2)

    def nested(tree: Tree, parent: int = -1) -> Any:
        return tuple((tree.tokens[i], nested(tree, i)) for i, above in enumerate(tree.parents) if above == parent)

    deep = {nested(tree): mass for tree, mass in tree_drafts(world, 2, replacement=False)}
    wide = {nested(tree): mass for tree, mass in tree_drafts(world, 2, replacement=False, breadth_first=True)}
    assert deep == wide
    assert next(tree_drafts(world, 2, replacement=False, breadth_first=True))[0].parents == (-1, -1, 0, 0, 1, 1)


def test_siblings_as_the_sampler_draws_them() -> None:
    """The float sampler on a row with a token set to 0: its law within its rounding of the fractions, and never that token."""
    for replacement in (False, True):
        measured, violations, _ = tree_law(rare(3, 2), 2, torch.float64, replacement=replacement)
        exact = dict(tree_drafts(rare(3, 2), 2, replacement=replacement))
        assert violations == []
        assert measured.keys() == exact.keys()
        assert sum(measured.values()) == 1
        assert sum(abs(measured[tree] - mass) for tree, mass in exact.items()) < 1e-14


def test_padding_of_a_tree_is_hostile() -> None:
    tables = tree_tensors(toy(), [Tree((0, 1), (-1, 0)), Tree((2,), (-1,))], torch.float64)
    assert tables.draft.probs is not None
    assert torch.isnan(tables.target[1, 2]).all()
    assert torch.isnan(tables.draft.probs[1, 1]).all()
    assert tables.draft.tokens.tolist() == [[0, 1], [2, -1]]
    assert tables.target[0].tolist() == [[float(p) for p in toy().target(head)] for head in ((), (0,), (0, 1))]


@pytest.mark.parametrize(("dtype", "gate"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_the_rule_written_here_is_within_the_gate(dtype: torch.dtype, gate: float) -> None:
    measured = measure_tree(reference, softmax(0, 3, 2), 2, dtype, replacement=False)
    assert measured.violations == ()
    assert measured.impossible == 0
    assert 0 < measured.tv <= gate
    assert sum(measured.emitted.values()) == 1


def small_worlds() -> list[tuple[World, int]]:
    return [
        (softmax(1, 2, 2), 2),
        (softmax(1, 4, 1), 3),
        (rare(4, 1), 3),
        (mixed_tables(0, 2, 2), 2),
        (declared_one_hot(mixed_tables(2, 3, 1)), 2),
        (declared_one_hot(softmax(3, 2, 2)), 2),
        (stopping(softmax(4, 2, 2)), 2),
    ]


SHIPPED = [
    ("tree", False),
    ("traversal", False),
    ("multi_draft", True),
    ("multi_draft_without_replacement", False),
    ("k_seq", True),
]


@pytest.mark.parametrize(("name", "replacement"), SHIPPED)
def test_shipped_rules_are_within_the_gate(name: str, replacement: bool) -> None:
    """Zeros, one-hots, ties, exhausted laws, one-hot drafts, branches that end early, in both dtypes."""
    for world, branches in small_worlds():
        if name == "k_seq" and world.vocab**world.k == 4:  # slow; depth 2 is its rule of depth 1 again
            world = world._replace(k=1)
        measured = measure_tree(verifiers[name].decide, world, min(branches, 2) if name == "k_seq" else branches, replacement=replacement, probes=16)
        assert measured.violations == ()
        assert measured.impossible == 0
        assert measured.tv <= 1e-14
    measured = measure_tree(verifiers[name].decide, softmax(5, 3, 1), 2, torch.float32, replacement=replacement)
    assert measured.violations == ()
    assert measured.tv <= 1e-6


@pytest.mark.parametrize("replacement", [False, True])
def test_two_rules_written_apart_have_one_law(replacement: bool) -> None:
    rules = (with_replacement, verifiers["multi_draft"].decide) if replacement else (reference, verifiers["tree"].decide)
    for world, branches in (small_worlds()[0], small_worlds()[2], small_worlds()[4]):
        own, shipped = (measure_tree(rule, world, branches, replacement=replacement, probes=4) for rule in rules)
        assert total_variation(own.emitted, shipped.emitted) <= 1e-15


def test_node_order_does_not_matter() -> None:
    world = softmax(6, 2, 2)
    for name in ("tree", "traversal"):
        deep, wide = (measure_tree(verifiers[name].decide, world, 2, replacement=False, breadth_first=order) for order in (False, True))
        assert total_variation(deep.emitted, wide.emitted) <= 1e-15


def test_a_chain_is_a_tree_of_one_branch() -> None:
    world = stopping(mixed_tables(4, 3, 2))
    assert total_variation(measure_tree(verifiers["tree"].decide, world, 1, replacement=False).emitted, token(world)) <= 1e-15
    block, traversal = (measure(verifiers["block"].decide, world), measure_tree(verifiers["traversal"].decide, world, 1, replacement=False))
    assert total_variation(block.emitted, traversal.emitted) <= 1e-14


def test_acceptance_with_replacement_is_its_formula() -> None:
    """One position, n drafts: 1 - prod_j TV(r_j, q), in fractions."""
    world = independent([4, 1, 2, 3], [1, 3, 3, 2])
    r, q = world.target(()), world.draft(())
    misses = []
    for _ in range(3):
        misses.append(sum((max(a - b, Fraction(0)) for a, b in zip(r, q, strict=True)), Fraction(0)))
        r = residual(r, q)
    for n in (1, 2, 3):
        lengths = emitted_lengths(measure_tree(verifiers["multi_draft"].decide, world, n, replacement=True).emitted)
        assert float(lengths[2]) == pytest.approx(float(1 - math.prod(misses[:n])), abs=1e-14)


@pytest.mark.parametrize(
    ("decide", "replacement", "least"),
    [
        (not_renormalised, False, 0.01),
        (reference, True, 0.01),
        (with_replacement, False, 0.01),
        (verifiers["k_seq"].decide, False, 0.01),
    ],
    ids=["not renormalised", "drafts with replacement", "drafts without", "k-SEQ without"],
)
def test_wrong_rules_are_seen(decide: Callable[..., Verdict], replacement: bool, least: float) -> None:
    measured = measure_tree(decide, softmax(1, 3, 1), 2, replacement=replacement)
    assert measured.violations == ()
    assert measured.tv > least


def test_a_fault_below_the_first_depth_is_seen() -> None:
    """Siblings of depth 2 take the residual of the wrong node: at depth 1 nothing is wrong."""

    def rule(tape: Tape, target_probs: torch.Tensor, draft: Draft) -> Verdict:
        assert draft.parents is not None
        return reference(tape, torch.where((draft.parents[:, None] >= 0).any(0), target_probs.roll(1, 0), target_probs), draft)

    assert measure_tree(rule, softmax(1, 2, 1), 2, replacement=False).tv <= 1e-14
    assert measure_tree(rule, softmax(1, 2, 2), 2, replacement=False).tv > 0.01


Change = Callable[[Verdict, Draft], Verdict]


def _cousin(verdict: Verdict, draft: Draft) -> torch.Tensor:
    """A node of depth 2 with the second accepted token, under the other node of depth 1; the parents are -1, 0, 0, -1, 3, 3."""
    first = torch.where(verdict.path[0] == 0, 4, 1)
    return first + (draft.tokens.gather(0, first[None]).squeeze(0) != verdict.tokens[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda v, draft: v._replace(path=torch.where((torch.arange(6) == 1) & (v.accepted == 2), _cousin(v, draft), v.path)),
        lambda v, draft: v._replace(path=torch.where(v.path >= 0, 0, -1)),
        lambda v, draft: v._replace(path=v.path + (v.path >= 0)),
        lambda v, draft: v._replace(path=torch.where(torch.arange(6) == v.accepted, 0, v.path)),
        lambda v, draft: v._replace(tokens=torch.where((torch.arange(7) == 0) & (v.accepted > 0), (v.tokens + 1) % 2, v.tokens)),
        lambda v, draft: v._replace(emitted=v.emitted - 1, accepted=v.accepted - 1, tokens=torch.where(torch.arange(7) < v.accepted, v.tokens, -1)),
    ],
    ids=["the same token under another node", "one node again", "the node after", "a node too many", "another token", "cut short"],
)
def test_a_path_that_is_none_is_refused(change: Change) -> None:
    """What is kept of the cache must be the accepted nodes from the context down, and must hold the emitted tokens."""

    def rule(tape: Tape, target_probs: torch.Tensor, draft: Draft) -> Verdict:
        return change(reference(tape, target_probs, draft), draft)

    measured = measure_tree(rule, softmax(1, 2, 2), 2, replacement=False, probes=4)
    assert any("a verdict has" in violation for violation in measured.violations)


def test_a_sampler_that_forgets_what_was_drawn_is_refused() -> None:
    """It draws a sibling twice where there must be none: the ids that the law does not hold are a violation or a law of their own."""

    def forgetful(u: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        return draw(u, torch.where(probs > 0, probs, 0.25))

    row = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    assert law(row, forgetful)[0][0][2] > 0
    assert measure_tree(verifiers["tree"].decide, softmax(1, 3, 1), 2, replacement=False, draw=forgetful).tv > 0.01


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="branches is 0"):
        list(tree_drafts(toy(), 0, replacement=True))
    assert [tree for tree, _ in tree_drafts(toy(0), 2, replacement=True)] == [Tree((), ())]
    assert family(lambda drawn: None, 3) == {(): 1}
    assert dict(grow(toy(1), lambda prefix: {(): Fraction(1)})) == {Tree((), ()): 1}
    assert measure_tree(verifiers["tree"].decide, toy(0), 2, replacement=False).tv < 1e-15


def test_trees_without_a_node_are_measured_as_what_they_are() -> None:
    """A proposer that stops at once drafts nothing, though the world is two tokens deep: one token a pass, of the target's law."""
    idle = softmax(3, 2, 2)._replace(stop=lambda prefix: True)
    for name in ("tree", "traversal", "multi_draft"):
        measured = measure_tree(verifiers[name].decide, idle, 2, replacement=False)
        assert measured.tv <= 1e-14
        assert measured.violations == ()
        assert {len(sequence) for sequence in measured.emitted} == {1}
