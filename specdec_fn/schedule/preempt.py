"""Where pages come from when none are free: idle cached pages first, then the running requests that are last in order of service.

A preempted request gives up its pages (the published ones stay in the cache while nobody needs them) and goes back to its place among the
waiting, one epoch on; its tokens are computed again when it is admitted. Nobody is preempted for one that comes after it, so the first in
order of service is preempted by nobody: it fits alone, since ``submit`` refused what does not, and every pass with prompt rows to give moves
it on. When it is done the next one is first. That is why every request finishes.
"""

from specdec_fn.kv import pages, prefix
from specdec_fn.kv.pages import PagePool
from specdec_fn.kv.prefix import PrefixCache
from specdec_fn.kv.table import Table
from specdec_fn.schedule import waiting as queues
from specdec_fn.schedule.request import Entry
from specdec_fn.schedule.waiting import Waiting

__all__ = ["preempt", "take"]


def preempt(entry: Entry, pool: PagePool, cache: PrefixCache, waiting: Waiting) -> tuple[PagePool, PrefixCache, Waiting]:
    """Sends a running request back to wait.

    Args:
        entry: the request; the caller takes it out of those that run.

    >>> from specdec_fn.schedule import Limits, init, schedule, submit
    >>> state, _ = schedule(submit(init(Limits(4, 8, 2)), id=7, tokens=(1, 2), limit=4, k=0), 8)
    >>> pool, cache, waiting = preempt(state.running[0], state.pool, state.cache, state.waiting)
    >>> pages.free_count(pool), waiting.entries[7].table, waiting.entries[7].epoch
    (8, Table(pages=(), length=0), 1)
    """
    cache, pool = prefix.release(cache, pool, entry.table)
    back = entry._replace(table=Table(), tip=prefix.root(entry.salt), epoch=entry.epoch + 1)
    return pool, cache, queues.put_back(waiting, back)


def take(pool: PagePool, cache: PrefixCache, count: int) -> tuple[PagePool, PrefixCache, tuple[int, ...]]:
    """Takes pages that are free or idle, of which there are enough.

    >>> take(pages.init(8), prefix.init(), 2)[2]
    (0, 1)
    """
    lacking = count - pages.free_count(pool)
    if lacking > 0:
        cache, pool = prefix.evict(cache, pool, lacking)
    pool, taken = pages.alloc(pool, count)
    assert taken is not None, f"{count} pages are neither free nor idle"
    return pool, cache, taken
