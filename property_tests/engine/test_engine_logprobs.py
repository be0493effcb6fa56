"""Log-probabilities are those of a cold pass over the same tokens, for outputs and prompts, whatever chunks, preemption, hits and forks did."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import SamplingParams, models
from specdec_fn.engine import Config, Request, fork, init, restore, run, snapshot, step, submit
from specdec_fn.models import toy
from specdec_fn.random import Key, key
from specdec_fn.speculate import Proposer, tree

VOCAB = 20
MODEL = toy.llama(key(31), vocab_size=VOCAB, context=64)
PROMPT = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
SAMPLING = SamplingParams(temperature=1.4, top_k=7, repetition_penalty=1.1)  # what is reported is not the processed law


def cold(tokens: list[int]) -> Any:
    return models.logits(MODEL, tokens).log_softmax(-1)


def check(request: Request, done: Any) -> None:
    prompt, rows = list(request.prompt), cold([*request.prompt, *done.tokens])
    places = range(len(prompt), len(prompt) + len(done.tokens))
    assert done.logprobs == pytest.approx([float(rows[place - 1, token]) for place, token in zip(places, done.tokens, strict=True)], abs=1e-9)
    if request.logprobs:
        assert len(done.likeliest) == len(done.tokens)
        for place, found in zip(places, done.likeliest, strict=True):
            top = rows[place - 1].topk(min(request.logprobs, VOCAB))
            assert list(found) == top.indices.tolist()
            assert list(found.values()) == pytest.approx(top.values.tolist(), abs=1e-9)
    else:
        assert done.likeliest is None
    if request.prompt_logprobs:
        assert done.prompt_logprobs == pytest.approx([float(rows[place, token]) for place, token in enumerate(prompt[1:])], abs=1e-9)
    else:
        assert done.prompt_logprobs is None


def begun(asked: list[Request], **settings: Any) -> Any:
    state = init(MODEL, Config(**{"page_size": 2, "num_pages": 40, "k": 3, "proposer": "ngram"} | settings))
    for request in asked:
        state, _ = submit(state, request)
    return state


@given(
    starts=st.lists(st.integers(0, 11), min_size=1, max_size=4),
    sizes=st.fixed_dictionaries(
        {
            "page_size": st.integers(1, 4),
            "prefill_chunk": st.integers(1, 7),
            "max_batch": st.integers(1, 3),
            "prefix_cache": st.booleans(),
            "invariant": st.booleans(),
        }
    ),
    verifier=st.sampled_from(["token", "block", "coupled", "tree"]),
    count=st.integers(0, 3),
)
def test_all_that_is_reported_is_that_of_a_cold_pass(starts: list[int], sizes: dict[str, Any], verifier: str, count: int) -> None:
    asked = [
        Request(PROMPT[start:], 6, SAMPLING, seed=place, logprobs=(count + place) % 4, prompt_logprobs=place % 2 == 0, verifier=verifier)
        for place, start in enumerate(starts)
    ]
    _, done = run(MODEL, begun(asked, **sizes, num_pages=20 // sizes["page_size"]))
    for number, request in enumerate(asked):
        check(request, done[number])


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_after_preemption(prefix_cache: bool) -> None:
    asked = [Request(PROMPT[place : place + 2], 12, SAMPLING, seed=place, logprobs=2, prompt_logprobs=True) for place in range(6)]
    state, done = run(MODEL, begun(asked, num_pages=12, max_batch=4, prefill_chunk=3, prefix_cache=prefix_cache))
    assert state.counters.preempted > 0
    for number, request in enumerate(asked):
        check(request, done[number])


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("steps", range(7))
def test_a_prompt_preempted_before_it_is_scored(steps: int, prefix_cache: bool) -> None:
    """Forks of another take the pages of one whose prompt is half computed; on its return its chunks end elsewhere, and it scores the rest."""
    asked = [Request(PROMPT[:2], 10, SAMPLING, seed=1), Request(PROMPT + PROMPT, 3, seed=2, priority=1, prompt_logprobs=True)]
    state, _ = run(MODEL, begun(asked, num_pages=14, max_batch=16, prefill_chunk=3, prefix_cache=prefix_cache), steps=2 + steps)
    for _ in range(10):
        state, _ = fork(state, 0)
    state, done = run(MODEL, state)
    check(asked[1], done[1])
    assert state.counters.preempted > 0


def test_where_a_later_branch_of_a_tree_is_kept() -> None:
    """The rows that count are those of the branch, not the first ones."""
    right: list[int] = []

    def branching(key: Key, state: Any, tokens: list[int], k: int, *, position: int) -> Any:
        coming = right[len(tokens) - len(PROMPT) :][:2] or [0]
        return state, tree.merge([[(coming[0] + 1) % VOCAB, 3], coming], k)

    asked = Request(PROMPT, 9, SamplingParams(temperature=0), logprobs=2, k=4, verifier="tree", proposer="none")
    right += run(MODEL, begun([asked]))[1][0].tokens
    asked = dataclasses.replace(asked, proposer=Proposer("branching", lambda prompt: (), branching))
    _, done = run(MODEL, begun([asked]))
    assert done[0].tokens == right
    assert done[0].stats.accepted >= 4
    check(asked, done[0])


def test_a_prompt_is_scored_where_its_pages_were_cached() -> None:
    """Such a request computes all of its prompt; one that is not scored finds what an earlier one left."""
    asked = Request(PROMPT, 4, seed=1)
    state, _ = run(MODEL, begun([asked]))
    scored = Request(PROMPT, 4, seed=1, prompt_logprobs=True, logprobs=1)
    for request, hit in ((scored, 0), (scored, 0), (asked, 10)):
        before = state.counters.cached
        state, number = submit(state, request)
        state, done = run(MODEL, state)
        assert state.counters.cached - before == hit
        check(request, done[number])


@pytest.mark.parametrize("max_batch", [1, 3])
@pytest.mark.parametrize("steps", range(7))
def test_of_forks(steps: int, max_batch: int) -> None:
    """A fork has what was reported so far, and the rest as its own, whenever it leaves, be it in the middle of the prompt."""
    asked = Request(PROMPT, 6, SAMPLING, seed=1, logprobs=2, prompt_logprobs=True)
    state, early = run(MODEL, begun([asked], max_batch=max_batch, prefill_chunk=4), steps=steps)
    assert early == {}
    made = len(state.records[0].run.tokens) - len(PROMPT)
    state, first = fork(state, 0)
    state, second = fork(state, first, seed=5, sampling=SamplingParams())
    _, done = run(MODEL, state)
    for number in (0, first, second):
        check(asked, done[number])
    assert done[0].tokens[:made] == done[first].tokens[:made] == done[second].tokens[:made]
    assert len({tuple(one.tokens) for one in done.values()}) == 3


@pytest.mark.parametrize("steps", range(6))
def test_after_a_restore(steps: int) -> None:
    asked = Request(PROMPT, 6, SAMPLING, seed=1, logprobs=2, prompt_logprobs=True)
    state, early = run(MODEL, begun([asked], prefill_chunk=4), steps=steps)
    assert early == {}
    state, done = run(MODEL, restore(MODEL, snapshot(state)))
    check(asked, done[0])


def test_events_and_generation_agree() -> None:
    state, said = begun([Request(PROMPT, 9, SAMPLING, seed=3, logprobs=1)]), []
    while len(state.records):
        state, events = step(MODEL, state)
        said += [pair for event in events for pair in zip(event.tokens, event.logprobs, strict=True)]
    done = events[0].generation
    assert said == list(zip(done.tokens, done.logprobs, strict=True))


def test_more_than_the_vocabulary_is_the_vocabulary() -> None:
    asked = Request(PROMPT, 3, seed=3, logprobs=VOCAB + 5)
    _, done = run(MODEL, begun([asked]))
    assert [len(found) for found in done[0].likeliest] == [VOCAB] * 3
    check(asked, done[0])


def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    asked = Request([3], 3, seed=3, prompt_logprobs=True)
    _, done = run(MODEL, begun([asked]))
    assert done[0].prompt_logprobs == []
