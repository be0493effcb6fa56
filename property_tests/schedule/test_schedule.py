"""The scheduler on small cases that can be worked out by hand; where it can go wrong, the fault that users of other engines met is in the name."""

from collections.abc import Callable, Sequence

import pytest

from specdec_fn.kv import pages, prefix, table
from specdec_fn.schedule import Done, Lane, Limits, Plan, Schedule, commit, find, fork, free_pages, init, remove, schedule, submit
from specdec_fn.schedule.admit import MOST_BEHIND
from specdec_fn.schedule.preempt import preempt
from specdec_fn.schedule.request import lane as lane_of
from specdec_fn.schedule.waiting import MOST_PASSED


def following(context: Sequence[int]) -> int:
    """The token that the pretended model emits behind a context."""
    return (sum((place + 1) * token for place, token in enumerate(context)) + len(context)) % 7


def solo(prompt: Sequence[int], limit: int) -> tuple[int, ...]:
    tokens = list(prompt)
    while len(tokens) < limit:
        tokens.append(following(tokens))
    return tuple(tokens)


def results(state: Schedule, plan: Plan, right: Callable[[int], int] = lambda length: length % 3) -> list[Done]:
    """What a pass of the pretended model gives, whose drafter is right about as many tokens as ``right`` says of the length."""
    found = []
    for lane in plan.lanes:
        entry = find(state, lane.id)
        assert entry is not None
        if lane.stop < len(entry.tokens):
            found.append(Done(lane))
            continue
        kept = min(right(len(entry.tokens)), lane.k)
        new = solo(entry.tokens, len(entry.tokens) + kept + 1)[len(entry.tokens) :]
        found.append(Done(lane, kept, new, len(entry.tokens) + len(new) == entry.limit))
    return found


def step(state: Schedule, budget: int = 100) -> tuple[Schedule, Plan, dict[int, tuple[int, ...]]]:
    """One pass; also the tokens of those that it finished."""
    state, plan = schedule(state, budget)
    done = results(state, plan)
    over = {one.lane.id: (*find(state, one.lane.id).tokens, *one.tokens) for one in done if one.finished}
    return commit(state, done), plan, over


def drive(state: Schedule, budget: int = 100, most: int = 500) -> tuple[dict[int, tuple[int, ...]], list[Plan]]:
    """Passes until nobody is left."""
    finished, plans = {}, []
    while state.running or state.waiting.entries:
        state, plan, over = step(state, budget)
        finished |= over
        plans.append(plan)
        assert len(plans) <= most, "no end"
        conserved(state)
    assert free_pages(state) == state.limits.num_pages
    return finished, plans


def conserved(state: Schedule) -> None:
    """Each page is free, idle or held by one that runs, and its references are those."""
    held = [page for entry in state.running for page in entry.table.pages]
    cached = {node.page for node in state.cache.nodes.values()}
    assert pages.free_count(state.pool) + len(cached | set(held)) == state.limits.num_pages
    assert {page: state.pool.held[page] for page in state.pool.held} == {page: held.count(page) + (page in cached) for page in cached | set(held)}
    assert prefix.idle_count(state.cache) == len(cached - set(held))
    assert free_pages(state) == state.limits.num_pages - len(set(held))
    assert all(entry.table == table.Table() for entry in state.waiting.entries.values())


def with_requests(limits: Limits, *prompts: Sequence[int], more: int = 8, k: int = 0, **options: int) -> Schedule:
    state = init(limits)
    for id, prompt in enumerate(prompts):
        state = submit(state, id=id, tokens=prompt, limit=len(prompt) + more, k=k, **options)
    return state


def numbered(first: int, count: int) -> tuple[int, ...]:
    """A prompt that shares no page with one that starts elsewhere."""
    return tuple(range(1000 * first, 1000 * first + count))


# ---- what can never fit, and what can


def test_c1_a_request_that_can_never_fit_is_refused_and_blocks_nobody() -> None:
    state = init(Limits(page_size=16, num_pages=4, max_batch=8))
    with pytest.raises(ValueError, match=r"104 tokens, which needs 7 pages of 16 slots; expected at most the 4 pages"):
        submit(state, id=0, tokens=range(100), limit=104, k=4)
    state = submit(state, id=1, tokens=range(8), limit=12, k=4)
    assert drive(state)[0] == {1: solo(range(8), 12)}


@pytest.mark.parametrize("k", [0, 3, 9])
@pytest.mark.parametrize("page_size", [1, 3, 4])
def test_a_request_that_just_fits_runs_to_its_limit_and_one_token_more_is_refused(page_size: int, k: int) -> None:
    state = init(Limits(page_size, 4, 2))
    most = 4 * page_size + 1  # the last token needs no slot
    finished, plans = drive(submit(state, id=0, tokens=(1, 2), limit=most, k=k))
    assert finished == {0: solo((1, 2), most)}
    assert not any(plan.preempted for plan in plans)
    with pytest.raises(ValueError, match="which needs 5 pages"):
        submit(state, id=0, tokens=(1, 2), limit=most + 1, k=k)


def test_a_request_that_emits_nothing_needs_a_slot_for_each_of_its_tokens() -> None:
    state = init(Limits(4, 4, 2))
    with pytest.raises(ValueError, match="which needs 5 pages"):
        submit(state, id=0, tokens=range(17), limit=17, k=0)
    state, plan = schedule(submit(state, id=0, tokens=range(16), limit=16, k=3), 100)
    assert plan.lanes == (Lane(0, 0, 0, 16, 0),)
    assert free_pages(commit(state, [Done(plan.lanes[0], finished=True)])) == 4


def test_the_smallest_request_fits_in_the_smallest_pool() -> None:
    state = submit(init(Limits(1, 1, 1)), id=0, tokens=(5,), limit=1, k=4)
    assert schedule(state, 1)[1].lanes == (Lane(0, 0, 0, 1, 0),)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": ()}, "no tokens"),
        ({"limit": 1}, "limit is 1; expected at least 2"),
        ({"k": -1}, "k is -1"),
        ({"prompt": 3}, "prompt is 3; expected 0 to 2"),
        ({"prompt": -1}, "prompt is -1"),
        ({"id": 0}, "request 0 is here already"),
        ({"limit": 100}, "needs 25 pages"),
    ],
)
def test_bad_submits_say_what_is_wrong(wrong: dict, message: str) -> None:
    state = with_requests(Limits(4, 8, 2), (1, 2))
    running, _ = schedule(state, 10)
    for here in (state, running):
        with pytest.raises(ValueError, match=message):
            submit(here, **{"id": 7, "tokens": (1, 2), "limit": 5, "k": 2, **wrong})


@pytest.mark.parametrize("name", ["page_size", "num_pages", "max_batch"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0"):
        init(Limits(4, 8, 2)._replace(**{name: 0}))


def test_a_negative_budget_is_refused_and_none_moves_only_those_that_decode() -> None:
    state = with_requests(Limits(4, 20, 3), (1, 2), (3, 4, 5))
    with pytest.raises(ValueError, match="budget is -1"):
        schedule(state, -1)
    assert schedule(state, 0)[1] == Plan()
    state, _, _ = step(state, 2)  # the first has its prompt computed, the second waits
    state, plan = schedule(state, 0)
    assert [lane.id for lane in plan.lanes] == [0]


# ---- chunks


@pytest.mark.parametrize("warm", [False, True])
def test_c4_s6_chunks_of_a_prompt_draft_and_emit_only_at_its_last_token(warm: bool) -> None:
    """A prompt of 9 in chunks of 4, 4, 1 beside one that decodes; warm, a page of 4 of it is found and the chunks are 4, 1."""
    state = with_requests(Limits(4, 50, 4), (90, 91), more=30, k=4)
    state, _, _ = step(state)
    if warm:
        state = submit(state, id=8, tokens=numbered(1, 5), limit=6, k=0)
        state, _, over = step(state)
        assert 8 in over
    state = submit(state, id=1, tokens=numbered(1, 9), limit=12, k=4)
    seen = []
    for _ in range(3 - warm):
        state, plan = schedule(state, 4)
        other, chunk = plan.lanes
        assert (other.id, other.stop - other.start, other.k) == (0, 1, 4)
        seen.append((chunk.start, chunk.stop, chunk.k))
        state = commit(state, results(state, plan, lambda length: 0))
    assert seen == [(0, 4, 0), (4, 8, 0), (8, 9, 2)][warm:]
    assert find(state, 1).tokens == solo(numbered(1, 9), 10)
    assert find(state, 1).hit == 4 * warm


@pytest.mark.parametrize("budget", [1, 4, 4096])
def test_s6_the_tokens_do_not_depend_on_the_chunk(budget: int) -> None:
    state = with_requests(Limits(4, 9, 3), numbered(1, 9), numbered(2, 5), numbered(3, 13), more=9, k=3)
    assert drive(state, budget)[0] == {0: solo(numbered(1, 9), 18), 1: solo(numbered(2, 5), 14), 2: solo(numbered(3, 13), 22)}


def test_a_lane_of_one_row_needs_no_prompt_rows() -> None:
    entry = find(with_requests(Limits(4, 20, 4), (1, 2), more=9, k=3), 0)
    assert lane_of(entry, 0) is None
    assert lane_of(entry._replace(table=table.Table((0,), 1)), 0) == Lane(0, 0, 1, 2, 3)


def test_prompt_rows_go_round_in_order_of_service_and_a_single_row_is_free() -> None:
    state = with_requests(Limits(4, 50, 4), numbered(1, 6), numbered(2, 6), (5,), numbered(3, 6))
    state, plan = schedule(state, 7)
    assert plan.lanes == (Lane(0, 0, 0, 6, 0), Lane(1, 0, 0, 1, 0))
    state, plan, _ = step(state, 7)
    state, plan = schedule(state, 7)
    assert plan.lanes == (Lane(0, 0, 6, 7, 0), Lane(1, 0, 1, 6, 0), Lane(2, 0, 0, 1, 0), Lane(3, 0, 0, 2, 0))


def test_k8_every_drafted_row_has_a_slot_of_its_own() -> None:
    """Pages of 4 and 8 drafts: a pass may need three more pages at once."""
    for length in range(1, 10):
        state = with_requests(Limits(4, 50, 4), numbered(1, length), numbered(2, length), more=40, k=8)
        for _ in range(3):
            state, plan = schedule(state, 100)
            slots = [slot for lane in plan.lanes for slot in table.slots(find(state, lane.id).table, lane.start, lane.stop + lane.k, page_size=4)]
            assert len(slots) == len(set(slots)) == sum(lane.stop - lane.start + 8 for lane in plan.lanes)
            state = commit(state, results(state, plan, lambda length: 8))
            conserved(state)


def test_drafts_stop_where_tokens_would_run_past_the_limit() -> None:
    state = with_requests(Limits(4, 50, 4), (1, 2), more=4, k=8)
    state, plan = schedule(state, 100)
    assert plan.lanes[0].k == 3
    state = commit(state, [Done(plan.lanes[0], 1, (3, 4))])
    assert schedule(state, 100)[1].lanes[0].k == 1


# ---- preemption


def test_c2_two_that_do_not_fit_together_finish_with_few_preemptions() -> None:
    state = with_requests(Limits(4, 5, 4), numbered(1, 6), numbered(2, 6), more=8)
    finished, plans = drive(state)
    assert finished == {0: solo(numbered(1, 6), 14), 1: solo(numbered(2, 6), 14)}
    gone = [id for plan in plans for id in plan.preempted]
    assert set(gone) == {1}
    assert len(gone) < 20


def test_c2_one_that_is_preempted_is_not_visited_again_in_the_round() -> None:
    """Three that decode fill the pool; the first takes the pages of the last two, in one round."""
    state = with_requests(Limits(2, 6, 3), (1,), (2,), (3,), more=11)
    for _ in range(4):
        state, plan = schedule(state, 100)
        state = commit(state, results(state, plan, lambda length: 0))
    assert [len(entry.table.pages) for entry in state.running] == [2, 2, 2]
    state, plan = schedule(state, 100)
    assert plan.preempted == (2,)
    assert [lane.id for lane in plan.lanes] == [0, 1]
    assert [entry.id for entry in state.running] == [0, 1]
    assert find(state, 2).epoch == 1
    conserved(state)


def test_the_first_takes_pages_from_several_and_k_is_never_cut() -> None:
    """Pages of one slot: after three passes the first holds 12, the others 3 each, 1 is free; then the first wants 4 at once."""
    state = submit(init(Limits(1, 19, 3, prefix_cache=False)), id=0, tokens=(1,), limit=20, k=3)
    state = submit(submit(state, id=1, tokens=(2,), limit=15, k=0), id=2, tokens=(3,), limit=15, k=0)
    for _ in range(3):
        state, plan = schedule(state, 100)
        assert not plan.preempted
        state = commit(state, results(state, plan, lambda length: 3))
    assert free_pages(state) == 1
    state, plan = schedule(state, 100)
    assert plan.preempted == (2, 1)
    assert plan.lanes == (Lane(0, 0, 12, 13, 3),)
    assert [entry.id for entry in sorted(state.waiting.entries.values(), key=lambda entry: entry.arrival)] == [1, 2]


def test_a_better_priority_preempts_whoever_is_last_even_if_it_came_later() -> None:
    limits = Limits(1, 9, 2, prefix_cache=False)
    state = submit(init(limits), id=0, tokens=(1, 2), limit=9, k=0, priority=5)
    state, _, _ = step(state)
    state = submit(state, id=1, tokens=(3, 4), limit=9, k=0, priority=1)
    seen = []
    while find(state, 1):
        state, plan, _ = step(state)
        assert [lane.id for lane in plan.lanes] == sorted((lane.id for lane in plan.lanes), reverse=True)
        seen += plan.preempted
    assert seen == [0]
    assert drive(state)[0] == {0: solo((1, 2), 9)}


def test_nobody_comes_in_while_somebody_was_just_sent_away() -> None:
    state = with_requests(Limits(2, 4, 3), (1, 2, 3), (4,), more=5)
    state = submit(state, id=2, tokens=(9,), limit=2, k=0)
    sent = []
    while state.running or state.waiting.entries:
        state, plan, _ = step(state)
        assert not (plan.preempted and plan.admitted)
        sent += plan.preempted
    assert sent


def test_c3_a_result_from_before_a_preemption_is_ignored() -> None:
    state = with_requests(Limits(2, 6, 3, prefix_cache=False), (1,), (2,), (3,), more=11)
    for _ in range(3):
        state, plan = schedule(state, 100)
        state = commit(state, results(state, plan, lambda length: 0))
    state, plan = schedule(state, 100)
    late = [one for one in results(state, plan, lambda length: 0) if one.lane.id == 2]
    state = commit(state, [one for one in results(state, plan, lambda length: 0) if one.lane.id != 2])
    state, plan = schedule(state, 100)
    assert plan.preempted == (2,)
    assert commit(state, late) == state
    state = remove(remove(state, 0), 1)
    state, plan = schedule(state, 100)
    assert plan.admitted == (2,)
    assert commit(state, late) == state  # it runs again, but in another epoch and elsewhere
    assert drive(state)[0] == {2: solo((3,), 12)}


def test_c3_a_result_from_before_a_preemption_is_ignored_even_if_the_request_stands_there_again() -> None:
    """The first chunk of a prompt was planned, the request was preempted and starts anew: the late rows lie in pages that it gave up."""
    state, plan = schedule(with_requests(Limits(4, 20, 4), numbered(1, 9)), 4)
    pool, cache, waiting = preempt(state.running[0], state.pool, state.cache, state.waiting)
    state, again = schedule(state._replace(pool=pool, cache=cache, waiting=waiting, running=()), 4)
    assert again.lanes == (plan.lanes[0]._replace(epoch=1),)
    assert commit(state, [Done(plan.lanes[0])]) is state
    assert commit(state, [Done(again.lanes[0])]) is not state


def test_c3_a_result_that_comes_twice_counts_once() -> None:
    state = with_requests(Limits(2, 6, 3), (1,), (2,), more=3)
    state, plan = schedule(state, 100)
    done = results(state, plan, lambda length: 0)
    state = commit(state, done)
    assert commit(state, done) == state
    assert commit(remove(state, 0), done) == remove(state, 0)


def preempted_at(length: int, *, keep: bool) -> tuple[Schedule, Plan, int]:
    """A request of pages of 4 that was preempted when it had so many tokens, and is just admitted again; and how many were found."""
    state = init(Limits(4, 8, 3))
    state = submit(state, id=0, tokens=(50,), limit=20, k=0, priority=-1)
    state = submit(state, id=1, tokens=(1, 2, 3), limit=12, k=0)
    while len(find(state, 1).tokens) < length:
        state, plan = schedule(state, 100)
        state = commit(state, results(state, plan, lambda length: 0))
    entry = find(state, 1)
    grown = submit(remove(state, 0), id=2, tokens=(60,), limit=2, k=0)
    # What preemption does, without the neighbours that bring it about.
    pool, cache, waiting = preempt(entry, grown.pool, grown.cache, grown.waiting)
    state = grown._replace(pool=pool, cache=cache, waiting=waiting, running=())
    if not keep:
        cache, pool = prefix.evict(state.cache, state.pool, 8)
        state = state._replace(cache=cache, pool=pool)
    conserved(state)
    state, plan = schedule(state, 100)
    return state, plan, (length - 1) // 4 * 4 if keep else 0


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("length", [4, 5, 8, 9])
def test_p4_p5_after_preemption_the_rest_is_computed_and_the_tokens_are_the_same(length: int, keep: bool) -> None:
    state, plan, hit = preempted_at(length, keep=keep)
    lane = next(lane for lane in plan.lanes if lane.id == 1)
    assert (lane.epoch, lane.start, lane.stop) == (1, hit, length)
    assert find(state, 1).table.length == hit
    assert drive(state)[0][1] == solo((1, 2, 3), 12)


@pytest.mark.parametrize("length", [5, 9])
def test_p11_a_hit_is_recorded_at_the_first_admission_only(length: int) -> None:
    state, _, hit = preempted_at(length, keep=True)
    assert hit > 0
    assert find(state, 1).hit == 0
    state = submit(state, id=9, tokens=find(state, 1).tokens[:5], limit=6, k=0)
    assert find(state, 9).hit == -1
    state, _ = schedule(state, 100)
    assert find(state, 9).hit == 4


def test_p10_the_cache_is_asked_when_a_request_comes_in_and_not_before() -> None:
    state = with_requests(Limits(4, 8, 1), numbered(1, 9), more=1)
    state, _, _ = step(state)
    state = submit(state, id=1, tokens=numbered(1, 9), limit=10, k=0)
    held, _ = schedule(state, 100)
    assert find(held, 1).hit == 8
    cache, pool = prefix.evict(state.cache, state.pool, 1)
    lost, plan = schedule(state._replace(cache=cache, pool=pool), 100)
    assert find(lost, 1).hit == plan.lanes[0].start == 4


def test_idle_pages_are_evicted_before_anybody_is_preempted() -> None:
    state = with_requests(Limits(4, 4, 2), numbered(1, 12), more=1)
    state, _, _ = step(state)
    assert (prefix.idle_count(state.cache), pages.free_count(state.pool)) == (3, 1)
    state = submit(state, id=1, tokens=numbered(2, 14), limit=17, k=0)
    state, plan = schedule(state, 100)
    assert plan.admitted == (1,)
    assert prefix.idle_count(state.cache) == 0
    assert prefix.lookup(state.cache, numbered(1, 12), page_size=4) == ()
    conserved(state)


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    state = with_requests(Limits(4, 8, 2, prefix_cache=False), numbered(1, 9), numbered(1, 9), more=4)
    finished, _ = drive(state)
    assert finished == {0: solo(numbered(1, 9), 13), 1: solo(numbered(1, 9), 13)}
    while state.running or state.waiting.entries:
        state, _, _ = step(state)
    assert pages.free_count(state.pool) == 8
    assert len(state.cache.nodes) == 0


# ---- who comes in


def test_c5_requests_that_wait_hold_no_pages() -> None:
    state = with_requests(Limits(4, 10, 2), *(numbered(id, 9) for id in range(5)), more=4)
    state, _, _ = step(state)
    assert sum(len(entry.table.pages) for entry in state.running) == len(state.pool.held)
    assert len(state.waiting.entries) == 3
    conserved(state)
    drive(state)


def test_room_is_left_for_what_runs_and_none_where_nothing_runs() -> None:
    """One runs with a row and 3 drafts, which fill a page of 4: that page is left. So 5 pages out of 10 - 4 are for others."""
    state = with_requests(Limits(4, 10, 4), numbered(1, 13), more=20, k=3)
    state, _ = schedule(state, 100)
    assert len(state.running[0].table.pages) == 4
    for tokens, fits in ((21, False), (20, True)):
        _, plan = schedule(submit(state, id=1, tokens=numbered(2, tokens), limit=tokens + 1, k=0), 100)
        assert bool(plan.admitted) == fits
    alone = submit(init(state.limits), id=1, tokens=numbered(2, 40), limit=41, k=0)
    assert schedule(alone, 100)[1].admitted == (1,)


def test_what_the_head_would_hit_does_not_count_as_room() -> None:
    """Idle pages that the request itself is to use cannot be evicted for it as well."""
    state = with_requests(Limits(4, 6, 2), numbered(1, 12), more=1)
    state, _, _ = step(state)
    state = submit(state, id=1, tokens=numbered(2, 9), limit=10, k=0)
    state, plan = schedule(state, 100)
    assert plan.admitted == (1,)
    assert (free_pages(state), prefix.idle_count(state.cache)) == (3, 3)
    state = submit(state, id=2, tokens=numbered(1, 20), limit=21, k=0)  # 3 pages are found, 2 more are lacking
    state, plan = schedule(state, 100)
    assert plan.admitted == ()
    assert plan.lanes == (Lane(1, 0, 0, 9, 0),)
    conserved(state)


def test_those_behind_one_that_does_not_fit_go_past_it_but_only_the_next_few_are_tried() -> None:
    big = numbered(99, 20)
    state = with_requests(Limits(4, 8, 20), numbered(1, 13), more=4)
    state, _ = schedule(state, 100)
    for id in range(1, 2 + MOST_BEHIND):
        state = submit(state, id=id, tokens=big, limit=21, k=0)
    beyond = submit(state, id=50, tokens=(7,), limit=2, k=0)
    assert schedule(beyond, 100)[1].admitted == ()  # the head and as many behind it as are tried do not fit
    within = submit(remove(state, 2), id=50, tokens=(7,), limit=2, k=0)
    assert schedule(within, 100)[1].admitted == (50,)


def test_c6_one_that_does_not_fit_is_passed_a_bounded_number_of_times() -> None:
    """A large head among an endless stream of small ones, two a pass: they go past it as often as is stated, then nothing comes in before it."""
    state = with_requests(Limits(4, 8, 4), numbered(1, 2), more=20)
    state, _, _ = step(state)
    state = submit(state, id=1, tokens=numbered(2, 30), limit=31, k=0)
    order, id = [], 2
    while 1 not in order:
        for _ in range(2):
            state = submit(state, id=id, tokens=numbered(id, 1), limit=2, k=0)
            id += 1
        state, plan, _ = step(state)
        order += plan.admitted
        assert id < 200
    assert order == [*range(2, 2 + MOST_PASSED), 1]
    drive(state)


def test_c6_better_priorities_that_come_later_go_past_a_bounded_number_of_times() -> None:
    state = with_requests(Limits(4, 100, 1), (1,), more=3)
    state = submit(state, id=1, tokens=(2,), limit=5, k=0, priority=7)
    state = submit(state, id=2, tokens=(3,), limit=5, k=0, priority=9)
    order, id = [], 10
    while find(state, 2) or find(state, 1):
        state = submit(state, id=id, tokens=(4,), limit=3, k=0, priority=0)
        state, plan, _ = step(state)
        order += plan.admitted
        id += 1
        assert id < 500
    # Each of the two was passed as often as is allowed; when both are overdue, the one that came first goes first.
    assert order.index(1) == 1 + MOST_PASSED
    assert order.index(2) == order.index(1) + 1
    assert order[1 : 1 + MOST_PASSED] == list(range(10, 10 + MOST_PASSED))


def test_a_better_priority_that_came_earlier_is_not_a_passing() -> None:
    state = init(Limits(4, 100, 1))
    for id in range(30):
        state = submit(state, id=id, tokens=(4,), limit=3, k=0, priority=0)
    state = submit(state, id=99, tokens=(4,), limit=3, k=0, priority=1)
    order = []
    while state.running or state.waiting.entries:
        state, plan, _ = step(state)
        order += plan.admitted
    assert order == [*range(30), 99]


def test_requests_are_served_by_priority_then_by_arrival() -> None:
    state = init(Limits(4, 100, 3))
    for id, priority in enumerate([1, 0, 1, 0, -2, 1]):
        state = submit(state, id=id, tokens=(id,), limit=3, k=0, priority=priority)
    state, plan = schedule(state, 100)
    assert plan.admitted == (4, 1, 3)
    assert [lane.id for lane in plan.lanes] == [4, 1, 3]


def test_the_batch_is_never_larger_than_allowed() -> None:
    state = with_requests(Limits(4, 100, 3), *((id,) for id in range(10)), more=2)
    while state.running or state.waiting.entries:
        state, plan, _ = step(state)
        assert len(plan.lanes) <= 3


# ---- aborts, forks, results


@pytest.mark.parametrize("when", ["queued", "chunk 2 of 3", "decoding", "finished"])
def test_p7_an_abort_gives_everything_back_and_twice_is_once(when: str) -> None:
    state = init(Limits(4, 20, 2))
    before = free_pages(state)
    state = submit(state, id=0, tokens=numbered(1, 9), limit=14, k=2)
    passes = {"queued": 0, "chunk 2 of 3": 2, "decoding": 4, "finished": 30}[when]
    for _ in range(passes):
        state, _, _ = step(state, 4)
    assert (find(state, 0) is None) == (when == "finished")
    once = remove(state, 0)
    assert free_pages(once) == before
    assert find(once, 0) is None
    assert remove(once, 0) is once
    conserved(once)
    planned, _ = schedule(state, 4)  # between a plan and its results, too
    assert free_pages(remove(planned, 0)) == before


def test_aborting_an_unknown_request_changes_nothing() -> None:
    state = with_requests(Limits(4, 20, 2), (1, 2))
    assert remove(state, 5) is state


def test_an_id_may_come_again_after_an_abort_and_waits_at_its_new_place() -> None:
    state = with_requests(Limits(4, 20, 1), (1,), (2,), (3,), (4,), (5,))
    state = submit(remove(state, 2), id=2, tokens=(6,), limit=7, k=0)
    assert [entry.id for entry in sorted(state.waiting.entries.values(), key=lambda entry: entry.arrival)] == [0, 1, 3, 4, 2]
    order = []
    while state.running or state.waiting.entries:
        state, plan, _ = step(state)
        order += plan.admitted
    assert order == [0, 1, 3, 4, 2]


@pytest.mark.parametrize("length", [3, 4, 5])
def test_k9_a_fork_shares_its_pages_and_the_page_that_both_would_write_is_copied(length: int) -> None:
    state = with_requests(Limits(4, 20, 4), numbered(1, length), more=6, k=2)
    state, plan = schedule(state, 100)
    state = commit(state, results(state, plan, lambda length: 0))
    before = free_pages(state)
    state = fork(fork(state, 0, 1), 0, 2, k=0)
    assert free_pages(state) == before
    full, part = divmod(length, 4)
    assert {entry.table.pages[:full] for entry in state.running} == {state.running[0].table.pages[:full]}
    conserved(state)
    state, plan = schedule(state, 100)
    assert len(plan.copies) == (2 if part else 0)
    assert {old for old, _ in plan.copies}.isdisjoint(new for _, new in plan.copies)
    written = [entry.table.pages[full:] for entry in state.running]
    assert len({page for some in written for page in some}) == sum(map(len, written))
    assert [lane.k for lane in plan.lanes] == [2, 2, 0]
    assert schedule(state, 100)[1].copies == ()
    conserved(state)
    assert {id: find(state, id).hit for id in (0, 1, 2)} == {0: 0, 1: 0, 2: 0}
    assert drive(state)[0] == dict.fromkeys((0, 1, 2), solo(numbered(1, length), length + 6))


def test_a_fork_starts_its_own_history() -> None:
    """Preemptions, passings and hits were the source's; the copy never asked the prefix cache."""
    state, _, _ = step(with_requests(Limits(4, 20, 4), numbered(1, 6), more=6))
    state = state._replace(running=(state.running[0]._replace(epoch=2, passed=3, hit=4),))
    copy = find(fork(state, 0, 1, k=7), 1)
    assert (copy.epoch, copy.passed, copy.hit, copy.k, copy.arrival) == (0, 0, 0, 7, 1)


@pytest.mark.parametrize("length", [4, 5, 6, 7])
def test_a_fork_between_a_plan_and_its_results_takes_no_page_too_many(length: int) -> None:
    """The results are for the rows of the source, written behind what the fork shares; afterwards each has the pages that it needs."""
    state = with_requests(Limits(4, 20, 4), numbered(1, length), more=12, k=2)
    state, plan = schedule(state, 100)
    state, plan = schedule(commit(state, results(state, plan, lambda length: 0)), 100)
    state = commit(fork(state, 0, 1), results(state, plan, lambda length: 2))
    state, plan = schedule(state, 100)
    assert [len(find(state, lane.id).table.pages) for lane in plan.lanes] == [-(-(lane.stop + lane.k) // 4) for lane in plan.lanes]
    conserved(state)
    drive(state)


def test_a_fork_without_a_place_waits_and_finds_its_pages_again() -> None:
    state = with_requests(Limits(4, 20, 1), numbered(1, 9), more=6)
    state, _, _ = step(state)
    state = fork(state, 0, 1)
    waits = find(state, 1)
    assert (waits.table.pages, waits.hit, waits.epoch, waits.tokens) == ((), -1, 0, find(state, 0).tokens)
    conserved(state)
    state = remove(state, 0)
    state, plan = schedule(state, 100)
    assert plan.lanes[0].start == find(state, 1).hit == 8


def test_a_fork_of_one_that_waits_waits_behind_it() -> None:
    state = with_requests(Limits(4, 20, 1), (1,), (2,), more=2)
    state = fork(state, 0, 7)
    order = []
    while state.running or state.waiting.entries:
        state, plan, _ = step(state)
        order += plan.admitted
    assert order == [0, 1, 7]


def test_a_fork_is_an_admission_and_waits_where_one_is_overdue() -> None:
    state = with_requests(Limits(4, 8, 100), numbered(1, 13), more=4)
    state, _, _ = step(state)
    state = submit(state, id=1, tokens=numbered(2, 25), limit=26, k=0)
    for id in range(2, 2 + MOST_PASSED):
        state = fork(state, 0, id)
        assert find(state, 1).passed == id - 1
    state = fork(state, 0, 99)
    assert 99 in state.waiting.entries
    assert len(state.running) == 1 + MOST_PASSED
    drive(state)


def test_forks_that_do_not_fit_are_preempted_and_finish() -> None:
    state = with_requests(Limits(2, 5, 8), (1, 2), more=8)
    state, _, _ = step(state)
    for id in range(1, 6):
        state = fork(state, 0, id)
    finished, _ = drive(state)
    assert finished == dict.fromkeys(range(6), solo((1, 2), 10))


def test_bad_forks_say_what_is_wrong() -> None:
    state = with_requests(Limits(4, 20, 1), (1,), (2,))
    with pytest.raises(ValueError, match="fork received request 9"):
        fork(state, 9, 10)
    with pytest.raises(ValueError, match="request 1 is here already"):
        fork(state, 0, 1)
    with pytest.raises(ValueError, match="k is -1"):
        fork(state, 0, 5, k=-1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kept": 3}, "keeps 3 drafted rows; expected 0 to 2"),
        ({"kept": -1}, "keeps -1"),
        ({"tokens": ()}, "emits 0 tokens; expected 1"),
        ({"tokens": (1, 2)}, "emits 2 tokens; expected 1"),
        ({"kept": 2, "tokens": (1, 2, 3)}, "expected no more, and to be finished"),
        ({"kept": 2, "tokens": (1, 2, 3, 4), "finished": True}, "has 6 tokens of at most 5"),
    ],
)
def test_bad_results_say_what_is_wrong(wrong: dict, message: str) -> None:
    state, plan = schedule(with_requests(Limits(4, 20, 1), (1, 2), more=3, k=4), 100)
    with pytest.raises(ValueError, match=message):
        commit(state, [Done(**{"lane": plan.lanes[0], "kept": 0, "tokens": (5,), "finished": False, **wrong})])


def test_l6_a_request_that_ends_inside_the_accepted_tokens_publishes_those_it_emitted_and_no_others() -> None:
    """Three drafted rows are kept, but the stop is the second token: 4 + 2 tokens are known, so one page of 4 and one of the two others count."""
    state, plan = schedule(with_requests(Limits(2, 20, 1), (1, 2, 3, 4), more=9, k=3), 100)
    state = commit(state, [Done(plan.lanes[0], 3, (5, 6), finished=True)])
    assert find(state, 0) is None
    assert len(prefix.lookup(state.cache, (1, 2, 3, 4, 5, 6, 7), page_size=2)) == 3
    assert len(state.cache.nodes) == 3
    conserved(state)


def test_p8_published_pages_are_those_whose_tokens_are_known() -> None:
    state = with_requests(Limits(4, 40, 4), numbered(1, 3), numbered(2, 7), numbered(3, 8), more=15, k=4)
    ended: list[int] = []
    while state.running or state.waiting.entries:
        state, _, over = step(state, 5)
        ended += [(len(tokens) - 1) // 4 for tokens in over.values()]
        for entry in state.running:
            assert entry.tip.pages == entry.table.length // 4
            assert entry.table.length <= len(entry.tokens) - 1
        assert len(state.cache.nodes) == sum(ended) + sum(entry.table.length // 4 for entry in state.running)


def test_pages_are_published_as_far_as_others_find_all_that_they_need() -> None:
    """A result may say that less is filled than counts; what was held back is published once it is."""
    state, plan = schedule(with_requests(Limits(2, 20, 1), numbered(1, 7), more=9), 100)
    state = commit(state, [Done(plan.lanes[0], 0, (5,), filled=3)])
    assert len(state.cache.nodes) == 1
    state, plan = schedule(state, 100)
    state = commit(state, [Done(plan.lanes[0], 0, (5,), filled=100)])
    assert len(state.cache.nodes) == 4
    conserved(state)


def test_a_plan_whose_pass_failed_can_be_dropped() -> None:
    state = with_requests(Limits(4, 9, 3), numbered(1, 9), numbered(2, 5), more=9, k=3)
    for _ in range(3):
        state, plan = schedule(state, 4)
        again, same = schedule(state, 4)
        assert same.lanes == plan.lanes
        assert (same.copies, same.preempted, same.admitted) == ((), (), ())
        assert again == state
        state = commit(state, results(state, plan))
        conserved(state)
    drive(state)


def test_states_are_values_and_the_old_ones_stay() -> None:
    state = with_requests(Limits(2, 5, 3), (1, 2), (3, 4), more=6, k=2)
    history = [state]
    for _ in range(6):
        history.append(step(history[-1])[0])
    replayed = [state]
    for old in history[:-1]:
        replayed.append(step(old)[0])
    assert replayed == history
