"""Proposers that are asked in turn, their names, and the two halves by which a loop or an engine runs a drafting model itself."""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import generate
from specdec_fn.models import toy
from specdec_fn.random import key
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import Draft, Proposer, proposers
from specdec_fn.speculate.proposers import draft_model, early_exit, first, ngram, paying, scripted, suffix

TARGET = toy.llama(key(3), layers=3)
T = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
D = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.2, 0.3], [2 / 3, 1 / 6, 1 / 6]], dtype=torch.float64)


def counting(name: str, drafted: list[list[int]]) -> Proposer:
    """Drafts one list after another; its state is how often it was asked."""

    def propose(key: Any, state: int, tokens: Any, k: int, *, position: int) -> tuple[int, Draft]:
        return state + 1, proposers.draft_model.chain(drafted[state % len(drafted)], k)

    return Proposer(name, lambda prompt: 0, propose)


def test_the_first_that_drafts_wins_and_who_was_not_asked_keeps_its_state() -> None:
    both = first.proposer(counting("a", [[], [5], []]), counting("b", [[], [7, 8]]), counting("c", [[9]]))
    state, seen = both.init([1]), []
    for _ in range(4):
        state, draft = both.propose(key(0), state, [1], 3, position=1)
        seen.append((draft.tokens[: int(draft.length)].tolist(), state))
    assert both.name == "a+b+c"
    assert seen == [([9], (1, 1, 1)), ([5], (2, 1, 1)), ([7, 8], (3, 2, 1)), ([9], (4, 3, 2))]


def test_what_cannot_be_composed_is_refused() -> None:
    soft = early_exit.proposer(TARGET, 1)
    with pytest.raises(ValueError, match=r"^there are no proposers; expected at least one$"):
        first.proposer()
    with pytest.raises(TypeError, match=r"^one of the proposers is 'ngram'; expected a Proposer$"):
        first.proposer("ngram")  # type: ignore[arg-type]
    for order in ((soft, ngram.proposer()), (soft, draft_model.proposer(TARGET))):
        with pytest.raises(ValueError, match=r"^proposer 'early_exit' drafts with a model and is not the last; expected it as the last one$"):
            first.proposer(*order)


def test_drafts_with_and_without_laws_keep_the_joint_law() -> None:
    """One-hot where the text repeats, drawn where it does not: three tokens have the law of the target (chi-squared, 26 degrees of freedom)."""
    mixed = first.proposer(ngram.proposer(n_min=2), draft_model.proposer(toy.bigram(D)))
    kinds: Counter[bool] = Counter()

    def watched(*given: Any, **more: Any) -> Any:
        state, draft = mixed.propose(*given, **more)
        kinds[draft.probs is None] += 1
        return state, draft

    counts, n = Counter(), 1500
    for seed in range(n):
        done = generate(toy.bigram(T), [0, 1, 2, 0, 1], seed=seed, proposer=mixed._replace(propose=watched), k=2, max_tokens=3)
        counts[tuple(done.tokens)] += 1
    exact = {(a, b, c): float(T[1, a] * T[a, b] * T[b, c]) for a, b, c in itertools.product(range(3), repeat=3)}
    assert sum((counts[cell] - n * p) ** 2 / (n * p) for cell, p in exact.items()) < 75.55
    assert min(kinds.values()) > 100


# By name


@pytest.mark.parametrize(
    ("name", "drafts_with"), [("suffix", None), ("ngram+suffix", None), ("early_exit", 2), ("ngram+early_exit", 2), ("suffix+ngram+early_exit", 2)]
)
def test_names_are_resolved(name: str, drafts_with: int | None) -> None:
    made = proposers.named(name, TARGET, SamplingParams(0.5))
    assert made.name == name
    if drafts_with is None:
        assert made.drafter is None
    else:
        assert made.drafter is not None
        assert (made.drafter.model.config.layers, made.drafter.sampling, made.drafter.shares) == (drafts_with, SamplingParams(0.5), True)


def test_a_model_that_was_made_is_not_made_again() -> None:
    made = proposers.drafting("early_exit", TARGET)
    again = proposers.named("ngram+early_exit", TARGET, made={"early_exit": made})
    assert again.drafter is not None
    assert again.drafter.model is made


@pytest.mark.parametrize("name", ["psychic", "ngram+psychic", "ngram+", "", "+", 5, None, ["ngram"]])
def test_an_unknown_name_lists_the_known(name: Any) -> None:
    with pytest.raises(ValueError, match=r"expected a Proposer or one of the names ngram, ngram_tree, suffix, early_exit, quantized, draft_model "):
        proposers.named(name, TARGET)


@pytest.mark.parametrize("name", ["adaptive", "ngram+adaptive"])
def test_adaptive_is_no_name_since_it_wraps_another(name: str) -> None:
    with pytest.raises(ValueError, match=r"adaptive wraps another proposer and needs a measured curve; .*--k auto"):
        proposers.named(name, TARGET)


def test_what_a_name_lacks_is_said() -> None:
    with pytest.raises(ValueError, match=r"^proposer 'early_exit' drafts with the target's own weights; expected the target with the name$"):
        proposers.named("ngram+early_exit")
    with pytest.raises(ValueError, match=r"^proposer 'draft_model' drafts with a second model; expected one with the name, or draft_model"):
        proposers.named("draft_model", TARGET)
    with pytest.raises(TypeError, match=r"^the model is a toy model without blocks; expected one of the Llama family$"):
        proposers.named("early_exit", toy.bigram(T))
    with pytest.raises(ValueError, match=r"^the name is 'ngram'; expected one of early_exit, quantized$"):
        proposers.drafting("ngram", TARGET)


# Two halves


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6), st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=9), st.integers(0, 5)
)
def test_asked_by_halves_a_proposer_drafts_what_it_drafts_alone(prompt: list[int], emitted: list[list[int]], k: int) -> None:
    """``ask``, the model, ``told`` against ``propose``, for every wrapper, on the same committed tokens."""
    small = toy.llama(key(9), vocab_size=4, layers=1)
    own = draft_model.proposer(small)
    for whole in (
        own,
        paying.proposer(own, least=1.0),
        first.proposer(suffix.proposer(3), paying.proposer(own)),
        paying.proposer(first.proposer(own)),
    ):
        assert whole.drafter is not None
        tokens, state, halves = list(prompt), whole.init(prompt), whole.init(prompt)
        inner = own.init(prompt)
        for more in ([], *emitted):
            tokens += more
            state, draft = whole.propose(key(1), state, tokens, k, position=len(tokens))
            halves, asked = whole.drafter.ask(key(1), halves, tokens, k, position=len(tokens))
            if not isinstance(asked, Draft):
                inner, asked = own.propose(key(1), inner, tokens, asked, position=len(tokens))
                halves = whole.drafter.told(halves, tokens, asked)
            assert asked.tokens[: int(asked.length)].tolist() == draft.tokens[: int(draft.length)].tolist()
            assert (asked.probs is None) == (draft.probs is None) or not int(draft.length)


def test_another_form_of_the_model_reaches_every_part() -> None:
    small, other = toy.llama(key(9)), toy.llama(key(10))
    own = first.proposer(ngram.proposer(), paying.proposer(draft_model.proposer(small, sampling=SamplingParams(0.5)), least=3.0))
    assert own.drafter is not None
    assert own.drafter.again is not None
    again = own.drafter.again(other, 40)
    assert (again.name, again.drafter.model, again.drafter.sampling) == ("ngram+draft_model", other, SamplingParams(0.5))
    draft = again.propose(key(0), again.init([1, 2, 3]), [1, 2, 3], 2, position=3)[1]
    assert draft.probs.shape == (2, 40)
    assert scripted.proposer(lambda context: []).drafter is None
