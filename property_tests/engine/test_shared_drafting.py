"""Drafts on the target's own keys and values: the first layers of the target, and its own weights rounded, in the loop and in the engine.

Alone means ``specdec_fn.generate``. In invariant mode the two have to agree to the last bit, whoever shares a pass, whatever the pages; and the
first layers draft what they draft with a cache of their own, since the keys are the same numbers.
"""

import dataclasses
import itertools
from collections import Counter
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn import SamplingParams, generate, models, schedule, stream
from specdec_fn.engine import Config, EngineState, Request, fork, init, restore, run, snapshot, step, submit
from specdec_fn.models import Model, toy
from specdec_fn.pytree import checking
from specdec_fn.random import key
from specdec_fn.speculate import Proposer
from specdec_fn.speculate.proposers import draft_model, early_exit, first, ngram, paying, suffix

from .company import CONTEXT, GAPS, GREEDY, LINE, PENALISED, VOCAB, WARM, Company, requests, sizes_of, timeless

TARGET = toy.llama(key(5), vocab_size=VOCAB, context=CONTEXT, layers=3, width=8, head_dim=4, ffn=12)


def rounded(model: Model, steps: int = 7, dtype: torch.dtype | None = None) -> Model:
    """The model with every matrix on a grid of a few steps a row: what fewer bits do to it."""

    def grid(weight: Any) -> Any:
        if weight is None or weight.dim() < 2:
            return weight if dtype is None or weight is None else weight.to(dtype)
        scale = weight.abs().amax(1, keepdim=True) / steps
        return ((weight / scale).round() * scale).to(dtype or weight.dtype)

    layers = tuple(dataclasses.replace(layer, **{name: grid(value) for name, value in vars(layer).items()}) for layer in model.params.layers)
    params = dataclasses.replace(model.params, layers=layers, **{name: grid(getattr(model.params, name)) for name in ("embedding", "norm", "head")})
    return models.llama.model(model.config, params)


ROUNDED = rounded(TARGET)


def own(name: str, sampling: SamplingParams = WARM) -> Proposer:
    made = {
        "early_exit": lambda: early_exit.proposer(TARGET, 2, sampling=sampling),
        "all layers": lambda: early_exit.proposer(TARGET, 3, sampling=sampling),
        "rounded": lambda: draft_model.sharing("rounded", ROUNDED, sampling=sampling),
    }
    return made[name]()._replace(name=name)


GUESS = MappingProxyType(
    {name: own(name) for name in ("early_exit", "all layers", "rounded")}
    | {
        "penalised": own("rounded", PENALISED)._replace(name="penalised"),
        "resting": paying.proposer(own("early_exit"))._replace(name="resting"),
        "ngram first": first.proposer(ngram.proposer(), own("rounded"))._replace(name="ngram first"),
        "suffix first": first.proposer(suffix.proposer(2), paying.proposer(own("early_exit")))._replace(name="suffix first"),
    }
)


COMPANY = Company(TARGET, GUESS)
NAMED = ("ngram", "early_exit", "ngram+early_exit", None)
ask, engine, alone, check = COMPANY.ask, COMPANY.engine, COMPANY.alone, COMPANY.check


def watching(model: Model, seen: list[list[int]]) -> Model:
    """Writes down the positions of each of its forwards."""

    def over(form: Any) -> Any:
        def apply(params: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
            seen.append(positions.tolist())
            return form.apply(params, tokens, positions, *rest)

        return form._replace(apply=apply, prefill=None, apply_at=None)

    return over(model)._replace(invariant=over(model.invariant))


# The loop


@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([GREEDY, WARM, PENALISED]),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
    st.integers(0, 6),
    st.integers(0, 99),
)
@settings(max_examples=settings.default.max_examples // 2)
def test_shared_or_with_a_cache_of_its_own_it_drafts_the_same(layers: int, sampling: SamplingParams, prompt: list[int], k: int, seed: int) -> None:
    """Invariant mode: tokens, log-probabilities and counts, bit for bit; without ``drafter`` the loop calls ``propose``, whose cache is its own."""
    shared = early_exit.proposer(TARGET, layers, sampling=sampling)
    assert shared.drafter is not None
    same = models.invariant(shared.drafter.model)
    apart = draft_model.proposer(same, sampling=sampling)._replace(drafter=None)
    asked = {"seed": seed, "sampling": sampling, "k": k, "max_tokens": 14, "invariant": True}
    assert timeless(generate(TARGET, prompt, proposer=shared, **asked)) == timeless(generate(TARGET, prompt, proposer=apart, **asked))


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_all_layers_are_always_right(k: int, sampling: SamplingParams, invariant: bool) -> None:
    """K1, K2: acceptance 1 at every K; a row read from, or written to, a wrong slot makes the laws others."""
    done = generate(TARGET, LINE[:3], proposer=own("all layers", sampling), sampling=sampling, k=k, max_tokens=30, invariant=invariant)
    assert done.stats.proposed == done.stats.accepted > 0
    assert done.stats.passes == -(-30 // (k + 1))


@pytest.mark.parametrize("engine_", [False, True], ids=["loop", "engine"])
@pytest.mark.parametrize("name", ["early_exit", "rounded"])
def test_each_drafted_token_is_one_row_of_one_forward_and_no_prompt_is_read(name: str, engine_: bool) -> None:
    seen: list[list[int]] = []
    guess = own(name)
    assert guess.drafter is not None
    guess = guess._replace(drafter=guess.drafter._replace(model=watching(guess.drafter.model, seen), again=None))
    asked = {"seed": 3, "sampling": WARM, "k": 3, "max_tokens": 20, "verifier": "token"}
    if engine_:
        state, number = submit(engine(prefill_chunk=3, invariant=False), Request(LINE, proposer=guess, **asked))
        done = run(TARGET, state)[1][number]
    else:
        done = generate(TARGET, LINE, proposer=guess, **asked)
    assert len(done.tokens) == 20
    assert len(seen) == done.stats.proposed > 0
    assert all(len(positions) == 1 for positions in seen)
    assert min(itertools.chain(*seen)) == len(LINE) - 1


@given(st.integers(0, 10**6), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8), st.integers(0, 6), st.sampled_from(sorted(GUESS)))
@settings(max_examples=settings.default.max_examples // 2)
def test_greedy_ids_do_not_depend_on_the_drafts(seed: int, prompt: list[int], k: int, name: str) -> None:
    """In float64, where no near tie falls otherwise; whatever the drafts are drawn from."""
    plain = generate(TARGET, prompt, sampling=GREEDY, max_tokens=12)
    fast = generate(TARGET, prompt, sampling=GREEDY, max_tokens=12, proposer=GUESS[name], k=k, seed=seed)
    assert fast.tokens == plain.tokens
    assert fast.logprobs == pytest.approx(plain.logprobs, abs=1e-9)


@pytest.mark.parametrize("name", ["early_exit", "rounded", "ngram first"])
@pytest.mark.parametrize("verifier", ["token", "block"])
def test_three_tokens_have_the_joint_law_of_the_target(name: str, verifier: str) -> None:
    """64 sequences of three tokens, their laws multiplied out from cold passes; chi-squared, 63 degrees of freedom, alpha 5e-7."""
    target = toy.llama(key(11), vocab_size=4, layers=2)
    made = {
        "early_exit": early_exit.proposer(target, 1),
        "rounded": draft_model.sharing("rounded", rounded(target, 2), sampling=SamplingParams(1.3)),
    }
    guess = made[name] if name in made else first.proposer(ngram.proposer(), made["rounded"])
    laws = {
        line: models.logits(target, [2, 0, 2, *line])[-1].softmax(-1).tolist()
        for size in range(3)
        for line in itertools.product(range(4), repeat=size)
    }
    expected = {line: laws[()][line[0]] * laws[line[:1]][line[1]] * laws[line[:2]][line[2]] for line in itertools.product(range(4), repeat=3)}
    n, counts, accepted = 250, Counter(), 0
    for seed in range(n):
        done = generate(target, [2, 0, 2], seed=seed, proposer=guess, verifier=verifier, k=2, max_tokens=3)
        counts[tuple(done.tokens)] += 1
        accepted += done.stats.accepted
    assert sum((counts[line] - n * p) ** 2 / (n * p) for line, p in expected.items()) < 135
    assert 0 < accepted < 2 * n


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draft_in_another_dtype_shares_the_cache_too(dtype: torch.dtype) -> None:
    """Its rows are brought to the dtype of the cache, and back."""
    narrow = rounded(TARGET, 127, dtype)
    guess = draft_model.sharing("narrow", narrow, sampling=GREEDY)
    asked = {"sampling": GREEDY, "max_tokens": 24, "k": 3}
    done = generate(TARGET, LINE, proposer=guess, **asked)
    assert done.tokens == generate(TARGET, LINE, **asked).tokens
    assert done.stats.acceptance_rate > 0.3
    state = engine([Request(LINE[place:], proposer=guess, verifier="token", **asked) for place in range(3)], invariant=False)
    for place, one in run(TARGET, state)[1].items():
        assert one.tokens == generate(TARGET, LINE[place:], **asked).tokens


@pytest.mark.parametrize("name", ["early_exit", "ngram+early_exit", "suffix+early_exit"])
def test_by_name_the_request_s_controls_make_the_draft_s_laws(name: str) -> None:
    for sampling in (GREEDY, WARM, PENALISED):
        asked = {"sampling": sampling, "seed": 4, "k": 3, "max_tokens": 20}
        by_value = paying.proposer(early_exit.proposer(TARGET, sampling=sampling), least=1.0, start=1.5)
        cheap = {"ngram": ngram.proposer, "suffix": suffix.proposer}
        parts = [by_value if part == "early_exit" else paying.proposer(cheap[part]()) for part in name.split("+")]
        value = generate(TARGET, LINE, proposer=first.proposer(*parts), **asked)
        assert timeless(generate(TARGET, LINE, proposer=name, **asked)) == timeless(value)
        assert [token for piece in stream(TARGET, LINE, proposer=name, **asked) for token in piece.tokens] == value.tokens
        assert value.stats.proposed > 0


def test_the_time_of_a_shared_draft_is_time_of_proposing() -> None:
    done = generate(TARGET, LINE, proposer=own("early_exit"), max_tokens=8)
    assert done.stats.seconds["propose"] > 0


def test_the_context_is_a_limit_for_drafts() -> None:
    """L10: a K beyond what the context leaves drafts less."""
    for name in ("early_exit", "rounded", "ngram first"):
        done = generate(TARGET, [*LINE, *LINE[:2]], proposer=GUESS[name], k=60, max_tokens=99, seed=2)
        assert len(done.tokens) == CONTEXT - 10
        asked = [ask(name, [*LINE, *LINE[:2]], CONTEXT - 10, k=60, seed=2)]
        check(asked, run(TARGET, engine(asked))[1])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"layers": 4}, "4 layers of 1 key-value heads of 4; expected at most 3 layers of 1 of 4"),
        ({"kv_heads": 2}, "3 layers of 2 key-value heads of 4; expected at most 3 layers of 1 of 4"),
        ({"head_dim": 8}, "3 layers of 1 key-value heads of 8; expected at most 3 layers of 1 of 4"),
    ],
)
def test_the_cache_of_another_shape_is_refused(other: dict[str, int], words: str) -> None:
    stranger = toy.llama(key(6), **{"vocab_size": VOCAB, "context": CONTEXT, "layers": 3, "width": 8, "head_dim": 4, "ffn": 12, **other})
    guess = early_exit.proposer(stranger, stranger.config.layers)
    with pytest.raises(ValueError, match=f"^proposer 'early_exit' shares the cache of a model with {words}, as the target has$"):
        generate(TARGET, LINE, proposer=guess)
    with pytest.raises(ValueError, match="shares the cache of a model"):
        submit(engine(), ask(guess))


# The engine, in any company


@settings(max_examples=settings.default.max_examples // 2)
@given(st.lists(requests(COMPANY, [*GUESS, *NAMED]), min_size=1, max_size=4), sizes_of(), GAPS, st.booleans())
def test_a_request_drafts_what_it_drafts_alone(asked: list[Request], sizes: dict[str, Any], gaps: list[int], enforced: bool) -> None:
    """G4: tokens, log-probabilities and the counts of drafts are those of the request alone, on any pages, and no page is lost."""
    assert COMPANY.check_together(asked, sizes, gaps, enforced).drafts == ()


@pytest.mark.parametrize("name", ["early_exit", "rounded", "suffix first"])
def test_after_preemption(name: str) -> None:
    """K1: four requests on pages for a request and a half; who comes back drafts as if nothing had been."""
    asked = [ask(name, LINE[place : place + 2], 20, k=2, seed=place) for place in range(4)]
    state, done = run(TARGET, engine(asked, page_size=2, num_pages=15, max_batch=4, prefill_chunk=5))
    assert state.counters.preempted >= 2
    check(asked, done)


def test_pages_are_shared_with_everybody_of_the_same_target() -> None:
    """Nothing in a page depends on who drafts: a prompt that was computed for one is found by all others, also by those that do not draft."""
    names = ("rounded", None, "early_exit", "ngram", "ngram first", "penalised")
    state, found, done = engine(num_pages=200), [], {}
    asked = [ask(name, [*LINE[:7], place], seed=place) for place, name in enumerate(names)]
    for request in asked:
        before = state.counters.cached
        state, _ = submit(state, request)
        state, some = run(TARGET, state)
        found.append(state.counters.cached - before)
        done |= some
    assert found == [0, 6, 6, 6, 6, 6]
    check(asked, done)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize(
    ("name", "changes"), [("rounded", {}), ("rounded", {"proposer": "ngram"}), ("ngram first", {"k": 5}), (None, {"proposer": "early_exit"})]
)
def test_a_fork_shares_pages_and_goes_on_by_itself(name: str | None, changes: dict[str, Any], steps: int) -> None:
    first_one = ask(name, LINE[:5], 12)
    state, _ = run(TARGET, engine([first_one]), steps)
    state, number = fork(state, 0, seed=7, **changes)
    so_far = list(schedule.find(state.work, number).tokens)
    done = run(TARGET, state)[1]
    assert done[number].tokens[: len(so_far) - 5] == so_far[5:]
    tail = alone(dataclasses.replace(first_one, seed=7, **changes), prompt=so_far, max_tokens=17 - len(so_far))
    if name != "ngram first":  # whose state knows of drafts before the fork
        assert done[number].tokens == [*so_far[5:], *tail.tokens]
    assert timeless(done[0]) == alone(first_one)


def events_of(state: EngineState) -> list[Any]:
    said = []
    while len(state.records):
        state, events = step(TARGET, state)
        said.append([(*event, event.kinds, event.generation and timeless(event.generation)) for event in events])
    return said


def test_a_restored_engine_drafts_on() -> None:
    """Names need not be given again; values are, by their names."""
    names = ("early_exit", "ngram+early_exit", "suffix+early_exit", "suffix", None)
    asked = [dataclasses.replace(ask(None, LINE[place % 3 :], 7, seed=place), proposer=name or "none") for place, name in enumerate(names)]
    asked.append(ask("rounded", seed=5))
    whole, state = events_of(engine(asked, num_pages=24)), engine(asked, num_pages=24)
    for place in range(len(whole)):
        again = restore(TARGET, snapshot(state), proposers=GUESS)
        drafters = [record.run.proposer.drafter for record in again.records.values() if "early_exit" in record.run.proposer.name]
        assert all(drafter.model is again.family.kin["early_exit"] for drafter in drafters)  # made once, so that they draft together
        assert events_of(again) == whole[place:]
        state, _ = step(TARGET, state)


def test_the_engine_s_own_proposer_may_be_a_name_of_the_target() -> None:
    state = init(TARGET, Config(proposer="ngram+early_exit", num_pages=32, invariant=True, k=3))
    state, one = submit(state, Request(LINE, 9, seed=1, sampling=WARM))
    state, two = submit(state, Request(LINE[3:], 9, seed=2))
    records = [state.records[number].run.proposer for number in (one, two)]
    assert records[0].drafter.model is records[1].drafter.model
    assert [record.drafter.sampling for record in records] == [WARM, SamplingParams()]
    done = run(TARGET, state)[1]
    for number, (prompt, sampling) in enumerate(((LINE, WARM), (LINE[3:], SamplingParams()))):
        assert timeless(done[number]) == alone(
            Request(prompt, 9, seed=number + 1, sampling=sampling, proposer="ngram+early_exit", k=3, verifier="token")
        )
    with pytest.raises(TypeError, match="the model is a toy model without blocks"):
        init(toy.bigram(torch.eye(3)), Config(proposer="early_exit"))
    with pytest.raises(ValueError, match="one of the names ngram"):
        submit(state, Request(LINE, 9, proposer="early_exit+psychic"))


@pytest.mark.parametrize("enforced", [False, True])
def test_a_draft_that_fails_ends_those_that_draft_with_it(enforced: bool) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("no memory")

    bad = own("early_exit")
    assert bad.drafter is not None
    model = bad.drafter.model._replace(apply=broken, apply_at=None, invariant=models.Forward(broken))
    bad = bad._replace(drafter=bad.drafter._replace(model=model, again=None))
    asked = [ask("rounded"), ask(bad), ask(None), ask(bad, LINE[2:5])]
    if enforced:
        with checking():
            done = run(TARGET, engine(asked))[1]
    else:
        done = run(TARGET, engine(asked))[1]
    for number in (1, 3):
        assert (done[number].finish_reason, done[number].error) == ("error", "the drafting model failed with RuntimeError: no memory")
    for number in (0, 2):
        assert timeless(done[number]) == alone(asked[number])
