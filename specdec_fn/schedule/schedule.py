"""The plan of one pass: a pure function of who runs, who waits and which pages are free. It runs without a model.

In order of service, each running request gets the row of its last token and a fixed number of drafts, always; or, where more of it is to be
computed, as many rows as are left of the pass's prompt rows. Lack of pages never cuts these: the last in order of service is preempted instead
(``preempt``). Then those that wait come in (``admit``), unless somebody was preempted in this pass: what the others gave up is theirs.

Slots are reserved and nothing counts yet: a plan whose pass failed can be dropped, and its state scheduled again. Only ``copies`` belong to the
state: they are made before anything that can fail, since the tables name the new pages already.
"""

from bisect import bisect, insort
from typing import NamedTuple

from specdec_fn.kv import pages, prefix
from specdec_fn.kv import table as tables
from specdec_fn.kv.pages import PagePool
from specdec_fn.kv.prefix import PrefixCache
from specdec_fn.kv.table import Table, pages_for
from specdec_fn.schedule.admit import admit
from specdec_fn.schedule.ahead import Ahead, ahead
from specdec_fn.schedule.preempt import preempt, take
from specdec_fn.schedule.request import Entry, Lane, Plan, lane, prompt_rows, service, with_table
from specdec_fn.schedule.state import Schedule

__all__ = ["schedule"]


def schedule(state: Schedule, budget: int) -> tuple[Schedule, Plan]:
    """Plans a pass and reserves its slots.

    Args:
        budget: most prompt rows of the pass: rows of requests with more than one token to compute. Rows of decoding requests are not counted.

    Returns:
        The state with every slot of the plan reserved, tables no longer than before; and the plan, without lanes where there is nothing to do.

    Raises:
        ValueError: the budget is negative.

    >>> from specdec_fn.schedule import Limits, init, submit
    >>> state = submit(init(Limits(page_size=4, num_pages=8, max_batch=2)), id=7, tokens=range(9), limit=12, k=4)
    >>> state, plan = schedule(state, 4)
    >>> plan.lanes, plan.admitted
    ((Lane(id=7, epoch=0, start=0, stop=4, k=0),), (7,))
    """
    if budget < 0:
        raise ValueError(f"budget is {budget}; expected 0 or more prompt rows")
    limits, running, pool, cache, waiting = state.limits, list(state.running), state.pool, state.cache, state.waiting
    preempted: tuple[int, ...] = ()
    while (parted := _parted(state.forked, limits.page_size, running, pool, cache)) is None:
        last = running.pop()
        pool, cache, waiting = preempt(last, pool, cache, waiting)
        preempted = (*preempted, last.id)
    running, pool, cache, copies = parted
    known = state.ahead if state.ahead is not None and not state.forked else ahead(running, limits.page_size)
    lanes, short, left = _with_prompts(known, running, limits.page_size, budget)
    wanted = sum([missing for _, missing in short])
    while wanted > pages.free_count(pool) + prefix.idle_count(cache):
        last = running.pop()
        lanes.pop()
        if short and short[-1][0] == len(running):
            wanted -= short.pop()[1]
        pool, cache, waiting = preempt(last, pool, cache, waiting)
        preempted = (*preempted, last.id)
    if wanted:
        pool, cache, taken = take(pool, cache, wanted)
        start = 0
        for place, count in short:
            entry = running[place]
            held, length = entry.table
            running[place] = with_table(entry, tuple.__new__(Table, (held + taken[start : start + count], length)))
            start += count
    admitted: tuple[int, ...] = ()
    if not preempted and left and len(running) < limits.max_batch and waiting.levels:
        rows = sum([1 + row[4] for row in lanes if row is not None])
        places = limits.max_batch - len(running)
        entries, new_lanes, pool, cache, waiting = admit(limits, pool, cache, waiting, places=places, budget=left, rows=rows)
        admitted = tuple(entry.id for entry in entries)
        for entry, row in zip(entries, new_lanes, strict=True):
            place = bisect(running, service(entry), key=service)
            running.insert(place, entry)
            lanes.insert(place, row)
    planned = tuple([row for row in lanes if row is not None])
    return Schedule(limits, pool, cache, tuple(running), waiting, state.arrivals), Plan(planned, copies, admitted, preempted)


def _with_prompts(known: Ahead, running: list[Entry], page_size: int, budget: int) -> tuple[list[Lane | None], list[tuple[int, int]], int]:
    """The lane of each request or None, place and number of missing pages where a table is too short, and the prompt rows left."""
    lanes, short = list(known.lanes), list(known.short)
    for place in known.several:
        entry = running[place]
        row = lane(entry, budget)
        if row is None:
            break  # no prompt rows are left, for this one or any behind it
        lanes[place] = row
        budget -= prompt_rows(entry, row)
        missing = pages_for(row.stop + row.k, page_size=page_size) - len(entry.table.pages)
        if missing > 0:
            insort(short, (place, missing))
    return lanes, short, budget


class _Parted(NamedTuple):
    running: list[Entry]
    pool: PagePool
    cache: PrefixCache
    copies: tuple[tuple[int, int], ...]


def _parted(forked: tuple[int, ...], page_size: int, running: list[Entry], pool: PagePool, cache: PrefixCache) -> _Parted | None:
    """Gives each fork a last page of its own, in order of service; None where pages are lacking."""
    parted = list(running)
    copies: tuple[tuple[int, int], ...] = ()
    for place, entry in enumerate(running if forked else ()):
        if entry.id in forked:
            room = tables.reserve(pool, entry.table, 1, page_size=page_size)
            if room is None and prefix.idle_count(cache):
                cache, pool = prefix.evict(cache, pool, 1)
                room = tables.reserve(pool, entry.table, 1, page_size=page_size)
            if room is None:
                return None
            pool, table, copied = room
            parted[place] = with_table(entry, table)
            copies += copied
    return _Parted(parted, pool, cache, copies)
