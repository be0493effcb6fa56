"""The figures that a measurement is held against, and what comes of it: a line for each, and the exit code."""

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Figure", "as_rows", "at_least", "at_most", "code", "lines"]


class Figure(NamedTuple):
    """One figure.

    Attributes:
        what: what was measured.
        value: the median that was found.
        limit: that it must keep.
        at_least: whether it must be at least the limit, not at most.
    """

    what: str
    value: float
    limit: float
    at_least: bool

    @property
    def met(self) -> bool:
        """Whether the value keeps the limit; NaN never does."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def at_most(what: str, value: float, limit: float) -> Figure:
    """A figure with an upper limit."""
    return Figure(what, value, limit, False)


def at_least(what: str, value: float, limit: float) -> Figure:
    """A figure with a lower limit."""
    return Figure(what, value, limit, True)


def lines(figures: Sequence[Figure]) -> list[str]:
    """A line of text for each.

    >>> lines([at_most("5 rows / 1 row", 1.26, 1.2)])
    ['gate: 5 rows / 1 row is 1.26, at most 1.2: FAILED']
    """
    bounds = ("at most", "at least")
    return [f"gate: {one.what} is {one.value:.3g}, {bounds[one.at_least]} {one.limit:g}: {'passed' if one.met else 'FAILED'}" for one in figures]


def code(figures: Sequence[Figure]) -> int:
    """0 where all are met, or there are none; else 1, a claim that failed.

    >>> code([]), code([at_least("share", 0.5, 0.75)])
    (0, 1)
    """
    return int(not all(one.met for one in figures))


def as_rows(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """The same for JSON."""
    return [{**one._asdict(), "met": one.met} for one in figures]
