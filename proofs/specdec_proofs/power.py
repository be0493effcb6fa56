"""What a chi-squared test can see, worked out before any data are drawn.

Under a law o that is not the p being tested, Pearson's statistic is close to a noncentral chi-squared with noncentrality N D, where
D = sum (o - p)**2 / p. Since D >= 4 TV**2, a law at total variation TV needs at most lambda / (4 TV**2) draws, lambda being the noncentrality
at which the test at level alpha has the wanted power. Pooling cells lowers D, so a plan pools first and states the power of what is left.
For a few hundred draws the noncentral law is only close (it gives .999 where .993 is true), so a plan's power is simulated from the alternative.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

__all__ = [
    "ALPHA",
    "POWER",
    "Plan",
    "Pool",
    "attained",
    "curve",
    "divergence",
    "minimum_detectable",
    "needed",
    "noncentrality",
    "plan",
    "pool",
    "reaching",
]

ALPHA = 1e-6  # level of every test that decides a claim
POWER = 0.999
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Pool(NamedTuple):
    """Which cells are counted together.

    Attributes:
        group: int64 [cells], the pooled cell of each cell, -1 where p is 0: one count there is a failure by itself.
        p: float64 [pooled cells].
    """

    group: Integers
    p: Floats

    @property
    def df(self) -> int:
        """Degrees of freedom of the test on these cells."""
        return len(self.p) - 1


class Plan(NamedTuple):
    """A test that was fixed before its data: draws, pooled cells, and the power against one alternative."""

    n: int
    pool: Pool
    power: float


def pool(p: ArrayLike, n: int, alpha: float = ALPHA, floor: float | None = None) -> Pool:
    """Pools the cells of ``p`` whose expected count in ``n`` draws is small, smallest first, from n and p alone.

    Args:
        floor: least expected count of a cell; 10 for alpha up to 1e-6, else 5, unless given.

    >>> pool([0.5, 0.3, 0.1, 0.06, 0.04, 0.0], 100).group.tolist()
    [3, 2, 1, 0, 0, -1]
    """
    law = np.asarray(p, np.float64)
    floor = (10.0 if alpha <= 1e-6 else 5.0) if floor is None else floor
    group = np.full(len(law), -1)
    totals: list[float] = []
    order = [int(cell) for cell in np.argsort(law, kind="stable") if law[cell] > 0]
    for cell in order:
        if not totals or n * totals[-1] >= floor:
            totals.append(0.0)
        totals[-1] += law[cell]
        group[cell] = len(totals) - 1
    if len(totals) > 1 and n * totals[-1] < floor:  # what is left over joins the cell before it
        group[group == len(totals) - 1] -= 1
        totals[-2:] = [totals[-2] + totals[-1]]
    return Pool(group, np.array(totals))


def divergence(p: ArrayLike, alternative: ArrayLike) -> float:
    """D = sum (o - p)**2 / p; infinite where the alternative has mass at p = 0.

    >>> divergence([0.5, 0.5], [0.75, 0.25])
    0.25
    """
    law, other = np.asarray(p, np.float64), np.asarray(alternative, np.float64)
    if other[law == 0].any():
        return float("inf")
    inside = law > 0
    return float((((other - law)[inside]) ** 2 / law[inside]).sum())


def noncentrality(df: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """The noncentrality at which a chi-squared test with ``df`` degrees of freedom and level ``alpha`` has the given power.

    >>> round(noncentrality(63), 1)
    141.6
    """
    return reaching(float(stats.chi2.isf(alpha, df)), df, power)


def reaching(critical: float, df: int, power: float = POWER) -> float:
    """The noncentrality at which a statistic with ``df`` degrees of freedom exceeds ``critical`` with the given power.

    >>> round(reaching(131.4, 63), 1)
    141.6
    """
    return float(optimize.brentq(lambda lam: _tail(critical, df, lam) - power, 1e-9, 4 * critical + 1000))


def minimum_detectable(df: int, n: float, alpha: float = ALPHA, power: float = POWER) -> float:
    """The least total variation that ``n`` draws are sure to see: any law as far as that from p is rejected with the given power.

    D >= 4 TV**2, with equality in the hardest direction, so TV = sqrt(lambda / N) / 2. A value above 1 says that no law is sure to be seen.

    Raises:
        ValueError: fewer than 1 degree of freedom or 1 draw.

    >>> round(minimum_detectable(63, 3.54e7), 5), round(minimum_detectable(49_151, 6.31e8), 5)
    (0.001, 0.001)
    """
    if df < 1 or n < 1:
        raise ValueError(f"received df {df} and n {n}; expected at least 1 of each")
    return float(np.sqrt(noncentrality(df, alpha, power) / n) / 2)


def curve(df: int, tv: float, ns: ArrayLike, alpha: float = ALPHA) -> Floats:
    """Power against a law at total variation ``tv`` in the hardest direction, for each number of draws; float64, the shape of ``ns``.

    >>> curve(63, 0.01, [1e5, 3.54e5]).round(3).tolist()
    [0.055, 0.999]
    """
    draws = np.asarray(ns, np.float64)
    return np.array([attained(df, float(n) * 4 * tv**2, alpha) for n in draws.ravel()]).reshape(draws.shape)


def attained(df: int, noncentral: float, alpha: float = ALPHA) -> float:
    """Power of the test at the given noncentrality.

    >>> round(attained(63, 141.6), 3)
    0.999
    """
    return _tail(stats.chi2.isf(alpha, df), df, noncentral)


def needed(p: ArrayLike, alternative: ArrayLike, alpha: float = ALPHA, power: float = POWER) -> float:
    """Draws at which the test on unpooled cells rejects the alternative with the given power: lambda / D.

    >>> round(needed([1 / 16] * 16, [1.2 / 16] * 8 + [0.8 / 16] * 8))  # TV .1, the hardest direction
    2396
    """
    d = divergence(p, alternative)
    return noncentrality(int((np.asarray(p) > 0).sum()) - 1, alpha, power) / d if d > 0 else float("inf")


def plan(p: ArrayLike, alternative: ArrayLike, alpha: float = ALPHA, power: float = POWER, least: int = 1, most: int = 10**9) -> Plan:
    """A test on pooled cells, near the smallest, that rejects the alternative with the given power, ``least`` draws or more.

    Raises:
        ValueError: ``most`` draws are not enough.

    >>> test = plan([1 / 16] * 16, [1.2 / 16] * 8 + [0.8 / 16] * 8)
    >>> 2390 < test.n < 2600, len(test.pool.p), test.power >= 0.999
    (True, 16, True)
    """
    law, other = np.asarray(p, np.float64), np.asarray(alternative, np.float64)
    possible = law > 0
    n = max(least, 2)
    while n <= most:
        cells = pool(law, n, alpha)
        grouped = np.bincount(cells.group[possible], other[possible], minlength=len(cells.p))
        miss = (1 - attained(cells.df, n * divergence(cells.p, grouped), alpha)) if cells.df else 1.0
        if 1 - miss * (1 - other[~possible].sum()) ** n >= power:
            reached = _simulated(cells, n, np.append(grouped, other[~possible].sum()), alpha)
            if reached >= power:
                return Plan(n, cells, reached)
        n = max(n + 1, int(n * 1.03))
    raise ValueError(f"{most} draws do not reach power {power} against an alternative at TV {0.5 * np.abs(law - other).sum():.3g}")


def _simulated(cells: Pool, n: int, grouped: Floats, alpha: float, repetitions: int = 20_000) -> float:
    """Share of simulated samples of the alternative that the test rejects; the last cell is that of counts where p is 0."""
    counts = np.random.default_rng(0).multinomial(n, grouped / grouped.sum(), size=repetitions)
    expected = n * cells.p
    statistic = ((counts[:, :-1] - expected) ** 2 / expected).sum(1)
    critical = stats.chi2.isf(alpha, cells.df) if cells.df else np.inf
    return float(((statistic > critical) | (counts[:, -1] > 0)).mean())


def _tail(critical: float, df: int, noncentral: float) -> float:
    """Mass of the noncentral chi-squared beyond ``critical``; its normal limit where scipy's series is slow."""
    if df > 5000:
        return float(stats.norm.sf((critical - df - noncentral) / np.sqrt(2 * (df + 2 * noncentral))))
    return float(stats.ncx2.sf(critical, df, noncentral))
