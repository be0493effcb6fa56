"""What the scheduler knows of a request, and what it says about a pass: plain values, no tensor in them.

A request is ``len(tokens) - table.length`` rows behind: one row means that it is decoding, more that a prompt, or what a preemption threw away,
is still to be computed. Only the pass that computes the last known token may draft behind it, and only that pass emits.
"""

from typing import NamedTuple

from specdec_fn.kv.prefix import Tip
from specdec_fn.kv.table import Table

__all__ = ["Done", "Entry", "Lane", "Limits", "Plan", "drafts", "lane", "prompt_rows", "service", "with_table"]


class Limits(NamedTuple):
    """What the machine has.

    Attributes:
        page_size: slots of a page.
        num_pages: pages of the pool.
        max_batch: most requests that run at a time.
        prefix_cache: whether computed pages are found again by other requests.
    """

    page_size: int
    num_pages: int
    max_batch: int
    prefix_cache: bool = True


class Entry(NamedTuple):
    """One request as the scheduler sees it.

    Attributes:
        id: the caller's name for it.
        priority: a lower number is served first.
        arrival: its place among all arrivals; among equal priorities the earlier is served first.
        tokens: committed ids, prompt and output.
        prompt: how many of them are prompt.
        limit: most tokens in all, prompt and output.
        k: most drafted rows of a pass.
        salt: requests with different salts share no pages.
        table: its pages; empty while it waits.
        tip: how far its pages are published.
        epoch: how often it was preempted; a result that was planned in an earlier epoch is void.
        hit: tokens that the prefix cache had at its first admission; -1 before it.
        passed: admissions of later arrivals that went past it while it stood at the head of its priority.
    """

    id: int
    priority: int
    arrival: int
    tokens: tuple[int, ...]
    prompt: int
    limit: int
    k: int
    salt: bytes
    table: Table
    tip: Tip
    epoch: int
    hit: int
    passed: int


class Lane(NamedTuple):
    """The rows of one request in a pass: ``tokens[start:stop]``, then at most ``k`` drafted ones.

    Attributes:
        id, epoch: of the request when the pass was planned.
        start: slots that already count, which is where its rows go.
        stop: end of the known tokens of this pass; k is 0 where it is not the end of all of them.
        k: most drafted rows; slots are reserved for all of them.
    """

    id: int
    epoch: int
    start: int
    stop: int
    k: int


class Plan(NamedTuple):
    """One pass.

    Attributes:
        lanes: in order of service.
        copies: (old page, new page): contents to copy, all at once, before anything is written.
        admitted, preempted: ids, in the order in which it happened.
    """

    lanes: tuple[Lane, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    admitted: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()


class Done(NamedTuple):
    """What came out of a lane.

    Attributes:
        lane: as planned.
        kept: drafted rows whose keys and values stay, besides those of ``tokens[start:stop]``.
        tokens: emitted ids: ``kept + 1`` of them, unless the request is finished; none where the lane stopped before the last known token.
        finished: whether the request is over.
        filled: slots from the first on in which others find all that they need; None: every slot that counts.
    """

    lane: Lane
    kept: int = 0
    tokens: tuple[int, ...] = ()
    finished: bool = False
    filled: int | None = None


def drafts(entry: Entry) -> int:
    """Rows that the pass over its last known token drafts: k, but never more than could still be emitted before the last token.

    With it, ``len(tokens) + drafts`` never shrinks as tokens come, so the slots of rejected rows are the slots of the next pass: a rollback is
    not to count them, and no page is given back that would be asked for again at once.

    >>> from specdec_fn.kv.prefix import root
    >>> entry = Entry(0, 0, 0, (5, 6), 2, 9, 4, b"", Table(), root(b""), 0, -1, 0)
    >>> drafts(entry), drafts(entry._replace(limit=4)), drafts(entry._replace(limit=2))
    (4, 1, 0)
    """
    return max(0, min(entry.k, entry.limit - len(entry.tokens) - 1))


def lane(entry: Entry, budget: int) -> Lane | None:
    """The rows of a running request in the next pass; None where it needs prompt rows and there are none.

    Args:
        budget: prompt rows that are left.

    >>> from specdec_fn.kv.prefix import root
    >>> entry = Entry(0, 0, 0, (5, 6, 7), 3, 9, 4, b"", Table(), root(b""), 0, -1, 0)
    >>> lane(entry, 2), lane(entry, 8), lane(entry, 0)
    (Lane(id=0, epoch=0, start=0, stop=2, k=0), Lane(id=0, epoch=0, start=0, stop=3, k=4), None)
    """
    start, end = entry.table.length, len(entry.tokens)
    stop = end if end - start == 1 else min(end, start + budget)
    return Lane(entry.id, entry.epoch, start, stop, drafts(entry) if stop == end else 0) if stop > start else None


def prompt_rows(entry: Entry, row: Lane) -> int:
    """What a lane takes from the prompt rows of a pass: its rows, but for a request that has a single one to compute nothing.

    >>> from specdec_fn.kv.prefix import root
    >>> entry = Entry(0, 0, 0, (5, 6, 7), 3, 9, 4, b"", Table(), root(b""), 0, -1, 0)
    >>> prompt_rows(entry, lane(entry, 2))
    2
    """
    return row.stop - row.start if len(entry.tokens) - row.start > 1 else 0


def service(entry: Entry) -> tuple[int, int]:
    """The place of a request in the order of service: the lower priority number first, then the earlier arrival.

    >>> from specdec_fn.kv.prefix import root
    >>> service(Entry(7, 1, 3, (5,), 1, 9, 4, b"", Table(), root(b""), 0, -1, 0))
    (1, 3)
    """
    return entry.priority, entry.arrival


def with_table(entry: Entry, table: Table) -> Entry:
    """The same request with another table, in less than half the time that ``_replace`` takes.

    >>> from specdec_fn.kv.prefix import root
    >>> with_table(Entry(7, 1, 3, (5,), 1, 9, 4, b"", Table(), root(b""), 0, -1, 0), Table((2,), 1)).table
    Table(pages=(2,), length=1)
    """
    id, priority, arrival, tokens, prompt, limit, k, salt, _, tip, epoch, hit, passed = entry
    return tuple.__new__(Entry, (id, priority, arrival, tokens, prompt, limit, k, salt, table, tip, epoch, hit, passed))
