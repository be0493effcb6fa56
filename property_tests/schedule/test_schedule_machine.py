"""The scheduler driven at random under a pool so small that everything happens, beside three small models.

The memory is a map from slots to what was written there: the tokens up to that position. Before a pass each lane must find its own context in it,
whatever was shared, copied, evicted or thrown away in between. The rules, written down once more one request at a time, say who is in the plan.
The tokens of each request, decoded alone, say what must come out.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specdec_fn.kv import pages, prefix, table
from specdec_fn.random import key, uniform
from specdec_fn.schedule import Done, Entry, Lane, Limits, Plan, Schedule, commit, find, fork, free_pages, init, remove, schedule, submit

LOOK = 8  # behind a head that does not fit
BOUND = 16  # admissions past a head
STOP = 8  # the token that ends a request
Memory = dict[int, tuple[bytes, tuple[int, ...]]]


def following(context: Sequence[int]) -> int:
    """The token that the pretended model emits behind a context; it sees a few tokens, so that contexts meet again."""
    return (3 * context[-1] + sum(context[-3:]) + len(context) // 5) % 9


def solo(tokens: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """What a request is, decoded alone."""
    start = len(tokens)
    while len(tokens) < limit and not (len(tokens) > start and tokens[-1] == STOP):
        tokens = (*tokens, following(tokens))
    return tokens


# ---- the rules, one request at a time


class Expected(NamedTuple):
    lanes: tuple[Lane, ...]
    admitted: tuple[int, ...]
    preempted: tuple[int, ...]
    passed: dict[int, int]


def order(entry: Entry) -> tuple[int, int]:
    return entry.priority, entry.arrival


def drafted(entry: Entry) -> int:
    return max(0, min(entry.k, entry.limit - len(entry.tokens) - 1))


def expected(state: Schedule, budget: int) -> Expected:
    """The plan, by the rules as they are stated: each lane reserved in turn, the last one that runs preempted when pages are lacking."""
    size, pool, cache = state.limits.page_size, state.pool, state.cache
    running, waiting = list(state.running), {entry.id: entry for entry in state.waiting.entries.values()}
    lanes: list[Lane] = []
    preempted: list[int] = []
    place = 0
    while place < len(running):
        entry = running[place]
        start, known = entry.table.length, len(entry.tokens)
        stop = known if known - start == 1 else min(known, start + budget)
        k = drafted(entry) if stop == known else 0
        # A page that two forks share is parted at once, even where there are no rows to write into it.
        rows = stop - start + k or (1 if entry.id in state.forked else 0)
        while (room := table.reserve(pool, entry.table, rows, page_size=size)) is None:
            if prefix.idle_count(cache):
                cache, pool = prefix.evict(cache, pool, 1)
                continue
            last = running.pop()
            cache, pool = prefix.release(cache, pool, last.table)
            preempted.append(last.id)
            waiting[last.id] = last._replace(table=table.Table(), epoch=last.epoch + 1)
            if last is entry:
                break
        else:
            pool, longer, _ = room
            running[place] = entry._replace(table=longer)
            if stop > start:
                lanes.append(Lane(entry.id, entry.epoch, start, stop, k))
                budget -= stop - start if known - start > 1 else 0
            place += 1
    admitted: list[int] = []
    passed = Counter({entry.id: entry.passed for entry in waiting.values()})
    while not preempted and budget and len(running) < state.limits.max_batch:
        heads = [min((entry for entry in waiting.values() if entry.priority == level), key=order) for level in {e.priority for e in waiting.values()}]
        late = [head for head in heads if passed[head.id] >= BOUND]
        tried = [min(late, key=lambda head: head.arrival)] if late else sorted(waiting.values(), key=order)[: 1 + LOOK]
        room_left = -(-sum(1 + drafted(entry) for entry in running if entry.id in {lane.id for lane in lanes if lane.k == drafted(entry)}) // size)
        for entry in tried:
            new_cache, new_pool, found, _ = cache, pool, table.Table(), None
            if state.limits.prefix_cache:
                new_cache, new_pool, found, _ = prefix.hold(cache, pool, entry.tokens, page_size=size, salt=entry.salt)
            wanted = -(-(len(entry.tokens) + drafted(entry)) // size) - len(found.pages)
            if pages.free_count(new_pool) + prefix.idle_count(new_cache) >= wanted + room_left:
                break
        else:
            break
        cache, pool = prefix.evict(new_cache, new_pool, max(0, wanted - pages.free_count(new_pool)))
        pool, fresh = pages.alloc(pool, wanted)
        start, known = found.length, len(entry.tokens)
        stop = known if known - start == 1 else min(known, start + budget)
        budget -= stop - start if known - start > 1 else 0
        del waiting[entry.id]
        for head in heads:
            if head.id != entry.id and head.arrival < entry.arrival:
                passed[head.id] += 1
        admitted.append(entry.id)
        running = sorted([*running, entry._replace(table=table.Table(found.pages + fresh, start))], key=order)
        lanes.append(Lane(entry.id, entry.epoch, start, stop, drafted(entry) if stop == known else 0))
    ranks = {entry.id: rank for rank, entry in enumerate(running)}
    lanes.sort(key=lambda lane: ranks[lane.id])
    return Expected(tuple(lanes), tuple(admitted), tuple(preempted), {id: passed[id] for id in waiting})


# ---- what must hold between any two calls


def conserved(state: Schedule) -> None:
    held = Counter(page for entry in state.running for page in entry.table.pages)
    cached = {node.page for node in state.cache.nodes.values()}
    assert dict(state.pool.held.items()) == {page: held[page] + (page in cached) for page in cached | set(held)}
    assert pages.free_count(state.pool) + len(cached | set(held)) == state.limits.num_pages
    assert free_pages(state) == state.limits.num_pages - len(held)
    assert all(entry.table == table.Table() for entry in state.waiting.entries.values())
    assert all(order(one) < order(other) for one, other in pairwise(state.running))
    assert len(state.running) <= state.limits.max_batch
    assert all(entry.passed <= BOUND for entry in (*state.running, *state.waiting.entries.values()))
    assert {id for id, _ in state.waiting.entries.items()}.isdisjoint(entry.id for entry in state.running)


class Machine(NamedTuple):
    """A scheduler and the memory that its passes write."""

    state: Schedule
    memory: Memory


def planned(machine: Machine, budget: int) -> tuple[Machine, Plan]:
    """Plans a pass, checks the plan, and makes its copies."""
    wanted = expected(machine.state, budget)
    state, plan = schedule(machine.state, budget)
    assert (plan.lanes, plan.admitted, plan.preempted) == wanted[:3]
    assert {entry.id: entry.passed for entry in state.waiting.entries.values()} == wanted.passed
    size, memory = state.limits.page_size, dict(machine.memory)
    assert {old for old, _ in plan.copies}.isdisjoint(new for _, new in plan.copies)
    for old, new in plan.copies:
        memory |= {new * size + offset: machine.memory[old * size + offset] for offset in range(size) if old * size + offset in machine.memory}
    slots: list[int] = []
    for lane in plan.lanes:
        entry = find(state, lane.id)
        assert entry is not None
        assert lane.k in ((drafted(entry),) if lane.stop == len(entry.tokens) else (0,))
        mine = table.slots(entry.table, lane.start, lane.stop + lane.k, page_size=size)
        assert all(pages.references(state.pool, slot // size) == 1 for slot in mine)
        slots += mine
    assert len(set(slots)) == len(slots)
    return Machine(state, memory), plan


def passed_through(machine: Machine, plan: Plan, right: Sequence[int]) -> tuple[Machine, list[Done]]:
    """The forward of a plan and what the verifier makes of it: each lane reads its context, and writes its rows."""
    state, memory = machine.state, dict(machine.memory)
    size, done = state.limits.page_size, []
    for turn, lane in enumerate(plan.lanes):
        entry = find(state, lane.id)
        assert entry is not None
        for place, slot in enumerate(table.slots(entry.table, 0, lane.start, page_size=size)):
            assert memory[slot] == (entry.salt, entry.tokens[: place + 1])
        rows, good = entry.tokens[: lane.stop], right[turn % len(right)]
        for draft in range(lane.k):
            rows = (*rows, (following(rows) + (draft >= good)) % 9)
        for place, slot in enumerate(table.slots(entry.table, lane.start, lane.stop + lane.k, page_size=size), lane.start):
            memory[slot] = entry.salt, rows[: place + 1]
        if lane.stop < len(entry.tokens):
            done.append(Done(lane))
            continue
        kept = min(good, lane.k)
        new = solo(entry.tokens, min(entry.limit, len(entry.tokens) + kept + 1))[len(entry.tokens) :]
        done.append(Done(lane, kept, new, new[-1:] == (STOP,) or len(entry.tokens) + len(new) == entry.limit or not new))
    return Machine(state, memory), done


def committed(machine: Machine, done: Sequence[Done], wanted: dict[int, tuple[int, ...]]) -> Machine:
    """Takes the results over; those that are finished must be what they are alone, and are struck off."""
    before = {entry.id: entry.tokens for entry in machine.state.running}
    state = commit(machine.state, done)
    running = {entry.id: entry for entry in state.running}
    for id, _, tokens, finished in ((one.lane.id, one.kept, one.tokens, one.finished) for one in done):
        if id in before and id not in running:
            assert finished
            assert (*before[id], *tokens) == wanted.pop(id)
        elif id in running:
            assert running[id].table.length == len(running[id].tokens) - 1 or not tokens
    return Machine(state, machine.memory)


ROWS = st.lists(st.integers(0, 4), min_size=1, max_size=4)
BUDGET = st.integers(0, 9)


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of arrivals, passes, failed passes, late results, aborts and forks."""

    @initialize(page_size=st.integers(1, 4), num_pages=st.integers(4, 12), max_batch=st.integers(1, 5), prefix_cache=st.booleans())
    def start(self, page_size: int, num_pages: int, max_batch: int, prefix_cache: bool) -> None:
        self.machine = Machine(init(Limits(page_size, num_pages, max_batch, prefix_cache)), {})
        self.wanted: dict[int, tuple[int, ...]] = {}
        self.late: list[Done] = []
        self.next = 0

    @property
    def state(self) -> Schedule:
        return self.machine.state

    @rule(
        tokens=st.lists(st.integers(0, 4), min_size=1, max_size=12),
        more=st.integers(0, 16),
        k=st.integers(0, 4),
        priority=st.sampled_from([0, 0, 0, -1, 2]),
        salt=st.sampled_from([b"", b"", b"a"]),
    )
    def arrives(self, tokens: list[int], more: int, k: int, priority: int, salt: bytes) -> None:
        limit, size = len(tokens) + more, self.state.limits.page_size
        settings = {"id": self.next, "tokens": tokens, "limit": limit, "k": k, "priority": priority, "salt": salt}
        if -(-max(limit - 1, len(tokens)) // size) > self.state.limits.num_pages:
            with pytest.raises(ValueError, match=f"{limit} tokens"):
                submit(self.state, **settings)
            return
        self.machine = self.machine._replace(state=submit(self.state, **settings))
        self.wanted[self.next] = solo(tuple(tokens), limit)
        self.next += 1

    @rule(budget=BUDGET, right=ROWS)
    def passes(self, budget: int, right: list[int]) -> None:
        machine, plan = planned(self.machine, budget)
        machine, self.late = passed_through(machine, plan, right)
        self.machine = committed(machine, self.late, self.wanted)
        assert commit(self.state, self.late) == self.state

    @rule(budget=BUDGET, right=ROWS, written=st.booleans())
    def fails(self, budget: int, right: list[int], written: bool) -> None:
        """A pass whose results are lost, or come later, perhaps after it wrote its rows."""
        self.machine, plan = planned(self.machine, budget)
        machine, self.late = passed_through(self.machine, plan, right)
        self.machine = machine if written else self.machine
        self.late = self.late if written else []

    @rule()
    def come_late(self) -> None:
        """Results of a pass that was given up: some still hold, the others are ignored."""
        self.machine, self.late = committed(self.machine, self.late, self.wanted), []

    @rule(data=st.data())
    def is_aborted(self, data: st.DataObject) -> None:
        id = data.draw(st.integers(-1, self.next), "id")
        known = find(self.state, id) is not None
        state = remove(self.state, id)
        assert remove(state, id) is state
        assert known or state is self.state
        assert known == (self.wanted.pop(id, None) is not None)
        self.machine = self.machine._replace(state=state)

    @rule(data=st.data(), k=st.none() | st.integers(0, 3))
    def is_forked(self, data: st.DataObject, k: int | None) -> None:
        if self.wanted:
            id = data.draw(st.sampled_from(sorted(self.wanted)), "id")
            free = free_pages(self.state)
            self.machine = self.machine._replace(state=fork(self.state, id, self.next, k=k))
            assert free_pages(self.state) == free
            self.wanted[self.next] = self.wanted[id]
            # Results of a pass from before the fork would be written into pages that are shared by now.
            self.late = []
            self.next += 1

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "machine"):
            conserved(self.state)
            assert self.wanted.keys() == {entry.id for entry in (*self.state.running, *self.state.waiting.entries.values())}

    def teardown(self) -> None:
        """Everybody finishes, each as it would alone, and all pages come back."""
        if not hasattr(self, "machine"):
            return
        passes = 0
        while self.wanted:
            machine, plan = planned(self.machine, 3)
            machine, done = passed_through(machine, plan, (1, 0, 3))
            assert plan.lanes
            self.machine = committed(machine, done, self.wanted)
            conserved(self.state)
            passes += 1
            assert passes < 5000, "somebody starves"
        assert free_pages(self.state) == self.state.limits.num_pages


SchedulerMachine.TestCase.settings = settings(stateful_step_count=40)
TestScheduler = SchedulerMachine.TestCase


def test_ten_thousand_requests_leave_no_page_behind_and_none_starves() -> None:
    """Arrivals in bursts, aborts and preemptions; each request ends as it would alone, and every page comes back."""
    count = 10_000
    chances = iter(uniform(key(4), (12 * count,)).tolist())

    def below(most: int) -> int:
        return int(next(chances) * most)

    machine = Machine(init(Limits(page_size=4, num_pages=16, max_batch=12)), {})
    wanted: dict[int, tuple[int, ...]] = {}
    arrived = finished = aborted = preempted = passes = 0
    while arrived < count or wanted:
        state = machine.state
        while arrived < count and (not state.waiting.entries or below(4)) and len(wanted) < 40:
            tokens = tuple(below(3) for _ in range(1 + below(6)))
            limit = len(tokens) + 1 + below(24)
            state = submit(state, id=arrived, tokens=tokens, limit=limit, k=below(4), priority=below(2))
            wanted[arrived] = solo(tokens, limit)
            arrived += 1
        id = arrived - below(40)
        if not below(4) and id in wanted:
            state, aborted = remove(state, id), aborted + 1
            del wanted[id]
        machine = machine._replace(state=state)
        state, plan = schedule(state, 24)
        preempted += len(plan.preempted)
        before = len(wanted)
        machine, done = passed_through(Machine(state, machine.memory), plan, (0, 2, 1, 3))
        machine = committed(machine, done, wanted)
        finished += before - len(wanted)
        passes += 1
        if passes % 50 == 0:
            conserved(machine.state)
    conserved(machine.state)
    assert free_pages(machine.state) == 16
    assert finished + aborted == count
    assert min(aborted, preempted) > 100
