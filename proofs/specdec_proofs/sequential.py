"""Claims from sequential tests of a fixed length: the first rounds of a long run, and that such a test rejects what is wrong.

A mutant's passes are fed to the same e-process, in batches that double, until E crosses the threshold of a single test.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from specdec_fn import random
from specdec_proofs import sampled
from specdec_proofs.claim import Figure
from specdec_proofs.deep import EACH, judged, repeated
from specdec_proofs.deep_rows import CHAINS, SEED, Row, batch, law, rows
from specdec_proofs.deep_state import Track, begin, lengthened
from specdec_proofs.enumerate import completed, joint, total_variation
from specdec_proofs.eprocess import LONG, log_e, start, threshold, update
from specdec_proofs.mutants import Mutant, catalogue
from specdec_proofs.power import ALPHA, needed
from specdec_proofs.sample import cells, histogram, sample

__all__ = ["Crossing", "claims", "crossing", "walk"]

ROUNDS = 4  # of each row; those of a long run are the same and more
REPETITIONS = 100
FIRST, MOST = 500, 512_000  # passes of a mutant: the first batch, and all of them
CLEAR = 0.02  # total variation from which a mutant has to cross within MOST
Task = tuple[str, str, Callable[[], Figure]]


class Crossing(NamedTuple):
    """A walk of E until it crossed a limit: (passes, log E) after each batch, and whether the last of them is beyond it."""

    path: tuple[tuple[int, float], ...]
    crossed: bool


def claims() -> Iterator[Task]:
    """The sequential claims, in reading order: name, gate, measurement.

    >>> next(claims())[0]
    'e-process: token on reference chain, log10 E, largest'
    """
    found = rows()
    limit = f"< {threshold(ALPHA, len(found)) / np.log(10):.2f}"
    for row in found:
        yield f"e-process: {row}, log10 E, largest", limit, functools.partial(_walked, row, len(found))
    for number, mutant in enumerate(catalogue()):
        if mutant.law is not None and mutant.verifier in CHAINS and _distance(mutant) >= CLEAR:
            label = f"{mutant.number:02d} {mutant.name}" if mutant.number is not None else mutant.name
            yield f"e-process: passes until it rejects mutant {label}", f"<= {MOST:,}", functools.partial(_rejected, mutant, number)
    values = functools.cache(lambda: tuple(sampled.repetitions(REPETITIONS, EACH)))
    for place, (name, gate, _) in enumerate(repeated((0.5,) * REPETITIONS)):
        yield name, gate, functools.partial(_repeated, values, place)


def walk(row: Row, count: int = ROUNDS, decide: Callable[..., Any] | None = None, n: int | None = None) -> Track:
    """The first batches of a row, with the path of its E; with ``decide`` those of another rule on the same numbers.

    >>> walk(Row("token", "reference chain"), 2, n=500).path[-1][0]
    1000
    """
    p = law(row.world)
    track = begin((row,)).tracks[0]
    for number in range(count):
        counts = batch(row, number, decide=decide) if n is None else batch(row, number, n, decide)
        evidence = update(track.evidence, counts, p, LONG)
        path = lengthened(track.path, int(evidence.counts.sum()), float(log_e(evidence.counts, p, LONG)))
        track = Track(row, evidence, path)
    return track


def crossing(mutant: Mutant, number: int, most: int = MOST, limit: float = threshold(), first: int = FIRST) -> Crossing:
    """Feeds a mutant's passes to the e-process until E crosses ``limit``, or ``most`` passes are spent.

    Args:
        number: which fixed key it has.
        first: passes of the first batch; each later one doubles what there is.

    >>> crossing(catalogue()[0], 0).crossed
    True
    """
    world = mutant.world()
    p, decide = cells(world, joint(world), mutant.length), mutant.decide()
    evidence, path, n = start(p), [(0, 0.0)], first
    key = random.fold_in(random.key(SEED), number)
    while path[-1][0] < most and path[-1][1] <= limit:
        n = min(n, most - path[-1][0])
        drawn = sample(decide, world, random.fold_in(key, len(path)), n, tape=mutant.tape(), draft_rows=mutant.draft_rows)
        evidence = update(evidence, histogram(drawn.tokens, world.vocab, mutant.length), p, LONG)
        path.append((path[-1][0] + n, float(log_e(evidence.counts, p, LONG))))
        n = path[-1][0]  # each batch doubles what there is
    return Crossing(tuple(path), path[-1][1] > limit)


def _walked(row: Row, tests: int) -> Figure:
    return judged(walk(row), tests)


def _rejected(mutant: Mutant, number: int) -> Figure:
    world = mutant.world()
    p, wrong = (cells(world, one, mutant.length) for one in (joint(world), completed(mutant.law(world), world)))  # type: ignore[misc]
    found = crossing(mutant, number)
    passes, score = found.path[-1]
    detail = f"TV {0.5 * float(np.abs(p - wrong).sum()):.3f}, log10 E {score / np.log(10):.1f}; a test of fixed size needs {needed(p, wrong):,.0f}"
    return Figure(float(passes), found.crossed, detail)


def _repeated(values: Callable[[], tuple[float, ...]], place: int) -> Figure:
    return repeated(values())[place][2]()


def _distance(mutant: Mutant) -> float:
    world = mutant.world()
    return float(total_variation(completed(mutant.law(world), world), joint(world))) if mutant.law is not None else 0.0
