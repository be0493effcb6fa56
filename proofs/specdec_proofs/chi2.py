"""Tests of a law against counts, with their levels honest at small counts and over many tests.

Cells are pooled from N and p alone, before the data (``power.pool``). Pearson's statistic is used, not G, which rejects too often at small
counts. A count where p is 0 is no cell: it fails at once. What each test can see is stated by ``power``.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from specdec_proofs.power import Pool, pool

__all__ = ["Homogeneity", "Pearson", "Uniformity", "adjusted", "holm", "homogeneity", "pearson", "tails", "uniformity"]


class Pearson(NamedTuple):
    """Pearson's test of counts against a law.

    Attributes:
        statistic: sum (n - N p)**2 / (N p) over the pooled cells.
        df: degrees of freedom, pooled cells - 1.
        p_value: chance of a statistic as large under the law; 0 when ``impossible`` is not 0.
        impossible: counts in cells where the law is 0.
    """

    statistic: float
    df: int
    p_value: float
    impossible: int


class Homogeneity(NamedTuple):
    """R x C test that the rows of a table of counts come from one law; fields as in ``Pearson``."""

    statistic: float
    df: int
    p_value: float
    impossible: int


class Uniformity(NamedTuple):
    """Kolmogorov-Smirnov distance of p-values from the uniform law, and the distance that alpha allows, sqrt(ln(2 / alpha) / 2R)."""

    distance: float
    allowed: float


def pearson(counts: ArrayLike, p: ArrayLike, cells: Pool | None = None) -> Pearson:
    """Tests counts against a law.

    Args:
        counts: int [cells].
        p: float [cells], the law under test; need not be normalised to the last bit.
        cells: the pooling fixed before the data; by default that of ``power.pool`` for this N.

    Raises:
        ValueError: shapes differ, or fewer than two cells are left after pooling.

    >>> round(pearson([60, 40], [0.5, 0.5]).p_value, 4)
    0.0455
    >>> pearson([50, 49, 1], [0.5, 0.5, 0.0]).p_value
    0.0
    """
    seen, law = np.asarray(counts), np.asarray(p, np.float64)
    if seen.shape != law.shape or seen.ndim != 1:
        raise ValueError(f"counts have shape {seen.shape} and p {law.shape}; expected two vectors of one length")
    total = int(seen.sum())
    cells = pool(law, total) if cells is None else cells
    if cells.df < 1:
        raise ValueError(f"{total} counts leave {len(cells.p)} cells of large enough expected count; expected two or more")
    impossible = int(seen[cells.group < 0].sum())
    grouped = np.bincount(cells.group[cells.group >= 0], seen[cells.group >= 0], minlength=len(cells.p))
    expected = total * cells.p
    statistic = float(((grouped - expected) ** 2 / expected).sum())
    return Pearson(statistic, cells.df, 0.0 if impossible else float(stats.chi2.sf(statistic, cells.df)), impossible)


def homogeneity(table: ArrayLike, p: ArrayLike) -> Homogeneity:
    """Tests that each row of counts comes from one and the same law, whichever that is; ``p`` serves to pool the columns.

    The tokens a lossless verifier emits depend on the draft, their law does not: rows are drafters, columns cells of the completed stream.

    >>> homogeneity([[50, 50], [50, 50]], [0.5, 0.5]).p_value
    1.0
    """
    seen, law = np.asarray(table), np.asarray(p, np.float64)
    if seen.ndim != 2 or seen.shape[1] != len(law):
        raise ValueError(f"the table has shape {seen.shape}; expected [drafters, {len(law)}]")
    cells = pool(law, int(seen.sum(1).min()))
    impossible = int(seen[:, cells.group < 0].sum())
    inside = cells.group >= 0
    grouped = np.stack([np.bincount(cells.group[inside], row[inside], minlength=len(cells.p)) for row in seen])
    expected = np.outer(grouped.sum(1), grouped.sum(0)) / grouped.sum()
    held = expected.sum(0) > 0
    statistic = float(((grouped - expected)[:, held] ** 2 / expected[:, held]).sum())
    df = (len(seen) - 1) * (int(held.sum()) - 1)
    return Homogeneity(statistic, df, 0.0 if impossible else float(stats.chi2.sf(statistic, df)), impossible)


def tails(counts: ArrayLike, p: ArrayLike, gaps: Sequence[float] = (12, 14, 16, 18, 20)) -> list[float]:
    """Two-sided binomial p-values of the events {p(x) < exp(-gap) max p}, which pooling would hide; 1 for an event that holds no cell.

    >>> tails([99, 1], [1.0, 1e-7], gaps=(12,))[0] < 1e-4
    True
    """
    seen, law = np.asarray(counts), np.asarray(p, np.float64)
    total, values = int(seen.sum()), []
    for gap in gaps:
        event = law < np.exp(-gap) * law.max()
        mass = float(law[event].sum())
        values.append(float(stats.binomtest(int(seen[event].sum()), total, min(mass, 1.0)).pvalue) if event.any() else 1.0)
    return values


def holm(p_values: Sequence[float], alpha: float = 1e-6) -> list[bool]:
    """Which of several tests reject at family level ``alpha``: sorted p-values are held against alpha / (m - i).

    >>> holm([1e-9, 0.5, 4e-7], 1e-6)
    [True, False, True]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > alpha / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: a test is rejected at family level alpha where its own is at most alpha (Holm 1979).

    The smallest of them, m times the smallest p-value, is a p-value of "all of these hold".

    >>> adjusted([0.01, 0.5, 0.02])
    [0.03, 0.5, 0.04]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found, most = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[i]))
        found[i] = most
    return found


def uniformity(p_values: Sequence[float], alpha: float = 1e-6) -> Uniformity:
    """Holds p-values of independent repetitions against the uniform law: shows a test, or a generator, that is out of calibration.

    >>> uniformity([(i + 0.5) / 1000 for i in range(1000)])
    Uniformity(distance=0.0005..., allowed=0.0851...)
    """
    distance = float(stats.kstest(p_values, "uniform").statistic)
    return Uniformity(distance, float(np.sqrt(np.log(2 / alpha) / (2 * len(p_values)))))
