"""What counts and a measured curve predict: the time of a generation from how many rows each of its passes had."""

from collections.abc import Mapping
from typing import Any

from specdec_fn.cost.curve import Curve, seconds

__all__ = ["by_rows", "predicted_seconds"]


def by_rows(stats: Any) -> dict[int, int]:
    """Passes by their rows, 1 + the drafted tokens, from the counts of a generation whose drafts were chains.

    >>> from specdec_fn.engine.generation import Stats
    >>> by_rows(Stats(passes=5, per_position=((3, 2), (3, 1), (1, 0))))
    {1: 2, 3: 2, 4: 1}
    """
    at_least = [stats.passes, *(seen for seen, _ in stats.per_position), 0]
    exactly = {rows: at_least[rows - 1] - at_least[rows] for rows in range(1, len(at_least))}
    return {rows: count for rows, count in exactly.items() if count}


def predicted_seconds(passes: Mapping[int, int], curve: Curve) -> float:
    """Time of passes whose rows are counted: the sum over passes of T(rows) + (rows - 1) d.

    Args:
        passes: number of passes by rows.
        curve: T, and d, the seconds of a drafted token.

    >>> predicted_seconds({1: 2, 3: 1}, Curve((1.0, 1.25, 1.5), draft=0.25))
    4.0
    """
    return sum(count * (seconds(curve, rows) + (rows - 1) * curve.draft) for rows, count in passes.items())
