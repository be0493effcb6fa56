"""The choice of K on texts that are played: how often a drafted token is kept is given, what a pass costs is given, and no model runs."""

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from specdec_fn.cost.curve import Curve, seconds
from specdec_fn.doors import generate
from specdec_fn.engine import Config, Request, init, run, submit
from specdec_fn.models import toy
from specdec_fn.random import key
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import Proposer
from specdec_fn.speculate.draft import Draft, chain
from specdec_fn.speculate.proposers import adaptive, draft_model, ngram, ngram_tree, paying, scripted

CURVES = {
    "flat": Curve(tuple(1 + 0.012 * row for row in range(17))),
    "steep": Curve(tuple(1 + 0.2 * row for row in range(17))),
    "cliff": Curve((1.0, 1.05, 1.1, *(1.75 + 0.04 * row for row in range(14)))),
    "stairs": Curve((1.0, 1.25, 1.4, 1.7, 1.78, *(1.8 + 0.03 * row for row in range(12)))),
    "dear drafts": Curve(tuple(1 + 0.012 * row for row in range(17)), draft=0.25),
}
SHARE, START = 0.015, 1.0
GUESS: Proposer = scripted.proposer(lambda context: [1] * 16)
Played = list[tuple[int, int]]


def drawn(key: Any, state: tuple[()], tokens: Sequence[int], k: int, *, position: int) -> tuple[tuple[()], Draft]:
    """A draft with a law, so that it costs what the curve says a drafted token costs."""
    return (), chain([1] * k, k, torch.ones(k, 2) / 2)


DRAWN = Proposer("drawn", lambda prompt: (), drawn)


def play(curve: Curve, keeps: Callable[[int], bool], count: int, *, most: int = 16, guess: Proposer | None = None) -> Played:
    """Drafted and kept tokens of each pass until ``count`` tokens are there; ``keeps`` says whether a guess of the token at a place is right."""
    proposer = adaptive.proposer(guess or (DRAWN if curve.draft else GUESS), curve)
    state, tokens, passes = proposer.init([0]), [0], []
    while len(tokens) <= count:
        most_now = min(most, count - len(tokens))
        state, draft = proposer.propose(key(0), state, tokens, most_now, position=len(tokens))
        drafted, kept = int(draft.length), 0
        while kept < drafted and keeps(len(tokens) + kept):
            kept += 1
        tokens += [0] * (kept + 1)
        passes.append((drafted, kept))
    return passes


def cost(curve: Curve, passes: Played) -> float:
    return sum(seconds(curve, drafted + 1) + drafted * curve.draft for drafted, _ in passes)


def speed(curve: Curve, passes: Played) -> float:
    """Over plain decoding of as many tokens."""
    return sum(kept + 1 for _, kept in passes) * curve.seconds[0] / cost(curve, passes)


def mean(speeds: Sequence[float]) -> float:
    """Of time for the same tokens."""
    return statistics.harmonic_mean(speeds)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("a", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9])
def test_in_a_steady_text_it_is_near_the_best_fixed_k_and_never_below_plain(name: str, a: float) -> None:
    curve = CURVES[name]
    lucks = [[numbers.random() < a for _ in range(440)] for numbers in map(random.Random, range(30 if a >= 0.5 else 6))]
    speeds = [speed(curve, play(curve, luck.__getitem__, 400)) for luck in lucks]
    best = max(mean([speed(curve, fixed_play(luck, 400, k)) for luck in lucks]) for k in range(17))
    assert mean(speeds) >= 0.95 * best
    assert min(speeds) >= 0.97


@pytest.mark.parametrize("name", CURVES)
def test_a_hopeless_text_costs_less_than_two_parts_in_a_hundred(name: str) -> None:
    passes = play(CURVES[name], lambda place: False, 300)
    assert speed(CURVES[name], passes) > 0.98
    assert sum(drafted > 0 for drafted, _ in passes[100:]) > 0, "it goes on probing"
    assert sum(drafted > 0 for drafted, _ in passes[100:]) < 80


@pytest.mark.parametrize("name", CURVES)
def test_a_text_that_changes_is_followed(name: str) -> None:
    """Half of it repeats and half does not, in one order and in the other: no fixed K is right for both."""
    curve = CURVES[name]
    for good in (lambda place: place < 200, lambda place: place >= 200):
        numbers = random.Random(5)
        chance = [0.95 if good(place) else 0.02 for place in range(460)]
        luck = [numbers.random() < one for one in chance]
        found = speed(curve, play(curve, lambda place, luck=luck: luck[place], 400))
        fixed = max(speed(curve, fixed_play(luck, 400, k)) for k in range(17))
        assert found >= max(0.97, 0.95 * fixed)


def fixed_play(luck: Sequence[bool], count: int, k: int) -> Played:
    at, passes = 1, []
    while at <= count:
        drafted, kept = min(k, count - at), 0
        while kept < drafted and luck[at + kept]:
            kept += 1
        passes.append((drafted, kept))
        at += kept + 1
    return passes


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("lengths", [(40, 40), (12, 30), (5, 5)])
def test_acceptance_that_comes_in_runs_is_used(name: str, lengths: tuple[int, int]) -> None:
    """Stretches in which every guess is right, between stretches in which none is."""
    curve, period = CURVES[name], sum(lengths)
    luck = [place % period < lengths[0] for place in range(460)]
    found = speed(curve, play(curve, lambda place: luck[place], 400))
    fixed = max(speed(curve, fixed_play(luck, 400, k)) for k in range(17))
    assert found >= max(0.97, (0.95 if period > 10 else 0.85) * fixed)


def test_one_draft_kept_whole_is_enough_to_jump() -> None:
    """After long rests, a probe that was kept is followed by a long draft, and that by all it may."""
    passes = play(CURVES["cliff"], lambda place: place > 300, 500)
    first = next(place for place, (drafted, kept) in enumerate(passes) if drafted and kept == drafted)
    assert passes[first][0] <= 2
    assert passes[first + 1][0] >= 8
    assert passes[first + 2] == (16, 16)


def test_where_a_second_row_doubles_the_pass_it_comes_to_rest() -> None:
    passes = play(Curve((1.0, 2.0, 3.0, 4.0)), lambda place: place % 2 == 0, 400, most=3)
    assert speed(Curve((1.0, 2.0, 3.0, 4.0)), passes) >= 0.97
    assert sum(drafted > 0 for drafted, _ in passes) < 20


TIMES = st.lists(st.floats(0.01, 10), min_size=1, max_size=8).map(lambda more: Curve(tuple(more)))
LUCK = st.lists(st.booleans(), min_size=80, max_size=80)


@given(TIMES, LUCK, st.integers(1, 9))
def test_no_text_costs_more_than_the_ledger_allows(curve: Curve, luck: list[bool], most: int) -> None:
    """For any text and any curve whose passes cost no less than a plain one, at every pass."""
    curve = Curve(tuple(max(one, curve.seconds[0]) for one in curve.seconds))
    passes = play(curve, lambda place: luck[place], 60, most=most)
    for end in range(1, len(passes) + 1):
        emitted = sum(kept + 1 for _, kept in passes[:end])
        assert cost(curve, passes[:end]) <= ((1 + SHARE) * emitted + START) * curve.seconds[0] * (1 + 1e-9)


@given(LUCK)
def test_the_same_text_gives_the_same_choices_whatever_was_guessed(luck: list[bool]) -> None:
    """Lossless for laws that are drawn from: what this draft says has no part in its length."""
    other = scripted.proposer(lambda context: [len(context) % 5 + 2] * 16)
    curve = CURVES["stairs"]
    assert play(curve, lambda place: luck[place], 60) == play(curve, lambda place: luck[place], 60, guess=other)


@given(LUCK)
def test_with_and_without_a_drafting_model_of_the_engine_the_choices_are_the_same(luck: list[bool]) -> None:
    proposer = adaptive.proposer(draft_model.proposer(toy.bigram(torch.full((2, 2), 0.5))), CURVES["stairs"])
    assert proposer.drafter is not None
    one, other, tokens = proposer.init([0]), proposer.init([0]), [0]
    while len(tokens) < 50:
        one, draft = proposer.propose(key(0), one, tokens, 6, position=len(tokens))
        other, wanted = proposer.drafter.ask(key(0), other, tokens, 6, position=len(tokens))
        if isinstance(wanted, int):
            other = proposer.drafter.told(other, tokens, chain([1] * wanted, wanted, torch.full((wanted, 2), 0.5)))
        assert int(draft.length) == (wanted if isinstance(wanted, int) else int(wanted.length))
        assert one._replace(inner=()) == other._replace(inner=())
        kept = 0
        while kept < int(draft.length) and luck[len(tokens) + kept]:
            kept += 1
        tokens += [0] * (kept + 1)


def test_a_tree_is_reckoned_by_its_nodes_and_its_depth() -> None:
    proposer = adaptive.proposer(ngram_tree.proposer(), CURVES["flat"])
    tokens = [1, 2, 3, 1, 2, 4, 1, 2]
    state, draft = proposer.propose(key(0), proposer.init(tokens), tokens, 6, position=len(tokens))
    assert draft.parents is not None
    assert state.rows == int(draft.length) > state.depth > 0


def test_a_rule_inside_is_taken_off() -> None:
    inside = ngram.proposer()
    proposer = adaptive.proposer(paying.proposer(inside), CURVES["flat"])
    assert (proposer.name, proposer.inner) == ("ngram", inside)
    assert adaptive.proposer(proposer, CURVES["steep"]).inner is inside
    longer = paying.proposer(draft_model.proposer(toy.llama(key(2))))
    assert adaptive.proposer(longer, CURVES["flat"]).drafter.told is not longer.drafter.told


def test_an_empty_draft_teaches_nothing_and_is_asked_for_again() -> None:
    silent = scripted.proposer(lambda context: [])
    proposer = adaptive.proposer(silent, CURVES["flat"])
    state, tokens = proposer.init([0]), [0]
    for _ in range(20):
        state, draft = proposer.propose(key(0), state, tokens, 8, position=len(tokens))
        assert int(draft.length) == 0
        tokens.append(0)
    assert (state.cold, state.hot, state.later, state.wait) == (adaptive.FIRST, adaptive.LATER, adaptive.LATER, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("ngram", CURVES["flat"]), TypeError, "the inner proposer is 'ngram'; expected a Proposer"),
        ((GUESS, (1.0, 2.0)), TypeError, r"curve is \(1.0, 2.0\); expected a Curve"),
        ((GUESS, CURVES["flat"], {"share": -1.0}), ValueError, "share -1.0"),
        ((GUESS, CURVES["flat"], {"longest_pause": 0}), ValueError, "longest_pause 0"),
        ((GUESS, CURVES["flat"], {"start": float("nan")}), ValueError, "start nan"),
    ],
)
def test_bad_settings_are_refused(arguments: tuple[Any, ...], error: type[Exception], words: str) -> None:
    given, settings = arguments[:2], arguments[2] if len(arguments) > 2 else {}
    with pytest.raises((error, TypeCheckError), match=f"{words}|Type-check error"):  # with the hook, types are refused before
        adaptive.proposer(*given, **settings)


# Before a model


TARGET, SMALL = toy.llama(key(1)), toy.llama(key(2))
GREEDY = SamplingParams(temperature=0)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams()])
@pytest.mark.parametrize("verifier", ["token", "coupled"])
def test_an_engine_drafts_as_the_loop_does(sampling: SamplingParams, verifier: str) -> None:
    """The engine runs the drafting model itself, on pages, for several requests; tokens and counts are those of each request alone."""
    proposer = adaptive.proposer(draft_model.proposer(TARGET, sampling=SamplingParams(temperature=0.8)), CURVES["stairs"])
    prompts = [[5, 9], [3, 3, 3, 4]]
    state = init(TARGET, Config(proposer=proposer, verifier=verifier, k=8, invariant=True, num_pages=40))
    for prompt in prompts:
        state, _ = submit(state, Request(prompt, 24, sampling=sampling, seed=4))
    _, done = run(TARGET, state)
    settings = {"sampling": sampling, "verifier": verifier, "k": 8, "max_tokens": 24, "seed": 4, "invariant": True}
    alone = [generate(TARGET, prompt, proposer=proposer, **settings) for prompt in prompts]
    assert [done[number].tokens for number in sorted(done)] == [one.tokens for one in alone]
    assert [done[number].stats[:4] for number in sorted(done)] == [one.stats[:4] for one in alone]
    assert all(one.stats.proposed for one in alone)


def test_tokens_are_those_of_plain_decoding() -> None:
    for proposer in (
        adaptive.proposer(ngram.proposer(), CURVES["flat"]),
        adaptive.proposer(draft_model.proposer(SMALL, sampling=GREEDY), CURVES["flat"]),
    ):
        done = generate(TARGET, [5, 9, 5, 9], proposer=proposer, sampling=GREEDY, k=16, max_tokens=40)
        assert done.tokens == generate(TARGET, [5, 9, 5, 9], sampling=GREEDY, max_tokens=40).tokens
        again = generate(TARGET, [5, 9, 5, 9], proposer=proposer, sampling=GREEDY, k=16, max_tokens=40)
        assert again.stats[:5] == done.stats[:5]
