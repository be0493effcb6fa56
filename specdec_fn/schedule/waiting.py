"""The requests that wait, in order of service, as a persistent value: adding, removing and taking the next cost the same however many wait.

Each priority is a level. What comes in goes to the end of its level's queue. A short sorted tuple before the queue, the front, holds what was
looked at already and what came back after a preemption. One that is removed from the middle of a queue leaves a mark behind that counts for
nothing; once half of a queue is such marks, it is written anew. Levels are meant to be few: finding one costs their number.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

from rpds import HashTrieMap, Queue

from specdec_fn.schedule.request import Entry, service

__all__ = ["MOST_PASSED", "Level", "Waiting", "add", "first", "init", "ordered", "overdue", "pass_over", "put_back", "remove"]

MOST_PASSED = 16  # admissions of later arrivals that may go past the head of a level; after them nothing is admitted before it

Mark = tuple[int, int]  # arrival and id: a request at its place


class Level(NamedTuple):
    """The waiting requests of one priority.

    Attributes:
        priority: of all of them.
        front: marks in order of arrival, each of a request that waits.
        queue: marks in order of arrival, some of requests that are gone.
        gone: how many of the queue's are.
    """

    priority: int
    front: tuple[Mark, ...]
    queue: "Queue[Mark]"
    gone: int


class Waiting(NamedTuple):
    """All waiting requests.

    Attributes:
        entries: by id.
        levels: by priority, the lowest number first; none is empty.
    """

    entries: "HashTrieMap[int, Entry]"
    levels: tuple[Level, ...]


def init() -> Waiting:
    """Nobody waits.

    >>> len(init().entries)
    0
    """
    return Waiting(HashTrieMap(), ())


def add(waiting: Waiting, entry: Entry) -> Waiting:
    """Adds a request that arrived after all others.

    >>> from specdec_fn.schedule import Limits, init, submit
    >>> state = submit(init(Limits(4, 8, 2)), id=7, tokens=(1, 2), limit=4, k=0)
    >>> [entry.id for entry in ordered(state.waiting)]
    [7]
    """
    place, level = _level(waiting, entry.priority)
    level = level._replace(queue=level.queue.enqueue((entry.arrival, entry.id)))
    return Waiting(waiting.entries.insert(entry.id, entry), _with(waiting.levels, place, level))


def put_back(waiting: Waiting, entry: Entry) -> Waiting:
    """Adds a request that was taken out after ``first`` or ``overdue`` had named it, or never waited, at its place by arrival.

    >>> from specdec_fn.schedule import Limits, init, submit
    >>> state = submit(submit(init(Limits(4, 8, 2)), id=7, tokens=(1,), limit=4, k=0), id=8, tokens=(1,), limit=4, k=0)
    >>> waiting, (head,) = first(state.waiting, 1)
    >>> [entry.id for entry in ordered(put_back(remove(waiting, head), head))]
    [7, 8]
    """
    place, level = _level(waiting, entry.priority)
    front = list(level.front)
    insort(front, (entry.arrival, entry.id))
    return Waiting(waiting.entries.insert(entry.id, entry), _with(waiting.levels, place, level._replace(front=tuple(front))))


def remove(waiting: Waiting, entry: Entry) -> Waiting:
    """Takes a waiting request out, wherever it stands.

    >>> from specdec_fn.schedule import Limits, init, submit
    >>> state = submit(init(Limits(4, 8, 2)), id=7, tokens=(1, 2), limit=4, k=0)
    >>> remove(state.waiting, state.waiting.entries[7]).levels
    ()
    """
    mark, entries = (entry.arrival, entry.id), waiting.entries.remove(entry.id)
    place, level = _level(waiting, entry.priority)
    found = bisect_left(level.front, mark)
    if level.front[found : found + 1] == (mark,):
        level = level._replace(front=level.front[:found] + level.front[found + 1 :])
    else:
        level = level._replace(gone=level.gone + 1)
        if 2 * level.gone > len(level.queue):
            level = level._replace(queue=Queue([other for other in level.queue if _waits(entries, other)]), gone=0)
    return Waiting(entries, _with(waiting.levels, place, level))


def first(waiting: Waiting, count: int) -> tuple[Waiting, tuple[Entry, ...]]:
    """The first requests in order of service.

    Args:
        count: how many; fewer where fewer wait.

    Returns:
        The same requests, those that were looked at moved to the fronts, so that looking again costs nothing; and the entries.

    >>> from specdec_fn.schedule import Limits, init, submit
    >>> state = submit(init(Limits(4, 8, 2)), id=7, tokens=(1, 2), limit=4, k=0)
    >>> [entry.id for entry in first(submit(state, id=8, tokens=(1,), limit=4, k=0, priority=-1).waiting, 2)[1]]
    [8, 7]
    """
    found: list[Entry] = []
    for place in range(len(waiting.levels)):
        if len(found) == count:
            break
        waiting = _fill(waiting, place, count - len(found))
        found += [waiting.entries[id] for _, id in waiting.levels[place].front[: count - len(found)]]
    return waiting, tuple(found)


def overdue(waiting: Waiting) -> tuple[Waiting, Entry | None]:
    """The earliest arrival among the heads of the levels that were passed as often as is allowed.

    >>> overdue(init())[1] is None
    True
    """
    waiting, heads = _heads(waiting)
    return waiting, min((head for head in heads if head.passed >= MOST_PASSED), key=lambda head: head.arrival, default=None)


def pass_over(waiting: Waiting, arrival: int) -> Waiting:
    """Counts the admission of a request with every head that came before it.

    Args:
        arrival: of the request that was admitted, which waits no longer.

    >>> from specdec_fn.schedule import Limits, init, submit
    >>> state = submit(init(Limits(4, 8, 2)), id=7, tokens=(1, 2), limit=4, k=0)
    >>> pass_over(state.waiting, 5).entries[7].passed
    1
    """
    waiting, heads = _heads(waiting)
    entries = waiting.entries
    for head in heads:
        if head.arrival < arrival:
            entries = entries.insert(head.id, head._replace(passed=head.passed + 1))
    return waiting._replace(entries=entries)


def ordered(waiting: Waiting) -> tuple[Entry, ...]:
    """All waiting requests in order of service.

    >>> ordered(init())
    ()
    """
    return tuple(sorted(waiting.entries.values(), key=service))


def _heads(waiting: Waiting) -> tuple[Waiting, list[Entry]]:
    for place in range(len(waiting.levels)):
        waiting = _fill(waiting, place, 1)
    return waiting, [waiting.entries[level.front[0][1]] for level in waiting.levels]


def _fill(waiting: Waiting, place: int, count: int) -> Waiting:
    """Moves marks from the queue of a level to its front until the first ``count`` of the level stand there."""
    entries, (_, old, queue, gone) = waiting.entries, waiting.levels[place]
    front = list(old)
    while queue and (len(front) < count or next(iter(queue)) < front[count - 1]):
        mark = next(iter(queue))
        queue = queue.dequeue()  # type: ignore[call-arg]  # the stub asks for an argument that there is not
        if _waits(entries, mark):
            insort(front, mark)
        else:
            gone -= 1
    if len(queue) == len(waiting.levels[place].queue):
        return waiting
    return waiting._replace(levels=_with(waiting.levels, place, Level(waiting.levels[place].priority, tuple(front), queue, gone)))


def _waits(entries: "HashTrieMap[int, Entry]", mark: Mark) -> bool:
    """Whether the mark's request is still there, and is not another of the same id."""
    entry = entries.get(mark[1])
    return entry is not None and entry.arrival == mark[0]


def _level(waiting: Waiting, priority: int) -> tuple[int, Level]:
    """Where the level of a priority stands or would stand, and the level."""
    levels = waiting.levels
    place = bisect_left(levels, priority, key=lambda level: level.priority)
    if place < len(levels) and levels[place].priority == priority:
        return place, levels[place]
    return place, Level(priority, (), Queue(), 0)


def _with(levels: tuple[Level, ...], place: int, level: Level) -> tuple[Level, ...]:
    """The levels with one put in its place, or left out where nobody waits in it."""
    behind = place + 1 if place < len(levels) and levels[place].priority == level.priority else place
    kept: Iterable[Level] = (level,) if level.front or len(level.queue) > level.gone else ()
    return (*levels[:place], *kept, *levels[behind:])
