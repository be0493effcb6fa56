"""Drafting models in the engine, batched and paged: a request drafts, and so emits, what it does alone, whoever shares its passes and its pages.

Alone means ``specdec_fn.generate`` with ``proposers.draft_model``, whose dense cache belongs to one sequence. All of it is in invariant mode, where
the two have to agree to the last bit: a key that the paged cache lacks, has too much or takes from a neighbour gives other drafts.
"""

import dataclasses
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn import SamplingParams, generate, models, schedule
from specdec_fn.engine import Config, EngineState, Request, clone, fork, free_pages, init, restore, run, snapshot, step, submit
from specdec_fn.kv.table import Table
from specdec_fn.models import Model, toy
from specdec_fn.pytree import checking
from specdec_fn.random import key
from specdec_fn.speculate import Proposer
from specdec_fn.speculate.proposers import draft_model

from .company import CONTEXT, GAPS, GREEDY, LINE, PENALISED, VOCAB, WARM, Company, requests, sizes_of, timeless

TARGET = toy.llama(key(5), vocab_size=VOCAB, context=CONTEXT, width=8, head_dim=4, ffn=12)


def small(seed: int, *, vocab_size: int = VOCAB, context: int = CONTEXT) -> Model:
    return toy.llama(key(seed), vocab_size=vocab_size, context=context, layers=1, width=8, heads=1, head_dim=4, ffn=8)


def fading(model: Model, last: int) -> Model:
    """The same model, whose logits are NaN behind some position."""

    def over(form: Any) -> Any:
        def apply(params: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
            logits, kv = form.apply(params, tokens, positions, *rest)
            return logits.where(positions.unsqueeze(1) <= last, torch.nan), kv

        return form._replace(apply=apply, apply_at=None)

    return over(model)._replace(invariant=over(model.invariant))


MODELS = MappingProxyType(
    {
        "own": TARGET,
        "other": small(6),
        "narrow": small(7, vocab_size=11),
        "wide": small(8, vocab_size=20),
        "short": small(9, context=9),
        "fading": fading(small(10), 8),
    }
)


def guess(name: str, sampling: SamplingParams = WARM) -> Proposer:
    """A proposer for the engine, which takes the target's vocabulary and the invariant form by itself."""
    return draft_model.proposer(MODELS[name], sampling=sampling)._replace(name=name)


GUESS = MappingProxyType({name: guess(name) for name in MODELS} | {"penalised": guess("other", PENALISED)._replace(name="penalised")})


def in_the_loop(proposer: Any) -> Any:
    """With a dense cache for the drafts of one sequence."""
    if isinstance(proposer, Proposer) and proposer.drafter is not None:
        model, sampling = proposer.drafter[:2]
        return draft_model.proposer(models.invariant(model), sampling=sampling, vocab_size=VOCAB)
    return proposer


COMPANY = Company(TARGET, GUESS, in_the_loop)
ask, engine, alone, check = COMPANY.ask, COMPANY.engine, COMPANY.alone, COMPANY.check


# In any company


@settings(max_examples=settings.default.max_examples // 2)
@given(st.lists(requests(COMPANY, [*GUESS, *GUESS, "ngram", None]), min_size=1, max_size=4), sizes_of(), GAPS, st.booleans())
def test_a_request_drafts_what_it_drafts_alone(asked: list[Request], sizes: dict[str, Any], gaps: list[int], enforced: bool) -> None:
    """G4, N8, L11: drafters of every kind in one batch; tokens, log-probabilities and the counts of drafts are those of the request alone."""
    COMPANY.check_together(asked, sizes, gaps, enforced)


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", ["own", "other"])
def test_after_preemption(name: str, page_size: int) -> None:
    """K1: four requests on pages for a request and a half; who comes back drafts as if nothing had been."""
    asked = [ask(name, LINE[place : place + 2], 20, k=2, seed=place) for place in range(4)]
    state, done = run(TARGET, engine(asked, page_size=page_size, num_pages=-(-30 // page_size), max_batch=4, prefill_chunk=5))
    assert state.counters.preempted >= 2
    check(asked, done)


def test_two_drafting_models_and_every_k_in_one_batch() -> None:
    asked = [ask(("own", "other")[k % 2], LINE[k:], 9, k=k, seed=k) for k in range(6)]
    state, early = run(TARGET, engine(asked, page_size=3, prefill_chunk=99), 1)
    assert (len(state.work.running), len(state.drafters), early) == (6, 2, {})
    check(asked, run(TARGET, state)[1])


def test_where_donation_is_enforced() -> None:
    """Pools of target and drafting models are given on from line to line, copies of shared pages among them."""
    asked = [ask(name, seed=place) for place, name in enumerate(("own", "own", "other", "fading"))]
    with checking():
        state, _ = run(TARGET, engine(asked, num_pages=24), 3)
        state, twin = fork(state, 0, seed=8)
        done = run(TARGET, state)[1]
    so_far = schedule.find(state.work, twin).tokens
    tail = alone(asked[0], prompt=so_far, max_tokens=16 - len(so_far), seed=8)
    assert done.pop(twin).tokens == [*so_far[6:], *tail.tokens]
    check(asked, done)


# The draft is the target


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_a_model_that_drafts_for_itself_is_always_right(k: int, sampling: SamplingParams, invariant: bool) -> None:
    """K1, K2: acceptance 1 at every K, for three side by side; a key that is not there, or one place too far, makes the laws others."""
    own = guess("own", sampling)
    asked = [dataclasses.replace(ask(None, LINE[place : place + 3], 30, sampling=sampling, k=k, seed=place), proposer=own) for place in (0, 2, 5)]
    done = run(TARGET, engine(asked, page_size=3, num_pages=60, invariant=invariant))[1]
    for one in done.values():
        assert one.stats.proposed == one.stats.accepted > 0
        assert one.stats.passes == -(-30 // (k + 1))
        assert len(one.tokens) == 30


@pytest.mark.parametrize("invariant", [False, True])
def test_passes_without_a_draft_are_caught_up_with(invariant: bool) -> None:
    """K3: 3 tokens a pass, then none, then 3 again, by forks of other k: acceptance stays 1."""
    state, done = run(TARGET, engine([ask("own", LINE[:3], 40)], page_size=3, invariant=invariant), 3)
    for k in (0, 3, 0, 3):
        last = max(state.records)
        state, _ = fork(state, last, seed=k, k=k)
        state, some = run(TARGET, state, 3)
        done |= some
    done |= run(TARGET, state)[1]
    assert len(done) == 5
    for one in done.values():
        assert one.stats.accepted == one.stats.proposed >= 6
        assert len(one.tokens) == 40


@pytest.mark.parametrize("steps", [1, 3])
def test_refused_drafts_leave_nothing_behind(steps: int) -> None:
    """K1: what was read of a draft that was refused is no part of the text, also where passes without a draft follow."""
    state, _ = run(TARGET, engine([ask("other", LINE[:3], 30, k=5)], page_size=3), steps)
    state, quiet = fork(state, 0, seed=1, k=0)
    for more in (1, 2):
        state, _ = run(TARGET, state, 1)
        after, again = fork(state, quiet, seed=more, k=5)
        so_far = schedule.find(after.work, again).tokens
        before = after.records[again].stats
        one = run(TARGET, clone(after))[1][again]
        tail = alone(ask("other", so_far, 33 - len(so_far), seed=more, k=5))
        assert one.tokens == [*so_far[3:], *tail.tokens]
        assert (one.stats.proposed, one.stats.accepted) == (before.proposed + tail.stats.proposed, before.accepted + tail.stats.accepted)
        assert before.accepted < before.proposed


# Pages that were there before


def in_turn(asked: Sequence[Request], **sizes: Any) -> tuple[list[int], EngineState, dict[int, Any]]:
    """One after another: how many tokens of each were found, the state, and what came of them."""
    state, found, done = engine(**sizes), [], {}
    for request in asked:
        before = state.counters.cached
        state, _ = submit(state, request)
        state, some = run(TARGET, state)
        found.append(state.counters.cached - before)
        done |= some
    return found, state, done


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 5])
def test_a_prefix_is_shared_under_the_same_drafting_model_only(page_size: int) -> None:
    """A page holds the keys of one drafting model: for another, or for none, it is computed anew. Seven tokens are found, as far as pages go."""
    twin = guess("own")  # another proposer of the same model and controls
    names = ("own", "own", "other", None, "other", "penalised", "ngram", None)
    asked = [ask(name, [*LINE[:7], place], seed=place) for place, name in enumerate(names)]
    asked.append(dataclasses.replace(ask(None, [*LINE[:7], 9]), proposer=twin))
    found, state, done = in_turn(asked, page_size=page_size, num_pages=200)
    hit = 7 // page_size * page_size
    assert found == [0, hit, 0, 0, hit, hit, hit, hit, hit]
    assert len(state.drafters) == 2
    check(asked, done)


def test_requests_side_by_side_share_a_prefix() -> None:
    """The second comes while the first drafts; both write behind the pages that they share."""
    asked = [ask("own", max_tokens=16), ask("own", [*LINE[:6], 9], seed=2), ask("other")]
    state, _ = run(TARGET, engine(asked[:1], prefill_chunk=20), 2)
    for request in asked[1:]:
        state, _ = submit(state, request)
    state, early = run(TARGET, state, 1)
    tables = [schedule.find(state.work, number).table.pages for number in range(3)]
    assert tables[0][:3] == tables[1][:3]
    assert not set(tables[0]) & set(tables[2])
    check(asked, early | run(TARGET, state)[1])


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
@pytest.mark.parametrize(("name", "behind"), [("narrow", (15, 9)), ("short", (5, 6, 7, 8, 9))])
def test_pages_that_the_drafting_model_never_read(page_size: int, name: str, behind: tuple[int, ...]) -> None:
    """A request that is not drafted for, because of an id that the model lacks or a prompt over its context, leaves no pages that one of the same
    beginning would take for drafted; after that one they are there."""
    deaf = ask(name, [*LINE[:5], *behind], 2)
    heard = [ask(name, [*LINE[:5], place], 6, seed=place) for place in (3, 4)]
    found, _, done = in_turn([deaf, *heard], page_size=page_size, prefill_chunk=20)
    assert found == [0, 0, 5 // page_size * page_size]
    check([deaf, *heard], done)
    assert done[0].stats.proposed == 0 < done[1].stats.proposed


@pytest.mark.parametrize(("name", "page_size"), [("own", 1), ("own", 2), ("other", 2), ("own", 3)])
def test_a_last_token_that_the_drafting_model_has_not_read(name: str, page_size: int) -> None:
    """K2: it has read all but the last token of a draft that was kept whole. One that goes on from a text that ended there reads it."""
    for length in range(2, 7):
        first = ask(name, LINE[:3], length)
        text = [*first.prompt, *alone(first).tokens]
        asked = [first, ask(name, [*text, 2], 6), ask(name, [*text, 3], 6)]
        check(asked, in_turn(asked, page_size=page_size)[2])


# Forks


def forked(name: str | None, steps: int, **changes: Any) -> tuple[EngineState, int, Request]:
    first = ask(name, LINE[:5], 12)
    state, _ = run(TARGET, engine([first], page_size=2), steps)
    state, number = fork(state, 0, seed=7, **changes)
    return state, number, dataclasses.replace(first, seed=7, **changes)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize(
    ("name", "changes", "shares"),
    [
        ("own", {}, True),
        ("own", {"k": 1}, True),
        ("own", {"sampling": GREEDY, "verifier": "block"}, True),
        ("own", {"proposer": guess("own")}, True),
        ("own", {"proposer": GUESS["other"]}, False),
        ("own", {"proposer": guess("own", SamplingParams(temperature=0.5))}, True),
        ("own", {"proposer": "none"}, False),
        ("own", {"proposer": "ngram"}, False),
        (None, {"proposer": GUESS["own"]}, False),
        ("ngram", {"proposer": "none"}, True),
    ],
    ids=["as it is", "k", "controls", "same model", "other model", "other law", "none", "ngram", "from none", "neither"],
)
def test_a_fork_shares_pages_with_the_same_drafting_model_only(name: str | None, changes: dict[str, Any], shares: bool, steps: int) -> None:
    state, number, request = forked(name, steps, **changes)
    old, new = (schedule.find(state.work, one) for one in (0, number))
    if steps >= 1:  # it runs
        assert new.table == (old.table._replace(pages=old.table.pages[: len(new.table.pages)]) if shares else Table())
    so_far = list(old.tokens)
    done = run(TARGET, state)[1]
    tail = alone(request, prompt=so_far, max_tokens=17 - len(so_far))
    assert done[number].tokens == [*so_far[5:], *tail.tokens]
    assert done[number].logprobs[len(so_far) - 5 :] == tail.logprobs
    assert done[number].stats.proposed == state.records[0].stats.proposed + tail.stats.proposed
    assert timeless(done[0]) == alone(ask(name, LINE[:5], 12))


# Written down


def events_of(state: EngineState) -> list[Any]:
    said = []
    while len(state.records):
        state, events = step(TARGET, state)
        said.append([(*event, event.kinds, event.generation and timeless(event.generation)) for event in events])
    return said


def test_a_restored_engine_drafts_on() -> None:
    """At every step: the proposers are given again by their names, and all that follows is as it was."""
    asked = [ask(name, LINE[place:], 7, seed=place) for place, name in enumerate(("own", "other", "own", None))]
    whole = events_of(engine(asked, num_pages=16))
    state = engine(asked, num_pages=16)
    for place in range(len(whole)):
        again = restore(TARGET, snapshot(state), proposers=GUESS)
        assert len(again.drafts) == len(state.drafts)
        assert events_of(again) == whole[place:]
        state, _ = step(TARGET, state)


def test_a_drafting_model_that_is_not_given_again_is_asked_for() -> None:
    data = snapshot(engine([ask("own"), ask("other")]))
    for again in ({}, {"own": GUESS["own"]}):
        missing = "other" if again else "own"
        expected = f"^proposer '{missing}' was given as a value, which is not kept; expected it again, as proposers={{'{missing}': ...}}$"
        with pytest.raises(ValueError, match=expected):
            restore(TARGET, data, proposers=again)
    silent = GUESS["own"]._replace(drafter=None)
    with pytest.raises(ValueError, match=r"^proposer 'own' does not draft with a model of its own any more; expected the one of the snapshot$"):
        restore(TARGET, data, proposers={**GUESS, "own": silent})


def test_a_drafting_model_that_nobody_uses_any_more_need_not_be_given_again() -> None:
    found, state, _ = in_turn([ask("own"), ask("other")])
    state, number = submit(state, last := ask("other", seed=4))
    again = restore(TARGET, snapshot(state), proposers={"other": GUESS["other"]})
    again, done = run(TARGET, again)
    assert timeless(done[number]) == alone(last)
    again, number = submit(again, first := ask("own", seed=5))
    assert timeless(run(TARGET, again)[1][number]) == alone(first)
    assert found == [0, 0]


# Drafts that end


@pytest.mark.parametrize("invariant", [False, True])
def test_a_short_context_ends_speculation_and_not_the_request(invariant: bool) -> None:
    """L11: contexts of 8 and 32, a prompt of 6: 20 tokens; the drafting model reads no place past its context."""
    drafted: list[int] = []
    target = toy.llama(key(1), context=32)
    short = watching(toy.llama(key(1), context=8), drafted.extend)
    prompt = [5, 9, 2, 4, 4, 1]
    request = Request(prompt, 20, GREEDY, seed=0, k=4, proposer=draft_model.proposer(short, sampling=GREEDY))
    for page_size in (1, 3, 8):
        state, _ = submit(init(target, Config(page_size=page_size, num_pages=32, invariant=invariant)), request)
        done = run(target, state)[1][0]
        assert (len(done.tokens), done.finish_reason) == (20, "length")
        assert (done.stats.proposed, done.stats.accepted, done.stats.passes) == (2, 2, 18)
        assert done.tokens == generate(target, prompt, sampling=GREEDY, max_tokens=20, invariant=invariant).tokens
    assert max(drafted) < 8


def watching(model: Model, look: Callable[[list[int]], None]) -> Model:
    """The same model, whose passes show their positions."""

    def over(form: Any) -> Any:
        def apply(params: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
            look(positions.tolist())
            return form.apply(params, tokens, positions, *rest)

        return form._replace(apply=apply, prefill=None, apply_at=None)

    return over(model)._replace(invariant=over(model.invariant))


def test_a_prompt_longer_than_the_drafting_model_s_context() -> None:
    for chunk in (4, 99):
        asked = [ask("short", range(12), 8), ask("short", LINE[:4], 8)]
        done = run(TARGET, engine(asked, prefill_chunk=chunk))[1]
        check(asked, done)
        assert done[0].stats.proposed == 0 < done[1].stats.proposed


def test_a_token_that_the_drafting_model_lacks_ends_its_drafts() -> None:
    """N8: 11 ids draft for 16. Behind the first id that it has no row for nothing is drafted; the request goes on."""
    asked = [ask("narrow", LINE[:3], 20, sampling=SamplingParams(), seed=seed) for seed in range(4)]
    done = run(TARGET, engine(asked))[1]
    check(asked, done)
    assert any(max(one.tokens) >= 11 for one in done.values())
    assert all(0 < one.stats.proposed < 40 for one in done.values())


@pytest.mark.parametrize("name", ["narrow", "wide"])
def test_vocabularies_of_two_sizes_keep_the_target_s_law(name: str) -> None:
    """N8: greedy ids are those of plain decoding, whatever the drafting model lacks or has too many of."""
    asked = [ask(name, LINE[place : place + 3], 15, sampling=GREEDY) for place in range(4)]
    done = run(TARGET, engine(asked))[1]
    for number, request in enumerate(asked):
        assert done[number].tokens == generate(TARGET, request.prompt, sampling=GREEDY, max_tokens=15, invariant=True).tokens


def test_logits_of_nan_end_the_drafts_and_spare_the_neighbours() -> None:
    asked = [ask("fading", LINE[:3], 15), ask("own", LINE[:3], 15), ask("fading", LINE[2:], 15)]
    done = run(TARGET, engine(asked, page_size=3))[1]
    check(asked, done)
    assert [done[number].finish_reason for number in range(3)] == ["length"] * 3
    assert 0 < done[2].stats.proposed < done[0].stats.proposed


def raising(model: Model, at: int) -> Model:
    """The same model, which fails once it is asked for some position."""

    def over(form: Any) -> Any:
        def apply(params: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
            if (positions == at).any():
                raise OSError("no power")
            return form.apply(params, tokens, positions, *rest)

        return form._replace(apply=apply, prefill=None, apply_at=None)

    return over(model)._replace(invariant=over(model.invariant))


@pytest.mark.parametrize("enforced", [False, True])
def test_a_drafting_model_that_fails_ends_those_that_draft_with_it(enforced: bool) -> None:
    """What they had stands, the others are as alone, and the pages come back; what they published is good for the next."""
    broken = draft_model.proposer(raising(MODELS["other"], 9))
    sharing = [Request(LINE[:5], 12, WARM, seed=seed, k=2, proposer=broken) for seed in range(2)]
    asked = [ask("own", seed=1), ask(None, LINE[:5], seed=2), ask("other", seed=3)]
    state = engine([*sharing, *asked], page_size=3, num_pages=40)
    if enforced:
        with checking():
            state, done = run(TARGET, state)
    else:
        state, done = run(TARGET, state)
    for number in (0, 1):
        one = done.pop(number)
        assert (one.finish_reason, one.error) == ("error", "the drafting model failed with OSError: no power")
        whole = alone(ask("other", LINE[:5], 12, seed=number, k=2))
        assert 0 < len(one.tokens) < 12
        assert one.tokens == whole.tokens[: len(one.tokens)]
    check(asked, {number - 2: one for number, one in done.items()})
    assert free_pages(state) == 40
    state, number = submit(state, dataclasses.replace(sharing[0], max_tokens=2))
    assert run(TARGET, state)[1][number].tokens == alone(ask("other", LINE[:5], 2, seed=0, k=2)).tokens
