"""Faults that users of other engines reported, as small cases on the engine: stops, limits, penalties, log-probabilities (FAULTS.md lists them all).

Each case shares its passes with others, so that an end inside one request's accepted run is cut where it belongs, and nobody else's is.
"""

import math
from typing import Any

import pytest
import torch

from specdec_fn import SamplingParams
from specdec_fn.engine import Config, Request, free_pages, init, run, step, submit
from specdec_fn.models import Model, toy
from specdec_fn.speculate import Proposer, proposers
from specdec_fn.text import Tokenizer

GREEDY = SamplingParams(temperature=0)


def circle(size: int, **settings: Any) -> Model:
    """0 -> 1 -> 2 -> ... -> 0, for sure."""
    return toy.bigram(torch.eye(size, dtype=torch.float64).roll(1, dims=1), **settings)


def drafting(fn: Any) -> Proposer:
    return proposers.scripted.proposer(fn)


def right(size: int, count: int) -> Proposer:
    """Drafts what the circle brings."""
    return drafting(lambda context: [(context[-1] + i) % size for i in range(1, count + 1)])


def letters(*words: str) -> Tokenizer:
    return Tokenizer(
        lambda text, *, special=False: [words.index(text)],
        lambda ids, *, skip_special=True: "".join(words[i] for i in ids),
        lambda messages: [0],
        (),
        len(words),
    )


def among_others(model: Model, request: Request, tokenizer: Tokenizer | None = None, **settings: Any) -> tuple[Any, list[Any]]:
    """The generation of a request between one that came before it and one that came after, and its events."""
    other = Request([model.config.vocab_size - 1], 9, ignore_eos=True)
    config = Config(**{"page_size": 2, "num_pages": 64, "proposer": "ngram", "k": 3} | settings)
    alone = run(model, submit(init(model, config, tokenizer), other)[0])[1][0]
    state = init(model, config, tokenizer)
    state, first = submit(state, other)
    state, number = submit(state, request)
    state, last = submit(state, other)
    said, done = [], {}
    while len(state.records):
        state, events = step(model, state)
        said += [event for event in events if event.request_id == number]
        done |= {event.request_id: event.generation for event in events if event.generation}
    assert done[first].tokens == alone.tokens
    assert len(done[last].tokens) == len(alone.tokens)
    assert free_pages(state) == 64
    whole = done[number]
    assert whole.tokens == [token for event in said for token in event.tokens]
    assert whole.text == "".join(event.text for event in said)
    assert [event.finish_reason for event in said[:-1]] == [None] * (len(said) - 1)
    assert said[-1].finish_reason == whole.finish_reason
    return whole, said


@pytest.mark.parametrize("k", range(1, 7))
def test_a_stop_id_in_the_middle_of_an_accepted_run_ends_it(k: int) -> None:
    """L1: nothing behind it is emitted, counted or said."""
    done, said = among_others(circle(7), Request([0], 20, stop_ids=[4], k=k, proposer=right(7, k)))
    assert (done.tokens, done.finish_reason) == ([1, 2, 3, 4], "stop")
    assert len(done.logprobs) == done.stats.emitted == sum(len(event.kinds) for event in said) == 4


def test_nothing_is_drafted_behind_an_end() -> None:
    """L2: of four drafted tokens the second is the end, so two are verified."""
    done, _ = among_others(circle(7), Request([0], 20, stop_ids=[2], k=4, proposer=right(7, 4)))
    assert (done.tokens, done.stats.proposed) == ([1, 2], 2)


@pytest.mark.parametrize("m", range(1, 8))
def test_the_limit_holds_inside_a_step(m: int) -> None:
    """L3, L4: everything is accepted, and m tokens come out, not one more or fewer."""
    done, _ = among_others(circle(7), Request([0], m, k=4, proposer=right(7, 4)))
    assert (len(done.tokens), done.finish_reason, done.stats.emitted) == (m, "length", m)


@pytest.mark.parametrize("end", range(1, 7))
@pytest.mark.parametrize("good", range(6))
def test_no_count_of_an_engine_goes_past_the_stop(end: int, good: int) -> None:
    """L5: of the request and of the engine; drafts are right for some lanes and then wrong."""
    draft = drafting(lambda c: [(c[-1] + i) % 7 for i in range(1, good + 1)] + [c[-1]] * (5 - good))
    state, _ = submit(init(circle(7), Config(num_pages=16)), Request([0], 50, stop_ids=[end], k=5, proposer=draft))
    kinds = []
    while len(state.records):
        state, events = step(circle(7), state)
        kinds += events[0].kinds
    done, counters = events[0].generation, state.counters
    assert done.tokens == list(range(1, end + 1))
    assert counters.emitted == done.stats.emitted == len(done.logprobs) == len(kinds) == end
    assert counters.accepted == done.stats.accepted == kinds.count("accepted") == sum(kept for _, kept in done.stats.per_position)
    assert counters.proposed == done.stats.proposed == sum(seen for seen, _ in done.stats.per_position)


def test_a_stop_string_cuts_ids_logprobs_and_text_alike() -> None:
    """L6: it completes at the third of five accepted tokens."""
    spelled = letters("x", "a", "b<e", "nd>c", "d", "e", "f")
    done, said = among_others(circle(7), Request([0], 20, stop="<end>", k=5, proposer=right(7, 5)), spelled)
    assert (done.tokens, done.text, done.finish_reason) == ([1, 2, 3], "ab", "stop")
    assert len(done.logprobs) == len(said[0].logprobs) == len(said[0].kinds) == 3


@pytest.mark.parametrize("k", range(5))
def test_the_least_length_holds_at_verified_places(k: int) -> None:
    """L7: the end is likeliest and drafted everywhere, and comes after three tokens."""
    table = torch.full((4, 4), 0.1, dtype=torch.float64)
    table[:, 3], table[:, 0] = 0.5, 0.3
    patient = SamplingParams(temperature=0, min_tokens=3)
    done, _ = among_others(toy.bigram(table), Request([0], 9, patient, stop_ids=[3], k=k, proposer=drafting(lambda c: [3] * k)))
    assert (done.tokens, done.finish_reason) == ([0, 0, 0, 3], "stop")


@pytest.mark.parametrize("k", range(6))
def test_penalties_see_the_drafted_prefix_in_a_batch(k: int) -> None:
    """L8: two with the same controls share the making of their laws, each with its own history."""
    table = torch.tensor([2, 1.9, 0, -1], dtype=torch.float64).softmax(0).expand(4, 4)
    shy = SamplingParams(temperature=0, presence_penalty=0.5)
    state = init(toy.bigram(table), Config(num_pages=64))
    for limit in (6, 1, 4):
        state, _ = submit(state, Request([3], limit, shy, k=k, proposer=drafting(lambda c: [0] * k)))
    _, done = run(toy.bigram(table), state)
    assert [done[number].tokens for number in range(3)] == [[0, 1, 0, 0, 0, 0], [0], [0, 1, 0, 0]]


@pytest.mark.parametrize("where", ["model", "engine"])
def test_drafts_stop_before_the_end_of_the_context(where: str) -> None:
    """L10: 12 and 4 are 16; no position reaches 16."""
    seen: list[int] = []
    model = circle(7, context=16 if where == "model" else 64)

    def apply(params: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
        seen.extend(positions.tolist())
        return model.apply(params, tokens, positions, *rest)

    watched = model._replace(apply=apply)
    request = Request([*range(7), *range(5)], 100, k=4, proposer=right(7, 4))
    done, _ = among_others(watched, request, context=None if where == "model" else 16)
    assert (done.tokens, done.finish_reason) == ([5, 6, 0, 1], "length")
    assert max(seen) < 16


def test_a_prompt_that_is_too_long_is_one_request_refused() -> None:
    """L12: the state goes on, and the next request runs."""
    model = circle(7, context=16)
    state = init(model, Config(num_pages=64))
    with pytest.raises(ValueError, match="the prompt has 17 tokens; expected at most 16, the model's context"):
        submit(state, Request([0] * 17, 4))
    with pytest.raises(ValueError, match="the prompt has 16 tokens; expected at most 15, so that one more fits the context"):
        submit(state, Request([0] * 16, 4))
    state, number = submit(state, Request([0] * 15, 4))
    assert run(model, state)[1][number].tokens == [1]


@pytest.mark.parametrize("verifier", ["token", "block", "coupled", "tree"])
def test_every_logprob_is_of_the_law_itself(verifier: str) -> None:
    """L14: constant law (.1, .6, .3): accepted, recovered, bonus and plain tokens alike, whatever the temperature."""
    law = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64).expand(3, 3)
    draft = drafting(lambda c: [1] * (len(c) % 4))
    kinds = set()
    for seed in range(4):
        request = Request([0], 20, SamplingParams(temperature=0.8), seed=seed, k=3, proposer=draft, verifier=verifier)
        done, said = among_others(toy.bigram(law), request)
        assert done.logprobs == pytest.approx([math.log((0.1, 0.6, 0.3)[token]) for token in done.tokens], abs=1e-12)
        assert len(done.logprobs) == len(done.tokens) == 20
        kinds |= {kind for event in said for kind in event.kinds}
    assert kinds == {"accepted", "recovered", "bonus", "plain"}
