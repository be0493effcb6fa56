"""The whole scheduler as one immutable value, and what can be asked of it.

Every page is in exactly one of three places: free, idle (only the prefix cache has it) or held by running requests. Waiting requests hold none.
"""

from typing import NamedTuple

from specdec_fn.kv import pages, prefix
from specdec_fn.kv.pages import PagePool
from specdec_fn.kv.prefix import PrefixCache
from specdec_fn.schedule import waiting as queues
from specdec_fn.schedule.ahead import Ahead
from specdec_fn.schedule.request import Entry, Limits
from specdec_fn.schedule.waiting import Waiting

__all__ = ["Schedule", "find", "free_pages", "init"]


class Schedule(NamedTuple):
    """All requests and all pages between two passes.

    Attributes:
        limits: what the machine has.
        pool: the books of the pages.
        cache: pages that can be found again.
        running: in order of service; each has pages.
        waiting: the others.
        arrivals: requests that have arrived so far.
        forked: ids of running requests whose last, partly full page may be shared with another of them.
        ahead: what follows from ``running`` for the next pass; None where it is still to be found.
    """

    limits: Limits
    pool: PagePool
    cache: PrefixCache
    running: tuple[Entry, ...]
    waiting: Waiting
    arrivals: int
    forked: tuple[int, ...] = ()
    ahead: Ahead | None = None


def init(limits: Limits) -> Schedule:
    """Makes a scheduler without requests.

    Raises:
        ValueError: one of the sizes is below 1.

    >>> free_pages(init(Limits(page_size=4, num_pages=8, max_batch=2)))
    8
    """
    for name in ("page_size", "num_pages", "max_batch"):
        if getattr(limits, name) < 1:
            raise ValueError(f"{name} is {getattr(limits, name)}; expected at least 1")
    return Schedule(limits, pages.init(limits.num_pages), prefix.init(), (), queues.init(), 0)


def find(state: Schedule, id: int) -> Entry | None:
    """The request of that id, running or waiting; None if there is none.

    >>> find(init(Limits(4, 8, 2)), 7) is None
    True
    """
    entry = state.waiting.entries.get(id)
    if entry is not None:
        return entry
    return next((entry for entry in state.running if entry.id == id), None)


def free_pages(state: Schedule) -> int:
    """Pages that no request holds: the free ones, and the idle ones, which are evicted when they are needed.

    >>> free_pages(init(Limits(4, 8, 2)))
    8
    """
    return pages.free_count(state.pool) + prefix.idle_count(state.cache)
