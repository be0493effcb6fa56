"""How requests come and go between passes: ``submit``, ``fork`` and ``remove``."""

from collections.abc import Sequence

from specdec_fn.kv import prefix
from specdec_fn.kv import table as tables
from specdec_fn.kv.table import Table, pages_for
from specdec_fn.schedule import waiting as queues
from specdec_fn.schedule.request import Entry, service
from specdec_fn.schedule.state import Schedule, find

__all__ = ["fork", "remove", "submit"]


def submit(
    state: Schedule,
    *,
    id: int,
    tokens: Sequence[int],
    limit: int,
    k: int,
    priority: int = 0,
    salt: bytes = b"",
    prompt: int | None = None,
) -> Schedule:
    """Adds a request; it waits, and holds no pages.

    Args:
        id: a number that no request has, and that no result still under way belongs to.
        tokens: known ids, at least 1.
        limit: most tokens in all; the last one emitted needs no slot.
        k: most drafted rows of a pass.
        priority: a lower number is served first.
        salt: requests with different salts share no pages.
        prompt: how many of the tokens are prompt; all of them if it is not said.

    Raises:
        ValueError: the request could never fit, its id is taken, or a number is out of range.

    >>> from specdec_fn.schedule import Limits, init
    >>> state = init(Limits(page_size=4, num_pages=2, max_batch=2))
    >>> len(submit(state, id=7, tokens=(1, 2), limit=9, k=2).waiting.entries)
    1
    >>> submit(state, id=7, tokens=(1, 2), limit=10, k=2)
    Traceback (most recent call last):
        ...
    ValueError: request 7 may grow to 10 tokens, which needs 3 pages of 4 slots; expected at most the 2 pages that there are
    """
    tokens = tuple(tokens)
    prompt = len(tokens) if prompt is None else prompt
    if not tokens:
        raise ValueError(f"request {id} has no tokens; expected at least 1")
    if limit < len(tokens):
        raise ValueError(f"limit is {limit}; expected at least {len(tokens)}, the tokens that request {id} has already")
    if k < 0:
        raise ValueError(f"k is {k}; expected 0 or more drafted rows")
    if not 0 <= prompt <= len(tokens):
        raise ValueError(f"prompt is {prompt}; expected 0 to {len(tokens)}, the tokens that request {id} has")
    page_size, num_pages = state.limits.page_size, state.limits.num_pages
    most = pages_for(max(limit - 1, len(tokens)), page_size=page_size)
    if most > num_pages:
        raise ValueError(
            f"request {id} may grow to {limit} tokens, which needs {most} pages of {page_size} slots; "
            f"expected at most the {num_pages} pages that there are"
        )
    _untaken(state, id)
    entry = Entry(id, priority, state.arrivals, tokens, prompt, limit, k, salt, Table(), prefix.root(salt), 0, -1, 0)
    return state._replace(waiting=queues.add(state.waiting, entry), arrivals=state.arrivals + 1)


def fork(state: Schedule, id: int, new_id: int, *, k: int | None = None) -> Schedule:
    """Adds a copy of a request, which arrives now.

    Where the request runs and there is a place, the copy runs at once and shares its pages; before either writes into a page that both have,
    the next plan copies it. This counts as an admission, so where one is overdue, and where there is no place, the copy waits, without pages.

    Args:
        id: of the request, which runs or waits.
        new_id: of the copy.
        k: most drafted rows of a pass of the copy; as the request's if it is not said.

    Raises:
        ValueError: there is no such request, new_id is taken, or k is negative.

    >>> from specdec_fn.schedule import Limits, free_pages, init, schedule, submit
    >>> state, _ = schedule(submit(init(Limits(4, 8, 2)), id=7, tokens=(1, 2), limit=4, k=0), 8)
    >>> state = fork(state, 7, 8)
    >>> [entry.id for entry in state.running], [entry.id for entry in fork(state, 7, 9).waiting.entries.values()]
    ([7, 8], [9])
    """
    entry = find(state, id)
    if entry is None:
        raise ValueError(f"fork received request {id}; expected one that runs or waits")
    if k is not None and k < 0:
        raise ValueError(f"k is {k}; expected 0 or more drafted rows")
    _untaken(state, new_id)
    new = entry._replace(id=new_id, arrival=state.arrivals, k=entry.k if k is None else k, epoch=0, passed=0)
    state = state._replace(arrivals=state.arrivals + 1)
    waiting, late = queues.overdue(state.waiting)
    if id in state.waiting.entries or late is not None or len(state.running) == state.limits.max_batch:
        return state._replace(waiting=queues.add(waiting, new._replace(table=Table(), tip=prefix.root(new.salt), hit=-1)))
    # Pages that were reserved behind the length are for the request's own next rows.
    length, page_size = entry.table.length, state.limits.page_size
    filled = Table(entry.table.pages[: pages_for(length, page_size=page_size)], length)
    pool, shared = tables.fork(state.pool, filled)
    running = sorted((*state.running, new._replace(table=shared, hit=0)), key=service)
    forked = (*state.forked, id, new_id) if length % page_size else state.forked
    return state._replace(pool=pool, running=tuple(running), waiting=queues.pass_over(waiting, new.arrival), forked=forked, ahead=None)


def remove(state: Schedule, id: int) -> Schedule:
    """Takes a request out, running or waiting, and gives up its pages; without such a request, nothing happens.

    >>> from specdec_fn.schedule import Limits, free_pages, init, schedule, submit
    >>> state, _ = schedule(submit(init(Limits(4, 8, 2)), id=7, tokens=(1, 2), limit=4, k=0), 8)
    >>> free_pages(state), free_pages(remove(state, 7)), remove(state, 8) is state
    (7, 8, True)
    """
    entry = find(state, id)
    if entry is None:
        return state
    if id in state.waiting.entries:
        return state._replace(waiting=queues.remove(state.waiting, entry))
    cache, pool = prefix.release(state.cache, state.pool, entry.table)
    return state._replace(pool=pool, cache=cache, running=tuple(other for other in state.running if other.id != id), ahead=None)


def _untaken(state: Schedule, id: int) -> None:
    if find(state, id) is not None:
        raise ValueError(f"request {id} is here already; expected an id of its own")
