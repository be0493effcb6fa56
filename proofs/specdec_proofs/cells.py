"""Where a step function on a grid of integers changes its value: the boxes on which it is constant, and their exact volumes.

A verifier's outcome is a function of a few uniforms, each on the grid {k 2**-B}. Every comparison it makes is between one uniform and a
threshold, so along each axis there are finitely many *cuts*, and the outcome is constant on every box between cuts, however often a uniform
is read and whichever decision reads it. The cuts are found without looking inside:

1. evaluate the corners of all boxes (at first one box: the whole grid);
2. where two corners that differ in one coordinate have different outcomes, bisect that edge down to neighbouring integers: new cuts;
3. repeat until all corners of every box agree.

That no outcome hides inside a box or an edge is an assumption (true of sums that are compared with one uniform in order, false of a sampler
that is not monotone), so it is probed: random points in every box, and random points in every slab between cuts. One mismatch is a violation,
and a result with violations proves nothing.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Boxes", "find", "masses"]

Integers = NDArray[np.int64]
Outcome = Callable[[Integers, Integers], Integers]
MAX_BOXES = 50_000  # of one job; beyond it the boundaries cannot be parallel to the axes
SWEEPS = 6  # beyond one for each axis: cuts of one axis come to light behind those of another, and then there are no more


class Boxes(NamedTuple):
    """The boxes of one job.

    Attributes:
        cuts: for each axis the first integer of each interval, 0 first.
        outcome: int64, one entry a box, an axis of the array for each axis of the grid.
    """

    cuts: tuple[Integers, ...]
    outcome: Integers


class Found(NamedTuple):
    """What ``find`` returns: the boxes of each job, how often the function was evaluated, and what contradicted the assumption."""

    boxes: list[Boxes]
    evaluations: int
    violations: list[str]


def find(outcome: Outcome, jobs: int, axes: int, size: int, *, probes: int = 32, seed: int = 0) -> Found:
    """Finds the boxes of ``jobs`` step functions on the grid [0, size)**axes, all bisections of a round in one call.

    Args:
        outcome: ``outcome(job: int64 [n], points: int64 [n, axes]) -> int64 [n]``: values at points, each of one job.
        probes: random points for each slab between neighbouring cuts; each box gets one besides.
        seed: of the random probes.

    >>> f = lambda job, at: (at[:, 0] >= 3 + job).astype(np.int64)
    >>> found = find(f, jobs=2, axes=1, size=8)
    >>> [boxes.cuts[0].tolist() for boxes in found.boxes], found.violations
    ([[0, 3], [0, 4]], [])
    """
    count = 0

    def evaluate(job: Integers, points: Integers) -> Integers:
        nonlocal count
        count += len(job)
        return outcome(job, points)

    cuts = [[np.zeros(1, np.int64) for _ in range(axes)] for _ in range(jobs)]
    values = [np.zeros((2,) * axes, np.int64) for _ in range(jobs)]
    pending, violations = list(range(jobs)), []
    for sweep in range(axes + SWEEPS):
        corners = {job: [_ends(axis, size) for axis in cuts[job]] for job in pending}
        most = max((int(np.prod([len(axis) for axis in cuts[job]])) for job in pending), default=0)
        if most > MAX_BOXES or (pending and sweep == axes + SWEEPS - 1):
            violations.append(f"{most} boxes after {sweep} sweeps, and no end: the outcome does not split along the axes")
            values = [np.zeros([2 * len(axis) for axis in own], np.int64) for own in cuts]
            break
        if not pending:
            break
        edges: list[tuple[Any, ...]] = []
        for group in _groups({job: int(np.prod([len(ends) for ends in corners[job]])) for job in pending}):
            points = [np.stack(np.meshgrid(*corners[job], indexing="ij"), -1).reshape(-1, axes) for job in group]
            flat = evaluate(np.repeat(group, [len(block) for block in points]), np.concatenate(points))
            for job, block in zip(group, np.split(flat, np.cumsum([len(block) for block in points])[:-1]), strict=True):
                values[job] = block.reshape([len(ends) for ends in corners[job]])
                edges += [(job, *edge) for edge in _split_edges(values[job], corners[job])]
        new = _bisect(evaluate, edges)
        for (job, axis), where in new.items():
            cuts[job][axis] = np.union1d(cuts[job][axis], np.array(sorted(where), np.int64))
        pending = sorted({job for job, _ in new})
    boxes = [Boxes(tuple(cuts[job]), _inner(values[job])) for job in range(jobs)]
    if not violations:
        violations += _probe(evaluate, boxes, size, probes, np.random.default_rng(seed))
    return Found(boxes, count, violations)


def masses(boxes: Boxes, size: int) -> dict[int, int]:
    """Number of grid points with each outcome, exact.

    >>> masses(Boxes((np.array([0, 3]),), np.array([7, 9])), 8)
    {7: 3, 9: 5}
    """
    volume = np.ones((), object)
    for axis in boxes.cuts:
        widths = np.array([int(w) for w in np.diff(np.append(axis, size))], object)
        volume = np.multiply.outer(volume, widths)
    total: dict[int, int] = defaultdict(int)
    for value, points in zip(boxes.outcome.ravel().tolist(), volume.ravel().tolist(), strict=True):
        total[value] += points
    return dict(total)


def _groups(points: dict[int, int], most: int = 1 << 20) -> list[list[int]]:
    """Jobs in order, in groups of at most ``most`` points (or one job), which bounds the memory of a sweep."""
    groups: list[list[int]] = []
    held = most
    for job, count in points.items():
        if held + count > most:
            groups.append([])
            held = 0
        groups[-1].append(job)
        held += count
    return groups


def _ends(cuts: Integers, size: int) -> Integers:
    """First and last integer of every interval, in order."""
    return np.stack([cuts, np.append(cuts[1:], size) - 1], -1).reshape(-1)


def _inner(corner_values: Integers) -> Integers:
    return corner_values[tuple(slice(None, None, 2) for _ in corner_values.shape)]


def _split_edges(values: Integers, corners: list[Integers]) -> list[tuple[int, Integers, int, int, int, int]]:
    """Edges of boxes whose ends differ, one for each interval and pair of outcomes: axis, base point, low, high, outcome at each."""
    found = []
    for axis, ends in enumerate(corners):
        low, high = (np.moveaxis(values, axis, 0)[side::2] for side in (0, 1))
        where = np.argwhere(low != high)
        if not len(where):
            continue
        index = tuple(where.T)
        pairs = np.stack([where[:, 0], low[index], high[index]], -1)
        _, first = np.unique(pairs, axis=0, return_index=True)
        others = [ends for other, ends in enumerate(corners) if other != axis]
        for place, (interval, outcome_low, outcome_high) in zip(where[first], pairs[first], strict=True):
            base = np.insert(np.array([ends[i] for ends, i in zip(others, place[1:], strict=True)], np.int64), axis, 0)
            found.append((axis, base, ends[2 * interval], ends[2 * interval + 1], outcome_low, outcome_high))
    return found


def _bisect(evaluate: Outcome, edges: list[tuple[Any, ...]]) -> dict[tuple[int, int], set[int]]:
    """Cuts along the edges, by job and axis: every edge is halved until neighbouring integers differ, in as many parts as it has values."""
    cuts: dict[tuple[int, int], set[int]] = defaultdict(set)
    if not edges:
        return cuts
    job, axis, base, low, high, at_low, at_high = (np.array(column) for column in zip(*edges, strict=True))
    while len(job):
        near = high - low == 1
        for j, a, cut in zip(job[near].tolist(), axis[near].tolist(), high[near].tolist(), strict=True):
            cuts[j, a].add(cut)
        job, axis, base, low, high, at_low, at_high = (column[~near] for column in (job, axis, base, low, high, at_low, at_high))
        if not len(job):
            break
        middle = (low + high) // 2
        points = base.copy()
        points[np.arange(len(job)), axis] = middle
        at_middle = evaluate(job, points)
        left, right = at_low != at_middle, at_middle != at_high
        job, axis, base = (np.concatenate([column[left], column[right]]) for column in (job, axis, base))
        low, high = np.concatenate([low[left], middle[right]]), np.concatenate([middle[left], high[right]])
        at_low, at_high = np.concatenate([at_low[left], at_middle[right]]), np.concatenate([at_middle[left], at_high[right]])
    return cuts


def _probe(evaluate: Outcome, boxes: list[Boxes], size: int, probes: int, random: np.random.Generator) -> list[str]:
    """Evaluates random points in every box, and in every slab between neighbouring cuts of one axis, and reports what is not as found."""
    owner, points, wanted = [], [], []
    for job, (cuts, values) in enumerate(boxes):
        bounds = [np.append(axis, size) for axis in cuts]
        inside = np.indices(values.shape).reshape(len(cuts), -1).T
        places = [inside]
        for axis, slabs in enumerate(cuts):
            slab = np.stack([np.searchsorted(own, random.integers(0, size, len(slabs) * probes), side="right") - 1 for own in cuts], -1)
            slab[:, axis] = np.repeat(np.arange(len(slabs)), probes)
            places.append(slab)
        place = np.concatenate(places)
        owner.append(np.full(len(place), job))
        points.append(np.stack([random.integers(bound[at], bound[at + 1]) for bound, at in zip(bounds, place.T, strict=True)], -1))
        wanted.append(values[tuple(place.T)])
    got = evaluate(np.concatenate(owner), np.concatenate(points))
    wrong = np.flatnonzero(got != np.concatenate(wanted))
    if not len(wrong):
        return []
    example = np.concatenate(points)[wrong[0]].tolist()
    return [f"{len(wrong)} of {len(got)} probes contradict the boxes found; the first is job {np.concatenate(owner)[wrong[0]]} at {example}"]
