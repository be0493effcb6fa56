"""Under ``coupled`` a drafting model runs the verifier's own race: one with the target's laws is always right, and no token depends on who drafts.

With every other verifier its tokens stand at the heights drawn for drafts, as ever. Both are worked out here from the laws that come with a draft,
by the sum and by the quotient that they are.
"""

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest
import torch

from specdec_fn import SamplingParams, generate, models
from specdec_fn.cost.curve import Curve
from specdec_fn.engine import Config, EngineState, Request, fork, init, restore, run, snapshot, submit
from specdec_fn.engine.propose import proposed
from specdec_fn.models import toy
from specdec_fn.models.quantized import quantized as packed_model
from specdec_fn.random import Key, key, uniform
from specdec_fn.schedule import schedule
from specdec_fn.speculate import Draft, Proposer, race
from specdec_fn.speculate.proposer import Drafter, raced
from specdec_fn.speculate.proposers import adaptive, draft_model, early_exit, first, named, paying, scripted
from specdec_fn.speculate.tape import DRAFT, address

VOCAB, CONTEXT, PROMPT, COUNT, K = 32, 64, [5, 9, 2], 24, 3
SIZES = {"vocab_size": VOCAB, "context": CONTEXT, "layers": 2, "width": 32, "heads": 2, "head_dim": 16, "ffn": 32, "dtype": torch.float32}
TARGET = packed_model(toy.llama(key(4), **SIZES), "q8_0")  # packed already: "quantized" drafts with the very same matrices
SMALL = toy.llama(key(6), vocab_size=VOCAB, context=CONTEXT, layers=1, width=8, heads=1, head_dim=4, ffn=8)
WARM = SamplingParams()
CONTROLLED = SamplingParams(top_k=20, presence_penalty=0.4)
FREE = Curve((1.0, *[1.0001] * K))  # rows cost next to nothing: all of K is drafted


def nothing(context: list[int]) -> list[int]:
    return []


def same_laws(name: str, sampling: SamplingParams = WARM) -> Proposer:
    """Drafters that have the target's own laws."""
    alone = draft_model.proposer(TARGET, sampling=sampling)
    layers = early_exit.proposer(TARGET, 2, sampling=sampling)
    made = {
        "draft_model": alone,
        "all layers": layers,
        "quantized": named("quantized", TARGET, sampling),
        "paying": paying.proposer(alone),
        "first": first.proposer(scripted.proposer(nothing), layers),
        "first, paying": first.proposer(scripted.proposer(nothing), paying.proposer(alone)),
        "adaptive": adaptive.proposer(paying.proposer(layers), FREE),
        "adaptive, first": adaptive.proposer(first.proposer(scripted.proposer(nothing), alone), FREE),
        "asked already": draft_model.proposer(TARGET, sampling=sampling, race=True),
    }
    return made[name]._replace(name=name)


SAME = ("draft_model", "all layers", "quantized", "paying", "first", "first, paying", "adaptive", "adaptive, first", "asked already")
OTHERS = MappingProxyType(
    {
        "small": draft_model.proposer(SMALL)._replace(name="small"),
        "one layer": early_exit.proposer(TARGET, 1)._replace(name="one layer"),
        "ngram first": first.proposer(named("ngram"), early_exit.proposer(TARGET, 1))._replace(name="ngram first"),
    }
)


def alone(proposer: Any, verifier: str = "coupled", seed: int = 3, sampling: SamplingParams = WARM, prompt: Sequence[int] = PROMPT) -> Any:
    how = {"seed": seed, "sampling": sampling, "verifier": verifier, "k": K, "max_tokens": COUNT, "invariant": True}
    done = generate(TARGET, prompt, proposer=proposer, **how)
    return done._replace(stats=done.stats._replace(seconds={}))


def engine(asked: Sequence[Request]) -> EngineState:
    state = init(TARGET, Config(page_size=4, num_pages=200, prefill_chunk=4, invariant=True))
    for request in asked:
        state, _ = submit(state, request)
    return state


def ask(proposer: Any, verifier: str = "coupled", seed: int = 3, sampling: SamplingParams = WARM, prompt: Sequence[int] = PROMPT) -> Request:
    return Request(prompt, COUNT, proposer=proposer, verifier=verifier, seed=seed, k=K, sampling=sampling)


def timeless(done: Any) -> Any:
    return done._replace(stats=done.stats._replace(seconds={}))


def at_heights(own: Key, base: int, draft: Draft) -> list[int]:
    """The first token at which the sum of a law passes the height that role DRAFT has for its lane."""
    heights = uniform(address(own, DRAFT, base), (K,))
    assert draft.probs is not None
    return [int((law.cumsum(0) <= u * law.sum()).sum()) for u, law in zip(heights, draft.probs, strict=False)]


def winners(own: Key, base: int, draft: Draft) -> list[int]:
    """The smallest quotient of the noise of a position by the law there."""
    assert draft.probs is not None
    return [int((race.noise(own, base + place, VOCAB) / law).argmin()) for place, law in enumerate(draft.probs)]


# Who has the target's laws is always right


@pytest.mark.parametrize("sampling", [WARM, CONTROLLED], ids=["plain", "controlled"])
@pytest.mark.parametrize("name", SAME)
def test_alone_every_token_of_a_self_draft_is_accepted(name: str, sampling: SamplingParams) -> None:
    done, plain = alone(same_laws(name, sampling), sampling=sampling), alone(None, sampling=sampling)
    assert done.tokens == plain.tokens
    assert len(set(plain.tokens)) > 8  # no circle that anyone could guess
    assert done.stats.accepted == done.stats.proposed >= 12
    if name not in ("quantized", "paying", "first, paying", "adaptive"):  # those begin with short drafts, or end with them
        assert done.stats.passes == -(-COUNT // (K + 1))


def test_in_an_engine_every_token_of_a_self_draft_is_accepted() -> None:
    """All of them beside each other, and written down and read again on the way."""
    guesses = {name: same_laws(name) for name in SAME} | dict(OTHERS)
    asked = [ask(guess, seed=place, prompt=[*PROMPT, place]) for place, guess in enumerate(guesses.values())]
    asked.append(ask("quantized", seed=70))
    state, early = run(TARGET, engine(asked), 3)
    again = restore(TARGET, snapshot(state), proposers=guesses)
    assert all(record.run.proposer.drafter.race for record in again.records.values())
    done = early | run(TARGET, again)[1]
    for number, (request, name) in enumerate(zip(asked, [*guesses, "quantized"], strict=True)):
        same = alone(request.proposer, seed=request.seed, prompt=request.prompt)
        assert timeless(done[number]) == same, name
        assert done[number].tokens == alone(None, seed=request.seed, prompt=request.prompt).tokens
        if name in SAME:
            assert done[number].stats.accepted == done[number].stats.proposed > 0, name
    assert sum(done[number].stats.accepted for number in done) < sum(done[number].stats.proposed for number in done)


def test_tokens_are_the_same_for_every_drafter() -> None:
    for seed in range(3):
        tokens = alone(None, seed=seed).tokens
        for name, guess in OTHERS.items():
            assert alone(guess, seed=seed).tokens == tokens, name


# What is drawn


@pytest.mark.parametrize("verifier", ["coupled", "token", "block"])
@pytest.mark.parametrize("asked_for", [False, True], ids=["", "asked to race"])
@pytest.mark.parametrize("kind", ["small", "first layer"])
def test_an_engine_draws_by_the_race_under_coupled_and_at_its_heights_otherwise(kind: str, asked_for: bool, verifier: str) -> None:
    """A proposer that was made to race does not do so under other verifiers, which would take its drafts for samples."""
    made = {"small": draft_model.proposer(SMALL, race=asked_for), "first layer": early_exit.proposer(TARGET, 1, race=asked_for)}
    state = engine([ask(made[kind], verifier, seed=seed) for seed in range(4)])
    state, _ = run(TARGET, state, 4)
    before = {number: record.run for number, record in state.records.items()}
    work, plan = schedule(state.work, 256)
    found = proposed(dataclasses.replace(state, work=work), plan)[1]
    expected = winners if verifier == "coupled" else at_heights
    for one in found:
        sequence = before[one.lane.id]
        assert one.draft is not None
        assert one.draft.tokens.tolist() == expected(sequence.key, len(sequence.tokens), one.draft)
        assert one.draft.probs is not None
        assert one.draft.probs.sum(1).allclose(torch.ones(K, dtype=torch.float64))
    other = at_heights if verifier == "coupled" else winners
    assert any(one.draft.tokens.tolist() != other(before[one.lane.id].key, len(before[one.lane.id].tokens), one.draft) for one in found)
    assert (len(found), {one.draft.tokens.shape[0] for one in found}) == (4, {K})


@pytest.mark.parametrize("racing", [False, True])
def test_propose_alone_draws_by_the_race_where_it_is_told_to(racing: bool) -> None:
    expected = winners if racing else at_heights
    for guess in (draft_model.proposer(SMALL, race=racing), early_exit.proposer(TARGET, 1, race=racing), raced(OTHERS["ngram first"], racing, VOCAB)):
        for base in (3, 7):
            line = [5, 9, 2, 11, 30, 1, 17][:base]
            draft = guess.propose(key(8), guess.init(line), line, K, position=base)[1]
            assert draft.tokens.tolist() == expected(key(8), base, draft)


@pytest.mark.parametrize("verifier", ["token", "block"])
def test_other_verifiers_see_no_difference(verifier: str) -> None:
    for plain, racing in (
        (draft_model.proposer(SMALL), draft_model.proposer(SMALL, race=True)),
        (early_exit.proposer(TARGET, 1), early_exit.proposer(TARGET, 1, race=True)),
    ):
        assert alone(plain, verifier) == alone(racing, verifier)
        assert not plain.drafter.race  # type: ignore[union-attr]


# Proposers as values


def test_a_proposer_is_raced_by_making_another() -> None:
    for name in (*SAME[:-1], *OTHERS):
        plain = OTHERS[name] if name in OTHERS else same_laws(name)
        racing = raced(plain, True, VOCAB)
        assert plain.drafter is not None
        assert racing.drafter is not None
        assert (plain.drafter.race, racing.drafter.race, racing.name) == (False, True, plain.name)
        assert (racing.drafter.model, racing.drafter.shares) == (plain.drafter.model, plain.drafter.shares)
        assert raced(racing, True, VOCAB) is racing
        assert raced(plain, False, VOCAB) is plain
        assert racing.drafter.again is not None
        other = racing.drafter.again(models.invariant(plain.drafter.model), VOCAB)
        assert other.drafter.race  # another form of the model goes on racing
        assert not raced(racing, False, VOCAB).drafter.race  # type: ignore[union-attr]
    guess = named("ngram")
    assert raced(guess, True, VOCAB) is guess


def test_one_that_cannot_be_made_again_races_where_its_model_is_run_for_it() -> None:
    """A drafter written by hand: in an engine, and in invariant mode, where ``draft_model`` takes its place; inside a wrapper too."""
    plain = draft_model.proposer(TARGET)
    own = Proposer("mine", plain.init, plain.propose, Drafter(TARGET, WARM))
    for guess in (own, paying.proposer(own), first.proposer(scripted.proposer(nothing), own)):
        done = run(TARGET, engine([ask(guess)]))[1][0]
        assert done.stats.accepted == done.stats.proposed > 0
    done = alone(own)
    assert done.stats.accepted == done.stats.proposed > 0


@pytest.mark.parametrize("name", ["draft_model", "all layers", "first, paying"])
def test_forks_that_change_the_verifier_change_how_their_drafts_are_drawn(name: str) -> None:
    """One made at once is as one that was submitted; one that comes later keeps its tokens and races from there on."""
    guess = same_laws(name)
    state = engine([ask(guess), ask(guess, "token")])
    state, to_token = fork(state, 0, seed=3, verifier="token")
    state, to_coupled = fork(state, 1, seed=3, verifier="coupled")
    state, _ = run(TARGET, state, 4)
    middle = state.records[1].run
    state, late = fork(state, 1, seed=5, verifier="coupled")
    state = restore(TARGET, snapshot(state), proposers={name: guess})
    racing = {number: record.run.proposer.drafter.race for number, record in state.records.items()}
    assert racing == {0: True, 1: False, to_token: False, to_coupled: True, late: True}
    done = {number: timeless(one) for number, one in run(TARGET, state)[1].items()}
    assert (done[0].tokens, done[1]) == (done[to_coupled].tokens, alone(guess, "token"))
    assert done[to_token].tokens == done[1].tokens
    assert done[0] == alone(guess)
    assert done[to_coupled].stats.accepted == done[to_coupled].stats.proposed > 0
    emitted, kept = list(middle.tokens[len(PROMPT) :]), done[late].tokens
    assert 0 < len(emitted) < COUNT
    rest = generate(TARGET, middle.tokens, seed=5, verifier="coupled", max_tokens=COUNT - len(emitted), invariant=True).tokens
    assert kept == [*emitted, *rest]  # without penalties a prompt of the same tokens goes on in the same way
