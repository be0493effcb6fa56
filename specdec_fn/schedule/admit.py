"""Who comes in next, and with which pages.

The first that waits, in order of service, is admitted while a place and prompt rows are left. The prefix cache is asked at that moment, and
pages for all its known tokens and its drafts are reserved at once, so that no prompt stalls half-way for lack of pages.

While others run, as many pages stay free as the rows that they write in this pass would fill: that is what they ask for in the next one, and
without it the last that came in would be the first to go. Where nothing runs there is nobody to leave room for, and every request fits.

Skipping. Where the head does not fit, the next ``MOST_BEHIND`` are tried. Each level of priority has a head, its earliest arrival, and each
admission of a later arrival is counted with every head that it goes past, be it for lack of pages or because it has the better priority.
A head that ``MOST_PASSED`` went past is overdue: nothing is admitted before it, whatever its priority, and among several the earliest arrival
goes first. So a head waits for those that came before it, for at most ``MOST_PASSED`` others, and for pages, which come free since nothing new
takes them; after it the next of its level is the head. The bound is on admissions; one that runs can still be preempted by those before it.
"""

from typing import NamedTuple

from specdec_fn.kv import pages, prefix
from specdec_fn.kv.pages import PagePool
from specdec_fn.kv.prefix import PrefixCache
from specdec_fn.kv.table import Table, pages_for
from specdec_fn.schedule import waiting as queues
from specdec_fn.schedule.preempt import take
from specdec_fn.schedule.request import Entry, Lane, Limits, drafts, lane, prompt_rows
from specdec_fn.schedule.waiting import Waiting

__all__ = ["MOST_BEHIND", "Admitted", "admit"]

MOST_BEHIND = 8  # requests that are tried behind one that does not fit


class Admitted(NamedTuple):
    """Who comes in, and what is left.

    Attributes:
        entries: the requests in the order in which they were chosen, each with its table as far as the prefix cache filled it and pages for the rest.
        lanes: their rows in this pass.
        pool, cache, waiting: without them.
    """

    entries: tuple[Entry, ...]
    lanes: tuple[Lane, ...]
    pool: PagePool
    cache: PrefixCache
    waiting: Waiting


def admit(limits: Limits, pool: PagePool, cache: PrefixCache, waiting: Waiting, *, places: int, budget: int, rows: int) -> Admitted:
    """Lets requests in as long as places, prompt rows and pages last.

    Args:
        places: requests that may still run.
        budget: prompt rows that are left of this pass.
        rows: last tokens and drafts that the running requests have in this pass; 0 where nothing runs.

    >>> from specdec_fn.schedule import init, submit
    >>> state = submit(init(Limits(4, 8, 2)), id=7, tokens=(1, 2, 3, 4, 5), limit=9, k=2)
    >>> in_all = admit(*state[:3], state.waiting, places=2, budget=4, rows=0)
    >>> in_all.entries[0].table, in_all.lanes
    (Table(pages=(0, 1), length=0), (Lane(id=7, epoch=0, start=0, stop=4, k=0),))
    >>> admit(*state[:3], state.waiting, places=2, budget=4, rows=25).entries
    ()
    """
    entries: list[Entry] = []
    lanes: list[Lane] = []
    ahead = 0  # requests at the front that did not fit; nothing that comes in makes room for them
    while len(entries) < places and budget > 0 and ahead <= MOST_BEHIND:
        headroom = pages_for(rows, page_size=limits.page_size)
        if not waiting.levels or pages.free_count(pool) + prefix.idle_count(cache) <= headroom:  # one page of a request at least is never cached
            break
        waiting, late = queues.overdue(waiting)
        if late is None:
            waiting, tried = queues.first(waiting, ahead + 1)
            if len(tried) == ahead:
                break
        entry = late or tried[ahead]
        fitted = _fitted(entry, limits, pool, cache, headroom)
        if fitted is not None:
            waiting = queues.pass_over(queues.remove(waiting, entry), entry.arrival)
            entry, pool, cache = fitted
            row = lane(entry, budget)
            assert row is not None, "prompt rows are left"
            budget -= prompt_rows(entry, row)
            rows += 1 + drafts(entry)
            entries.append(entry)
            lanes.append(row)
        elif late is not None:
            break
        else:
            ahead += 1
    return Admitted(tuple(entries), tuple(lanes), pool, cache, waiting)


def _fitted(entry: Entry, limits: Limits, pool: PagePool, cache: PrefixCache, headroom: int) -> tuple[Entry, PagePool, PrefixCache] | None:
    """The request with pages for all its known tokens and drafts, or None where they are lacking."""
    table, tip = Table(), entry.tip
    if limits.prefix_cache:
        cache, pool, table, tip = prefix.hold(cache, pool, entry.tokens, page_size=limits.page_size, salt=entry.salt)
    wanted = pages_for(len(entry.tokens) + drafts(entry), page_size=limits.page_size) - len(table.pages)
    if wanted + headroom > pages.free_count(pool) + prefix.idle_count(cache):
        return None
    pool, cache, fresh = take(pool, cache, wanted)
    hit = table.length if entry.hit < 0 else entry.hit
    return entry._replace(table=Table(table.pages + fresh, table.length), tip=tip, hit=hit), pool, cache
