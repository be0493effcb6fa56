"""Drafts that branch, over a world: every tree that a proposer can draw, with its exact probability.

At each node the proposer draws up to ``branches`` children from the world's draft law there, with or without replacement, and below each child
it goes on, down to depth ``world.k``. Without replacement a drawn token is removed and the rest renormalised; where nothing is left there are
fewer children. The world's ``stop`` ends a branch, not the tree. Several drafts of one token are the case of depth 1, chains that of one branch.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from specdec_proofs.worlds import Law, Prefix, World

__all__ = ["Tree", "family", "grow", "heads", "tree_drafts"]

Nested = tuple[tuple[int, Any], ...]  # the children of a node in the order drawn: token, and what hangs under it
ONE = Fraction(1)


class Tree(NamedTuple):
    """The nodes of a draft that branches, parents before children and siblings in the order drawn.

    Attributes:
        tokens: one id a node.
        parents: the node above each node, -1 for the context.
    """

    tokens: Prefix
    parents: Prefix


def tree_drafts(world: World, branches: int, *, replacement: bool, breadth_first: bool = False) -> Iterator[tuple[Tree, Fraction]]:
    """Every tree the proposer can draw, with its exact probability.

    Args:
        world: depth is ``world.k``; its draft law after a prefix is that of the children there.
        branches: children a node, at most.
        replacement: whether siblings are drawn from one law all, so that a token may come twice.
        breadth_first: node order: all nodes of one depth before the next, instead of each child before its next sibling.

    Raises:
        ValueError: ``branches`` is less than 1.

    >>> from specdec_proofs.worlds import toy
    >>> made = list(tree_drafts(toy(), 2, replacement=False))
    >>> len(made), sum(mass for _, mass in made), made[0][0]
    (216, Fraction(1, 1), Tree(tokens=(0, 0, 1, 1, 0, 1), parents=(-1, 0, 0, -1, 3, 3)))
    """

    def siblings(prefix: Prefix) -> Mapping[Prefix, Fraction]:
        law = world.draft(prefix)

        def following(drawn: Prefix) -> Law | None:
            left = [Fraction(0) if token in drawn and not replacement else share for token, share in enumerate(law)]
            total = sum(left)
            return tuple(share / total for share in left) if total else None

        return family(following, branches)

    return grow(world, siblings, breadth_first=breadth_first)


def family(following: Callable[[Prefix], Law | None], branches: int) -> dict[Prefix, Fraction]:
    """Law of the siblings under one node, in the order drawn.

    Args:
        following: the law of the next sibling after those drawn, None where nothing is left to draw.

    Raises:
        ValueError: ``branches`` is less than 1.

    >>> half = (Fraction(1, 2), Fraction(1, 2))
    >>> family(lambda drawn: half if not drawn else None, 2)
    {(0,): Fraction(1, 2), (1,): Fraction(1, 2)}
    """
    if branches < 1:
        raise ValueError(f"branches is {branches}; expected 1 or more children a node")
    whole: dict[Prefix, Fraction] = {}
    level: dict[Prefix, Fraction] = {(): ONE}
    for _ in range(branches):
        after = {drawn: following(drawn) for drawn in level}
        whole |= {drawn: mass for drawn, mass in level.items() if after[drawn] is None}
        level = {(*drawn, t): mass * share for drawn, mass in level.items() for t, share in enumerate(after[drawn] or ()) if share}
    return whole | level


def grow(world: World, siblings: Callable[[Prefix], Mapping[Prefix, Fraction]], *, breadth_first: bool = False) -> Iterator[tuple[Tree, Fraction]]:
    """Every tree whose siblings under a prefix follow ``siblings(prefix)``, independently from node to node, with its probability.

    >>> from specdec_proofs.worlds import toy
    >>> [(tree.tokens, str(mass)) for tree, mass in grow(toy(1), lambda prefix: {(2, 0): ONE})]
    [((2, 0), '1')]
    """

    @functools.cache
    def under(prefix: Prefix) -> list[tuple[Nested, Fraction]]:
        if len(prefix) == world.k or world.stop(prefix):
            return [((), ONE)]
        made = []
        for tokens, share in siblings(prefix).items():
            for below in itertools.product(*(under((*prefix, token)) for token in tokens)):
                mass = math.prod((mass for _, mass in below), start=share)
                made.append((tuple(zip(tokens, (nested for nested, _ in below), strict=True)), mass))
        return made

    for nested, mass in under(()):
        yield _flat(nested, breadth_first), mass


def heads(tree: Tree) -> list[Prefix]:
    """The tokens above each node, its own left out: the prefix its law stands after.

    >>> heads(Tree((5, 6, 7), (-1, 0, 0)))
    [(), (5,), (5,)]
    """
    above: list[Prefix] = []
    for parent in tree.parents:
        above.append((*above[parent], tree.tokens[parent]) if parent >= 0 else ())
    return above


def _flat(nested: Nested, breadth_first: bool) -> Tree:
    tokens: list[int] = []
    parents: list[int] = []
    waiting = [(-1, token, below) for token, below in nested]
    while waiting:
        parent, token, below = waiting.pop(0)
        children = [(len(tokens), *child) for child in below]
        tokens.append(token)
        parents.append(parent)
        waiting = waiting + children if breadth_first else children + waiting
    return Tree(tuple(tokens), tuple(parents))
