"""A measured cost curve: seconds of a pass of r rows on the machine in front of you, and what follows from it.

A roofline says what a pass could take; a curve says what it takes, with every cliff of the kernels in use. With the acceptance of a request it
gives the K that emits most tokens a second. Given as a value, a recorded curve decides the same again, and no clock is read.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Curve", "best_k", "from_json", "interpolated", "rates", "seconds", "smoothed", "to_json"]


@dataclass(frozen=True)
class Curve:
    """Seconds of passes by their rows.

    Attributes:
        seconds: entry r - 1 is the time of a pass of r rows.
        draft: seconds that a drafted token costs; 0 for what is looked up.

    Raises:
        ValueError: no time, or one that is no positive number.

    >>> Curve((0.02, 0.021), draft=0.001).draft
    0.001
    """

    seconds: tuple[float, ...]
    draft: float = 0.0

    def __post_init__(self) -> None:
        times = tuple(map(_number, self.seconds)) if isinstance(self.seconds, list | tuple) else ()
        if not times or not all(math.isfinite(one) and one > 0 for one in times):
            raise ValueError(f"the curve's seconds are {self.seconds!r:.80}; expected at least one time above 0")
        draft = _number(self.draft)
        if not (math.isfinite(draft) and draft >= 0):
            raise ValueError(f"the curve's draft is {self.draft!r:.80}; expected seconds of 0 or more")
        object.__setattr__(self, "seconds", times)
        object.__setattr__(self, "draft", draft)


def seconds(curve: Curve, rows: int) -> float:
    """Seconds of a pass of ``rows`` rows; past the last measured one, the line through the first and the last goes on
    (one that falls is taken as level; after a single measured row each further row costs a whole pass).

    Raises:
        ValueError: fewer rows than one.

    >>> seconds(Curve((1.0, 1.5, 2.0)), 5)
    3.0
    """
    if rows < 1:
        raise ValueError(f"rows is {rows}; expected 1 or more")
    known = curve.seconds
    if rows <= len(known):
        return known[rows - 1]
    slope = max((known[-1] - known[0]) / (len(known) - 1), 0.0) if len(known) > 1 else known[0]
    return known[-1] + slope * (rows - len(known))


def rates(curve: Curve, acceptance: float | Sequence[float], most: int) -> tuple[float, ...]:
    """Expected tokens a second with K = 0, 1, ..., ``most`` drafted tokens: (1 + sum over i <= K of prod over j <= i of a_j) / (T(K+1) + K d).

    Args:
        curve: T and d.
        acceptance: a_j, the probability that drafted token j is kept, given that those before it were: one number for all, or one for each,
            of which the last holds for all that follow.
        most: largest K.

    Raises:
        ValueError: a probability out of range, none at all, or a negative ``most``.

    >>> rates(Curve((1.0, 1.0, 2.0)), 0.5, 2)
    (1.0, 1.5, 0.875)
    """
    by_place = [acceptance] if isinstance(acceptance, (int, float)) else list(acceptance)
    if not by_place or not all(0 <= one <= 1 for one in by_place):
        raise ValueError(f"acceptance is {acceptance!r:.80}; expected numbers in [0, 1]")
    if most < 0:
        raise ValueError(f"most is {most}; expected 0 or more drafted tokens")
    found, tokens, kept = [], 1.0, 1.0
    for k in range(most + 1):
        if k:
            kept *= by_place[min(k, len(by_place)) - 1]
            tokens += kept
        found.append(tokens / (seconds(curve, k + 1) + k * curve.draft))
    return tuple(found)


def best_k(curve: Curve, acceptance: float | Sequence[float], most: int) -> int:
    """The K from 0 to ``most`` with most expected tokens a second; the smallest of equals.

    Raises:
        ValueError: as ``rates``.

    >>> best_k(Curve((1.0, 1.05, 1.1, 2.2, 2.2)), 0.6, 4), best_k(Curve((1.0, 1.8)), 0.6, 4)
    (2, 0)
    """
    found = rates(curve, acceptance, most)
    return found.index(max(found))


def smoothed(times: Sequence[float], weights: Sequence[float] | None = None) -> tuple[float, ...]:
    """The nearest times that never fall as rows are added, in squared distance: neighbours out of order take their mean (isotonic regression).

    Args:
        times: measured, by rows.
        weights: of each; None weighs all alike.

    >>> smoothed([1.0, 1.5, 1.0, 2.0])
    (1.0, 1.25, 1.25, 2.0)
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for place, one in enumerate(times):
        pools.append((float(one), 1.0 if weights is None else float(weights[place]), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, u, m), (b, v, n) = pools[-2:]
            pools[-2:] = [((a * u + b * v) / (u + v), u + v, m + n)]
    return tuple(mean for mean, _, count in pools for _ in range(count))


def interpolated(points: Mapping[int, float], rows: int) -> tuple[float, ...]:
    """Seconds of 1 to ``rows`` rows from a few measured ones, straight lines between them, after ``smoothed``.

    Args:
        points: seconds by rows; 1 and ``rows`` are among them.
        rows: how many to give.

    Raises:
        ValueError: an end that is not measured.

    >>> interpolated({1: 1.0, 3: 2.0}, 3)
    (1.0, 1.5, 2.0)
    """
    if 1 not in points or rows not in points:
        raise ValueError(f"the measured rows are {sorted(points)}; expected 1 and {rows} among them")
    at = sorted(point for point in points if point <= rows)
    times = smoothed([points[point] for point in at])
    found = [times[0]]
    for (left, a), (right, b) in zip(zip(at, times, strict=True), list(zip(at, times, strict=True))[1:], strict=False):
        found += [a + (b - a) * (place - left) / (right - left) for place in range(left + 1, right + 1)]
    return tuple(found)


def to_json(curve: Curve) -> dict[str, Any]:
    """The curve as JSON values; ``from_json`` gives the same back.

    >>> to_json(Curve((0.5, 0.75)))
    {'seconds': [0.5, 0.75], 'draft': 0.0}
    """
    return {"seconds": list(curve.seconds), "draft": curve.draft}


def from_json(written: Any) -> Curve:
    """The curve that was written; of a larger object, what stands under ``curve``, as generated results have it.

    Raises:
        ValueError: something that is no curve.

    >>> from_json({"curve": {"seconds": [0.5, 0.75], "draft": 0.0}})
    Curve(seconds=(0.5, 0.75), draft=0.0)
    """
    found = written.get("curve", written) if isinstance(written, Mapping) else written
    try:
        return Curve(found["seconds"], found.get("draft", 0.0))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f'the curve is {written!r:.80}; expected {{"seconds": [seconds of 1 row, of 2 rows, ...], "draft": seconds}}') from None


def _number(value: Any) -> float:
    """A number as a float; NaN for what is none, such as text or a truth value."""
    try:
        return math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
