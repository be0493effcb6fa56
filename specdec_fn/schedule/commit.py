"""What a pass leaves behind: its tokens, the slots that count from now on, pages that others may find, and no trace of those that are done.

The table of a running request always covers all its tokens but the last, or less while a prompt is computed. Rejected rows are rolled back by
not counting them; the next pass writes over them.
"""

from collections.abc import Sequence

from specdec_fn.kv import prefix
from specdec_fn.kv.table import Table
from specdec_fn.schedule.ahead import ahead
from specdec_fn.schedule.request import Done, Entry
from specdec_fn.schedule.state import Schedule

__all__ = ["commit"]

_new = tuple.__new__  # a named tuple from its fields in order, in half the time of its own constructor


def commit(state: Schedule, done: Sequence[Done]) -> Schedule:
    """Takes over the results of a pass.

    A result is ignored where its request is gone, was preempted since it was planned, or stands elsewhere by now; if all are, nothing changes.

    Args:
        done: results, one at most for each request.

    Raises:
        ValueError: a result keeps rows that its lane has not, emits another number of tokens than ``kept + 1`` though the request goes on, emits
            before the last known token, or reaches the request's limit and is not finished.

    >>> from specdec_fn.schedule import Limits, init, schedule, submit
    >>> state = submit(init(Limits(page_size=4, num_pages=8, max_batch=2)), id=7, tokens=(1, 2), limit=8, k=2)
    >>> state, plan = schedule(state, 8)
    >>> state = commit(state, [Done(plan.lanes[0], kept=1, tokens=(3, 4))])
    >>> state.running[0].tokens, state.running[0].table
    ((1, 2, 3, 4), Table(pages=(0,), length=3))
    """
    results = {one.lane.id: one for one in done}
    pool, cache = state.pool, state.cache
    page_size, publishes = state.limits.page_size, state.limits.prefix_cache
    running: list[Entry] = []
    over: list[Entry] = []
    ignored = True
    for entry in state.running:
        one = results.get(entry.id)
        if one is None or one.lane.epoch != entry.epoch or one.lane.start != entry.table.length:
            running.append(entry)
            continue
        ignored = False
        entry = _after(entry, one)
        held, filled = entry.table
        filled = filled if one.filled is None else min(filled, one.filled)
        if publishes and filled // page_size > entry.tip.pages:
            cache, pool, tip = prefix.publish(cache, pool, Table(held, filled), entry.tokens, entry.tip, page_size=page_size)
            entry = entry._replace(tip=tip)
        (over if one.finished else running).append(entry)
    if ignored:
        return state
    for entry in over:
        cache, pool = prefix.release(cache, pool, entry.table)
    return state._replace(pool=pool, cache=cache, running=tuple(running), ahead=ahead(running, page_size))


def _after(entry: Entry, one: Done) -> Entry:
    """A request with the tokens and the slots of its lane's result, which is checked."""
    id, priority, arrival, tokens, prompt, limit, most, salt, (held, _), tip, epoch, hit, passed = entry
    (_, _, _, stop, k), kept, emitted, finished, _ = one
    last = stop == len(tokens)
    expected = kept + 1 if last else 0
    tokens += tuple(emitted)
    if not 0 <= kept <= k:
        raise ValueError(f"request {id} keeps {kept} drafted rows; expected 0 to {k}, as its lane has")
    if not finished and len(emitted) != expected:
        raise ValueError(f"request {id} emits {len(emitted)} tokens; expected {expected}, since it goes on")
    if len(tokens) > limit or (len(tokens) == limit and last and not finished):
        raise ValueError(f"request {id} has {len(tokens)} tokens of at most {limit}; expected no more, and to be finished there")
    # A request that ends inside the accepted tokens keeps the rows of those that were emitted.
    table = _new(Table, (held, min(stop + kept, len(tokens))))
    return _new(Entry, (id, priority, arrival, tokens, prompt, limit, most, salt, table, tip, epoch, hit, passed))
