"""Which known fault a wrong law looks like: the nearest of the catalogue's mutants, by the law of the completed sequence."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from specdec_proofs.enumerate import completed
from specdec_proofs.integrate import measure
from specdec_proofs.sample import cells
from specdec_proofs.worlds import World

__all__ = ["Likeness", "known_laws", "nearest"]

NEAR = 0.25  # of the distance to the target's law: within it a fault has a name, if no other is nearly as near
SAME = 1e-6  # total variation from the target, below it a mutant is no fault on this world
Vector = NDArray[np.float64]


class Likeness(NamedTuple):
    """The mutant that a law is nearest to, its total variation from that mutant's law, and whether that is near enough to give it a name."""

    name: str
    distance: float
    near: bool


def known_laws(world: World, progress: Callable[[str], None] | None = None) -> Iterator[tuple[str, Vector]]:
    """The exact law of every mutant of the catalogue that can run on this world, over all completed sequences.

    >>> from specdec_proofs.worlds import toy
    >>> name, law = next(known_laws(toy(1)))
    >>> round(float(law.sum()), 9)
    1.0
    """
    from specdec_proofs.mutants import catalogue

    for mutant in catalogue("token", "block"):
        if progress:
            progress(f"comparing with the mutant {mutant.name}")
        try:
            decide: Callable[..., Any] = mutant.decide()
            rows = getattr(mutant, "draft_rows", None)
            measured = measure(decide, world, torch.float32, draft_rows=rows, probes=2)
            if measured.violations:
                measured = measure(decide, world, torch.float64, draft_rows=rows, probes=2)
        except Exception:  # one whose fault is not in decide, or that reads rows this world lacks, has no law here to compare with
            continue
        law = {x: mass for x, mass in measured.emitted.items() if x}
        if law and not measured.violations and measured.tv > SAME:  # some faults show on other worlds alone
            yield mutant.name, cells(world, completed(law, world), world.k + 1)


def nearest(found: Vector, target: Vector, known: Mapping[str, Vector], noise: float = 0.0) -> Likeness | None:
    """The known law nearest to ``found``; None where there is none.

    Args:
        found, target: laws over the completed sequences.
        known: name to law.
        noise: total variation by which ``found`` may be off, where it was sampled.

    >>> a, b, p = np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([0.5, 0.5])
    >>> nearest(np.array([0.96, 0.04]), p, {"always the first": a, "always the second": b})
    Likeness(name='always the first', distance=0.04..., near=True)
    """
    apart = {name: 0.5 * float(np.abs(found - law).sum()) for name, law in known.items()}
    if not apart:
        return None
    name = min(apart, key=lambda one: apart[one])
    return Likeness(name, apart[name], apart[name] - noise <= NEAR * 0.5 * float(np.abs(found - target).sum()))
