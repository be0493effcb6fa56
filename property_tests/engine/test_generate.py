"""The doors on toy targets whose law is known: endings, limits, controls and log-probabilities inside accepted runs equal plain decoding."""

import itertools
import math
from collections import Counter
from fractions import Fraction as F

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import SamplingParams, generate, models, stream
from specdec_fn.engine.generate import cached, naive, speculative
from specdec_fn.engine.law import law
from specdec_fn.models import Model, toy
from specdec_fn.random import key
from specdec_fn.speculate import Proposer, proposers, verifiers
from specdec_fn.speculate.draft import chain
from specdec_fn.text import Tokenizer

GREEDY = SamplingParams(temperature=0)
T = torch.tensor([[1 / 2, 1 / 4, 1 / 4], [1 / 10, 6 / 10, 3 / 10], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)  # known faults, section 0
D = torch.tensor([[1 / 4, 1 / 2, 1 / 4], [5 / 10, 2 / 10, 3 / 10], [2 / 3, 1 / 6, 1 / 6]], dtype=torch.float64)


def circle(size: int, **settings) -> Model:
    """0 -> 1 -> 2 -> ... -> 0, for sure."""
    return toy.bigram(torch.eye(size, dtype=torch.float64).roll(1, dims=1), **settings)


def right(size: int):
    """Drafts four tokens of the circle, all right."""
    return lambda context: [(context[-1] + i) % size for i in range(1, 5)]


def letters(*words: str) -> Tokenizer:
    """A tokenizer with one id for each word, whose text is the word."""
    return Tokenizer(
        lambda text, *, special=False: [words.index(text)],
        lambda ids, *, skip_special=True: "".join(words[i] for i in ids),
        lambda messages: [0],
        (),
        len(words),
    )


def watching(model: Model, look) -> Model:
    """The same model, whose passes show their tokens and positions to ``look``."""

    def apply(params, tokens, positions, kv, attend):
        look(tokens, positions)
        return model.apply(params, tokens, positions, kv, attend)

    return model._replace(apply=apply)


# Endings


@pytest.mark.parametrize("k", range(1, 7))
def test_a_stop_id_inside_an_accepted_run_ends_it(k):
    """L1: the stop id is the last token; nothing behind it is emitted, counted or streamed."""
    settings = {"draft_fn": lambda context: right(7)(context)[:k], "k": k, "stop_ids": [4], "max_tokens": 20}
    done = generate(circle(7), [0], **settings)
    assert (done.tokens, done.finish_reason) == ([1, 2, 3, 4], "stop")
    assert len(done.logprobs) == 4
    assert done.stats.emitted == 4
    assert done.stats.accepted <= 4
    assert [token for piece in stream(circle(7), [0], **settings) for token in piece.tokens] == [1, 2, 3, 4]


def test_nothing_is_drafted_behind_a_stop():
    """L2: tokens that could never be emitted are not proposed."""
    assert generate(circle(7), [0], draft_fn=right(7), stop_ids=[2], k=4).stats.proposed == 2


@pytest.mark.parametrize("m", range(1, 8))
def test_max_tokens_is_exact(m):
    """L3, L4: with everything accepted, m tokens and not one more or fewer."""
    done = generate(circle(7), [0], draft_fn=right(7), k=4, max_tokens=m)
    assert (len(done.tokens), done.finish_reason, done.stats.emitted) == (m, "length", m)


def test_a_stop_as_the_last_allowed_token_is_a_stop():
    assert generate(circle(7), [0], stop_ids=[3], max_tokens=3).finish_reason == "stop"


def test_a_stop_string_inside_an_accepted_run_cuts_ids_logprobs_and_text():
    """L6: the string completes at token 3 of an accepted run."""
    spelled = letters("x", "a", "b<e", "nd>c", "d", "e", "f")
    done = generate(circle(7), [0], draft_fn=lambda c: [*right(7)(c), (c[-1] + 5) % 7], k=5, stop="<end>", tokenizer=spelled)
    assert (done.tokens, done.text, done.finish_reason) == ([1, 2, 3], "ab", "stop")
    assert len(done.logprobs) == 3


def test_held_text_is_released_when_no_stop_string_came():
    """L13: what looked like the beginning of a stop string is text after all."""
    spelled = letters("al", "pha b", "eta ga", "mma de")
    done = generate(circle(4), [3], tokenizer=spelled, stop=["beta gamma"], max_tokens=2)
    assert done.text == "alpha b"
    done = generate(circle(4), [3], tokenizer=spelled, stop=["beta gamma"], max_tokens=9)
    assert (done.text, done.tokens) == ("alpha ", [0, 1, 2, 3])
    texts = [piece.text for piece in stream(circle(4), [3], tokenizer=spelled, stop=["beta gamma"], max_tokens=9)]
    assert "".join(texts) == "alpha "
    assert not any("b" in text for text in texts)


def test_eos_ends_unless_ignored():
    spelled = letters("a", "b", "c", "d")._replace(eos_ids=(2,))
    assert generate(circle(4), [0], tokenizer=spelled, max_tokens=6).tokens == [1, 2]
    assert generate(circle(4), [0], tokenizer=spelled, max_tokens=6, ignore_eos=True).tokens == [1, 2, 3, 0, 1, 2]


def test_the_context_is_a_limit():
    """L10: no position at or past the context; 12 + 4 = 16."""
    seen = []
    model = circle(7, context=16)
    watched = model._replace(
        apply=lambda params, tokens, positions, *rest: seen.append(int(positions.max())) or model.apply(params, tokens, positions, *rest)
    )
    done = generate(watched, list(range(7)) + list(range(5)), draft_fn=right(7), k=4, max_tokens=100)
    assert (len(done.tokens), done.finish_reason) == (4, "length")
    assert max(seen) < 16


def test_a_prompt_that_fills_the_context_leaves_nothing():
    done = generate(circle(3, context=2), [0, 1])
    assert (done.tokens, done.finish_reason) == ([], "length")


@pytest.mark.parametrize("k", range(5))
def test_min_tokens_holds_at_verified_positions(k):
    """L7: the end is favoured and drafted everywhere, and comes only after three tokens."""
    table = torch.full((4, 4), 0.1, dtype=torch.float64)
    table[:, 3], table[:, 0] = 0.5, 0.3
    patient = SamplingParams(temperature=0, min_tokens=3)
    done = generate(toy.bigram(table), [0], sampling=patient, stop_ids=[3], draft_fn=lambda context: [3] * k, k=k)
    assert done.tokens == [0, 0, 0, 3]


@pytest.mark.parametrize("k", range(6))
def test_presence_penalty_sees_the_drafted_prefix(k):
    """L8, D18."""
    logits = torch.tensor([2, 1.9, 0, -1], dtype=torch.float64).softmax(0).expand(4, 4)
    done = generate(
        toy.bigram(logits), [3], sampling=SamplingParams(temperature=0, presence_penalty=0.5), draft_fn=lambda c: [0] * k, k=k, max_tokens=6
    )
    assert done.tokens == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("drafted", [0, 1, 2])
def test_logit_bias_holds_at_every_position(drafted):
    """D18: a forbidden id is never emitted, drafted or not."""
    banned = SamplingParams(logit_bias={0: -100})
    tokens = generate(toy.bigram(T), [0], sampling=banned, draft_fn=lambda c: [drafted] * 4, k=4, max_tokens=200).tokens
    assert 0 not in tokens


# Log-probabilities and counts


def test_logprobs_are_of_the_unprocessed_law_for_every_kind():
    """L14: accepted, recovered and bonus tokens alike."""
    table = torch.tensor([[0.1, 0.6, 0.3]] * 3, dtype=torch.float64)
    sampling, kinds = SamplingParams(temperature=0.5, top_k=2), Counter()
    done = generate(toy.bigram(table), [0], sampling=sampling, draft_fn=lambda c: [1, 2, 1], k=3, max_tokens=300)
    for piece in stream(toy.bigram(table), [0], sampling=sampling, draft_fn=lambda c: [1, 2, 1], k=3, max_tokens=300):
        kinds.update(piece.kinds)
    assert set(kinds) == {"accepted", "recovered", "bonus", "plain"}
    assert done.logprobs == pytest.approx([math.log(table[0, token]) for token in done.tokens], abs=1e-12)


def test_acceptance_counts():
    """L15: none, all, and nothing proposed."""
    size = 7
    none = generate(circle(size), [0], draft_fn=lambda c: [c[-1]] * 4, k=4, max_tokens=11).stats
    every = generate(circle(size), [0], draft_fn=right(size), k=4, max_tokens=50).stats
    silent = generate(circle(size), [0], draft_fn=lambda c: [], k=4, max_tokens=10).stats
    assert (none.accepted, none.acceptance_rate) == (0, 0.0)
    assert (every.acceptance_rate, every.tokens_per_pass, every.passes) == (1.0, 5.0, 10)
    assert (silent.proposed, silent.acceptance_rate, silent.tokens_per_pass) == (0, 0.0, 1.0)
    assert every.per_position == ((10, 10),) * 4


def bigram_drafter(table: torch.Tensor) -> Proposer:
    """Draws a chain from a bigram law with keyed noise, and states the law it drew from."""
    from specdec_fn.random import uniform
    from specdec_fn.sampling import draw
    from specdec_fn.speculate.tape import DRAFT, address

    def propose(request, state, tokens, k, *, position):
        noise, last, ids, laws = uniform(address(request, DRAFT, position), (k,)), tokens[-1], [], []
        for lane in range(k):
            laws.append(table[last])
            last = int(draw(noise[lane], table[last]))
            ids.append(last)
        return state, chain(ids, k, torch.stack(laws) if laws else table[:0])

    return Proposer("bigram", lambda prompt: (), propose)


def test_the_law_of_the_emitted_length_is_the_known_one():
    """L16: K = 2 from state 0 of T and D; lengths have law {1: 1/4, 2: 59/240, 3: 121/240}."""
    expected = {1: F(1, 4), 2: F(59, 240), 3: F(121, 240)}
    counts, n = Counter(), 1500
    law_of = law(SamplingParams())
    for seed in range(n):
        first = next(speculative(toy.bigram(T), key(seed), law_of, [0], 3, bigram_drafter(D), verifiers["token"], 2))
        counts[len(first.tokens)] += 1
    statistic = sum(float((counts[length] - n * p) ** 2 / (n * p)) for length, p in expected.items())
    assert statistic < 27.63  # chi-squared, 2 degrees of freedom, alpha 1e-6


def test_two_emitted_tokens_have_the_joint_law_of_the_target():
    """The whole path, propose, verify and commit on keys, against the exact joint law (chi-squared, 26 degrees of freedom)."""
    counts, n = Counter(), 2000
    for seed in range(n):
        counts[tuple(generate(toy.bigram(T), [0], seed=seed, proposer=bigram_drafter(D), k=2, max_tokens=3).tokens)] += 1
    exact = {(a, b, c): float(T[0, a] * T[a, b] * T[b, c]) for a, b, c in itertools.product(range(3), repeat=3)}
    assert sum((counts[cell] - n * p) ** 2 / (n * p) for cell, p in exact.items()) < 75.55


# The three loops


@given(seed=st.integers(0, 10**6), prompt=st.lists(st.integers(0, 2), min_size=1, max_size=5), hot=st.sampled_from([0.0, 0.7, 1.0, 2.0]))
def test_naive_cached_and_undrafted_loops_agree(seed, prompt, hot):
    """One number a position: all three draw it at the same address."""
    model, rule = toy.bigram(T), law(SamplingParams(temperature=hot), prompt)
    plain = list(naive(model, key(seed), rule, prompt, 8))
    assert list(cached(model, key(seed), rule, prompt, 8)) == plain
    passes = speculative(model, key(seed), rule, prompt, 8, proposers.scripted.proposer(lambda c: []), verifiers["token"], 3)
    assert [token for one in passes for token in one.tokens] == plain
    assert generate(model, prompt, seed=seed, sampling=SamplingParams(temperature=hot), max_tokens=8).tokens == plain


@given(
    seed=st.integers(0, 10**6),
    k=st.integers(1, 8),
    verifier=st.sampled_from(["token", "greedy"]),
    drafts=st.lists(st.integers(0, 4), min_size=8, max_size=8),
)
def test_greedy_ids_do_not_depend_on_drafts(seed, k, verifier, drafts):
    """D11, D22: temperature 0 under any verifier gives the greedy ids, whatever is drafted."""
    table = torch.softmax(3 * torch.randn(5, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), -1)
    plain = generate(toy.bigram(table), [0], sampling=GREEDY, max_tokens=12).tokens
    assert generate(toy.bigram(table), [0], sampling=GREEDY, max_tokens=12, verifier=verifier, draft_fn=lambda c: drafts[:k], k=k).tokens == plain
    assert generate(toy.bigram(table), [0], sampling=GREEDY, max_tokens=12, verifier=verifier, proposer="ngram", k=k).tokens == plain


@pytest.mark.parametrize("kept", range(5))
def test_the_next_input_stands_at_the_last_committed_position(kept):
    """G1, K1: the cache covers all but the last emitted token, for none, some and all drafts accepted."""
    starts = []
    model = circle(7)
    watched = model._replace(
        apply=lambda params, tokens, positions, *rest: (
            starts.append((int(positions[0]), int(tokens[0]))) or model.apply(params, tokens, positions, *rest)
        )
    )
    drafts = lambda c: (right(7)(c)[:kept] + [c[-1]] * 4)[:4]  # noqa: E731
    committed = [0]
    for one in speculative(watched, key(0), law(GREEDY), [0], 20, proposers.scripted.proposer(drafts), verifiers["token"], 4):
        assert starts[-1] == (len(committed) - 1, committed[-1])
        committed += one.tokens


def test_streams_join_to_the_generation():
    settings = {"seed": 5, "draft_fn": lambda c: [1, 2, 0], "k": 3, "max_tokens": 40, "tokenizer": letters("a", "bé", "日")}
    done = generate(toy.bigram(T), [0], **settings)
    pieces = list(stream(toy.bigram(T), [0], **settings))
    assert "".join(piece.text for piece in pieces) == done.text
    assert [token for piece in pieces for token in piece.tokens] == done.tokens
    assert all(len(piece.tokens) == len(piece.kinds) for piece in pieces)


def test_on_piece_sees_the_stream():
    seen = []
    generate(toy.bigram(T), [0], seed=5, max_tokens=9, on_piece=seen.append)
    assert seen == list(stream(toy.bigram(T), [0], seed=5, max_tokens=9))


# Seeds


def test_seeds_decide():
    """S1, S3, S4: the same seed repeats, other seeds differ, and the noise is not frozen."""
    uniform = toy.bigram(torch.full((8, 8), 1 / 8, dtype=torch.float64))
    run = lambda seed: generate(uniform, [0], seed=seed, draft_fn=lambda c: [1, 2], k=2, max_tokens=32).tokens  # noqa: E731
    assert run(42) == run(42) == run(42)
    assert len({tuple(run(seed)) for seed in range(8)}) == 8
    assert len(set(run(7))) > 2


# Bad input


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"prompt": []}, ValueError, "the prompt is empty; expected at least one token"),
        ({"prompt": [3]}, ValueError, r"prompt\[0\] is 3; expected an id in \[0, 3\)"),
        ({"prompt": [-1]}, ValueError, r"prompt\[0\] is -1; expected"),
        ({"prompt": [0.5]}, TypeError, "expected a sequence of ids"),
        ({"prompt": 5}, TypeError, "expected a sequence of ids"),
        ({"prompt": "text"}, ValueError, "text without a tokenizer"),
        ({"k": -1}, ValueError, "k is -1; expected a whole number of 0 or more"),
        ({"k": 1.5}, TypeError, "k is 1.5; expected a whole number"),
        ({"max_tokens": 0}, ValueError, "max_tokens is 0; expected a whole number of 1 or more"),
        ({"verifier": "blok"}, ValueError, "verifier is 'blok'; expected a Verifier or one of the names greedy, token"),
        ({"proposer": "psychic"}, ValueError, "proposer is 'psychic'; expected a Proposer or one of the names ngram"),
        ({"verifier": "greedy"}, ValueError, "verifier 'greedy' with temperature 1"),
        ({"draft_fn": lambda c: [9]}, ValueError, r"result of draft_fn\[0\] is 9; expected an id in \[0, 3\)"),
        ({"draft_fn": lambda c: [1, 1, 1], "k": 2}, ValueError, "draft_fn returned 3 ids; expected at most k = 2"),
        ({"draft_fn": lambda c: None}, TypeError, "expected a sequence of ids"),
        ({"draft_fn": 7}, TypeError, "draft_fn is 7; expected a callable"),
        ({"draft_fn": lambda c: [], "proposer": "ngram"}, ValueError, "draft_fn together with proposer 'ngram'; expected one of the two"),
        ({"stop": "x"}, ValueError, "without a tokenizer"),
        ({"stop": [""], "tokenizer": letters("a", "b", "c")}, ValueError, "stop"),
        ({"stop": 5}, TypeError, "stop is 5; expected a string or a sequence of strings"),
        ({"stop": None}, TypeError, "stop is None; expected a string or a sequence of strings"),
        ({"prompt": b"\x00\x01"}, TypeError, "expected a sequence of ids"),
        ({"stop_ids": [3]}, ValueError, r"stop_ids\[0\] is 3; expected an id in \[0, 3\)"),
        ({"seed": "x"}, TypeError, "seed is 'x'; expected an integer"),
        ({"seed": 2**63}, ValueError, "expected an integer in"),
        ({"sampling": 0.5}, TypeError, "sampling is 0.5; expected a SamplingParams"),
        ({"model": 3}, TypeError, "model is 3; expected a Model"),
        ({"sampling": SamplingParams(allowed_ids=[5])}, ValueError, "allowed_ids"),
    ],
)
@pytest.mark.parametrize("door", [generate, stream])
def test_bad_settings_are_refused_in_one_sentence(door, settings, error, words):
    arguments = {"model": toy.bigram(T), "prompt": [0], "max_tokens": 4, **settings}
    with pytest.raises(error, match=words) as caught:
        list(door(**arguments))
    assert "\n" not in str(caught.value)


def drafting(make) -> Proposer:
    return Proposer("mine", lambda prompt: (), lambda key, state, tokens, k, *, position: (state, make(k)))


@pytest.mark.parametrize("verifier", ["token", "block"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda k: chain([1], k, torch.ones(1, 2) / 2), r"draft.probs has shape \[5, 2\]"),
        (lambda k: chain([1], k, torch.ones(1, 3)), r"draft.probs\[0\] sums to 3.0"),
        (lambda k: chain([1], k, torch.full((1, 3), math.nan)), r"draft.probs\[0\] sums to nan"),
        (lambda k: chain([1], k, torch.eye(3)[:1]), r"draft.tokens\[0\] is 1, of probability 0"),
        (lambda k: chain([1] * (k + 1), k + 1), "the proposer drafted 6 tokens; expected at most 5"),
        (lambda k: chain([1], k)._replace(length=torch.tensor(-1)), "draft.length is -1; expected 0 to 5"),
        (lambda k: chain([1], k)._replace(length=torch.tensor(9)), "draft.length is 9; expected 0 to 5"),
        (lambda k: chain([1, 2], k)._replace(parents=torch.full((k,), -1)), r"draft.parents\[1\] is -1; expected 0, a chain"),
    ],
)
def test_a_draft_that_would_bias_or_break_a_pass_is_refused(make, words, verifier):
    """A law that the drafts were not drawn from gives tokens of another law than p, silently, unless it is refused."""
    with pytest.raises(ValueError, match=words):
        generate(toy.bigram(T), [0], sampling=GREEDY, proposer=drafting(make), verifier=verifier, max_tokens=9)


def test_what_a_proposer_does_with_its_tokens_stays_with_it():
    """It may keep them in its state, or change them: neither the loop nor its own memory of an earlier pass notices."""
    grown = []

    def propose(request, state, tokens, k, *, position):
        grown.append(len(tokens) - len(state))
        mine = [*tokens]
        tokens.append(2)
        return mine, chain([], k)

    def keep(request, state, tokens, k, *, position):
        grown.append(len(tokens) - len(state))
        return tokens, chain([], k)

    plain = generate(toy.bigram(T), [0, 1], max_tokens=5).tokens
    for proposer in (Proposer("keeps", lambda prompt: prompt, keep), Proposer("changes", lambda prompt: [*prompt], propose)):
        grown.clear()
        assert generate(toy.bigram(T), [0, 1], proposer=proposer, max_tokens=5).tokens == plain
        assert grown == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("sampling", [SamplingParams(logit_bias={3: 1}), SamplingParams(bad_words=[(0, 3)]), SamplingParams(allowed_ids=[3])])
def test_ids_of_controls_are_checked_before_the_first_piece(sampling):
    with pytest.raises(ValueError, match="names id 3, but the logits cover ids 0 to 2"):
        stream(toy.bigram(T), [0], sampling=sampling)


@pytest.mark.parametrize("least", [2**31, 2**63, 10**30])
def test_min_tokens_beyond_any_integer_of_a_tensor_forbids_the_end(least):
    assert 2 not in generate(toy.bigram(T), [0], sampling=SamplingParams(min_tokens=least), stop_ids=[2], max_tokens=30).tokens


def test_a_prompt_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match="the prompt has 5 tokens; expected at most 4, the model's context"):
        generate(circle(3, context=4), [0] * 5)


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_logits_without_a_law_are_an_error(value):
    broken = toy.bigram(T)._replace(apply=lambda params, tokens, positions, kv, attend: (torch.full((len(tokens), 3), value), kv))
    with pytest.raises(ValueError, match="the logits for position 1 hold NaN or allow no token"):
        generate(broken, [0])


def test_a_row_without_a_law_behind_the_end_is_never_asked():
    """Plain decoding stops before it would see the NaN row; so does an accepted run that holds the end."""
    model = circle(7)

    def apply(params, tokens, positions, kv, attend):
        logits, kv = model.apply(params, tokens, positions, kv, attend)
        return torch.where((tokens == 3)[:, None], math.nan, logits), kv

    broken = model._replace(apply=apply)
    for settings in ({}, {"draft_fn": right(7), "k": 4}):
        done = generate(broken, [0], stop_ids=[3], **settings)
        assert (done.tokens, done.finish_reason) == ([1, 2, 3], "stop")
        spelled = letters(*"abcdefg")
        assert generate(broken, [0], stop="d", tokenizer=spelled, **settings).tokens == [1, 2, 3]


def test_ids_without_text_are_never_emitted():
    """N9: the model's vocabulary is padded past the tokenizer's."""
    table = torch.full((6, 6), 1 / 6, dtype=torch.float64)
    tokens = generate(toy.bigram(table), [0], tokenizer=letters("a", "b", "c", "d"), draft_fn=lambda c: [5, 4], k=2, max_tokens=200).tokens
    assert set(tokens) == {0, 1, 2, 3}


def test_a_model_of_three_fields_is_enough():
    full = toy.bigram(T)
    bare = Model(full.config, full.params, full.apply)
    assert generate(bare, [0, 1, 2], seed=3, max_tokens=9).tokens == generate(full, [0, 1, 2], seed=3, max_tokens=9).tokens
    assert models.logits(bare, [0, 1]).shape == (2, 3)
