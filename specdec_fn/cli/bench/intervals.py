"""How sure a median is: the 95 % interval by bootstrap."""

import statistics
from collections.abc import Sequence

__all__ = ["interval"]

DRAWS = 10_000


def interval(values: Sequence[float], *, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """The percentile interval of the median under resampling with replacement.

    Args:
        values: one for each prompt or repetition; at least one.
        level: share of the resampled medians that lies inside.
        seed: of the resampling; the same values and seed give the same interval.

    Raises:
        ValueError: no values.

    >>> interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    import numpy as np

    if not values:
        raise ValueError("an interval of 0 values; expected at least 1")
    if len(values) == 1:
        return statistics.median(values), statistics.median(values)
    drawn = np.random.default_rng(seed).choice(np.asarray(values, np.float64), (DRAWS, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
