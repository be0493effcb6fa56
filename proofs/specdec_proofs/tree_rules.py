"""Verification of draft trees in fractions: from the root down, and from the leaves up.

A tree is drawn by a recursion of its own: ``branches[d]`` siblings under every node of depth d, with or without replacement, fewer where the
draft's law is exhausted, none after a prefix at which ``world.stop`` ends the draft. Depth is ``world.k``, so that ``is_lossless`` applies.

**Top-down**: a one-position rule of ``siblings`` at each node; descend into the accepted child; emit the rule's token where none is
accepted, a sample of p at a node without children. Lossless by induction, as the rule is at one position.

**Traversal** (leaf to root, arXiv 2505.12398). Every node holds the children that remain, a weight w, a residual target p and the law q of the
next child; at first w = 1 at the root, p and q the rows there.

    descend along first remaining children: w_child = min(1, w p(c) / q(c)), p and q of the child fresh
    at a node without remaining children: accept it with probability w and emit y ~ p; else delete it, and at its parent
        d = max(w p - q, 0), S = sum of d;  w <- S / (S + 1 - w) (0/0 := 1);  p <- d / S;  q <- the law of the next child; go on

The law of the next child is q again (with replacement) or q without c, renormalised (without). For siblings declared **one-hot** it is 1 at
each sibling in turn: the rule asks only that child j was drawn from q_j given what came before, and a given token was drawn from the one-hot
law. Then w_child = w p(c), and after a deletion w <- w (1 - p(c)) / (1 - w p(c)), p <- p without c: a duplicate has p(c) = 0 and changes nothing.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from specdec_proofs.enumerate import Emitted, residual
from specdec_proofs.siblings import Rule, draws, one_hot, with_replacement, without, without_replacement
from specdec_proofs.worlds import Law, Prefix, World

__all__ = ["Tree", "drafted_trees", "top_down", "traversal", "traversal_of"]

Tree = tuple[tuple[int, "Tree"], ...]
ONE, ZERO = Fraction(1), Fraction(0)


def drafted_trees(world: World, branches: Sequence[int], *, replacement: bool, prefix: Prefix = ()) -> Iterator[tuple[Tree, Fraction]]:
    """Every tree that can be drafted after a prefix, with its probability: pairs (token, subtree), siblings in the order drawn.

    >>> from specdec_proofs.worlds import toy
    >>> trees = list(drafted_trees(toy(1), [2], replacement=False))
    >>> trees[0], sum(mass for _, mass in trees)
    ((((0, ()), (1, ())), Fraction(1, 6)), Fraction(1, 1))
    """
    if len(prefix) == len(branches) or world.stop(prefix):
        yield (), ONE
        return
    for siblings, weight in draws(world.draft(prefix), branches[len(prefix)], replacement=replacement).items():
        below = [list(drafted_trees(world, branches, replacement=replacement, prefix=(*prefix, token))) for token in siblings]
        for choice in itertools.product(*below):
            mass = weight
            for _, share in choice:
                mass *= share
            yield tuple((token, subtree) for token, (subtree, _) in zip(siblings, choice, strict=True)), mass


def top_down(world: World, branches: Sequence[int], *, replacement: bool, rule: Rule | None = None) -> Emitted:
    """Law of the emitted sequence when a one-position rule is applied from the root down.

    Args:
        branches: number of children of a node of each depth, ``world.k`` of them.
        replacement: how siblings are drawn.
        rule: recursive rejection of the matching kind if None; for a world that declares its siblings one-hot, always ``one_hot``.

    >>> from specdec_proofs.enumerate import is_lossless, token
    >>> from specdec_proofs.worlds import toy
    >>> is_lossless(top_down(toy(), [2, 2], replacement=False), toy()), top_down(toy(), [1, 1], replacement=True) == token(toy())
    (True, True)
    """
    rule = one_hot if not world.soft else rule or (with_replacement if replacement else without_replacement)
    law: dict[Prefix, Fraction] = defaultdict(Fraction)

    def visit(prefix: Prefix, tree: Tree, weight: Fraction) -> None:
        siblings = tuple(token for token, _ in tree)
        for (which, token), mass in rule(world.target(prefix), world.draft(prefix), siblings).items():
            if which < 0:
                law[(*prefix, token)] += weight * mass
            else:
                visit((*prefix, token), tree[which][1], weight * mass)

    for tree, weight in drafted_trees(world, branches, replacement=replacement):
        visit((), tree, weight)
    return dict(law)


@dataclass
class _Node:
    """A node on the current path: what remains below it, its weight, its residual target, and the law of its next child."""

    children: Tree
    weight: Fraction
    p: Law
    q: Law


def traversal(world: World, branches: Sequence[int], *, replacement: bool, renormalise: bool = True) -> Emitted:
    """Law of the emitted sequence under traversal verification.

    Args:
        branches: number of children of a node of each depth, ``world.k`` of them.
        replacement: how siblings are drawn.
        renormalise: False leaves the draft's law as it is when a child is deleted (without replacement); wrong.

    >>> from specdec_proofs.block_rule import block
    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import toy
    >>> is_lossless(traversal(toy(), [2, 2], replacement=False), toy()), traversal(toy(), [1, 1], replacement=True) == block(toy())
    (True, True)
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    for tree, weight in drafted_trees(world, branches, replacement=replacement):
        for sequence, mass in traversal_of(world, tree, replacement=replacement, renormalise=renormalise).items():
            law[sequence] += weight * mass
    return dict(law)


def traversal_of(world: World, tree: Tree, *, replacement: bool, renormalise: bool = True) -> Emitted:
    """Law of the emitted sequence under traversal verification of one given tree.

    With siblings declared one-hot this is lossless for each tree by itself, wherever the tree comes from. With soft siblings only the mean over
    the trees that their laws draw is.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import declared_one_hot, toy
    >>> tree = ((2, ((0, ()), (0, ()))), (1, ()))
    >>> [is_lossless(traversal_of(world, tree, replacement=True), toy()) for world in (declared_one_hot(toy()), toy())]
    [True, False]
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    rest, prefix, path = ONE, Prefix(), [_Node(tree, ONE, world.target(()), world.draft(()))]
    while rest:
        node = path[-1]
        if node.children:
            token, subtree = node.children[0]
            q = _law(world, node, token)
            prefix = (*prefix, token)
            path.append(_Node(subtree, min(ONE, node.weight * node.p[token] / q[token]), world.target(prefix), world.draft(prefix)))
            continue
        for token, share in enumerate(node.p):
            if rest * node.weight * share:
                law[(*prefix, token)] += rest * node.weight * share
        rest *= 1 - node.weight
        path.pop()
        if rest:
            _delete_first(world, path[-1], replacement=replacement, renormalise=renormalise)
            prefix = prefix[:-1]
    return dict(law)


def _law(world: World, node: _Node, token: int) -> Law:
    """The law that the node's next child was drawn from, as the verifier is told."""
    return node.q if world.soft else tuple(ONE if t == token else ZERO for t in range(world.vocab))


def _delete_first(world: World, node: _Node, *, replacement: bool, renormalise: bool) -> None:
    token = node.children[0][0]
    q = _law(world, node, token)
    excess = tuple(max(node.weight * a - b, ZERO) for a, b in zip(node.p, q, strict=True))
    total = sum(excess, ZERO)
    below = total + 1 - node.weight
    if total:
        node.p = residual(excess, (ZERO,) * len(excess))
    node.weight = total / below if below else ONE
    node.children = node.children[1:]
    if not replacement:
        node.q = (without(node.q, token) or node.q) if renormalise else tuple(ZERO if t == token else x for t, x in enumerate(node.q))
