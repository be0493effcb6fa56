"""Rules 3 and 7 on the embedded model: one token sequence a seed and one row of logits a prefix, whoever drafts and however many share a forward."""

from typing import Any

import pytest
import torch

from specdec_fn.engine import attention
from specdec_fn.kv import dense
from specdec_fn.load import load
from specdec_fn.models import Model, product, toy
from specdec_proofs import one_sequence
from specdec_proofs.one_sequence import Case, Seen, cases, compare, reference

PROMPTS = ("The capital of France is", "one two three one two")
COUNT = 5


@pytest.fixture(scope="module")
def embedded() -> tuple[Model, Any]:
    return load("smollm2-135m")


@pytest.fixture(scope="module")
def references(embedded: tuple[Model, Any]) -> dict[str, list[one_sequence.Reference]]:
    model, tokenizer = embedded
    return {rule: [reference(model, tokenizer.encode(text), COUNT, rule, seed=3) for text in PROMPTS] for rule in ("coupled", "greedy")}


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: "-".join(map(str, case)))
def test_one_sequence_and_the_same_bits(case: Case, embedded: tuple[Model, Any], references: dict[str, list[one_sequence.Reference]]) -> None:
    """S1, S5, G2: nothing that is drafted, and nobody in the batch, changes a token or a bit."""
    known = references[case.verifier] * (case.batch // 4 + 1)  # a batch of four is both prompts twice
    seen = compare(embedded[0], known, case, seed=3)
    assert (seen.other_tokens, seen.other_rows) == (0, 0)
    assert seen.tokens == len(known) * COUNT
    assert seen.rows >= seen.tokens
    if case.proposer == "right" and case.k >= 3:
        assert seen.passes < seen.tokens


def test_the_reference_is_known_to_be_right(references: dict[str, list[one_sequence.Reference]]) -> None:
    """Section 0 of the known faults: the greedy continuation, from another forward."""
    assert list(references["greedy"][0].tokens) == [7042, 30, 198, 198, 504]
    assert references["coupled"][0].tokens != references["greedy"][0].tokens


def test_ordinary_attention_or_products_are_seen_by_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a row computed another way has other bits, though nearly the same numbers."""
    torch.manual_seed(0)
    model = load("smollm2-135m")[0]
    known = [reference(model, [504, 3575, 282, 4649, 314], 4, "greedy")]
    monkeypatch.setattr(dense, "FEW", 0)  # torch's own attention, whose sums depend on the rows
    mixed = attention.INVARIANT._replace(chain=lambda *given: dense.attend(*given))
    monkeypatch.setattr(one_sequence, "INVARIANT", mixed)
    assert compare(model, known, Case("greedy", "right", 3, 1)).other_rows > 0


def test_a_rule_whose_tokens_depend_on_the_draft_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token verification is lossless and is no coupling: with other drafts the same seed gives other tokens."""
    table = torch.softmax(torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64), -1)
    model = toy.bigram(table)
    from specdec_fn.speculate import verifiers

    monkeypatch.setattr(verifiers, "all", {**verifiers.all, "coupled": verifiers.all["token"]})
    known = [reference(model, [0], 40, "coupled")]
    assert compare(model, known, Case("coupled", "random", 3, 1)).other_tokens > 0
    assert compare(model, known, Case("coupled", "none", 0, 1)) == Seen(40, 0, 40, 0, 40)


def test_tiles_of_another_size_are_other_bits() -> None:
    """Why the tile is fixed: the same row in a product of another width may end in other bits."""
    rows, weight = torch.randn(8, 576, generator=torch.Generator().manual_seed(2)), torch.randn(1536, 576, generator=torch.Generator().manual_seed(3))
    assert product.tiled(rows[:1], weight).equal(product.tiled(rows, weight)[:1])
