"""A bigram model is its table."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.kv import dense
from specdec_fn.models import invariant, logits, toy

TABLE = torch.tensor([[1 / 2, 1 / 4, 1 / 4], [1 / 10, 6 / 10, 3 / 10], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_row_t_is_the_law_after_token_t(tokens: list[int]) -> None:
    found = logits(toy.bigram(TABLE), tokens)
    assert found.dtype is torch.float64
    for row, token in zip(found.tolist(), tokens, strict=True):
        assert row == pytest.approx([math.log(p) for p in TABLE[token].tolist()], abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_are_minus_infinity_and_the_dtype_stays(dtype: torch.dtype) -> None:
    found = logits(toy.bigram(torch.eye(3, dtype=dtype)), [1])
    assert found.dtype is dtype
    assert found.tolist() == [[-math.inf, 0.0, -math.inf]]


def test_it_runs_on_a_cache_without_layers() -> None:
    model = toy.bigram(TABLE)
    cache = dense.init(model.config, 4, dtype=torch.float64)
    out, cache = model.apply(model.params, torch.tensor([2, 1]), torch.tensor([0, 1]), cache, dense.attend)
    assert torch.equal(out, TABLE[[2, 1]].log())
    cache = dense.grow(dense.truncate(dense.advance(cache, 2), 1), 8)
    assert (cache.length, cache.capacity, cache.keys) == (1, 8, ())
    assert model.prefill is not None
    assert model.prefill(model.params, torch.tensor([0]), torch.tensor([1]), cache, dense.attend) is cache
    assert invariant(model).apply is model.apply


def test_gradients_reach_the_table() -> None:
    model = toy.bigram(TABLE)
    found = torch.func.grad(lambda params: model.apply(params, torch.tensor([2, 2]), torch.tensor([0, 1]), None, None)[0].sum())(model.params)
    assert torch.equal(found, torch.tensor([[0.0] * 3, [0.0] * 3, [2.0] * 3], dtype=torch.float64))


@pytest.mark.parametrize(
    ("table", "error", "said"),
    [
        (torch.eye(2, dtype=torch.int64), TypeError, "received torch.int64"),
        (torch.ones(2, 3) / 3, ValueError, "shape (2, 3)"),
        (torch.ones(0, 0), ValueError, "shape (0, 0)"),
        (torch.tensor([[1.5, -0.5], [0.5, 0.5]]), ValueError, "negative or non-finite"),
        (torch.tensor([[math.nan, 0.5], [0.5, 0.5]]), ValueError, "negative or non-finite"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.5 + 3e-6]]), ValueError, "off by 2.98e-06"),
    ],
)
def test_refusals(table: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=r"^[^\n]+$") as caught:
        toy.bigram(table)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("tokens", "error", "said"),
    [
        ([], ValueError, "at least one token"),
        ([0, 3], ValueError, "[0, 3), received 3"),
        ([-1], ValueError, "[0, 3), received -1"),
        (torch.tensor([0.5]), TypeError, "torch.float32"),
        ([True], TypeError, "torch.bool"),
        (torch.tensor([[0, 1]]), ValueError, "shape (1, 2)"),
        ([0] * 5, ValueError, "5 tokens do not fit into the model's context of 4"),
    ],
)
def test_logits_refuses_what_are_no_tokens(tokens: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=r"^[^\n]+$") as caught:
        logits(toy.bigram(TABLE, context=4), tokens)
    assert said in str(caught.value)
