"""Faults that users of other engines reported, as small cases on a small model with attention (FAULTS.md lists them all, with their tests)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import SamplingParams, generate, stream
from specdec_fn.engine import generate as loops
from specdec_fn.kv import dense
from specdec_fn.models import Config, Model, llama, logits, toy
from specdec_fn.sampling import draw
from specdec_fn.speculate import proposers
from specdec_fn.text import Tokenizer

VOCAB = 40
GREEDY = SamplingParams(temperature=0)
UNIFORM = torch.full((8, 8), 1 / 8, dtype=torch.float64)


def small(seed: int, dtype: torch.dtype = torch.float64) -> Model:
    """Two layers, grouped heads, random weights large enough that the law is far from uniform."""
    config = Config("llama", vocab_size=VOCAB, context=96, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, tied=True)
    generator = torch.Generator().manual_seed(seed)
    shapes = llama.shapes(config)
    params = llama.assemble(config, lambda name: torch.randn(shapes[name], generator=generator, dtype=torch.float64).mul(0.4).to(dtype))
    return llama.model(config, params)


def mostly(right: list[int], prompt: int, wrong: Callable[[int], bool], k: int) -> Callable[[list[int]], list[int]]:
    """Drafts what plain decoding gave, but for some places, so that passes keep none, some or all."""
    return lambda context: [
        (token + 1) % VOCAB if wrong(place) else token for place, token in enumerate(right[len(context) - prompt :][:k], start=len(context))
    ]


prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


# Greedy equality


@given(seed=st.integers(0, 10**6), prompt=prompts, k=st.integers(1, 8), every=st.integers(2, 7))
def test_greedy_ids_in_float64_equal_plain_decoding(seed: int, prompt: list[int], k: int, every: int) -> None:
    """D22, G2: on a model with attention, drafts right, wrong and in between change no id."""
    model = small(seed)
    plain = generate(model, prompt, sampling=GREEDY, max_tokens=16)
    fast = generate(model, prompt, sampling=GREEDY, max_tokens=16, k=k, draft_fn=mostly(plain.tokens, len(prompt), lambda i: i % every == 0, k))
    assert fast.tokens == plain.tokens
    assert fast.logprobs == pytest.approx(plain.logprobs, abs=1e-9)


@given(seed=st.integers(0, 10**6), prompt=prompts, k=st.integers(1, 8))
def test_greedy_ids_in_float32_differ_at_near_ties_only(seed: int, prompt: list[int], k: int) -> None:
    """G2: wide and narrow products round differently; the first difference needs a margin of at most 1e-3 between the first two."""
    model = small(seed, torch.float32)
    plain = generate(model, prompt, sampling=GREEDY, max_tokens=16).tokens
    fast = generate(model, prompt, sampling=GREEDY, max_tokens=16, k=k, draft_fn=mostly(plain, len(prompt), lambda i: i % 5 == 0, k)).tokens
    first = next((i for i, pair in enumerate(zip(plain, fast, strict=True)) if len(set(pair)) > 1), None)
    if first is not None:
        top = logits(model, [*prompt, *plain[:first]])[-1].topk(2).values
        assert float(top[0] - top[1]) <= 1e-3


@given(seed=st.integers(0, 10**6), prompt=prompts, k=st.integers(1, 8), every=st.integers(2, 7))
def test_invariant_mode_changes_no_bit_of_any_logit(seed: int, prompt: list[int], k: int, every: int) -> None:
    """G2: in float32, the invariant form gives the ids and log-probabilities of plain decoding, all bits of them."""
    model = small(seed, torch.float32)
    plain = generate(model, prompt, sampling=GREEDY, max_tokens=16, invariant=True)
    draft_fn = mostly(plain.tokens, len(prompt), lambda i: i % every == 0, k)
    fast = generate(model, prompt, sampling=GREEDY, max_tokens=16, k=k, draft_fn=draft_fn, invariant=True)
    assert (fast.tokens, fast.logprobs) == (plain.tokens, plain.logprobs)


@pytest.mark.parametrize("seed", range(2))
def test_a_window_on_a_cache_equals_single_tokens(seed: int) -> None:
    """G3, K5: five rows on a cache of seven, their positions their own: logits, keys and values of five passes of one row."""
    model = small(seed)
    ids = torch.randint(VOCAB, (12,), generator=torch.Generator().manual_seed(seed)).tolist()
    positions = torch.arange(7, 12)
    together = loops.prefill(model, ids[:8], 4)
    alone = loops.prefill(model, ids[:8], 4)
    assert together.length == 7
    wide, together = model.apply(model.params, torch.tensor(ids[7:]), positions, together, dense.attend)
    rows = []
    for place in range(7, 12):
        row, alone = model.apply(model.params, torch.tensor([ids[place]]), positions[place - 7 : place - 6], alone, dense.attend)
        alone = dense.advance(alone, 1)
        rows.append(row)
    torch.testing.assert_close(wide, torch.cat(rows), atol=1e-9, rtol=0)
    torch.testing.assert_close(wide, logits(model, ids)[7:], atol=1e-9, rtol=0)
    for ours, theirs in zip((*together.keys, *together.values), (*alone.keys, *alone.values), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-38])
@pytest.mark.parametrize("verifier", ["token", "greedy"])
def test_a_tiny_temperature_is_greedy_everywhere(temperature: float, verifier: str) -> None:
    """D17: logits (200, 100, 0) at a temperature that overflows their quotient: id 0, drafted or not."""
    flat = torch.tensor([200.0, 100.0, 0.0], dtype=torch.float64).expand(3, 3)
    model = toy.bigram(UNIFORM[:3, :3] * 8 / 3)._replace(params=flat)
    if verifier == "greedy" and temperature:
        with pytest.raises(ValueError, match="temperature"):
            generate(model, [1], sampling=SamplingParams(temperature), verifier=verifier)
        return
    for drafted in ([0, 0], [1, 0], [2]):
        settings: dict[str, Any] = {"sampling": SamplingParams(temperature), "verifier": verifier, "k": 2, "max_tokens": 8}
        assert generate(model, [1], draft_fn=lambda context, drafted=drafted: drafted, **settings).tokens == [0] * 8


# Penalties, limits, counts


@given(
    seed=st.integers(0, 10**6),
    k=st.integers(1, 6),
    every=st.integers(2, 6),
    penalties=st.tuples(st.sampled_from([1.0, 1.3]), st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 0.4])),
)
def test_penalties_count_emitted_tokens_once(seed: int, k: int, every: int, penalties: tuple[float, float, float]) -> None:
    """L9: rejected drafts are not counted and accepted ones not twice, so that greedy text under penalties equals plain decoding."""
    model, prompt = small(seed), [3, 1, 4, 1, 5]
    repetition, presence, frequency = penalties
    sampling = SamplingParams(0, repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency)
    plain = generate(model, prompt, sampling=sampling, max_tokens=16).tokens
    draft_fn = mostly(plain, len(prompt), lambda i: i % every == 0, k)
    assert generate(model, prompt, sampling=sampling, max_tokens=16, k=k, draft_fn=draft_fn).tokens == plain


@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("end", range(1, 7))
def test_no_count_goes_past_the_stop(end: int, right: int) -> None:
    """L5, T6: every count is of tokens that were given out; ids, kinds, log-probabilities and pieces agree."""
    circle = toy.bigram(torch.eye(7, dtype=torch.float64).roll(1, dims=1))
    draft_fn = lambda c: [(c[-1] + i) % 7 for i in range(1, right + 1)] + [c[-1]] * (5 - right)  # noqa: E731
    settings: dict[str, Any] = {"draft_fn": draft_fn, "k": 5, "stop_ids": [end], "max_tokens": 50}
    done, pieces = generate(circle, [0], **settings), list(stream(circle, [0], **settings))
    assert done.tokens == [token for piece in pieces for token in piece.tokens] == list(range(1, end + 1))
    kinds = [kind for piece in pieces for kind in piece.kinds]
    assert done.stats.emitted == len(done.logprobs) == len(kinds) == end
    assert done.stats.passes == len(pieces)
    assert done.stats.accepted == kinds.count("accepted") == sum(kept for _, kept in done.stats.per_position)
    assert all(kept <= seen for seen, kept in done.stats.per_position)
    assert done.stats.proposed == sum(seen for seen, _ in done.stats.per_position)


def test_a_prompt_over_the_limit_is_refused_and_the_next_runs() -> None:
    """L12: the model is a value, so nothing is left behind."""
    model, long = small(0), [1] * 97
    before = generate(model, [1, 2], max_tokens=6).tokens
    with pytest.raises(ValueError, match="the prompt has 97 tokens; expected at most 96"):
        generate(model, long)
    assert generate(model, [1, 2], max_tokens=6).tokens == before


@pytest.mark.parametrize("k", [0, 1, 3, 8])
@pytest.mark.parametrize(("max_tokens", "reason"), [(4, "stop"), (3, "stop"), (2, "length"), (50, "stop")])
def test_why_it_ended(k: int, max_tokens: int, reason: str) -> None:
    """T9: the end token before the limit is a stop, also as the last allowed token; the limit without it is "length"; the same for every k."""
    circle = toy.bigram(torch.eye(7, dtype=torch.float64).roll(1, dims=1))
    words = Tokenizer(lambda text, **_: [0], lambda ids, **_: "".join("abcdefg"[i] for i in ids), lambda messages: [0], (3,), 7)
    done = generate(circle, [0], tokenizer=words, k=k, draft_fn=lambda c: [(c[-1] + 1 + i) % 7 for i in range(k)], max_tokens=max_tokens)
    assert (done.tokens, done.finish_reason) == ([1, 2, 3][:max_tokens], reason)


# Random numbers


@pytest.mark.parametrize("chunk", [1, 4, 4096])
def test_a_chunk_of_the_prompt_draws_no_number(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: however the prompt is cut, a seed gives the same tokens."""
    model, prompt = small(1), list(range(23))
    settings: dict[str, Any] = {"seed": 11, "max_tokens": 12, "draft_fn": lambda c: [1, 2, 3], "k": 3}
    expected = generate(model, prompt, **settings).tokens
    monkeypatch.setattr(loops, "PREFILL_CHUNK", chunk)
    assert generate(model, prompt, **settings).tokens == expected


@given(seed=st.integers(0, 10**6), cut=st.integers(1, 15))
def test_a_session_that_goes_on_draws_what_it_would_have_drawn(seed: int, cut: int) -> None:
    """S8: numbers belong to the count of committed tokens, so a text in two parts is the text in one."""
    model, settings = toy.bigram(UNIFORM), {"seed": seed}
    whole = generate(model, [0], max_tokens=16, **settings).tokens
    first = generate(model, [0], max_tokens=cut, **settings).tokens
    assert first + generate(model, [0, *first], max_tokens=16 - cut, **settings).tokens == whole


@given(seed=st.integers(0, 10**6), end=st.integers(1, 12), k=st.integers(1, 8))
def test_what_was_thrown_away_behind_a_stop_changes_nothing_later(seed: int, end: int, k: int) -> None:
    """S8: a stop inside an accepted run, then the session goes on as it does without speculation."""
    model = small(seed)
    plain = generate(model, [7, 3], sampling=GREEDY, max_tokens=16).tokens
    spelled = Tokenizer(lambda text, **_: [0], lambda ids, **_: "".join(f"<{i}>" for i in ids), lambda messages: [0], (), VOCAB)
    stop = "".join(f"<{i}>" for i in plain[:end])
    draft_fn = mostly(plain, 2, lambda i: False, k)
    stopped = generate(model, [7, 3], sampling=GREEDY, max_tokens=16, k=k, draft_fn=draft_fn, tokenizer=spelled, stop=stop)
    assert (stopped.tokens, stopped.finish_reason) == (plain[:end], "stop")
    rest = generate(model, [7, 3, *stopped.tokens], sampling=GREEDY, max_tokens=16 - end, k=k, draft_fn=draft_fn)
    assert stopped.tokens + rest.tokens == plain


@given(seed=st.integers(0, 10**6))
def test_random_bits_are_inputs(seed: int) -> None:
    """R7: lifted over a batch, a draw equals the stack of single draws, in any order, since its randomness is an argument."""
    uniforms = torch.rand(16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    laws = torch.rand(16, 5, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    lifted = torch.func.vmap(draw)(uniforms, laws)
    assert lifted.tolist() == [int(draw(u, law)) for u, law in zip(uniforms, laws, strict=True)]
    assert torch.func.vmap(draw)(uniforms.flip(0), laws.flip(0)).flip(0).equal(lifted)


@pytest.mark.parametrize("u", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53])
def test_the_smallest_and_largest_numbers_draw_nothing_impossible(u: float) -> None:
    """D14: no noise value, 0 included, draws a token of probability 0, and none gives NaN."""
    for law in ([0.0, 1.0], [0.0, 0.5, 0.0, 0.5, 0.0], [1.0, 0.0]):
        token = int(draw(torch.tensor(u, dtype=torch.float64), torch.tensor(law, dtype=torch.float64)))
        assert law[token] > 0


# Vocabularies


@pytest.mark.parametrize("token", [8, 9, 10**6, -1])
def test_a_drafted_id_outside_the_vocabulary_is_refused(token: int) -> None:
    """N8: one sentence, for a function that drafts and for a proposer."""
    model = toy.bigram(UNIFORM)
    with pytest.raises(ValueError, match=rf"is {token}; expected an id in \[0, 8\)"):
        generate(model, [0], draft_fn=lambda c: [1, token], k=2)
    with pytest.raises(ValueError, match=rf"draft.tokens\[1\] is {token}; expected an id in \[0, 8\)"):
        generate(model, [0], proposer=proposers.scripted.proposer(lambda c: [1, token]), k=2)


def test_a_vocabulary_may_have_more_than_two_to_the_24_ids() -> None:
    """R8: a draw is over one vocabulary, by its cumulative sum, which has no limit of 2**24 categories."""
    size = 2**24 + 3
    law = torch.zeros(size, dtype=torch.float64)
    law[-1] = law[5] = 0.5
    assert int(draw(torch.tensor(0.75, dtype=torch.float64), law)) == size - 1
    assert int(draw(torch.tensor(0.25, dtype=torch.float64), law)) == 5
