"""A drafting model says what it drew from, and its cache holds what was committed, whatever happened between the passes."""

import bisect
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from specdec_fn.kv import dense
from specdec_fn.models import Model, invariant, logits, toy
from specdec_fn.random import key, uniform
from specdec_fn.sampling import SamplingParams, distribution
from specdec_fn.speculate import Draft, proposers, verifiers
from specdec_fn.speculate.proposer import Drafter
from specdec_fn.speculate.proposers import draft_model
from specdec_fn.speculate.proposers.draft_model import Held
from specdec_fn.speculate.tape import DRAFT, address
from specdec_fn.speculate.verifier import check_draft

SMALL = toy.llama(key(5), vocab_size=12, context=64)
PENALISED = SamplingParams(temperature=0.7, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3, bad_words=[(3, 4)])
CONTROLS = (SamplingParams(), SamplingParams(temperature=0), SamplingParams(temperature=0.8, top_k=5, top_p=0.9), PENALISED)
ids = st.integers(0, 11)


def constant(*scores: float) -> Model:
    """Logits that are the same after every token."""
    row = torch.tensor(scores, dtype=torch.float64).log_softmax(0)
    return toy.bigram(row.exp().expand(len(scores), -1).clone())


def watching(model: Model, look: Any) -> Model:
    """The same model, whose passes show their ids, their positions and whether they end in logits."""

    def apply(params: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
        look(tokens.tolist(), positions.tolist(), True)
        return model.apply(params, tokens, positions, *rest)

    def prefill(params: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
        look(tokens.tolist(), positions.tolist(), False)
        return model.prefill(params, tokens, positions, *rest)

    return model._replace(apply=apply, prefill=prefill)


def height(draft: Draft, lane: int, u: float) -> int:
    """The id at height u of a drafted token's law, by exact sums in plain Python."""
    sums = [math.fsum(part) for part in itertools.accumulate(([p] for p in draft.probs[lane].tolist()), lambda a, b: [*a, *b])]
    return bisect.bisect_right(sums, u * sums[-1])


def alone(model: Model, tokens: Sequence[int], k: int, sampling: SamplingParams, seed: int, prompt: int) -> tuple[list[int], list[torch.Tensor]]:
    """What has to be drafted: a cold pass over everything for each token, and the token at the height of its lane."""
    line, laws = list(tokens), []
    heights = uniform(address(key(seed), DRAFT, len(tokens)), (k,)).tolist()
    for u in heights:
        row = logits(model, line)[-1].double()
        law = distribution(row, sampling, prompt=torch.tensor(line[:prompt]), generated=torch.tensor(line[prompt:], dtype=torch.int64))
        laws.append(law)
        line.append(bisect.bisect_right(list(itertools.accumulate(law.tolist())), u))
    return line[len(tokens) :], laws


def same(one: Draft, other: Draft) -> bool:
    return one.tokens.equal(other.tokens) and torch.allclose(one.probs, other.probs, rtol=0, atol=1e-10) and one.length.equal(other.length)


# What is drafted, and the law that is told


def test_the_temperature_is_heard() -> None:
    """D4: logits (2, 1.5, 1, 0.5) at temperature 1: id 0 has 1 / (1 + e^-.5 + e^-1 + e^-1.5) = 0.455, and the law that is told says so."""
    scores = (2.0, 1.5, 1.0, 0.5)
    weights = [math.exp(s - 2) for s in scores]
    law = [w / math.fsum(weights) for w in weights]
    assert law[0] == pytest.approx(0.455, abs=5e-4)
    guess, counts = draft_model.proposer(constant(*scores)), [0, 0, 0, 0]
    for seed in range(800):
        draft = guess.propose(key(seed), guess.init([1]), [1], 1, position=1)[1]
        assert draft.probs.tolist()[0] == pytest.approx(law, abs=1e-15)
        token = int(draft.tokens[0])
        assert token == height(draft, 0, float(uniform(address(key(seed), DRAFT, 1), (1,))))
        counts[token] += 1
    for count, p in zip(counts, law, strict=True):
        assert abs(count - 800 * p) < 4 * math.sqrt(800 * p * (1 - p))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_each_temperature_has_its_law(temperature: float) -> None:
    scores = (2.0, 1.5, 1.0, 0.5)
    weights = [math.exp((s - 2) / temperature) for s in scores]
    guess = draft_model.proposer(constant(*scores), sampling=SamplingParams(temperature=temperature))
    draft = guess.propose(key(0), guess.init([1]), [1], 2, position=1)[1]
    for row in draft.probs.tolist():
        assert row == pytest.approx([w / math.fsum(weights) for w in weights], abs=1e-15)


def test_greedy_drafts_tell_one_hot_laws() -> None:
    """D1, D4: at temperature 0 the law is all on the most probable id, and not the softmax."""
    guess = draft_model.proposer(constant(1.0, 2.0, 1.5), sampling=SamplingParams(temperature=0))
    draft = guess.propose(key(3), guess.init([0]), [0], 3, position=1)[1]
    assert draft.tokens.tolist() == [1, 1, 1]
    assert draft.probs.tolist() == [[0.0, 1.0, 0.0]] * 3


def test_half_precision_drafts_are_drawn_from_the_law_that_is_told() -> None:
    """D5: a bfloat16 model of 512 ids: the law is float64, and every token stands at the height of its lane, exactly."""
    model, rows, seen = toy.llama(key(8), vocab_size=512, layers=1, dtype=torch.bfloat16), [], set()

    def apply(*arguments: Any) -> Any:
        out, cache = model.apply(*arguments)
        rows.append(out[-1].double())
        return out, cache

    guess = draft_model.proposer(model._replace(apply=apply))
    for seed in range(60):
        draft = guess.propose(key(seed), guess.init([7, 8]), [7, 8], 3, position=2)[1]
        assert draft.probs.dtype is torch.float64
        assert draft.probs.sum(-1).tolist() == pytest.approx([1.0] * 3, abs=1e-12)
        lanes = uniform(address(key(seed), DRAFT, 2), (3,)).tolist()
        assert draft.tokens.tolist() == [height(draft, lane, u) for lane, u in enumerate(lanes)]
        told = torch.stack([(row - row.logsumexp(0)).exp() for row in rows[-3:]])
        assert torch.allclose(draft.probs, told, rtol=0, atol=1e-14)
        seen.update(draft.tokens.tolist())
    assert len(seen) > 50


@given(st.lists(ids, min_size=1, max_size=12), st.integers(1, 5), st.sampled_from(CONTROLS), st.integers(0, 99), st.data())
def test_each_token_is_drawn_at_its_own_prefix(tokens: list[int], k: int, sampling: SamplingParams, seed: int, data: st.DataObject) -> None:
    prompt = data.draw(st.integers(1, len(tokens)))
    guess = draft_model.proposer(SMALL, sampling=sampling)
    state, draft = guess.propose(key(seed), guess.init(tokens[:prompt]), tokens, k, position=len(tokens))
    drafted, laws = alone(SMALL, tokens, k, sampling, seed, prompt)
    assert draft.tokens.tolist() == drafted
    assert torch.allclose(draft.probs, torch.stack(laws), rtol=0, atol=1e-10)
    assert (int(draft.length), draft.parents) == (k, None)
    assert not draft.probs.is_inference()
    check_draft(draft, 12, chain=True)
    assert state.tokens == (*tokens, *drafted[:-1])


def test_a_penalty_sees_what_was_drafted_and_not_the_prompt() -> None:
    """Equal logits and a presence penalty that rules out what was generated: three ids, and the prompt's may come again."""
    sampling = SamplingParams(temperature=0, presence_penalty=9.0)
    guess = draft_model.proposer(constant(0.0, 0.0, 0.0, 0.0), sampling=sampling)
    assert guess.propose(key(0), guess.init([0, 1]), [0, 1], 4, position=2)[1].tokens.tolist() == [0, 1, 2, 3]
    assert guess.propose(key(0), guess.init([0]), [0, 1], 3, position=2)[1].tokens.tolist() == [0, 2, 3]


def test_lanes_and_bases() -> None:
    """The first tokens of a longer draft are those of a shorter one; another base draws other numbers."""
    guess = draft_model.proposer(constant(*[0.0] * 1000))
    at = lambda k, position: guess.propose(key(1), guess.init([5]), [5], k, position=position)[1].tokens.tolist()  # noqa: E731
    assert at(20, 1)[:3] == at(3, 1)
    assert at(20, 1) == [int(u * 1000) for u in uniform(address(key(1), DRAFT, 1), (20,)).tolist()]
    assert at(3, 2) != at(3, 1)


# What the cache holds


def kept(state: Held) -> list[torch.Tensor]:
    assert state.kv is not None
    return [held[: state.kv.length] for held in (*state.kv.keys, *state.kv.values)]


def cold(model: Model, tokens: Sequence[int]) -> list[torch.Tensor]:
    """The keys and values of one pass over everything."""
    cache = dense.init(model.config, len(tokens), dtype=torch.float64)
    cache = model.apply(model.params, torch.tensor(tokens), torch.arange(len(tokens)), cache, dense.attend)[1]
    return [*cache.keys, *cache.values]


@given(st.lists(ids, min_size=1, max_size=6), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), ids), min_size=1, max_size=6))
def test_the_cache_holds_the_committed_tokens_whatever_was_kept(prompt: list[int], passes: list[tuple[int, int, int]]) -> None:
    """K1: after every pass the cache holds the committed tokens and the drafted ones but the last; what was refused is gone before the next."""
    guess = draft_model.proposer(SMALL)
    state, tokens = guess.init(prompt), list(prompt)
    for k, accepted, other in passes:
        before = state
        state, draft = guess.propose(key(1), before, tokens, k, position=len(tokens))
        fresh, again = guess.propose(key(1), guess.init(prompt), tokens, k, position=len(tokens))
        assert same(draft, again)
        if k:
            line = [*tokens, *draft.tokens.tolist()[:-1]]
            assert state.tokens == fresh.tokens == tuple(line)
            assert state.kv.length == len(line)
            for held, right in zip(kept(state), cold(SMALL, line), strict=True):
                assert torch.allclose(held, right, rtol=0, atol=1e-10)
        else:
            assert state is before
        tokens += [*draft.tokens.tolist()[: min(accepted, k)], other]


def test_no_token_is_read_twice_and_none_is_left_out() -> None:
    """K1, K2: when everything is kept, the rows that the model reads are the committed positions, one by one, the bonus tokens among them."""
    rows: list[tuple[int, int]] = []
    guess = draft_model.proposer(watching(SMALL, lambda tokens, positions, last: rows.extend(zip(positions, tokens, strict=True))))
    tokens = [1, 2, 3]
    state = guess.init(tokens)
    for bonus in (4, 5, 6):
        state, draft = guess.propose(key(1), state, tokens, 3, position=len(tokens))
        tokens += [*draft.tokens.tolist(), bonus]
    assert rows == list(enumerate(tokens[:-2]))


def test_passes_without_a_draft_leave_no_holes() -> None:
    """K3: 3, 0, 0, 3 tokens of the very model that judges: all are kept, as from a cache that never missed a token."""
    guess = draft_model.proposer(SMALL)
    tokens = [1, 2, 3]
    state = guess.init(tokens)
    for k in (3, 0, 0, 3):
        state, draft = guess.propose(key(1), state, tokens, k, position=len(tokens))
        assert int(draft.length) == k
        target = logits(SMALL, [*tokens, *draft.tokens.tolist()])[len(tokens) - 1 :].softmax(-1)
        assert torch.allclose(draft.probs, target[:k], rtol=0, atol=1e-10)
        verdict = verifiers["token"].verify(key(1), target, draft, position=len(tokens))
        assert int(verdict.accepted) == k
        tokens += verdict.tokens.tolist()
    assert len(tokens) == 3 + 4 + 1 + 1 + 4


def test_a_request_may_go_back_and_be_asked_again() -> None:
    """Fewer tokens than the state holds, other tokens, and the same ones again."""
    guess = draft_model.proposer(SMALL)
    fresh = lambda tokens: guess.propose(key(1), guess.init([1]), tokens, 3, position=len(tokens))[1]  # noqa: E731
    state, _ = guess.propose(key(1), guess.init([1]), [1, 2, 3, 4, 5], 3, position=5)
    for tokens in ([1, 2, 3, 4, 5], [1, 2], [1, 2, 3, 7, 5, 6], [9], list(state.tokens), list(state.tokens[:-1])):
        assert same(guess.propose(key(1), state, tokens, 3, position=len(tokens))[1], fresh(tokens))


def test_states_that_part_do_not_touch_each_other() -> None:
    """A fork: two futures of one state take turns, and the state itself stays what it was, bit for bit."""
    guess = draft_model.proposer(SMALL)
    root, _ = guess.propose(key(1), guess.init([1, 2]), [1, 2], 4, position=2)
    bits = [held.clone() for held in (*root.kv.keys, *root.kv.values)]
    lines, states = ([1, 2, 3], [1, 2, 8]), [root, root]
    for _ in range(4):
        for side, tokens in enumerate(lines):
            states[side], draft = guess.propose(key(side), states[side], tokens, 3, position=len(tokens))
            assert same(draft, guess.propose(key(side), guess.init([1, 2]), tokens, 3, position=len(tokens))[1])
            tokens += draft.tokens.tolist()[: 1 + side]
    assert all(old.equal(now) for old, now in zip(bits, (*root.kv.keys, *root.kv.values), strict=True))


def test_a_long_prompt_is_read_in_chunks() -> None:
    """600 tokens: 256 rows a forward at most, and logits for the last ones alone."""
    model, sizes = toy.llama(key(2), layers=1, context=700), []
    tokens = (uniform(key(4), (600,)) * 32).long().tolist()
    guess = draft_model.proposer(watching(model, lambda tokens, positions, last: sizes.append((len(tokens), last))))
    draft = guess.propose(key(1), guess.init(tokens), tokens, 2, position=600)[1]
    assert sizes == [(256, False), (256, False), (88, True), (1, True)]
    drafted, laws = alone(model, tokens, 2, SamplingParams(), 1, 600)
    assert draft.tokens.tolist() == drafted
    assert torch.allclose(draft.probs, torch.stack(laws), rtol=0, atol=1e-10)
    bare = draft_model.proposer(model._replace(prefill=None))
    assert same(bare.propose(key(1), bare.init(tokens), tokens, 2, position=600)[1], draft)


def test_an_invariant_model_drafts_the_same_bits_from_any_state() -> None:
    """In float32, laws that a state caught up with in pieces are those of one that read everything at once, all bits of them."""
    model = invariant(toy.llama(key(5), vocab_size=12, context=64, dtype=torch.float32))
    guess, tokens = draft_model.proposer(model), [1]
    state = guess.init(tokens)
    for accepted in (2, 0, 3, 1, 2):
        state, draft = guess.propose(key(1), state, tokens, 3, position=len(tokens))
        again = guess.propose(key(1), guess.init([1]), tokens, 3, position=len(tokens))[1]
        assert draft.probs.equal(again.probs)
        tokens += [*draft.tokens.tolist()[:accepted], 4]


# Where a draft ends


@pytest.mark.parametrize(("length", "drafted"), [(5, 3), (6, 2), (7, 1), (8, 0), (9, 0), (30, 0)])
def test_a_draft_ends_where_the_model_s_own_context_does(length: int, drafted: int) -> None:
    """L11: a context of 8 has places 0 to 7; asked for more, the model drafts fewer tokens or none, and reads nothing past its end."""
    places = [-1]
    model = toy.llama(key(5), vocab_size=12, context=8)
    guess = draft_model.proposer(watching(model, lambda tokens, positions, last: places.extend(positions)))
    tokens = [i % 12 for i in range(length)]
    state, draft = guess.propose(key(1), guess.init([0]), tokens, 3, position=length)
    assert (int(draft.length), tuple(draft.tokens.shape), tuple(draft.probs.shape)) == (drafted, (drafted,), (drafted, 12))
    assert max(places) < 8
    if drafted:
        wide = draft_model.proposer(SMALL)
        assert draft.tokens.equal(wide.propose(key(1), wide.init([0]), tokens, drafted, position=length)[1].tokens)
        assert int(guess.propose(key(1), state, [*tokens, *([1] * 8)], 3, position=length + 8)[1].length) == 0


@pytest.mark.parametrize("place", range(4))
def test_a_draft_ends_where_the_logits_give_no_law(place: int) -> None:
    """NaN after id 3, on the way 0, 1, 2, 3, 0: the tokens before stand, and nothing follows."""
    model = toy.bigram(torch.eye(4, dtype=torch.float64).roll(1, dims=1))

    def apply(params: Any, tokens: Any, positions: Any, kv: Any, attend: Any) -> Any:
        return torch.where(tokens[:, None] == 3, torch.nan, params[tokens]), kv

    guess = draft_model.proposer(model._replace(apply=apply))
    tokens = list(range(place + 1))
    state, draft = guess.propose(key(1), guess.init(tokens), tokens, 3, position=len(tokens))
    assert draft.tokens.tolist() == [1, 2, 3][place:]
    assert draft.probs.tolist() == torch.eye(4)[1:][place:].tolist()
    check_draft(draft, 4)
    assert int(guess.propose(key(1), state, [*tokens, 0], 2, position=len(tokens) + 1)[1].length) == 2


def test_nothing_asked_and_nothing_to_go_by() -> None:
    guess = draft_model.proposer(SMALL)
    for tokens, k in (([1, 2], 0), ([], 3), ([], 0)):
        state, draft = guess.propose(key(1), guess.init([]), tokens, k, position=len(tokens))
        assert state == guess.init([]) == Held(None, (), 0)
        assert (draft.tokens.tolist(), draft.probs.shape, int(draft.length)) == ([], (0, 12), 0)


# Two vocabularies


LAWS = torch.tensor([[4, 2, 1, 1, 0, 0], [0, 1, 1, 2, 2, 2], [3, 1, 1, 1, 1, 1], [1, 1, 2, 2, 1, 1], [0, 0, 0, 0, 4, 4], [1, 2, 3, 1, 1, 0]]) / 8


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.5, top_k=3, min_p=0.01), SamplingParams(temperature=0)])
def test_a_smaller_vocabulary_is_filled_up_with_zeros(sampling: SamplingParams) -> None:
    """N8: 6 ids drafted for 8: the last two have probability 0, and the first six what they have alone."""
    small = draft_model.proposer(toy.bigram(LAWS.double()), sampling=sampling)
    wide = draft_model.proposer(toy.bigram(LAWS.double()), sampling=sampling, vocab_size=8)
    for seed in range(20):
        one, other = (guess.propose(key(seed), guess.init([0]), [0], 4, position=1)[1] for guess in (small, wide))
        assert one.tokens.equal(other.tokens)
        assert (tuple(one.probs.shape), tuple(other.probs.shape)) == ((4, 6), (4, 8))
        assert other.probs[:, 6:].count_nonzero() == 0
        assert torch.allclose(other.probs[:, :6], one.probs, rtol=0, atol=1e-15)
        check_draft(other, 8)


def test_a_larger_vocabulary_is_cut_and_its_laws_made_whole() -> None:
    """N8: 6 ids drafted for 4: (4, 2, 1, 1) / 8 stays, (0, 1, 1, 2 | 2, 2) / 8 becomes (0, 1, 1, 2) / 4, and id 4 has no part in a draft."""
    guess = draft_model.proposer(toy.bigram(LAWS.double()), vocab_size=4)
    expected = LAWS[:4, :4].double() / LAWS[:4, :4].sum(-1, keepdim=True)
    for seed in range(40):
        draft = guess.propose(key(seed), guess.init([0]), [0], 5, position=1)[1]
        check_draft(draft, 4)
        before = [0, *draft.tokens.tolist()[:-1]]
        assert torch.allclose(draft.probs, expected[before], rtol=0, atol=1e-15)


def test_an_id_that_the_model_has_no_row_for_ends_its_drafting() -> None:
    """N8: the target may emit ids that a smaller draft model does not know; it then stands aside, without an error."""
    guess = draft_model.proposer(toy.llama(key(5), vocab_size=6, context=64), vocab_size=8)
    state, draft = guess.propose(key(1), guess.init([0]), [0, 1], 3, position=2)
    assert int(draft.length) == 3
    held, draft = guess.propose(key(1), state, [0, 1, 7], 3, position=3)
    assert (int(draft.length), tuple(draft.probs.shape)) == (0, (0, 8))
    assert held is state
    assert int(guess.propose(key(1), held, [0, 1, 5], 3, position=3)[1].length) == 3
    assert int(guess.propose(key(1), held, [0, 1, 6, 1, 1], 3, position=5)[1].length) == 0


def test_laws_of_another_size_are_refused_in_one_sentence() -> None:
    guess = draft_model.proposer(toy.bigram(LAWS.double()))
    draft = guess.propose(key(1), guess.init([0]), [0], 2, position=1)[1]
    with pytest.raises(ValueError, match=r"^draft.probs has shape \[2, 6\]; expected \[2, 8\] or None$"):
        check_draft(draft, 8)


# The factory


def test_it_says_what_it_drafts_with() -> None:
    sampling = SamplingParams(temperature=0.5)
    guess = draft_model.proposer(SMALL, sampling=sampling)
    assert (guess.name, guess.drafter[:3]) == ("draft_model", Drafter(SMALL, sampling)[:3])
    assert proposers.named(guess) is guess
    assert "draft_model" not in proposers.names
    assert proposers.ngram.proposer().drafter is None
    assert proposers.draft_model is draft_model
    with pytest.raises(AttributeError, match="has no attribute 'draught_model'"):
        proposers.draught_model  # noqa: B018


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"model": "smollm2-135m"}, TypeError, "the drafting model is 'smollm2-135m'; expected a Model"),
        ({"sampling": 0.7}, TypeError, "sampling is 0.7; expected a SamplingParams"),
        ({"vocab_size": 7.5}, TypeError, "vocab_size is 7.5; expected the target's number of ids"),
        ({"vocab_size": 0}, ValueError, "vocab_size is 0; expected the target's number of ids"),
        ({"sampling": SamplingParams(logit_bias={12: 1.0})}, ValueError, "logit_bias names id 12"),
        ({"sampling": SamplingParams(allowed_ids=[5]), "vocab_size": 5}, ValueError, "allowed_ids names id 5"),
    ],
)
def test_what_the_factory_refuses(settings: dict[str, Any], error: type[Exception], said: str) -> None:
    message = rf"^[^\n]*{re.escape(said)}[^\n]*$|Type-check error"  # with the hook, types are refused before
    with pytest.raises((error, TypeCheckError), match=message):
        draft_model.proposer(**{"model": SMALL, **settings})


def test_a_negative_number_of_tokens_is_refused() -> None:
    guess = draft_model.proposer(SMALL)
    with pytest.raises(ValueError, match=r"^k is -1; expected 0 or more tokens to propose$"):
        guess.propose(key(1), guess.init([1]), [1], -1, position=1)
