"""Evidence against a law that may be looked at after every batch and stopped at any time.

The counts n of a sample are scored by E = Gamma(A) / Gamma(A + N) * prod Gamma(a_x + n_x) / Gamma(a_x) / prod p_x**n_x, A = sum a: the
likelihood under a Dirichlet-multinomial law over that under p. If p is the truth, E is a martingale of mean 1, so by Ville's inequality the
chance that it *ever* exceeds 1 / alpha is at most alpha. The prior is a = kappa p, concentrated at p, and E is the average over three kappa, so
that it grows about as n KL(truth || p) - (V - 1)/2 ln n whatever the distance. All of it in logarithms; state in, state out.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from specdec_proofs.power import ALPHA, POWER, reaching

__all__ = [
    "KAPPAS",
    "LONG",
    "Evidence",
    "anytime_p",
    "critical",
    "log_e",
    "merge",
    "minimum_detectable",
    "product",
    "start",
    "threshold",
    "update",
]

KAPPAS = (1e2, 1e3, 1e4)
LONG = (1e2, 1e3, 1e4, 1e6, 1e8)  # for long runs and many cells: a kappa near df / D serves a distance D best, and two more cost half a nat
BIG = 1e3  # from which three terms of Stirling's series are exact to 1e-11
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Evidence(NamedTuple):
    """What has been seen of one law: counts int64 [cells], and the largest log E at any time it was looked at, 0 before any."""

    counts: Integers
    highest: float


def log_e(counts: ArrayLike, p: ArrayLike, kappas: Sequence[float] = KAPPAS) -> Floats:
    """Log of the e-value of counts against a law.

    Args:
        counts: int [..., cells].
        p: float [cells], the law under test.
        kappas: concentrations of the priors that are averaged.

    Returns:
        float64 [...]; infinite where a count lies in a cell of p = 0, which the law cannot give.

    Raises:
        ValueError: shapes differ, or p is no law.

    >>> [round(float(x), 2) for x in log_e([[500, 500], [560, 440], [700, 300]], [0.5, 0.5])]
    [-0.43, 4.39, 72.19]
    >>> float(log_e([5, 4, 1], [0.5, 0.5, 0.0]))
    inf
    """
    seen, law = np.asarray(counts, np.float64), np.asarray(p, np.float64)
    if law.ndim != 1 or seen.shape[-1:] != law.shape:
        raise ValueError(f"counts have shape {seen.shape} and p {law.shape}; expected [..., cells] and [cells]")
    if not (law >= 0).all() or abs(law.sum() - 1) > 1e-9:
        raise ValueError(f"p sums to {law.sum()} with least entry {law.min()}; expected a law: entries of 0 or more that sum to 1")
    inside = law > 0
    here = seen[..., inside]
    scores = [_rising(kappa * law[inside], here).sum(-1) - _rising(np.float64(kappa), here.sum(-1)) for kappa in kappas]
    value = special.logsumexp(scores, axis=0) - math.log(len(kappas))
    return np.asarray(np.where(seen[..., ~inside].sum(-1) > 0, np.inf, value))


def start(p: ArrayLike) -> Evidence:
    """No evidence yet: counts of 0 and E = 1.

    >>> start([0.5, 0.5])
    Evidence(counts=array([0, 0]), highest=0.0)
    """
    return Evidence(np.zeros(len(np.asarray(p)), np.int64), 0.0)


def update(evidence: Evidence, counts: ArrayLike, p: ArrayLike, kappas: Sequence[float] = KAPPAS) -> Evidence:
    """Adds a batch of counts and looks at E; all updates of one run must have the same ``kappas``.

    >>> round(update(start([0.5, 0.5]), [560, 440], [0.5, 0.5]).highest, 2)
    4.39
    """
    merged = merge(evidence.counts, counts)
    return Evidence(merged, max(evidence.highest, float(log_e(merged, p, kappas))))


def merge(first: ArrayLike, second: ArrayLike) -> Integers:
    """Counts of two batches together: whichever process made them, in whichever order.

    Raises:
        ValueError: shapes differ, or a count is negative.

    >>> merge([1, 2], [3, 0])
    array([4, 2])
    """
    a, b = np.asarray(first, np.int64), np.asarray(second, np.int64)
    if a.shape != b.shape or min(a.min(initial=0), b.min(initial=0)) < 0:
        raise ValueError(f"received counts of shapes {a.shape} and {b.shape}; expected one shape, and counts of 0 or more")
    return a + b


def product(logs: Sequence[float]) -> float:
    """Log E of several contexts at once: the product of their e-values, an e-process again since each is one given the others' counts.

    >>> product([0.5, -0.25])
    0.25
    """
    return math.inf if math.inf in logs else math.fsum(logs)


def threshold(alpha: float = ALPHA, tests: int = 1) -> float:
    """The log E that proves a law wrong: log(tests / alpha), so that with ``tests`` correct laws none ever crosses it but with chance alpha.

    >>> round(threshold(1e-6), 2), round(threshold(1e-6, 10), 2)
    (13.82, 16.12)
    """
    if not 0 < alpha < 1 or tests < 1:
        raise ValueError(f"received alpha {alpha} and tests {tests}; expected alpha in (0, 1) and one test or more")
    return math.log(tests / alpha)


def anytime_p(highest: float) -> float:
    """The p-value of a whole run, min(1, 1 / sup E), valid however the run was watched and stopped.

    >>> anytime_p(0.0), round(anytime_p(13.815511), 9)
    (1.0, 1e-06)
    """
    return math.exp(-max(highest, 0.0))


def critical(df: int, n: float, limit: float = threshold(), kappas: Sequence[float] = KAPPAS) -> float:
    """Pearson's statistic at which log E of ``n`` draws reaches ``limit``.

    For large expected counts the prior is close to a normal one, and log E of one kappa to X2/2 * n/(n + kappa) - df/2 * log(1 + n/kappa).

    >>> round(critical(7, 10_000), 1)
    51.2
    """

    def excess(statistic: float) -> float:
        logs = [statistic / 2 * n / (n + kappa) - df / 2 * math.log1p(n / kappa) for kappa in kappas]
        return float(special.logsumexp(logs)) - math.log(len(kappas)) - limit

    top = 2 * (limit + df * math.log1p(n / min(kappas)) + 10) * (1 + min(kappas) / n)
    return float(optimize.brentq(excess, 0.0, top))


def minimum_detectable(df: int, n: float, limit: float = threshold(), power: float = POWER, kappas: Sequence[float] = KAPPAS) -> float:
    """The least total variation at which every law, the hardest included, takes E over ``limit`` within ``n`` draws with the given power.

    As for Pearson's test (``power.minimum_detectable``), with the statistic that E asks for at n draws in place of the test's own.

    >>> round(minimum_detectable(7, 20_000), 3)
    0.035
    """
    return math.sqrt(reaching(critical(df, n, limit, kappas), df, power) / n) / 2


def _rising(a: Floats | np.float64, n: Floats) -> Floats:
    """log of a(a + 1)...(a + n - 1) / a**n; with a = kappa p the powers of kappa and p cancel, and with them what they would lose to rounding."""
    large = np.maximum(a, BIG)
    stirling = (large + n - 0.5) * np.log1p(n / large) - n + 1 / (12 * (large + n)) - 1 / (12 * large)
    small = np.minimum(a, BIG)
    return np.asarray(np.where(a < BIG, special.gammaln(small + n) - special.gammaln(small) - n * np.log(small), stirling))
