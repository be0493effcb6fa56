"""Laws of the mutants of tree verification, from the mathematics alone: what each emits, in fractions, over every tree that can be drawn.

``top_down`` tries the siblings at each node in turn and descends into the first that passes; ``traversal`` gives every node a coin, in postorder,
and keeps the first that shows heads; ``k_seq`` judges each sibling against the same scaled ratio. Each mutant has one part exchanged.
"""

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from specdec_proofs.enumerate import Emitted, residual
from specdec_proofs.siblings import k_seq_division
from specdec_proofs.trees import Tree, tree_drafts
from specdec_proofs.worlds import Law, Prefix, World

__all__ = ["k_seq", "top_down", "traversal"]

ONE, ZERO = Fraction(1), Fraction(0)


def top_down(world: World, branches: int, wrong: str = "", *, replacement: bool = False) -> Emitted:
    """Law of the emitted sequence under top-down verification with one part exchanged.

    Args:
        wrong: "" for none; "unnormalised": the removed sibling leaves a law that is not renormalised; "removal": siblings drawn without
            replacement are left in the law, or those drawn with it removed; "stale": a rejection does not change what is left of p;
            "grandparent": siblings are tried against the row before their parent; "bonus": so is the token after a leaf.
        replacement: how siblings were drawn.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.mutants.trees import sparse
    >>> [is_lossless(top_down(sparse(), 2, wrong), sparse()) for wrong in ("", "unnormalised", "removal", "stale", "grandparent", "bonus")]
    [True, False, False, False, False, False]
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    removes = replacement == (wrong == "removal")

    def visit(tree: Tree, node: int, head: Prefix, mass: Fraction) -> None:
        below = _children(tree, node)
        early = (wrong == "grandparent" and below) or (wrong == "bonus" and not below)
        left, q = world.target(head[:-1] if early else head), world.draft(head)
        for child in below:
            token = tree.tokens[child]
            passes = min(ONE, left[token] / q[token]) if q[token] else Fraction(int(left[token] > 0))
            if mass * passes:
                visit(tree, child, (*head, token), mass * passes)
            mass *= 1 - passes
            left = left if wrong == "stale" else residual(left, q)
            q = _removed(q, token, normalised=wrong != "unnormalised") if removes else q
        for token, share in enumerate(left):
            law[(*head, token)] += mass * share

    for tree, weight in tree_drafts(world, branches, replacement=replacement):
        visit(tree, -1, (), weight)
    return {x: mass for x, mass in law.items() if mass}


class _Coin(NamedTuple):
    """A node that may be kept: its number, the tokens down to it, the chance of heads, the weights of the token after it."""

    node: int
    head: Prefix
    weight: Fraction
    law: Law


def traversal(world: World, branches: int, wrong: str = "") -> Emitted:
    """Law of the emitted sequence under traversal verification, siblings without replacement, with one part exchanged.

    Args:
        wrong: "" for none; "carried": a child's weight starts from 1 and not from its parent's; "update": a deletion leaves the parent's weight;
            "residual": the excess is taken without the weight; "unnormalised": as in ``top_down``; "scan": the nodes are scanned from the root.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.mutants.trees import sparse
    >>> [is_lossless(traversal(sparse(), 2, wrong), sparse()) for wrong in ("", "carried", "update", "residual", "unnormalised", "scan")]
    [True, False, False, False, False, False]
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)

    def coins(tree: Tree, node: int, head: Prefix, weight: Fraction) -> Iterator[_Coin]:
        left, q = world.target(head), world.draft(head)
        for child in _children(tree, node):
            token = tree.tokens[child]
            yield from coins(tree, child, (*head, token), min(ONE, (ONE if wrong == "carried" else weight) * left[token] / q[token]))
            excess = [max(weight * a - b, ZERO) for a, b in zip(left, q, strict=True)]
            room = sum(excess, ZERO) + 1 - weight
            left = residual(left if wrong == "residual" else tuple(weight * a for a in left), q)  # weights, where nothing exceeds q
            if wrong != "update":
                weight = sum(excess, ZERO) / room if room else ONE
            q = _removed(q, token, normalised=wrong != "unnormalised")
        yield _Coin(node, head, weight, left)

    for tree, mass in tree_drafts(world, branches, replacement=False):
        *nodes, root = coins(tree, -1, (), ONE)
        for coin in (*(sorted(nodes) if wrong == "scan" else nodes), root._replace(weight=ONE)):
            for token, share in enumerate(coin.law if coin.weight else ()):
                law[(*coin.head, token)] += mass * coin.weight * share / sum(coin.law)
            mass *= 1 - coin.weight
    return {x: mass for x, mass in law.items() if mass}


def k_seq(world: World, branches: int, wrong: str = "") -> Emitted:
    """Law of the emitted sequence under k-SEQ at one position (K = 1), with one part exchanged.

    Args:
        wrong: "" for none; "scale": the scale is 1; "tries": the law left when none passed is that after one try.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> world = independent([2, 1, 1], [1, 2, 1])
    >>> [is_lossless(k_seq(world, 2, wrong), world) for wrong in ("", "scale", "tries")]
    [True, False, False]
    """
    assert world.k == 1
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    p, q = world.target(()), world.draft(())
    for tree, mass in tree_drafts(world, branches, replacement=True):
        scale = ONE if wrong == "scale" else k_seq_division(p, q, len(tree.tokens))
        served = [min(a / scale, b) for a, b in zip(p, q, strict=True)]
        one = sum(served, ZERO)
        some = one if wrong == "tries" else 1 - (1 - one) ** len(tree.tokens)
        for token in tree.tokens:
            passes = min(ONE, p[token] / (scale * q[token]))
            for bonus, share in enumerate(world.target((token,))):
                law[token, bonus] += mass * passes * share
            mass *= 1 - passes
        weights = [max(a - (b * some / one if one else ZERO), ZERO) for a, b in zip(p, served, strict=True)]
        total = sum(weights, ZERO)
        for token, weight in enumerate(weights if total else p):
            law[(token,)] += mass * (weight / total if total else weight)
    return {x: mass for x, mass in law.items() if mass}


def _children(tree: Tree, node: int) -> list[int]:
    return [child for child, parent in enumerate(tree.parents) if parent == node]


def _removed(q: Law, token: int, *, normalised: bool) -> Law:
    """The law without a token; the law itself where nothing is left."""
    rest = tuple(ZERO if t == token else share for t, share in enumerate(q))
    total = sum(rest, ZERO)
    return tuple(share / total for share in rest) if normalised and total else rest if total else q
