"""A service under load: requests that arrive at random and are served one by one, or together without a queue.

Serial service of a fixed time s at rate r is the M/D/1 queue: the wait is r s^2 / (2 (1 - r s)), and no end where r s >= 1. With batching a
request waits for nobody, and shares the reading of weights with r s others on average (Little). Source: Pollaczek and Khinchine.
"""

import itertools
import math
from typing import NamedTuple

from specdec_fn.cost.yields import speed_up

__all__ = ["Load", "Option", "latency", "options", "order", "served_within", "service"]


class Load(NamedTuple):
    """What is asked of the service, and how it may speculate.

    Attributes:
        rate: requests a second.
        tokens: that each wants.
        step: seconds of a pass.
        overhead: seconds of launches for each pass, which graphs take away.
        acceptance, k, cost: of speculation, as in ``yields.speed_up``.
    """

    rate: float = 4.0
    tokens: int = 30
    step: float = 7e-3
    overhead: float = 2e-3
    acceptance: float = 0.7
    k: int = 4
    cost: float = 0.05


class Option(NamedTuple):
    """One way to run the service.

    Attributes:
        batch, graphs, speculate: what is switched on.
        service: seconds that a request takes alone.
        load: share of the time that a serial server is busy; nan with batching.
        latency: mean seconds from arrival to the last token; inf where the queue has no end.
    """

    batch: bool
    graphs: bool
    speculate: bool
    service: float
    load: float
    latency: float


def latency(rate: float, seconds: float) -> float:
    """Mean seconds from arrival to the end under serial service: s + r s^2 / (2 (1 - r s)), or inf.

    Args:
        rate: arrivals a second.
        seconds: s, that one takes.

    Raises:
        ValueError: a negative argument.

    >>> round(1e3 * latency(4, 0.21), 1)
    761.2
    """
    if rate < 0 or seconds < 0:
        raise ValueError(f"received a rate of {rate} and a service of {seconds} s; expected 0 or more")
    busy = rate * seconds
    return seconds + rate * seconds**2 / (2 * (1 - busy)) if busy < 1 else math.inf


def service(load: Load, *, graphs: bool = False, speculate: bool = False) -> float:
    """Seconds that a request takes alone.

    >>> round(1e3 * service(Load(), speculate=True), 1)
    116.8
    """
    plain = load.tokens * (load.step + (0.0 if graphs else load.overhead))
    return plain / (speed_up(load.acceptance, load.k, load.cost) if speculate else 1.0)


def options(load: Load) -> tuple[Option, ...]:
    """Every choice of batching, graphs and speculation.

    >>> [round(1e3 * one.latency, 1) for one in options(Load()) if one.speculate]
    [168.1, 116.8, 116.8, 90.9]
    """
    found = []
    for batch, graphs, speculate in itertools.product((False, True), repeat=3):
        alone = service(load, graphs=graphs, speculate=speculate)
        mean = alone if batch else latency(load.rate, alone)
        found.append(Option(batch, graphs, speculate, alone, math.nan if batch else load.rate * alone, mean))
    return tuple(found)


def order(load: Load) -> tuple[str, ...]:
    """The cures by the latency each gives alone, best first; paging frees memory alone, so where memory is not short it comes last.

    >>> order(Load())
    ('speculate', 'batch', 'launch overhead', 'page')
    """
    alone = {(one.batch, one.graphs, one.speculate): one.latency for one in options(load)}
    found = {
        "speculate": alone[False, False, True],
        "batch": alone[True, False, False],
        "launch overhead": alone[False, True, False],
        "page": math.inf,
    }
    return tuple(sorted(found, key=lambda name: found[name]))


def served_within(rate: float, wanted: float) -> float:
    """The service time at which serial latency is ``wanted`` seconds, in closed form: the smaller root of r s^2 / 2 - (1 + r w) s + w.

    Raises:
        ValueError: an argument that is not above 0.

    >>> round(0.21 / served_within(4, 0.21), 3)
    1.573
    """
    if not (rate > 0 and wanted > 0):
        raise ValueError(f"received a rate of {rate} and a latency of {wanted} s; expected both above 0")
    half = 1 + rate * wanted
    return (half - math.sqrt(half**2 - 2 * rate * wanted)) / rate
