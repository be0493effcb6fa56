"""What a long run samples: a verifier over a world is a row, and a batch of a row is a function of their names and the batch's number.

Nothing else goes into a batch, so it does not matter which process makes it, nor when, nor in which order.
"""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec_fn import random
from specdec_fn.speculate import verifiers
from specdec_proofs import sample
from specdec_proofs.enumerate import joint
from specdec_proofs.worlds import World, chain_reference, cold, declared_one_hot, greedy_draft, mixed_tables, softmax, stopping, toy, wide

__all__ = ["BATCH", "PLACES", "Place", "Row", "batch", "law", "place", "rows"]

BATCH = 50_000  # passes of a batch
SEED = 20_241  # not the one of the claims with fixed sizes: these draws are fresh
CHAINS = ("token", "block", "coupled")
WITH_REPLACEMENT = ("multi_draft", "k_seq")
WITHOUT_REPLACEMENT = ("multi_draft_without_replacement", "tree", "traversal")


class Place(NamedTuple):
    """A world and who is tried on it.

    Attributes:
        name: what tables and files call it.
        world: makes it.
        length: tokens of the completed sequence whose joint law is tested.
        verifiers: names; those that the registry does not have are left out.
        branches: drafted children of each node of a tree as deep as the world drafts; 0 for a chain.
        replacement: whether siblings are drawn with replacement.
    """

    name: str
    world: Callable[[], World]
    length: int
    verifiers: tuple[str, ...]
    branches: int = 0
    replacement: bool = False


class Row(NamedTuple):
    """A verifier over a world, by their names."""

    verifier: str
    world: str

    def __str__(self) -> str:
        return f"{self.verifier} on {self.world}"


PLACES = (
    Place("reference chain", chain_reference, 3, CHAINS),
    Place("reference chain, one-hot", lambda: declared_one_hot(chain_reference()), 3, CHAINS),
    Place("reference chain, greedy draft", lambda: greedy_draft(chain_reference()), 3, CHAINS),
    Place("reference chain, varying length", lambda: stopping(chain_reference()), 3, CHAINS),
    Place("toy bigram K=3", lambda: toy(3), 4, CHAINS),
    Place("tables with zeros", lambda: mixed_tables(2, 4, 2), 3, CHAINS),
    Place("softmax V=6 K=3", lambda: softmax(0), 4, CHAINS),
    Place("bigram V=64 K=4", wide, 2, ("token", "block")),  # the race of so many tokens takes a minute
    Place("softmax at temperature 0", lambda: cold(softmax(1, 4, 2)), 3, ("greedy", *CHAINS)),
    Place("reference tree, with replacement", chain_reference, 3, WITH_REPLACEMENT, 2, True),
    Place("reference tree, without replacement", chain_reference, 3, WITHOUT_REPLACEMENT, 2),
)


def rows() -> tuple[Row, ...]:
    """Every row that the verifiers of the registry allow, in the order of ``PLACES``.

    >>> rows()[0]
    Row(verifier='token', world='reference chain')
    """
    return tuple(Row(name, one.name) for one in PLACES for name in one.verifiers if name in verifiers.all)


def place(name: str) -> Place:
    """The place of a name.

    Raises:
        ValueError: there is none.

    >>> place("reference chain").length
    3
    """
    for one in PLACES:
        if one.name == name:
            return one
    raise ValueError(f"no world is called {name!r}; the known ones are {', '.join(one.name for one in PLACES)}")


def law(name: str) -> NDArray[np.float64]:
    """The target's joint law on a world, float64 [V**length], exact until it is rounded here.

    >>> law("reference chain").shape
    (27,)
    """
    one = place(name)
    world = one.world()
    return sample.cells(world, joint(world, length=one.length), one.length)


def batch(row: Row, number: int, n: int = BATCH, decide: Callable[..., Any] | None = None) -> NDArray[np.int64]:
    """Counts of ``n`` completed passes, int64 [V**length], in the cells of ``law``; the same in every process.

    Args:
        row: names of a verifier and a world.
        number: of the batch, in [0, 2**32).
        n: passes.
        decide: a mutant's rule in place of the verifier's.

    >>> int(batch(Row("token", "reference chain"), 0, 500).sum())
    500
    """
    one, verifier = place(row.world), verifiers.all[row.verifier]
    world, rule = one.world(), verifier.decide if decide is None else decide
    key = random.fold_in(random.fold_in(random.key(SEED), zlib.crc32(str(row).encode())), number)
    if one.branches:
        drawn = sample.sample_trees(rule, world, one.branches, key, n, replacement=one.replacement, tape=verifier.tape)
    else:  # a coupled drafter runs the verifier's own race
        drawn = sample.sample(rule, world, key, n, tape=verifier.tape, raced=row.verifier == "coupled")
    return sample.histogram(drawn.tokens, world.vocab, one.length)
