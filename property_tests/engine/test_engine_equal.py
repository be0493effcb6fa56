"""A request gets the tokens that it gets alone, to the last bit of every log-probability, whoever shares its passes and its pages.

Alone means ``specdec_fn.generate``. The target is a small random Llama whose laws hang on every token before, in invariant mode; the embedded
model repeats it in float32.
"""

import dataclasses
import json
import subprocess
import sys
from functools import cache
from hashlib import blake2b
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import SamplingParams, generate, load, models
from specdec_fn.engine import Config, Request, clone, fork, free_pages, init, restore, run, snapshot, step, submit
from specdec_fn.engine.state import EngineState, record_of
from specdec_fn.models import Model, toy
from specdec_fn.random import Key, fold_in, key, key_data
from specdec_fn.speculate import Proposer, proposers, tree, verifiers
from specdec_fn.speculate.draft import chain

VOCAB = 16
MODEL = toy.llama(key(5), vocab_size=VOCAB, context=64)
GREEDY = SamplingParams(temperature=0)
RULES = [name for name, rule in verifiers.items() if rule.lossless]


@cache
def likely(context: tuple[int, ...], count: int = 4) -> tuple[int, ...]:
    """What plain greedy decoding goes on with."""
    return tuple(generate(MODEL, context, sampling=GREEDY, max_tokens=count).tokens) if len(context) + count < 64 else ()


def noise(context: Any, size: int) -> int:
    """A number that looks random and belongs to the context."""
    return int.from_bytes(blake2b(repr(context).encode(), digest_size=8).digest(), "big") % size


def named(name: str, fn: Any) -> Proposer:
    return proposers.scripted.proposer(fn)._replace(name=name)


def mixed(context: list[int]) -> list[int]:
    right = likely(tuple(context))[: noise(context, 5)]
    return [*right, *(noise((context, place), VOCAB) for place in range(4 - len(right)))]


def branching(key: Key, state: Any, tokens: list[int], k: int, *, position: int) -> Any:
    """A tree whose second branch is right for a few tokens, so that what is kept does not lie together."""
    right = likely(tuple(tokens))
    return state, tree.merge([[(right[0] + 1) % VOCAB, 3], right[: noise(tokens, 4)], [(right[0] + 2) % VOCAB]], k) if right else chain((), k)


FOREST = Proposer("forest", lambda prompt: (), branching)
GIVEN = {
    "right": named("right", lambda context: likely(tuple(context))),
    "wrong": named("wrong", lambda context: [(token + 1) % VOCAB for token in likely(tuple(context))]),
    "mixed": named("mixed", mixed),
    "eager": proposers.ngram.proposer()._replace(name="eager"),
}
BASES = ([1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 1, 2], [7, 7, 8, 7, 7, 8, 7, 7, 9, 7, 7, 8])
SAMPLING = st.sampled_from(
    [
        SamplingParams(),
        GREEDY,
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(temperature=1.5, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.5),
        SamplingParams(temperature=0, frequency_penalty=0.6, min_tokens=3),
        SamplingParams(logit_bias={3: 2.0}, min_tokens=2, bad_words=((1, 2),)),
    ]
)


@st.composite
def requests(draw: Any, salts: Any = (b"", b"", b"x")) -> Request:
    base = draw(st.sampled_from(BASES))
    prompt = base[: draw(st.integers(1, 12))] + draw(st.lists(st.integers(0, VOCAB - 1), max_size=2))
    sampling = draw(SAMPLING)
    verifier = draw(st.sampled_from([name for name in RULES if sampling.greedy or name != "greedy"]))
    trees = ["ngram_tree", FOREST] if verifiers[verifier].trees else []
    return Request(
        prompt,
        draw(st.integers(1, 8)),
        sampling,
        seed=draw(st.none() | st.integers(0, 3)),
        stop_ids=draw(st.sampled_from([(), (3,), (0, 9)])),
        k=draw(st.none() | st.integers(0, 5)),
        proposer=draw(st.sampled_from(["none", "ngram", *trees, *GIVEN.values()])),
        verifier=verifier,
        priority=draw(st.integers(-1, 1)),
        salt=draw(st.sampled_from(salts)),
    )


@st.composite
def configs(draw: Any) -> Config:
    page_size = draw(st.sampled_from([1, 2, 3, 4, 16]))
    least = -(-22 // page_size)  # the largest request of ``requests`` fits, and not much more
    return Config(
        page_size=page_size,
        num_pages=least + draw(st.integers(0, 2 * least)),
        max_batch=draw(st.integers(1, 4)),
        prefill_chunk=draw(st.integers(1, 9)),
        k=draw(st.integers(0, 3)),
        prefix_cache=draw(st.booleans()),
        invariant=True,
        seed=draw(st.integers(0, 2)),
    )


def seed_of(one: Key) -> int:
    """The seed whose key this is: any two words are the key of some seed."""
    high, low = key_data(one).tolist()
    return (high << 32 | low) - (1 << 64) * (high >> 31)


def alone(request: Request, config: Config, number: int, *, model: Model = MODEL, **more: Any) -> Any:
    """The same request with nobody beside it; ``number`` is what the engine called it."""
    drafting = config.proposer if request.proposer is None else request.proposer
    done = generate(
        model,
        request.prompt,
        seed=seed_of(fold_in(key(config.seed), number)) if request.seed is None else request.seed,
        sampling=request.sampling,
        proposer=None if drafting == "none" else drafting,
        verifier=config.verifier if request.verifier is None else request.verifier,
        k=config.k if request.k is None else request.k,
        max_tokens=request.max_tokens,
        stop_ids=request.stop_ids,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
        invariant=config.invariant,
        **more,
    )
    return timeless(done)


def timeless(done: Any) -> Any:
    return done._replace(stats=done.stats._replace(seconds={}))


def all_events(state: EngineState, model: Model = MODEL) -> list[Any]:
    """Steps to the end; everything that the steps said."""
    said = []
    while len(state.records):
        state, events = step(model, state)
        said.append([(*event, event.text, event.kinds, event.generation and timeless(event.generation)) for event in events])
    return said


def submitted(config: Config, asked: list[Request], model: Model = MODEL, tokenizer: Any = None) -> EngineState:
    state = init(model, config, tokenizer)
    for request in asked:
        state, _ = submit(state, request)
    return state


def check_all(config: Config, asked: list[Request], done: dict[int, Any]) -> None:
    assert sorted(done) == list(range(len(asked)))
    for number, request in enumerate(asked):
        assert timeless(done[number]) == alone(request, config, number), f"request {number} of {config}: {request}"


@given(asked=st.lists(requests(), min_size=1, max_size=5), config=configs(), gaps=st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_in_any_batch_a_request_gets_what_it_gets_alone(asked: list[Request], config: Config, gaps: list[int]) -> None:
    """D22, G4, S5, S6, P9: batch, chunks, pages, preemption and prefix hits change no bit."""
    state, done = init(MODEL, config), {}
    for request, gap in zip(asked, gaps, strict=False):
        state, _ = submit(state, request)
        state, some = run(MODEL, state, steps=gap)
        done |= some
    state, rest = run(MODEL, state)
    check_all(config, asked, done | rest)
    assert free_pages(state) == config.num_pages


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_after_preemption(rule: str, prefix_cache: bool) -> None:
    """S5: twelve pages of two for four at a time that want seven each, so that some lose theirs."""
    config = Config(page_size=2, num_pages=12, max_batch=4, prefill_chunk=3, proposer=GIVEN["mixed"], k=3, prefix_cache=prefix_cache, invariant=True)
    sampling = GREEDY if rule == "greedy" else SamplingParams()
    asked = [Request(BASES[0][place : place + 2], 12, sampling, seed=place % 2 or None, verifier=rule) for place in range(6)]
    state, done = run(MODEL, submitted(config, asked))
    assert state.counters.preempted >= 2
    check_all(config, asked, done)


@pytest.mark.parametrize("rule", [name for name in RULES if verifiers[name].trees])
def test_what_is_kept_of_a_tree_is_read_again(rule: str) -> None:
    """Rows of a branch that is not the first move together, in a batch of chains and trees."""
    config = Config(page_size=2, num_pages=64, max_batch=4, k=6, invariant=True)
    asked = [Request(BASES[place % 2][place:], 12, GREEDY, proposer=(FOREST, "none", FOREST, "ngram")[place], verifier=rule) for place in range(4)]
    _, done = run(MODEL, submitted(config, asked))
    check_all(config, asked, done)
    assert done[0].stats.accepted > 3


@pytest.mark.parametrize("rule", RULES)
def test_with_prefix_hits(rule: str) -> None:
    """P2: one after another on the same prompt, so that each later one computes little of it; and two that differ behind it."""
    config = Config(page_size=3, num_pages=40, prefill_chunk=4, proposer="ngram", k=3, invariant=True)
    sampling = GREEDY if rule == "greedy" else SamplingParams()
    asked = [Request([*BASES[0][:9], *behind], 6, sampling, seed=7, verifier=rule) for behind in ((), (), (4,), (5, 6))]
    state, done = init(MODEL, config), {}
    for request in asked:
        state, _ = submit(state, request)
        state, some = run(MODEL, state)
        done |= some
    assert state.counters.cached == 6 + 9 + 9  # of nine tokens one at least is computed, so two pages; with more behind them, three
    check_all(config, asked, done)


def generations(said: list[Any]) -> dict[int, Any]:
    return {event[0]: event[-1] for events in said for event in events if event[-1] is not None}


@given(asked=st.lists(requests(), min_size=1, max_size=4), config=configs(), first=st.integers(0, 12), second=st.integers(0, 6))
def test_every_way_on_from_a_state_gives_the_same_events(asked: list[Request], config: Config, first: int, second: int) -> None:
    """The submits once more, two runs in place of one, a clone, a snapshot restored: every event is as it was, up to the end."""
    whole = all_events(submitted(config, asked))
    state, early = run(MODEL, submitted(config, asked), steps=first)
    assert {number: timeless(one) for number, one in early.items()} == generations(whole[:first])
    past, again = clone(state), restore(MODEL, snapshot(state), proposers=GIVEN | {"forest": FOREST})
    assert again.counters == state.counters
    assert all_events(again) == whole[first:]
    state, late = run(MODEL, state, steps=second)
    assert {number: timeless(one) for number, one in late.items()} == generations(whole[first : first + second])
    assert all_events(state) == whole[first + second :]
    assert all_events(past) == whole[first:]


ELSEWHERE = """
import json, sys
from specdec_fn.engine import restore, run
from specdec_fn.models import toy
from specdec_fn.random import key
from specdec_fn.speculate import proposers
model = toy.llama(key(5), vocab_size=16, context=64)
eager = proposers.ngram.proposer()._replace(name="eager")
state = restore(model, sys.stdin.buffer.read(), proposers={"eager": eager})
done = run(model, state)[1]
print(json.dumps({number: [one.tokens, one.logprobs, one.finish_reason, one.stats[:5]] for number, one in sorted(done.items())}))
"""


def test_after_a_restore_in_another_process() -> None:
    config = Config(page_size=3, num_pages=11, max_batch=3, prefill_chunk=4, proposer="ngram", verifier="block", k=3, invariant=True)
    asked = [Request(BASES[place % 2][place:], 8, seed=place or None, proposer=GIVEN["eager"] if place % 2 else None) for place in range(5)]
    state, early = run(MODEL, submitted(config, asked), steps=9)
    assert len(early) < 5
    assert state.counters.emitted > 0
    command = [sys.executable, "-c", ELSEWHERE]
    late = json.loads(subprocess.run(command, input=snapshot(state), capture_output=True, check=True, timeout=120).stdout)
    assert len(early) + len(late) == 5
    for number, told in late.items():
        whole = alone(asked[int(number)], config, int(number))
        assert told == json.loads(json.dumps([whole.tokens, whole.logprobs, whole.finish_reason, whole.stats[:5]]))


@given(
    request=requests(salts=(b"",)), config=configs(), steps=st.integers(0, 9), seeds=st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=2)
)
def test_forks_leave_the_other_as_it_is_and_go_on_by_themselves(request: Request, config: Config, steps: int, seeds: list[int | None]) -> None:
    """A fork goes on as a new request on the tokens so far under the fork's own key; see test_engine_machine for penalties and changes."""
    plain = dataclasses.replace(request.sampling, min_tokens=0, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, bad_words=())
    by_value = GIVEN["eager"] if request.proposer in ("ngram", "ngram_tree") else request.proposer  # no state of its own
    request = dataclasses.replace(request, sampling=plain, proposer=by_value)
    state, early = run(MODEL, submitted(config, [request]), steps=steps)
    if early:
        assert timeless(early[0]) == alone(request, config, 0)
        return
    so_far, own, forked = record_of(state, 0).run.tokens, record_of(state, 0).run.key, {}
    for place, seed in enumerate(seeds):
        state, number = fork(state, 0, seed=seed)
        forked[number] = seed_of(fold_in(fold_in(own, 4), place)) if seed is None else seed
    state, done = run(MODEL, state)
    assert timeless(done[0]) == alone(request, config, 0)
    made = list(so_far[len(request.prompt) :])
    for number, seed in forked.items():
        rest = dataclasses.replace(request, prompt=so_far, max_tokens=request.max_tokens - len(made), seed=seed)
        expected = alone(rest, config, 0)
        assert (done[number].tokens, done[number].finish_reason) == (made + expected.tokens, expected.finish_reason)
        assert done[number].logprobs[len(made) :] == expected.logprobs
        assert done[number].logprobs[: len(made)] == done[0].logprobs[: len(made)]
    assert free_pages(state) == config.num_pages


@given(asked=st.lists(requests(), min_size=1, max_size=4), config=configs())
def test_in_ordinary_mode_greedy_tokens_differ_at_ties_only(asked: list[Request], config: Config) -> None:
    """In float64 the sums of ordinary products differ by 1e-12 or so; where the two best logits are further apart, nothing may."""
    config = dataclasses.replace(config, invariant=False)
    asked = [dataclasses.replace(request, sampling=GREEDY) for request in asked]
    _, done = run(MODEL, submitted(config, asked))
    for number, request in enumerate(asked):
        tokens, expected = done[number].tokens, alone(request, config, number).tokens
        first = next((place for place, pair in enumerate(zip(tokens, expected, strict=False)) if len(set(pair)) > 1), None)
        if first is None:
            assert tokens == expected
            assert done[number].logprobs == pytest.approx(scored([*request.prompt, *tokens], len(request.prompt)), abs=1e-9)
        else:
            top = models.logits(MODEL, [*request.prompt, *tokens[:first]])[-1].topk(2).values
            assert float(top[0] - top[1]) < 1e-9


def scored(tokens: list[int], prompt: int) -> list[float]:
    rows = models.logits(MODEL, tokens).log_softmax(-1)
    return [float(rows[place - 1, tokens[place]]) for place in range(prompt, len(tokens))]


BIGRAM = toy.bigram(torch.softmax(torch.arange(64.0, dtype=torch.float64).view(8, 8).mul(2.4).sin(), -1), context=64)


@given(asked=st.lists(requests(), min_size=1, max_size=4), config=configs())
def test_in_ordinary_mode_a_bigram_target_gives_the_same_tokens(asked: list[Request], config: Config) -> None:
    """Its logits are looked up, so they have the same bits in any company, and everything else of the ordinary mode must not matter."""
    config = dataclasses.replace(config, invariant=False)
    small = {"prompt": [token % 8 for token in BASES[1]], "stop_ids": (3,), "proposer": "ngram"}
    asked = [dataclasses.replace(request, **small) for request in asked]
    _, done = run(BIGRAM, submitted(config, asked, BIGRAM))
    for number, request in enumerate(asked):
        assert timeless(done[number]) == alone(request, config, number, model=BIGRAM)


def test_the_embedded_model_in_float32() -> None:
    """Pages of 2 and 16, chunks of 7 and 64, with preemption and without: the tokens, texts and log-probabilities of each alone."""
    model, tokenizer = load("smollm2-135m")
    asked = [
        Request("The capital of France is", 7, GREEDY, proposer="ngram", k=1),
        Request("One two three one two", 7, seed=3, proposer=GIVEN["eager"], verifier="block", k=1),
        Request("The capital of France is not", 6, seed=4, proposer="ngram", verifier="coupled", k=2, priority=-1),
    ]
    expected = [alone(request, Config(invariant=True), number, model=model, tokenizer=tokenizer) for number, request in enumerate(asked)]
    for page_size, num_pages, chunk in ((2, 7, 7), (16, 64, 64)):
        config = Config(page_size=page_size, num_pages=num_pages, max_batch=3, prefill_chunk=chunk, invariant=True)
        state, done = run(model, submitted(config, asked, model, tokenizer))
        assert [timeless(done[number]) for number in range(3)] == expected
        assert (state.counters.preempted > 0) == (num_pages == 7)
