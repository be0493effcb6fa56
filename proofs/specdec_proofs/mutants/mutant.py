"""What a mutant is: a fault, where it is judged, what it must emit there, and who has to notice."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from specdec_proofs.enumerate import Emitted
from specdec_proofs.integrate import Measured, measure, measure_tree
from specdec_proofs.mutants.edit import Edit, decide, tape
from specdec_proofs.worlds import World

__all__ = ["BOTH", "EXACT", "SAMPLED", "Mutant"]

EXACT, SAMPLED = "exact", "sampled"
BOTH = (EXACT, SAMPLED)
PROBES = 16  # points in each box: fewer than for the rules, since a mutant's law is held against a closed form besides


class Mutant(NamedTuple):
    """A fault, as a change of the source that ships, or as a proposer that misreports its law to it.

    Attributes:
        name: one line.
        number: its number in the catalogue of reference laws; chain, block, tree and coupling mutants, and equivalents, have none.
        edits: the changes; none where the fault is the proposer's, which then is in the world.
        world: where it is judged.
        law: the law it must emit there, from the mathematics.
        length: how many tokens of the completed sequence the statistics look at.
        draft_rows: rows of ``Draft.probs`` it reads, K unless given.
        verifier: the room whose ``decide`` it is.
        killers: which kinds of claim must reject it: the exact law of its code, and a sample of at most 1e6 draws. The exact law alone where
            more are needed, the sample alone where the fault is in the addresses and not in ``decide``.
        others: further worlds on which it is judged.
        branches: children a node of the trees it is judged on; None for chains.
        replacement: whether those are drawn with replacement.
        formless: whether its verdicts lack the form of one, since they count tokens as accepted that were not drafted; that alone would give it
            away, and its law is looked at all the same.
    """

    name: str
    number: int | None
    edits: tuple[Edit, ...]
    world: Callable[[], World]
    law: Callable[[World], Emitted]
    length: int
    draft_rows: int | None = None
    verifier: str = "token"
    killers: tuple[str, ...] = BOTH
    others: tuple[Callable[[], World], ...] = ()
    branches: int | None = None
    replacement: bool = False
    formless: bool = False

    def decide(self) -> Callable[..., Any]:
        """The edited rule; raises ValueError where an edit no longer fits the source."""
        return decide(self.edits, self.verifier)

    def tape(self) -> Callable[..., Any]:
        """The function that draws the mutant's tape: the verifier's own, unless the addresses are what was edited."""
        return tape(self.edits, self.verifier)

    def fair(self) -> World:
        """Its world with a proposer that tells the law it draws from: there the rule that ships must pass."""
        world = self.world()
        return world if world.told is None else world._replace(draft=world.told, told=None)

    def measured(self, dtype: torch.dtype = torch.float64, world: World | None = None) -> Measured:
        """The exact law of its code, on its own world unless another is given, over chains or over its trees."""
        world = self.world() if world is None else world
        if self.branches is None:
            found = measure(self.decide(), world, dtype, draft_rows=self.draft_rows, probes=PROBES)
        else:
            found = measure_tree(self.decide(), world, self.branches, dtype, replacement=self.replacement, probes=PROBES)
        if self.formless:
            return found._replace(violations=tuple(one for one in found.violations if not one.startswith("a verdict has")))
        return found
