"""Faults that users of other engines reported, as small cases on the engine: pages, prefixes and queues (FAULTS.md lists them all)."""

from typing import Any

import pytest

from specdec_fn import generate, schedule
from specdec_fn.engine import Config, EngineState, Request, abort, fork, free_pages, init, run, step, submit
from specdec_fn.models import Model, toy
from specdec_fn.models.model import Forward
from specdec_fn.random import key
from specdec_fn.speculate import proposers

MODEL = toy.llama(key(12), vocab_size=24, context=96)
PROMPT = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def alone(request: Request, **more: Any) -> Any:
    how = {"k": request.k or 0, "max_tokens": request.max_tokens, "proposer": request.proposer} | more
    return generate(MODEL, request.prompt, seed=request.seed, sampling=request.sampling, invariant=True, **how)


def begun(asked: list[Request], **settings: Any) -> EngineState:
    state = init(MODEL, Config(**{"page_size": 4, "invariant": True, "k": 0} | settings))
    for request in asked:
        state, _ = submit(state, request)
    return state


def watching(model: Model, seen: list[list[int]]) -> Model:
    """The same model, which notes the positions of every pass."""

    def noted(passing: Any) -> Any:
        def apply(params: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
            seen.append(positions.tolist())
            return passing(params, tokens, positions, *rest)

        return apply

    return model._replace(invariant=Forward(*(passing and noted(passing) for passing in model.invariant)))


def test_a_prompt_that_is_cached_whole_is_answered_as_it_was() -> None:
    """P2: pages of 4 and a prompt of 8: the second time one page is found, the last token is computed, and once only."""
    asked, seen = Request(PROMPT[:8], 5, seed=2), []
    state, cold = run(MODEL, begun([asked]))
    state, number = submit(state, asked)
    state, warm = run(watching(MODEL, seen), state)
    assert state.counters.cached == 4
    assert [place for positions in seen for place in positions] == [4, 5, 6, 7, 8, 9, 10, 11]
    assert (warm[number].tokens, warm[number].logprobs) == (cold[0].tokens, cold[0].logprobs)
    assert cold[0].tokens == alone(asked).tokens


def test_another_salt_shares_no_page() -> None:
    """P3: the same prompt under the salts "a", none, and "a" again."""
    state, found = begun([]), []
    for salt in (b"a", b"", b"a"):
        state, number = submit(state, Request(PROMPT, 3, seed=1, salt=salt))
        before = state.counters.cached
        state, done = run(MODEL, state)
        found.append(state.counters.cached - before)
        assert done[number].tokens == alone(Request(PROMPT, 3, seed=1)).tokens
    assert found == [0, 0, 8]


@pytest.mark.parametrize(("size", "hit"), [(10, 12), (15, 8), (19, 4), (23, 0)])
def test_a_preempted_request_computes_what_it_does_not_find(size: int, hit: int) -> None:
    """P4, P11: six pages of 4. With 15 tokens it loses its pages to one of a better priority, which grows to ``size`` tokens and so takes some
    of them over; on its return it finds the others, and computes the rest, no more and no less."""
    modest, urgent = Request(PROMPT[:9], 8, seed=1, priority=1), Request(PROMPT[8:], size - 4, seed=2, salt=b"other")
    state, seen, done = begun([modest], num_pages=6, max_batch=2), [], {}
    state, _ = run(MODEL, state, steps=1)
    state, _ = submit(state, urgent)
    for _ in range(50):
        gone = state.counters.preempted
        state, some = run(watching(MODEL, seen), state, steps=1)
        done |= some
        if gone and 0 not in done and schedule.find(state.work, 0).table.length:
            break
    assert (schedule.find(state.work, 0).epoch, schedule.find(state.work, 0).hit) == (1, 0)
    assert seen[-1][-(15 - hit) :] == list(range(hit, 15))
    assert len(seen[-1]) == 15 - hit + (1 not in done)
    state, rest = run(MODEL, state)
    done |= rest
    assert [done[number].tokens for number in (0, 1)] == [alone(modest).tokens, alone(urgent).tokens]
    assert (state.counters.prompted, state.counters.cached) == (9 + 4, 0)
    assert free_pages(state) == 6


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("length", [4, 5, 8, 9])
def test_a_preemption_at_any_length_changes_no_token(length: int, prefix_cache: bool) -> None:
    """P5: pages of 4; forks of the other, which all need a page of their own at once, take its pages."""
    modest, urgent = Request(PROMPT[:2], 9, seed=1, priority=1), Request(PROMPT[3:9], 12, seed=2)
    state, done = begun([modest, urgent], num_pages=8, max_batch=9, prefix_cache=prefix_cache), {}
    while len(schedule.find(state.work, 0).tokens) < length:
        state, _ = step(MODEL, state)
    for _ in range(7):
        state, _ = fork(state, 1)
    state, _ = step(MODEL, state)
    assert (schedule.find(state.work, 0).epoch, len(schedule.find(state.work, 0).tokens)) == (1, length)
    state, done = run(MODEL, state)
    assert [done[number].tokens for number in (0, 1)] == [alone(modest).tokens, alone(urgent).tokens]
    assert len({tuple(one.tokens) for one in done.values()}) == 9


def test_an_abort_gives_all_pages_back_whenever_it_comes() -> None:
    """P7: while it waits, in the second of three chunks, while it decodes, after its end, and twice."""
    config = {"num_pages": 12, "max_batch": 1, "prefill_chunk": 5, "prefix_cache": False}
    for steps, waits in ((0, False), (3, True), (2, False), (5, False), (40, False)):
        state = begun([Request(PROMPT, 6, seed=1), Request(PROMPT, 6, seed=2)], **config)
        state, done = run(MODEL, state, steps=steps)
        gone = 1 if waits else 0
        state = abort(state, gone)
        assert abort(state, gone) is state
        others = [entry for entry in state.work.running if entry.id == 1 - gone]
        assert free_pages(state) == 12 - sum(len(entry.table.pages) for entry in others)
        state, rest = run(MODEL, state)
        assert sorted(done | rest) == ([0, 1] if steps == 40 else [1 - gone])
        assert (done | rest)[1 - gone].tokens == alone(Request(PROMPT, 6, seed=2 - gone)).tokens
        assert free_pages(state) == 12


def test_a_hit_that_was_evicted_while_a_request_waited_is_none() -> None:
    """P10, P1: the pages were there when it came, and are gone when its turn comes."""
    first, wide, again = Request(PROMPT[:9], 3, seed=1), Request(PROMPT[3:], 7, seed=2), Request(PROMPT[:9], 3, seed=3)
    state, _ = run(MODEL, begun([first], num_pages=4, max_batch=1))
    assert len(state.work.cache.nodes) == 2
    for request in (wide, again):
        state, _ = submit(state, request)
    state, done = run(MODEL, state)
    assert state.counters.cached == 0
    assert [done[number].tokens for number in (1, 2)] == [alone(wide).tokens, alone(again).tokens]


def test_what_a_preempted_request_finds_again_is_no_hit() -> None:
    """P11: five with salts of their own, so that each can only find what itself computed."""
    asked = [Request(PROMPT[:5], 12, seed=number, salt=bytes([number])) for number in range(5)]
    state, done = run(MODEL, begun(asked, page_size=2, num_pages=13, max_batch=4))
    assert state.counters.preempted > 0
    assert (state.counters.prompted, state.counters.cached) == (25, 0)
    assert [done[number].tokens for number in range(5)] == [alone(one).tokens for one in asked]


# Queues


def test_a_request_that_can_never_fit_is_refused_and_holds_up_nobody() -> None:
    """C1: four pages of 16: a prompt of 100 is refused before anything is held, and the next one runs."""
    model = toy.llama(key(12), vocab_size=24, context=256)
    state = init(model, Config(page_size=16, num_pages=4))
    with pytest.raises(ValueError, match="may grow to 104 tokens, which needs 7 pages of 16 slots; expected at most the 4 pages"):
        submit(state, Request([1] * 100, 4))
    assert (state.counters.submitted, len(state.records), free_pages(state)) == (0, 0, 4)
    state, number = submit(state, Request([1] * 8, 4))
    assert len(run(model, state, steps=4)[1][number].tokens) == 4


def test_two_that_do_not_fit_together_both_finish() -> None:
    """C2: five pages of 4, and two that want four each: few preemptions, and each is as alone."""
    asked = [Request(PROMPT[number : 6 + number], 8, seed=number, proposer="ngram", k=2) for number in range(2)]
    state, done = run(MODEL, begun(asked, num_pages=5, max_batch=2))
    assert state.counters.preempted < 20
    assert [done[number].tokens for number in range(2)] == [alone(one).tokens for one in asked]


@pytest.mark.parametrize("warm", [False, True])
def test_nothing_is_drafted_or_emitted_before_the_last_chunk_of_a_prompt(warm: bool) -> None:
    """C4: a prompt of 9 in chunks of 4, 4 and 1 beside one that decodes, cold and with a page found."""
    contexts: list[int] = []

    def draft(context: list[int]) -> list[int]:
        contexts.append(len(context))
        return [1, 2, 3, 4]

    late = Request(PROMPT[:9], 6, seed=1, k=4, proposer=proposers.scripted.proposer(draft))
    state = begun([Request(PROMPT[:5], 2, seed=5)] if warm else [], num_pages=32, prefill_chunk=4)
    state, _ = run(MODEL, state)
    state, early = submit(state, Request([7], 30, seed=2))
    state, _ = run(MODEL, state, steps=1)
    state, number = submit(state, late)
    for chunk in range(2 if warm else 3):
        state, events = step(MODEL, state)
        assert [event.request_id for event in events] == [early, number][: 1 if chunk < (1 if warm else 2) else 2]
        assert contexts == ([] if chunk < (1 if warm else 2) else [9])
    assert events[1].generation is None
    _, done = run(MODEL, state)
    contexts.clear()
    assert done[number].tokens == alone(late).tokens
    assert done[early].tokens == alone(Request([7], 30, seed=2)).tokens


def test_a_large_request_gets_its_turn_among_endless_small_ones() -> None:
    """C5, C6: it wants the whole pool; the small ones are held back for it in time, and every step moves somebody."""
    large = Request(PROMPT, 13, seed=1)
    state, waited, number = begun([Request([3, 4], 6, seed=7)], num_pages=6, max_batch=4), 0, 1
    state, _ = run(MODEL, state, steps=1)
    state, number = submit(state, large)
    done: dict[int, Any] = {}
    while number not in done:
        state, _ = submit(state, Request([1 + waited % 9, 2], 6, seed=waited))
        before = sum(entry.table.length for entry in state.work.running)
        state, events = step(MODEL, state)
        assert events or sum(entry.table.length for entry in state.work.running) > before
        done |= {event.request_id: event.generation for event in events if event.generation}
        waited += 1
        assert waited < 200
    assert done[number].tokens == alone(large).tokens
