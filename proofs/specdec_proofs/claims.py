"""What is claimed of the code that ships, all of it checked when asked.

``quick`` runs every exact claim and the statistics that fit in a minute; ``deep`` repeats the joint test of the correct code a thousand times.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from specdec_proofs import exact, sampled
from specdec_proofs.chi2 import uniformity
from specdec_proofs.claim import Claim, Figure, one_thread, settle
from specdec_proofs.power import ALPHA

__all__ = ["Claim", "Progress", "deep", "deep_steps", "quick", "run"]

Say = Callable[[str], None]


def run(deep: bool = False, progress: Say | None = None) -> Iterator[Claim]:
    """Checks claim after claim and yields each when it is settled, in reading order; whoever stops listening stops the work.

    Args:
        deep: whether the repetitions of ``deep`` follow the quick claims.
        progress: called with the name of each claim before it is checked, and with a line now and then during the repetitions.

    >>> first = next(run())
    >>> first.name, first.figure, first.passed
    ('algorithm: law of token verification is p', 0.0, True)
    """
    for name, gate, measurement in (*exact.claims(), *sampled.claims()):
        if progress:
            progress(name)
        with one_thread():
            claim = settle(name, gate, measurement)
        yield claim
    if deep:
        yield from _deep(1000, 100_000, progress)


def quick(progress: Say | None = None) -> list[Claim]:
    """Every exact claim, and the statistics that fit in a minute.

    Args:
        progress: called with the name of each claim before it is checked.
    """
    return list(run(progress=progress))


class Progress(NamedTuple):
    """Where a deep run stands: p-values so far, of ``total`` repetitions."""

    p_values: tuple[float, ...]
    total: int


def deep_steps(repetitions: int = 1000, n: int = 100_000, done: tuple[float, ...] = ()) -> Iterator[Progress]:
    """Runs the repetitions one by one and yields after each; hand ``done`` back in to go on where an earlier run stopped.

    >>> [len(step.p_values) for step in deep_steps(2, 1000)]
    [1, 2]
    """
    with one_thread():
        for p_value in sampled.repetitions(repetitions, n, start=len(done)):
            done = (*done, p_value)
            yield Progress(done, repetitions)


def deep(repetitions: int = 1000, n: int = 100_000, progress: Say | None = None) -> list[Claim]:
    """Repeats the joint chi-squared test of the correct code: no p-value may be extreme, and together they must be uniform.

    Args:
        repetitions: independent tests; 1,000 take some minutes.
        n: passes of each.
        progress: called with a line now and then.

    Raises:
        ValueError: fewer than one repetition, or fewer than 1,000 passes.

    >>> [claim.name for claim in deep(1, 1000)]
    ['correct code: smallest p-value of the repetitions', 'correct code: distance of the p-values from uniform']
    """
    if repetitions < 1 or n < 1000:
        raise ValueError(f"received repetitions {repetitions} and n {n}; expected at least 1 and at least 1,000")
    return _deep(repetitions, n, progress)


def _deep(repetitions: int, n: int, progress: Say | None) -> list[Claim]:
    last = Progress((), repetitions)

    def smallest() -> Figure:
        nonlocal last
        for last in deep_steps(repetitions, n):
            count = len(last.p_values)
            if progress and (count % 10 == 0 or count == repetitions):
                progress(f"{count} of {repetitions} repetitions: smallest p {min(last.p_values):.2e}, KS D {uniformity(last.p_values).distance:.4f}")
        least = min(last.p_values)
        return Figure(least, least >= ALPHA, f"{repetitions:,} repetitions, N {n:,} each, five worlds in turn")

    def spread() -> Figure:
        distance, allowed = uniformity(last.p_values)
        return Figure(distance, distance <= allowed, f"Kolmogorov-Smirnov, alpha {ALPHA:g}")

    allowed = uniformity([0.5] * repetitions).allowed
    return [
        settle("correct code: smallest p-value of the repetitions", f">= {ALPHA:g}", smallest),
        settle("correct code: distance of the p-values from uniform", f"<= {allowed:.4f}", spread),
    ]
