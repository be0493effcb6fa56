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
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specdec_fn.kv import pages, prefix, table
from specdec_fn.random import key, uniform
from specdec_fn.schedule import Done, Entry, Lane, Limits, Plan, Schedule, commit, find, fork, free_pages, init, remove, schedule, submit

LOOK = 8  # behind a head that does not fit
BOUND = 16  # admissions past a head
STOP = 8  # the token that ends a request
Memory = dict[int, tuple[bytes, tuple[int, ...]]]


def following(context: Sequence[int]) -> int:
    """The token that the pretended model emits behind a context; it sees a few tokens, so that contexts meet again."""
    return STOP if sum(context[-5:]) % 19 == 7 else (3 * context[-1] + sum(context[-3:]) + len(context) // 5) % STOP


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
        if lane.stop == len(entry.tokens):
            assert len(entry.table.pages) == -(-(lane.stop + lane.k) // size)
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
    for one in done:
        id, tokens = one.lane.id, one.tokens
        if id in before and id not in running:
            assert one.finished
            assert (*before[id], *tokens) == wanted.pop(id)
        elif id in running and running[id].tokens != before[id]:
            assert running[id].tokens == (*before[id], *tokens)
            assert running[id].table.length == len(running[id].tokens) - 1
    return Machine(state, machine.memory)


ROWS = st.lists(st.integers(0, 4), min_size=1, max_size=4)
BUDGET = st.sampled_from([9, 3, 6, 4, 2, 1, 0])
# Tokens, how many more, k, priority, salt.
ARRIVAL = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
    st.integers(0, 40),
    st.integers(0, 4),
    st.sampled_from([0, 0, 0, -1, 2]),
    st.sampled_from([b"", b"", b"a"]),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of arrivals, passes, failed passes, late results, aborts and forks."""

    @initialize(page_size=st.sampled_from([4, 3, 2, 1]), num_pages=st.integers(4, 12), max_batch=st.sampled_from([6, 4, 2, 1]), cached=st.booleans())
    def start(self, page_size: int, num_pages: int, max_batch: int, cached: bool) -> None:
        self.machine = Machine(init(Limits(page_size, num_pages, max_batch, cached)), {})
        self.wanted: dict[int, tuple[int, ...]] = {}
        self.late: list[Done] = []
        self.next = 0

    @property
    def state(self) -> Schedule:
        return self.machine.state

    @rule(several=st.lists(ARRIVAL, min_size=1, max_size=4))
    def arrive(self, several: list[tuple[list[int], int, int, int, bytes]]) -> None:
        for tokens, more, k, priority, salt in several:
            size, room = self.state.limits.page_size, self.state.limits.page_size * self.state.limits.num_pages
            limit = len(tokens) + more % max(2, room + 3 - len(tokens))  # two too many at most
            settings = {"id": self.next, "tokens": tokens, "limit": limit, "k": k, "priority": priority, "salt": salt}
            if -(-max(limit - 1, len(tokens)) // size) > self.state.limits.num_pages:
                with pytest.raises(ValueError, match=f"{limit} tokens"):
                    submit(self.state, **settings)
                continue
            self.machine = self.machine._replace(state=submit(self.state, **settings))
            self.wanted[self.next] = solo(tuple(tokens), limit)
            self.next += 1

    @rule(budget=BUDGET, right=ROWS, times=st.integers(1, 6))
    def passes(self, budget: int, right: list[int], times: int) -> None:
        for _ in range(times):
            machine, plan = planned(self.machine, budget)
            machine, self.late = passed_through(machine, plan, right)
            self.machine = committed(machine, self.late, self.wanted)
            assert commit(self.state, self.late) == self.state
            conserved(self.state)

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

    @rule(place=st.integers(-1, 9))
    def is_aborted(self, place: int) -> None:
        """One that is known, where there are so many; else one that is not."""
        id = sorted(self.wanted)[place] if 0 <= place < len(self.wanted) else self.next
        known = find(self.state, id) is not None
        state = remove(self.state, id)
        assert remove(state, id) is state
        assert known or state is self.state
        assert known == (self.wanted.pop(id, None) is not None)
        self.machine = self.machine._replace(state=state)

    @precondition(lambda self: self.state.running)
    @rule(data=st.data(), k=st.none() | st.integers(0, 3), times=st.integers(1, 2))
    def is_forked(self, data: st.DataObject, k: int | None, times: int) -> None:
        running, known = [entry.id for entry in self.state.running], sorted(self.wanted)
        id = data.draw(st.sampled_from(running) | st.sampled_from(known), "id")
        free = free_pages(self.state)
        for _ in range(times):
            self.machine = self.machine._replace(state=fork(self.state, id, self.next, k=k))
            assert free_pages(self.state) == free
            self.wanted[self.next] = self.wanted[id]
            self.next += 1
        self.late = []  # results of a pass from before the fork would have been written into pages that are shared by now

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


class Chances:
    """Numbers below a bound, from one key."""

    def __init__(self, seed: int, count: int) -> None:
        self.left = iter(uniform(key(seed), (count,)).tolist())

    def below(self, most: int) -> int:
        return int(next(self.left) * most)


def test_random_worlds_follow_the_rules() -> None:
    """The rules of the machine in long runs, each world with its own sizes: everything has to happen often."""
    seen: Counter[str] = Counter()
    for seed in range(20):
        below = Chances(seed, 20_000).below
        limits = Limits(1 + below(4), 6 + below(7), 2 + below(5), below(4) > 0)
        room = limits.page_size * limits.num_pages
        machine = Machine(init(limits), {})
        wanted: dict[int, tuple[int, ...]] = {}
        late: list[Done] = []
        for id in range(60):
            state = machine.state
            tokens = tuple(below(2) for _ in range(1 + below(min(12, room))))
            limit = min(room + 1, len(tokens) + below(20))
            state = submit(state, id=id, tokens=tokens, limit=limit, k=below(5), priority=(0, 0, 0, 1, -1)[below(5)], salt=(b"", b"a")[below(3) // 2])
            wanted[id] = solo(tokens, limit)
            if state.running and not below(3):
                source = state.running[below(len(state.running))].id
                state = fork(state, source, 100 + id, k=below(4))
                wanted[100 + id] = wanted[source]
                seen["forks"] += 100 + id not in state.waiting.entries
                late = []
            if not below(5):
                gone = sorted(wanted)[below(len(wanted))]
                state = remove(state, gone)
                del wanted[gone]
            machine = committed(machine._replace(state=state), late, wanted)
            late = []
            for _ in range(below(5)):
                before = machine.state
                machine, plan = planned(machine, below(10))
                passed, done = passed_through(machine, plan, (below(5), below(5), below(5)))
                if below(6):
                    machine = committed(passed, done, wanted)
                else:
                    machine, late = (passed, done) if below(2) else (machine, [])
                conserved(machine.state)
                admitted = [find(machine.state, one) for one in plan.admitted]
                seen.update({"preempted": len(plan.preempted), "copied": len(plan.copies), "admitted": len(admitted)})
                seen["hit again"] += sum(one is not None and one.epoch > 0 and one.tip.pages > 0 for one in admitted)
                seen["evicted"] += len(before.cache.nodes) > len(machine.state.cache.nodes)
                seen["overdue"] += any(one.passed == BOUND for one in machine.state.waiting.entries.values())
        for _ in range(3000):
            if not wanted:
                break
            machine, plan = planned(machine, 3)
            machine, done = passed_through(machine, plan, (1, 0, 3))
            machine = committed(machine, done, wanted)
        assert not wanted, "somebody starves"
        assert free_pages(machine.state) == limits.num_pages
    rare = {name: seen[name] for name in ("forks", "preempted", "copied", "admitted", "hit again", "evicted", "overdue") if seen[name] < 20}
    assert not rare


def test_ten_thousand_requests_leave_no_page_behind_and_none_starves() -> None:
    """Arrivals in bursts, aborts and preemptions; each request ends as it would alone, and every page comes back."""
    count = 10_000
    below = Chances(4, 12 * count).below
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
