"""The queue of waiting requests beside a sorted list, and what it costs in marks."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specdec_fn.kv.prefix import root
from specdec_fn.kv.table import Table
from specdec_fn.schedule import waiting as queues
from specdec_fn.schedule.request import Entry, service
from specdec_fn.schedule.waiting import MOST_PASSED, Waiting


def request(id: int, arrival: int, priority: int) -> Entry:
    return Entry(id, priority, arrival, (1,), 1, 2, 0, b"", Table(), root(b""), 0, -1, 0)


def marks(waiting: Waiting) -> int:
    return sum(len(level.front) + len(level.queue) for level in waiting.levels)


class WaitingMachine(RuleBasedStateMachine):
    """Arrivals, departures from anywhere, looks at the first few, returns of those that were taken, and passings."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting, self.model, self.away = queues.init(), [], []
        self.arrivals = 0

    def heads(self) -> list[Entry]:
        return [min((one for one in self.model if one.priority == level), key=service) for level in {one.priority for one in self.model}]

    @rule(priorities=st.lists(st.integers(0, 2), min_size=1, max_size=5), reuse=st.booleans())
    def come(self, priorities: list[int], reuse: bool) -> None:
        for priority in priorities:
            free = sorted(set(range(self.arrivals)) - {entry.id for entry in (*self.model, *self.away)})
            entry = request(free[0] if reuse and free else self.arrivals, self.arrivals, priority)
            self.waiting = queues.add(self.waiting, entry)
            self.model.append(entry)
            self.arrivals += 1

    @precondition(lambda self: self.model)
    @rule(place=st.integers(0, 30))
    def one_leaves(self, place: int) -> None:
        entry = self.model.pop(place % len(self.model))
        self.waiting = queues.remove(self.waiting, entry)

    @rule(count=st.integers(0, 5))
    def the_first_are_looked_at(self, count: int) -> None:
        self.waiting, found = queues.first(self.waiting, count)
        assert list(found) == sorted(self.model, key=service)[:count]

    @rule(count=st.integers(1, 4), place=st.integers(0, 3))
    def one_of_the_first_is_taken(self, count: int, place: int) -> None:
        self.waiting, found = queues.first(self.waiting, count)
        if place < len(found):
            self.waiting = queues.remove(self.waiting, found[place])
            self.model.remove(found[place])
            self.away.append(found[place])
            heads = {
                min((other for other in self.model if other.priority == level), key=service) for level in {other.priority for other in self.model}
            }
            self.waiting = queues.pass_over(self.waiting, found[place].arrival)
            self.model = [
                entry._replace(passed=entry.passed + 1) if entry in heads and entry.arrival < found[place].arrival else entry for entry in self.model
            ]

    @precondition(lambda self: self.away)
    @rule(place=st.integers(0, 9))
    def one_comes_back(self, place: int) -> None:
        entry = self.away.pop(place % len(self.away))
        self.waiting = queues.put_back(self.waiting, entry)
        self.model.append(entry)

    @rule(priority=st.integers(0, 2))
    def one_that_never_waited_comes_back(self, priority: int) -> None:
        """A fork that ran at once and was preempted: a later arrival than all that wait."""
        entry = request(1000 + self.arrivals, self.arrivals, priority)
        self.waiting = queues.put_back(self.waiting, entry)
        self.model.append(entry)
        self.arrivals += 1

    @rule()
    def the_overdue_one_is_asked_for(self) -> None:
        self.waiting, late = queues.overdue(self.waiting)
        wanted = [head for head in self.heads() if head.passed >= MOST_PASSED]
        assert late == min(wanted, key=lambda head: head.arrival, default=None)

    @invariant()
    def it_holds_what_the_list_holds(self) -> None:
        assert list(queues.ordered(self.waiting)) == sorted(self.model, key=service)
        assert [level.priority for level in self.waiting.levels] == sorted({entry.priority for entry in self.model})
        assert marks(self.waiting) <= 2 * len(self.model)
        for level in self.waiting.levels:
            assert list(level.front) == sorted(level.front)
            here = [entry for entry in self.model if entry.priority == level.priority]
            assert len(level.front) + len(level.queue) - level.gone == len(here)


WaitingMachine.TestCase.settings = settings(stateful_step_count=50)
TestWaiting = WaitingMachine.TestCase


def test_the_earliest_of_several_overdue_heads_is_next() -> None:
    waiting = queues.init()
    for id, priority in enumerate([2, 1, 0]):
        waiting = queues.add(waiting, request(id, id, priority))
    for _ in range(MOST_PASSED - 1):
        waiting = queues.pass_over(waiting, 2)  # as if one that arrived just before the third were admitted
    assert queues.overdue(waiting)[1] is None
    waiting = queues.pass_over(waiting, 1)
    assert queues.overdue(waiting)[1].id == 0
    waiting = queues.pass_over(waiting, 2)
    assert queues.overdue(waiting)[1].id == 0
    waiting = queues.remove(waiting, waiting.entries[0])
    assert queues.overdue(waiting)[1].id == 1


def test_aborts_in_the_middle_of_a_long_queue_leave_few_marks() -> None:
    waiting = queues.init()
    for id in range(3000):
        waiting = queues.add(waiting, request(id, id, 0))
    for id in range(2990):
        waiting = queues.remove(waiting, waiting.entries[(7 * id) % 2990])
        assert marks(waiting) <= 2 * len(waiting.entries) + 1
    _, found = queues.first(waiting, 20)
    assert [entry.id for entry in found] == list(range(2990, 3000))


def test_looking_again_costs_nothing() -> None:
    """What was moved to the front once stays there: a second look makes no new queue."""
    waiting = queues.init()
    for id in range(100):
        waiting = queues.add(waiting, request(id, id, 0))
    once, _ = queues.first(waiting, 9)
    assert len(once.levels[0].front) == 9
    assert queues.first(once, 9)[0] is once
    assert queues.overdue(once)[0] is once
