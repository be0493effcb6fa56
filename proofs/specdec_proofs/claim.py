"""A claim: one figure, the gate it must pass, and how long it took to find out."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

__all__ = ["Claim", "Figure", "one_thread", "settle"]


class Figure(NamedTuple):
    """What a measurement gives: the figure, whether it passes, and what else a reader should know."""

    value: float
    passed: bool
    detail: str = ""


class Claim(NamedTuple):
    """A sentence that was checked.

    Attributes:
        name: what is claimed.
        figure: the number found.
        gate: what it was held against, such as "<= 1e-14".
        passed: whether it holds.
        detail: sizes, powers, seeds.
        seconds: wall time.
    """

    name: str
    figure: float
    gate: str
    passed: bool
    detail: str
    seconds: float


def settle(name: str, gate: str, measure: Callable[[], Figure]) -> Claim:
    """Runs a measurement and makes the claim of it; a measurement that raises is a claim that failed.

    >>> settle("one is one", "== 1", lambda: Figure(1.0, True))[:4]
    ('one is one', 1.0, '== 1', True)
    """
    started = time.perf_counter()
    try:
        figure = measure()
    except Exception as error:  # a claim that cannot be checked is not proved, and must not hide the others
        figure = Figure(float("nan"), False, f"{type(error).__name__}: {error}")
    return Claim(name, figure.value, gate, figure.passed, figure.detail, time.perf_counter() - started)


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
