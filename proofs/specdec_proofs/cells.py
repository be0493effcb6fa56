"""Where a step function on a grid of integers changes its value: boxes on which it is constant, and their exact volumes.

A verifier's outcome is a function of a few uniforms, each on the grid {k 2**-B}. Every comparison it makes is between one uniform and a
threshold, and the thresholds follow from the comparisons made before. So the grid is a tree of boxes, one leaf a path of decisions, however
often a uniform is read and whichever decision reads it. The boxes are found without looking inside:

1. start with one box, the whole grid, and evaluate its 2**axes corners;
2. a box whose corners all have one outcome is a leaf;
3. in any other, take an edge whose ends differ, along the axis on which most edges differ, and bisect it down to neighbouring integers
   wherever its outcome changes; cut the box there, evaluate the corners that are new, and go on with the parts.

The leaves partition the grid, and the thresholds of one path cut no other path. That no outcome hides between the corners of a leaf is an
assumption (true of sums that are compared with one uniform in order, false of a sampler that is not monotone), so it is probed: see ``find``.
One mismatch is a violation, and a result with violations proves nothing.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Boxes", "Found", "find", "masses"]

Integers = NDArray[np.int64]
Outcome = Callable[[Integers, Integers], Integers]
MAX_AXES = 16  # a box has 2**axes corners
MAX_BOXES = 2048  # of one job, and
CUTS = 16  # of one box, beyond four for each axis: more than that many decisions are no path, but a boundary that is not parallel to the axes
FEW = 1 << 11  # points, about, that cost as much as the call they are evaluated in
POINTS = 1 << 19  # made at a time, about: bounds the memory of a round


class Boxes(NamedTuple):
    """The leaves of one job, which partition its grid.

    Attributes:
        low: int64 [leaves, axes], the first integer of each leaf along each axis.
        high: int64 [leaves, axes], the last one, inclusive.
        outcome: int64 [leaves].
    """

    low: Integers
    high: Integers
    outcome: Integers


class Found(NamedTuple):
    """What ``find`` returns: the boxes of each job, how often the function was evaluated, and what contradicted the assumption."""

    boxes: list[Boxes]
    evaluations: int
    violations: list[str]


class _Open(NamedTuple):
    """Boxes that may have to be cut: job [n], low and high [n, axes], outcomes at the corners [n, 2**axes]; bit i of a corner = high on axis i."""

    job: Integers
    low: Integers
    high: Integers
    corners: Integers

    def at(self, index: NDArray[np.bool_] | slice) -> "_Open":
        return _Open(*(column[index] for column in self))


def find(outcome: Outcome, jobs: int, axes: int, size: int, *, probes: int = 64, seed: int = 0) -> Found:
    """Finds the boxes of ``jobs`` step functions on the grid [0, size)**axes, all boxes of all jobs in one call a round.

    Every leaf is probed at ``probes`` random points, a Latin hypercube: along each axis the leaf is cut in ``probes`` strata of equal width,
    and each holds one point. So a fault in a window of one uniform, within one leaf, is met for certain where the window spans two strata,
    and else with probability near ``probes`` times the share w of the leaf's edge that it spans; a fault that shows in n leaves alike is
    missed with probability near exp(-n probes w). What can still slip through: windows much narrower than that, single grid points that are
    no corner, and faults that need several uniforms in windows at once, which are met by their volume only.

    Args:
        outcome: ``outcome(job: int64 [n], points: int64 [n, axes]) -> int64 [n]``: values at points, each of one job.
        probes: random points in each leaf.
        seed: of the random probes.

    Raises:
        ValueError: more than 16 axes.

    >>> f = lambda job, at: (at[:, 0] >= 3 + job).astype(np.int64)
    >>> found = find(f, jobs=2, axes=1, size=8)
    >>> [boxes.low[:, 0].tolist() for boxes in found.boxes], found.violations
    ([[0, 3], [0, 4]], [])
    """
    if not 0 <= axes <= MAX_AXES:
        raise ValueError(f"received {axes} axes; expected 0 to {MAX_AXES}, since a box has 2**axes corners")
    count = 0

    def evaluate(job: Integers, points: Integers) -> Integers:
        nonlocal count
        count += len(job)
        return outcome(job, points)

    bits = _bits(axes)
    most = max(1, POINTS >> axes)
    waiting = [(0, _whole(evaluate, np.arange(at, min(at + most, jobs)), bits, size)) for at in range(0, jobs, most)]
    leaves, held = [], np.ones(jobs, np.int64)
    violations: list[str] = []
    while waiting:
        cuts, now = waiting.pop()
        if len(now.job) > most:
            waiting.append((cuts, now.at(slice(most, None))))
            now = now.at(slice(most))
        done = np.full(len(now.job), bool(violations)) | (now.corners == now.corners[:, :1]).all(1)
        leaves.append(now.at(done))
        if done.all():
            continue
        parts = _cut(evaluate, now.at(~done), bits)
        held += np.bincount(parts.job, minlength=jobs) - np.bincount(now.job[~done], minlength=jobs)
        if cuts == 4 * axes + CUTS or held.max() > MAX_BOXES:
            worst = parts.job[held[parts.job].argmax()]
            violations.append(f"job {worst} is in {held[worst]} boxes, {cuts + 1} cuts deep, and no end: the outcome does not split along the axes")
        waiting.append((cuts + 1, parts))
    boxes = _by_job(leaves, jobs)
    if not violations:
        violations += _probe(evaluate, boxes, probes, np.random.default_rng(seed))
    return Found(boxes, count, violations)


def masses(boxes: Boxes, size: int) -> dict[int, int]:
    """Number of grid points with each outcome, exact.

    Raises:
        ValueError: the volumes do not sum to that of the grid.

    >>> masses(Boxes(np.array([[0], [3]]), np.array([[2], [7]]), np.array([7, 9])), 8)
    {7: 3, 9: 5}
    """
    total: dict[int, int] = defaultdict(int)
    volumes = np.multiply.reduce((boxes.high - boxes.low + 1).astype(object), axis=1)  # Python's integers: 53 bits an axis
    for value, points in zip(boxes.outcome.tolist(), volumes.tolist(), strict=True):
        total[value] += int(points)
    if sum(total.values()) != size ** boxes.low.shape[1]:
        raise ValueError(f"the boxes hold {sum(total.values())} points; expected {size}**{boxes.low.shape[1]}")
    return dict(total)


def _bits(axes: int) -> NDArray[np.bool_]:
    """[2**axes, axes]: whether a corner is at the high end of an axis."""
    return (np.arange(1 << axes)[:, None] >> np.arange(axes) & 1).astype(bool)


def _whole(evaluate: Outcome, job: Integers, bits: NDArray[np.bool_], size: int) -> _Open:
    low = np.zeros((len(job), bits.shape[1]), np.int64)
    high = low + (size - 1)
    points = np.where(bits, high[:, None], low[:, None]).reshape(-1, bits.shape[1])
    return _Open(job, low, high, evaluate(np.repeat(job, len(bits)), points).reshape(len(job), len(bits)))


def _cut(evaluate: Outcome, boxes: _Open, bits: NDArray[np.bool_]) -> _Open:
    """The parts of boxes whose corners disagree: each is cut along one axis, at all changes of outcome on one of its edges."""
    n, axes = len(boxes.job), bits.shape[1]
    low_ends = np.stack([np.flatnonzero(~bits[:, axis]) for axis in range(axes)])  # [axes, 2**(axes - 1)]: corners that begin an edge
    differ = np.stack([boxes.corners[:, ends] != boxes.corners[:, ends | 1 << axis] for axis, ends in enumerate(low_ends)])
    axis = differ.sum(2).argmax(0)
    row, ends = np.arange(n), low_ends[axis]
    edge = ends[row, differ[axis, row].argmax(1)]
    base = np.where(bits[edge], boxes.high, boxes.low)
    owner, cut = _bisect(evaluate, boxes, axis, base, boxes.corners[row, edge], boxes.corners[row, edge | 1 << axis])

    # Faces on both sides of each cut are new corners; those of one box stand together in order, and the box's own faces close the row.
    along = axis[owner]
    flat, here = np.arange(len(owner)), bits[ends[owner]]
    below, above = (np.where(here, boxes.high[owner][:, None], boxes.low[owner][:, None]) for _ in range(2))
    below[flat, :, along], above[flat, :, along] = cut[:, None] - 1, cut[:, None]
    seen = evaluate(np.repeat(np.tile(boxes.job[owner], 2), here.shape[1]), np.concatenate([below, above]).reshape(-1, axes))
    at_below, at_above = seen.reshape(2, len(owner), here.shape[1])

    number = np.bincount(owner, minlength=n) + 1  # parts of each box
    parent = np.repeat(row, number)
    first = np.cumsum(number) - number
    starts = np.ones(len(parent), bool)
    starts[first] = False  # the parts that begin at a cut
    stops = np.ones(len(parent), bool)
    stops[first + number - 1] = False  # the parts that end before one
    low, high, corners = boxes.low[parent], boxes.high[parent], boxes.corners[parent]
    axis, ends = axis[parent], ends[parent]
    low[starts, axis[starts]], high[stops, axis[stops]] = cut, cut - 1
    np.put_along_axis(corners, ends, _filled(np.take_along_axis(corners, ends, 1), starts, at_above), 1)
    ends = ends | (1 << axis)[:, None]
    np.put_along_axis(corners, ends, _filled(np.take_along_axis(corners, ends, 1), stops, at_below), 1)
    return _Open(boxes.job[parent], low, high, corners)


def _filled(rows: Integers, where: NDArray[np.bool_], new: Integers) -> Integers:
    rows[where] = new
    return rows


def _bisect(evaluate: Outcome, boxes: _Open, axis: Integers, base: Integers, at_low: Integers, at_high: Integers) -> tuple[Integers, Integers]:
    """All changes of outcome along one edge of each box: which box, and the first integer after the change, sorted.

    Every stretch whose ends differ is cut in 2**m equal parts, and each part whose ends differ is a stretch again, until they are neighbours.
    With many stretches m is 1; with few, a call costs more than its points, and m is larger.
    """
    row = np.arange(len(base))
    owner, low, high = row, boxes.low[row, axis], boxes.high[row, axis]
    owners, cuts = [owner[:0]], [high[:0]]
    while len(owner):
        m = min(8, max(1, (FEW // len(owner) + 1).bit_length() - 1))
        places = low[:, None] + ((high - low)[:, None] * np.arange((1 << m) + 1) >> m)  # at most 53 + 8 bits
        inner = (1 << m) - 1
        points = np.repeat(base[owner], inner, axis=0)
        points[np.arange(len(points)), np.repeat(axis[owner], inner)] = places[:, 1:-1].reshape(-1)
        seen = evaluate(np.repeat(boxes.job[owner], inner), points).reshape(len(owner), inner)
        values = np.concatenate([at_low[:, None], seen, at_high[:, None]], 1)
        stretch, part = np.nonzero(values[:, :-1] != values[:, 1:])
        owner, low, high = owner[stretch], places[stretch, part], places[stretch, part + 1]
        at_low, at_high = values[stretch, part], values[stretch, part + 1]
        near = high - low == 1
        owners.append(owner[near])
        cuts.append(high[near])
        owner, low, high, at_low, at_high = (column[~near] for column in (owner, low, high, at_low, at_high))
    owner, cut = np.concatenate(owners), np.concatenate(cuts)
    order = np.lexsort((cut, owner))
    return owner[order], cut[order]


def _by_job(leaves: list[_Open], jobs: int) -> list[Boxes]:
    job, low, high, corners = (np.concatenate(column) for column in zip(*(part._replace(corners=part.corners[:, 0]) for part in leaves), strict=True))
    order = np.lexsort((*low.T[::-1], job))
    limits = np.searchsorted(job[order], np.arange(1, jobs))
    return [Boxes(*part) for part in zip(*(np.split(column[order], limits) for column in (low, high, corners)), strict=True)]


def _probe(evaluate: Outcome, boxes: list[Boxes], probes: int, random: np.random.Generator) -> list[str]:
    """Evaluates a Latin hypercube in every leaf, and reports what is not as found."""
    job = np.repeat(np.arange(len(boxes)), [len(one.outcome) for one in boxes])
    low, high, outcome = (np.concatenate(column) for column in zip(*boxes, strict=True))
    wrong, example = 0, ""
    step = max(1, POINTS // max(probes, 1))
    for at in range(0, len(job), step):
        some = slice(at, at + step)
        strata = random.permuted(np.broadcast_to(np.arange(probes)[:, None], (len(job[some]), probes, low.shape[1])), axis=1)
        width = (high[some] - low[some] + 1)[:, None]
        inside = np.minimum(((strata + random.random(strata.shape)) / probes * width).astype(np.int64), width - 1)
        points = (low[some][:, None] + inside).reshape(-1, low.shape[1])
        owner = np.repeat(job[some], probes)
        missed = np.flatnonzero(evaluate(owner, points) != np.repeat(outcome[some], probes))
        if len(missed) and not wrong:
            example = f"job {owner[missed[0]]} at {points[missed[0]].tolist()}"
        wrong += len(missed)
    return [f"{wrong} of {len(job) * probes} probes contradict the boxes found; the first is {example}"] if wrong else []
