"""A drafting model through the door: drafts change how many passes there are, and nothing else."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import SamplingParams, generate, stream
from specdec_fn.models import Model, logits, toy
from specdec_fn.random import key
from specdec_fn.speculate import Proposer
from specdec_fn.speculate.proposers import draft_model, paying

GREEDY = SamplingParams(temperature=0)
TARGET = toy.llama(key(1))
WARM = SamplingParams(temperature=0.8)
CONTROLLED = SamplingParams(temperature=0.8, top_k=6, presence_penalty=0.4)


def watching(model: Model, look: Any) -> Model:
    """The same model, whose passes show their positions."""

    def apply(params: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
        look(positions.tolist())
        return model.apply(params, tokens, positions, *rest)

    return model._replace(apply=apply, prefill=None)


def asked(inner: Proposer, ks: Sequence[int]) -> Proposer:
    """Asks for the given numbers of tokens in turn, whatever the engine asks for."""

    def propose(request: Any, state: Any, tokens: Any, k: int, *, position: int) -> Any:
        turn, held = state
        held, draft = inner.propose(request, held, tokens, min(k, ks[turn % len(ks)]), position=position)
        return (turn + 1, held), draft

    return Proposer("asked", lambda prompt: (0, inner.init(prompt)), propose)


@pytest.mark.parametrize("sampling", [GREEDY, WARM, CONTROLLED], ids=["greedy", "warm", "controlled"])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_a_model_that_drafts_for_itself_is_always_right(k: int, sampling: SamplingParams) -> None:
    """K1, K2: 64 tokens, acceptance 1 at every K; a token that the drafter's cache lacked, or one place too far, would make its laws others."""
    done = generate(TARGET, [5, 9, 2], proposer=draft_model.proposer(TARGET, sampling=sampling), sampling=sampling, k=k, max_tokens=64)
    assert done.stats.acceptance_rate == 1.0
    assert done.stats.passes == -(-64 // (k + 1))
    assert len(done.tokens) == 64


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_a_model_that_drafts_for_itself_in_some_passes_only_is_always_right(sampling: SamplingParams) -> None:
    """K3: 3, 0, 0, 3 tokens; what was emitted without a draft is caught up with."""
    guess = asked(draft_model.proposer(TARGET, sampling=sampling), (3, 0, 0, 3))
    done = generate(TARGET, [5, 9, 2], proposer=guess, sampling=sampling, k=3, max_tokens=40)
    assert done.stats.acceptance_rate == 1.0
    assert (done.stats.passes, done.stats.proposed) == (16, 24)  # four rounds of 4 + 1 + 1 + 4 tokens


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.lists(st.integers(0, 31), min_size=1, max_size=8), st.integers(0, 6))
def test_greedy_ids_do_not_depend_on_the_drafting_model(seed: int, other: int, prompt: list[int], k: int) -> None:
    target, small = toy.llama(key(seed), layers=1), toy.llama(key(other), layers=1, width=8, heads=1, ffn=8)
    plain = generate(target, prompt, sampling=GREEDY, max_tokens=8)
    drafting = GREEDY if seed % 2 else SamplingParams(temperature=1.5)
    fast = generate(target, prompt, sampling=GREEDY, max_tokens=8, proposer=draft_model.proposer(small, sampling=drafting), k=k)
    assert fast.tokens == plain.tokens
    assert fast.logprobs == pytest.approx(plain.logprobs, abs=1e-9)


@pytest.mark.parametrize(
    ("sampling", "drafting", "verifier"),
    [
        (SamplingParams(temperature=0.7, presence_penalty=0.6), SamplingParams(top_k=3), "token"),
        (SamplingParams(), SamplingParams(temperature=1.4), "block"),
    ],
)
def test_three_tokens_have_the_joint_law_of_the_target(sampling: SamplingParams, drafting: SamplingParams, verifier: str) -> None:
    """Two unlike models of 4 ids: 64 sequences of three tokens, their laws multiplied out from cold passes with softmax written out."""
    target, small = (toy.llama(key(seed), vocab_size=4, layers=1) for seed in (11, 12))
    laws = {line: law_after(target, [2, 0], line, sampling) for size in range(3) for line in itertools.product(range(4), repeat=size)}
    expected = {line: laws[()][line[0]] * laws[line[:1]][line[1]] * laws[line[:2]][line[2]] for line in itertools.product(range(4), repeat=3)}
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-12)
    guess, n, counts, accepted = draft_model.proposer(small, sampling=drafting), 250, Counter(), 0
    for seed in range(n):
        done = generate(target, [2, 0], seed=seed, sampling=sampling, proposer=guess, verifier=verifier, k=2, max_tokens=3)
        counts[tuple(done.tokens)] += 1
        accepted += done.stats.accepted
    statistic = sum((counts[line] - n * p) ** 2 / (n * p) for line, p in expected.items())
    assert statistic < 135  # chi-squared, 63 degrees of freedom, alpha 5e-7
    assert 0 < accepted < 2 * n


def law_after(model: Model, prompt: list[int], line: Sequence[int], sampling: SamplingParams) -> list[float]:
    row = logits(model, [*prompt, *line])[-1].double()
    row = row - sampling.presence_penalty * torch.tensor([float(token in line) for token in range(4)])
    return (row / sampling.temperature).softmax(-1).tolist()


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams()], ids=["greedy", "sampled"])
def test_a_short_context_ends_speculation_and_not_the_request(sampling: SamplingParams) -> None:
    """L11: contexts of 8 and 32, a prompt of 6: 20 tokens, none drafted for place 8 or later, and the target's places as ever."""
    places, drafted = [], []
    target, prompt = toy.llama(key(1), context=32), [5, 9, 2, 4, 4, 1]
    small = watching(toy.llama(key(1), context=8), drafted.extend)
    guess = draft_model.proposer(small, sampling=sampling)
    done = generate(watching(target, places.extend), prompt, proposer=guess, sampling=sampling, k=4, max_tokens=20)
    assert (len(done.tokens), done.finish_reason) == (20, "length")
    assert (done.stats.proposed, done.stats.accepted, done.stats.passes) == (2, 2, 18)
    assert max(drafted) < 8
    assert sorted(set(places)) == list(range(25))
    plain = generate(target, prompt, sampling=sampling, max_tokens=20)
    if sampling is GREEDY:
        assert done.tokens == plain.tokens
    else:  # the last 17 passes are plain ones, drawn at their places from the same numbers, as soon as the tokens before them are the same
        again = generate(target, [*prompt, *done.tokens[:3]], sampling=sampling, max_tokens=17)
        assert done.tokens[3:] == again.tokens


def test_a_prompt_longer_than_the_drafting_model_s_context() -> None:
    prompt = list(range(12))
    done = generate(TARGET, prompt, proposer=draft_model.proposer(toy.llama(key(1), context=8)), max_tokens=9, seed=3)
    assert (done.stats.proposed, done.tokens) == (0, generate(TARGET, prompt, max_tokens=9, seed=3).tokens)


EIGHT = torch.tensor([[3, 1, 2, 0, 1, 1, 4, 0], [1, 1, 1, 1, 1, 1, 1, 5], *[[2, 2, 1, 1, 0, 2, 2, 2]] * 6], dtype=torch.float64) / 12
SIX = torch.tensor([[4, 2, 1, 1, 0, 0], [0, 1, 1, 2, 2, 2], *[[3, 1, 1, 1, 1, 1]] * 4], dtype=torch.float64) / 8


@pytest.mark.parametrize(("target", "small"), [(EIGHT, SIX), (SIX, EIGHT)], ids=["smaller", "larger"])
def test_vocabularies_of_two_sizes_keep_the_law(target: torch.Tensor, small: torch.Tensor) -> None:
    """N8: 6 ids draft for 8, and 8 for 6: two emitted tokens have the target's joint law, ids that the drafter lacks among them."""
    guess = draft_model.proposer(toy.bigram(small), vocab_size=len(target))
    n, counts, accepted = 250, Counter(), 0
    for seed in range(n):
        done = generate(toy.bigram(target), [0], seed=seed, proposer=guess, k=3, max_tokens=2)
        counts[tuple(done.tokens)] += 1
        accepted += done.stats.accepted
    joint = {(a, b): float(target[0, a] * target[a, b]) for a, b in itertools.product(range(len(target)), repeat=2)}
    assert all(joint[pair] > 0 for pair in counts)
    cells = [(counts[pair], n * p) for pair, p in joint.items() if p > 0]
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    assert statistic < len(cells) + 5.5 * (2 * len(cells)) ** 0.5
    assert 0 < accepted < n


def test_vocabularies_of_two_sizes_are_told_of_in_one_sentence() -> None:
    """N8: without the target's size the laws do not fit, and no token is emitted."""
    with pytest.raises(ValueError, match=r"^draft.probs has shape \[3, 6\]; expected \[3, 8\] or None$"):
        generate(toy.bigram(EIGHT), [0], proposer=draft_model.proposer(toy.bigram(SIX)), k=3)


def test_a_drafting_model_without_a_law_is_no_error() -> None:
    """NaN from the drafting model ends its drafts; the target goes on alone."""
    broken = TARGET._replace(apply=lambda params, tokens, *rest: (torch.full((len(tokens), 32), torch.nan), TARGET.apply(params, tokens, *rest)[1]))
    done = generate(TARGET, [5, 9], proposer=draft_model.proposer(broken), max_tokens=8, seed=4)
    assert (done.stats.proposed, done.tokens) == (0, generate(TARGET, [5, 9], max_tokens=8, seed=4).tokens)


def test_it_rests_where_it_does_not_pay() -> None:
    guess = paying.proposer(draft_model.proposer(toy.llama(key(2)), sampling=GREEDY))
    done = generate(TARGET, [5, 9], proposer=guess, sampling=GREEDY, k=4, max_tokens=40)
    assert done.tokens == generate(TARGET, [5, 9], sampling=GREEDY, max_tokens=40).tokens
    assert 0 < done.stats.proposed < 40


def test_a_seed_gives_the_same_stream_again() -> None:
    settings = {"proposer": draft_model.proposer(toy.llama(key(2))), "k": 3, "max_tokens": 20, "seed": 9}
    one, other = (generate(TARGET, [5, 9], **settings) for _ in range(2))
    assert (one.tokens, one.logprobs) == (other.tokens, other.logprobs)
    assert [token for piece in stream(TARGET, [5, 9], **settings) for token in piece.tokens] == one.tokens
