"""Faults that users of other engines reported, as small cases on the engine: seeds, drafts and caches (FAULTS.md lists them all)."""

import dataclasses
from typing import Any

import pytest
import torch

from specdec_fn import SamplingParams, generate
from specdec_fn.engine import Config, EngineState, PassError, Request, abort, fork, free_pages, init, run, step, submit
from specdec_fn.engine.generate import prefill
from specdec_fn.kv import dense, store, table
from specdec_fn.models import Model, invariant, toy
from specdec_fn.random import key
from specdec_fn.speculate import Proposer, proposers

MODEL = toy.llama(key(11), vocab_size=24, context=64)
GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=1.2)
UNIFORM = toy.bigram(torch.full((8, 8), 1 / 8, dtype=torch.float64))
PROMPT = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def served(asked: list[Request], model: Model = MODEL, **settings: Any) -> tuple[EngineState, dict[int, Any]]:
    state = init(model, Config(**{"num_pages": 64, "invariant": True} | settings))
    for request in asked:
        state, _ = submit(state, request)
    return run(model, state)


def alone(request: Request, seed: int | None = None, **more: Any) -> list[int]:
    """The tokens of ``generate``; ``seed`` for a request without one."""
    how = {"proposer": request.proposer, "k": 5 if request.k is None else request.k, "max_tokens": request.max_tokens, "invariant": True} | more
    return generate(MODEL, request.prompt, seed=request.seed if seed is None else seed, sampling=request.sampling, **how).tokens


def drafting(name: str, fn: Any) -> Proposer:
    return proposers.scripted.proposer(fn)._replace(name=name)


# Seeds


def test_rows_with_and_without_seeds_leave_one_another_alone() -> None:
    """S2: seed 1, none, seed 2 in one batch; greedy rows are those of each alone, and a request's number decides what one without a seed draws."""
    for sampling in (GREEDY, WARM):
        asked = [Request(PROMPT[place:], 10, sampling, seed=seed) for place, seed in enumerate((1, None, 2))]
        _, done = served(asked)
        assert [done[0].tokens, done[2].tokens] == [alone(asked[0]), alone(asked[2])]
        _, later = served([Request([7], 3), asked[1], Request([3], 2, seed=8)])
        assert done[1].tokens == later[1].tokens
    assert done[1].tokens != alone(asked[1], 0)


def test_requests_without_seeds_differ_and_a_seed_gives_its_tokens_first_and_fifth() -> None:
    """S3: one after another in a session that goes on."""
    state, unseeded, seeded = init(MODEL, Config(num_pages=16, invariant=True, prefix_cache=False)), [], []
    for number in range(8):
        state, _ = submit(state, Request(PROMPT, 6, WARM))
        if number in (0, 4):
            state, _ = submit(state, Request(PROMPT, 6, WARM, seed=9))
        state, done = run(MODEL, state)
        unseeded.append(tuple(done[min(done)].tokens))
        seeded += [one.tokens for name, one in done.items() if name != min(done)]
    assert len(set(unseeded)) == 8
    assert seeded[0] == seeded[1] == alone(Request(PROMPT, 6, WARM, seed=9))


def test_a_preempted_request_draws_what_it_would_have_drawn() -> None:
    """S5: with room for all, and with so little that some lose their pages on the way."""
    asked = [Request(PROMPT[:2], 12, WARM, seed=seed, proposer="ngram", k=2) for seed in range(5)]
    roomy, wide = served(asked, page_size=2, num_pages=64)
    tight, narrow = served(asked, page_size=2, num_pages=9, prefix_cache=False)
    assert roomy.counters.preempted == 0
    assert tight.counters.preempted > 0
    assert [narrow[number].tokens for number in range(5)] == [wide[number].tokens for number in range(5)]


def test_a_chunk_of_the_prompt_uses_up_no_number() -> None:
    """S6: chunks of 4, of 1, and the whole at once."""
    asked = [Request(PROMPT, 8, WARM, seed=3, proposer="ngram"), Request(PROMPT[4:], 8, WARM, seed=4)]
    for chunk in (1, 4, 4096):
        _, done = served(asked, prefill_chunk=chunk)
        assert [done[0].tokens, done[1].tokens] == [alone(one) for one in asked]


@pytest.mark.parametrize("when", ["waiting", "computed"])
def test_four_answers_with_one_seed_differ_and_come_again(when: str) -> None:
    """S7: a submit and three forks, before or after the prompt is computed."""

    def answers() -> list[list[int]]:
        state, first = submit(init(MODEL, Config(num_pages=16, max_batch=4, prefill_chunk=6, invariant=True)), Request(PROMPT, 8, WARM, seed=1))
        if when == "computed":
            state, _ = step(MODEL, state)  # the first six tokens; the fork goes on from there
        for _ in range(3):
            state, _ = fork(state, first)
        _, done = run(MODEL, state)
        return [done[number].tokens for number in range(4)]

    once = answers()
    assert len({tuple(tokens) for tokens in once}) == 4
    assert once[0] == alone(Request(PROMPT, 8, WARM, seed=1))
    assert answers() == once


# Drafts and caches


def test_eight_requests_of_different_lengths_read_their_own_pages() -> None:
    """G4: in one batch each is as alone."""
    asked = [Request((PROMPT + PROMPT)[: 1 + 3 * place], 9, GREEDY, proposer="ngram", k=4, seed=0) for place in range(8)]
    _, done = served(asked, max_batch=8, page_size=4)
    assert [done[number].tokens for number in range(8)] == [alone(one) for one in asked]


@pytest.mark.parametrize("inside", [False, True])
def test_an_abort_at_any_step_leaves_nothing_behind(inside: bool) -> None:
    """K4, P7: between two steps, or inside one (its forward fails, and the planned state is aborted); the pages come back, the next is as alone."""
    follower = Request(PROMPT[2:9], 5, seed=3)

    def fails(*arguments: Any) -> Any:
        raise OSError("no power")

    dead = MODEL._replace(invariant=MODEL.invariant._replace(apply=fails, prefill=fails, apply_at=fails))
    count = 0
    for cut in range(12):
        state = init(MODEL, Config(page_size=2, num_pages=24, prefill_chunk=5, proposer="ngram", k=3, invariant=True))
        state, first = submit(state, Request(PROMPT, 7, seed=1))
        state, done = run(MODEL, state, steps=cut)
        if inside and not done:
            with pytest.raises(PassError, match="no power") as failure:
                step(dead, state)
            state = failure.value.state
        state = abort(abort(state, first), first)
        assert free_pages(state) == 24
        assert state.counters.aborted == (not done)
        count += not done
        state, last = submit(state, follower)
        assert run(MODEL, state)[1][last].tokens == alone(follower, proposer="ngram", k=3)
    assert count > 4


def test_rows_of_one_step_that_keep_none_two_and_four_of_their_drafts() -> None:
    """K6: each is cut back to its own place, and each is as alone."""
    right = [alone(Request(PROMPT[place:], 14, GREEDY, seed=0)) for place in range(3)]

    def keeping(place: int) -> Proposer:
        def draft(context: list[int]) -> list[int]:
            made = len(context) - len(PROMPT[place:])
            return [token if lane < 2 * place else (token + 1) % 24 for lane, token in enumerate(right[place][made : made + 4])]

        return drafting(f"keeping {2 * place}", draft)

    state = init(MODEL, Config(num_pages=32, page_size=4, k=4, invariant=True))
    for place in range(3):
        state, _ = submit(state, Request(PROMPT[place:], 14, GREEDY, proposer=keeping(place)))
    state, events = step(MODEL, state)
    assert [event.kinds.count("accepted") for event in events] == [0, 2, 4]
    _, done = run(MODEL, state)
    assert [done[number].tokens for number in range(3)] == right


def test_slots_of_drafts_come_back_after_each_of_a_hundred_requests() -> None:
    """K7: one after another, four drafted tokens a pass, most of them refused."""
    for prefix_cache in (False, True):
        state = init(UNIFORM, Config(page_size=2, num_pages=12, k=4, proposer="ngram", prefix_cache=prefix_cache))
        for number in range(50):
            state, _ = submit(state, Request([number % 8, 1, number % 3, 1], 1 + number % 9))
            state, _ = run(UNIFORM, state)
            assert free_pages(state) == 12


def test_refused_drafts_leave_the_keys_and_values_of_plain_decoding() -> None:
    """C7: every cache here can go back. After passes that refuse all or some, chains and trees, a page holds what plain decoding had put there."""
    asked = [
        Request(PROMPT, 12, seed=1, proposer=drafting("junk", lambda c: [0, 1, 2, 3]), verifier="block"),
        Request(PROMPT + PROMPT, 12, seed=2, proposer="ngram_tree", verifier="tree", k=6),
    ]
    state, same = init(MODEL, Config(page_size=4, num_pages=32, k=4, invariant=True)), invariant(MODEL)
    for request in asked:
        state, _ = submit(state, request)
    refused = 0
    while len(state.records):
        state, events = step(MODEL, state)
        refused += sum(event.kinds.count("recovered") for event in events)
        for entry in state.work.running:
            cold = prefill(same, entry.tokens[: entry.table.length + 1], 0, dense.attend_invariant)
            slots = table.slots(entry.table, 0, entry.table.length, page_size=4)
            for layer in range(MODEL.config.layers):
                for pool, right in ((state.store.keys, cold.keys), (state.store.values, cold.values)):
                    assert store.rows(pool, layer, state.store.pages)[slots].equal(right[layer][: len(slots)])
    assert refused > 10


def test_logits_of_nan_end_their_own_request() -> None:
    """D13: one of a batch of two ends with "error" and says why; the other is as alone; the pages come back, and nothing is emitted for it."""
    nan = MODEL.params.embedding.index_fill(0, torch.tensor(23), torch.nan)
    poisoned = MODEL._replace(params=dataclasses.replace(MODEL.params, embedding=nan))
    for first in (0, 1):
        asked = [Request([1, 23, 2], 6, seed=5), Request(PROMPT, 8, GREEDY, seed=1, proposer="ngram")][:: 1 - 2 * first]
        state, done = served(asked, poisoned, page_size=2)
        assert (done[first].tokens, done[first].finish_reason) == ([], "error")
        assert done[first].error == "the logits for position 3 hold NaN or allow no token; expected a finite logit that the controls allow"
        assert done[1 - first].tokens == alone(asked[1 - first])
        assert free_pages(state) == 64
        assert (state.counters.failed, state.counters.finished) == (1, 1)
