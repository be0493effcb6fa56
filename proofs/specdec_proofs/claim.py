"""A claim: one figure, the gate it must pass, and how long it took to find out."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

__all__ = ["Claim", "Figure", "every_thread", "one_thread", "settle", "threads_given"]

LEVEL = "p > "  # how the gate of a test begins whose figure is the p-value under the law that is claimed


class Figure(NamedTuple):
    """What a measurement gives: the figure, whether it passes, and what else a reader should know.

    Attributes:
        value: the figure.
        passed: whether the claim holds.
        detail: sizes, powers, seeds.
        p_value: of a test of which the claim is the null hypothesis, for the correction over its family; need not be stated where the figure
            is that p-value and the gate begins with ``p >``.
    """

    value: float
    passed: bool
    detail: str = ""
    p_value: float | None = None


class Claim(NamedTuple):
    """A sentence that was checked.

    Attributes:
        name: what is claimed.
        figure: the number found.
        gate: what it was held against, such as "<= 1e-14".
        passed: whether it holds.
        detail: sizes, powers, seeds.
        seconds: wall time.
        family: the claims that it is judged with, named after their room.
        p_value: of a test of which the claim is the null hypothesis; None for all other claims.
    """

    name: str
    figure: float
    gate: str
    passed: bool
    detail: str
    seconds: float
    family: str = ""
    p_value: float | None = None


def settle(name: str, gate: str, measure: Callable[[], Figure], family: str = "") -> Claim:
    """Runs a measurement and makes the claim of it; a measurement that raises is a claim that failed.

    >>> settle("one is one", "== 1", lambda: Figure(1.0, True))[:4]
    ('one is one', 1.0, '== 1', True)
    """
    started = time.perf_counter()
    try:
        figure = measure()
    except Exception as error:  # a claim that cannot be checked is not proved, and must not hide the others
        figure = Figure(float("nan"), False, f"{type(error).__name__}: {error}")
    tested = figure.value if figure.p_value is None and gate.startswith(LEVEL) else figure.p_value
    p_value = None if tested is None or tested != tested else tested
    return Claim(name, float(figure.value), gate, bool(figure.passed), figure.detail, time.perf_counter() - started, family, p_value)


@contextmanager
def every_thread() -> Iterator[None]:
    """Large tensor operations on as many threads as the process was given, whatever surrounds it.

    >>> with one_thread(), every_thread():
    ...     torch.get_num_threads() == max(1, threads_given())
    True
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(threads_given())
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def threads_given() -> int:
    """The threads this process may use: OMP_NUM_THREADS, or else its cores.

    >>> threads_given() >= 1
    True
    """
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Small tensor operations on one thread: on a machine that is busy they take a fifth of the time they take on several.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
