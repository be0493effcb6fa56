"""What is claimed of the code that ships, all of it checked when asked, in three levels.

``QUICK`` is what fits in a minute, ``DEFAULT`` in about ten, ``DEEP`` in however long there is; each holds those before it. A room of claims is
one line of ``ROOMS``: a function that yields name, gate and measurement. What a long run adds beyond fixed sizes is in ``deep``.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from specdec_proofs import exact, exact_rules, killed, large, sampled, sequential, suspected
from specdec_proofs.claim import Claim, Figure, one_thread, settle

__all__ = ["DEEP", "DEFAULT", "LEVELS", "QUICK", "ROOMS", "Claim", "Room", "count", "of_room", "quick", "run"]

LEVELS = QUICK, DEFAULT, DEEP = "quick", "default", "deep"
Say = Callable[[str], None]


class Room(NamedTuple):
    """Where claims are listed.

    Attributes:
        name: of the family that its claims make.
        level: the first level that checks them.
        claims: yields name, gate and measurement of each.
        title: what a reader is told that they are about.
    """

    name: str
    level: str
    claims: Callable[[], Iterable[tuple[str, str, Callable[[], Figure]]]]
    title: str


ROOMS = (
    Room("exact", QUICK, exact.claims, "Exact laws of token verification: in fractions, and of the code by the volumes of its tape"),
    Room("exact rules", QUICK, exact_rules.claims, "Exact laws of the other rules: block, coupled, several drafts, trees"),
    Room("exact rules, longer", DEFAULT, exact_rules.longer, "Exact laws that take longer"),
    Room("mutants", QUICK, killed.exactly, "What is wrong and must be seen: mutants of the source, by their exact law"),
    Room("mutants, sampled", QUICK, killed.sampled, "The same mutants by samples, whose sizes were fixed before the data"),
    Room("mutants of trees, sampled", DEFAULT, killed.sampled_trees, "Mutants of trees by samples"),
    Room("sampled", QUICK, sampled.claims, "Samples drawn as an engine draws them, against laws known in advance"),
    Room("large vocabulary", DEFAULT, large.claims, "At 151,936 tokens: the sampler, the race, and what is rare"),
    Room("suspects", DEFAULT, suspected.claims, "A sampler that is not ours, and the faults put into its text"),
    Room("sequential", DEFAULT, sequential.claims, "Sequential tests: evidence that may be watched and stopped at any time"),
)


def run(level: str = QUICK, progress: Say | None = None, settled: Iterable[Claim] = ()) -> Iterator[Claim]:
    """Checks claim after claim and yields each when it is settled, in reading order; whoever stops listening stops the work.

    Args:
        level: one of ``LEVELS``.
        progress: called with the name of each claim before it is checked.
        settled: claims of an earlier run of the same program; they are yielded as they are.

    Raises:
        ValueError: an unknown level.

    >>> first = next(run())
    >>> first.name, first.figure, first.passed, first.family
    ('algorithm: law of token verification is p', 0.0, True, 'exact')
    """
    known = tuple(settled)
    for room in _rooms(level):
        yield from of_room(room, progress, known)


def of_room(room: Room, progress: Say | None = None, settled: Iterable[Claim] = ()) -> Iterator[Claim]:
    """Checks the claims of one room; arguments as for ``run``.

    >>> [claim.passed for claim in of_room(Room("one", QUICK, lambda: [("one is one", "== 1", lambda: Figure(1.0, True))], "One"))]
    [True]
    """
    known = {claim.name: claim for claim in settled if claim.family == room.name}
    for name, gate, measurement in room.claims():
        if name in known:
            yield known[name]
            continue
        if progress:
            progress(name)
        with one_thread():
            claim = settle(name, gate, measurement, room.name)
        yield claim


def count(level: str = QUICK) -> int:
    """How many claims ``run`` checks at a level.

    >>> count(QUICK) < count(DEFAULT) <= count(DEEP)
    True
    """
    return sum(1 for room in _rooms(level) for _ in room.claims())


def quick(progress: Say | None = None) -> list[Claim]:
    """Every exact claim, and the statistics that fit in a minute.

    Args:
        progress: called with the name of each claim before it is checked.
    """
    return list(run(QUICK, progress))


def _rooms(level: str) -> tuple[Room, ...]:
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}; expected one of {', '.join(LEVELS)}")
    return tuple(room for room in ROOMS if LEVELS.index(room.level) <= LEVELS.index(level))
