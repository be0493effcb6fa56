"""This machine's two peaks, measured in turns with what is held against them: bytes a second from memory, and multiplications a second."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_fn.stages.passes import in_turns

if TYPE_CHECKING:
    from specdec_fn.cost.machines import Machine

__all__ = ["beside", "middle"]


def beside(size: float, jobs: Mapping[Any, Callable[[], Any]], repeats: int) -> "tuple[list[Machine], dict[Any, list[float]]]":
    """Measures the machine and times jobs in turns: one machine and one time of each job for every round.

    Args:
        size: bytes whose reading is timed.
        jobs: what the peaks are for.
        repeats: rounds, after one that warms up.

    >>> found, times = beside(1e6, {"nothing": lambda: None}, 2)
    >>> len(found), [one.bandwidth > 0 for one in found], len(times["nothing"])
    (2, [True, True], 2)
    """
    from specdec_fn.measure import machine

    found: list[Machine] = []
    times = in_turns({**jobs, beside: lambda: found.append(machine(size, dtypes=("float32",), repetitions=1))}, repeats)
    del times[beside]
    return found[1:], times


def middle(found: "Sequence[Machine]") -> "Machine":
    """The machine whose peaks are the medians of several.

    >>> from specdec_fn.cost.machines import Machine
    >>> middle([Machine("this", rate, (("float32", 2 * rate),)) for rate in (1.0, 5.0, 3.0)])
    Machine(name='this', bandwidth=3.0, compute=(('float32', 6.0),), memory=0.0)
    """
    from specdec_fn.cost.machines import Machine

    rates = (statistics.median(one.bandwidth for one in found), statistics.median(dict(one.compute)["float32"] for one in found))
    return Machine("this", rates[0], (("float32", rates[1]),))
