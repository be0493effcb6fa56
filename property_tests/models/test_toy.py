"""A bigram model is its table; a small Llama has the weights that its key says, and hears every token."""

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from specdec_fn.kv import dense
from specdec_fn.models import invariant, logits, toy
from specdec_fn.models.llama import shapes
from specdec_fn.random import fold_in, key, split, uniform

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


WORDS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9])


def test_a_small_llama_has_the_weights_of_its_key() -> None:
    model = toy.llama(key(3))
    names = list(shapes(model.config))
    drawn = 2 * uniform(fold_in(key(3), names.index("layers.1.down")), (16, 32)) - 1  # on [-1, 1), variance 1/3
    assert torch.allclose(model.params.layers[1].down, drawn * (3 / 32) ** 0.5, rtol=1e-15, atol=0)
    assert torch.equal(model.params.layers[0].attention_norm, torch.ones(16, dtype=torch.float64))
    assert torch.equal(logits(model, WORDS), logits(toy.llama(key(3)), WORDS))
    assert not torch.allclose(logits(model, WORDS), logits(toy.llama(key(4)), WORDS), atol=0.1)


def test_a_small_llama_at_fewer_bits_is_the_same_model_rounded() -> None:
    fine, coarse = toy.llama(key(3)), toy.llama(key(3), dtype=torch.bfloat16)
    assert torch.equal(fine.params.head.to(torch.bfloat16), coarse.params.head)
    assert logits(coarse, WORDS).dtype is torch.float32  # logits are wide, whatever the weights are
    assert torch.allclose(logits(coarse, WORDS).double(), logits(fine, WORDS), atol=0.2)


@pytest.mark.parametrize("seed", range(4))
def test_the_laws_of_a_small_llama_are_neither_flat_nor_one_hot(seed: int) -> None:
    """A flat law of 32 ids has 3.47 nats, a one-hot one 0; normal logits of deviation s cost s^2 / 2 of the former: here 1.1."""
    laws = logits(toy.llama(key(seed)), (uniform(key(seed), (200,)) * 32).long()).softmax(-1)
    entropy = -(laws * laws.log()).sum(-1)
    assert 2.0 < float(entropy.mean()) < 3.0
    assert float(entropy.min()) > 0.5
    assert float(laws.amax()) < 0.9


def test_a_small_llama_hears_every_token_and_none_that_comes_later() -> None:
    model = toy.llama(key(0))
    here = logits(model, WORDS)
    for place in range(len(WORDS)):
        other = logits(model, torch.cat([WORDS[:place], WORDS[place : place + 1] + 10, WORDS[place + 1 :]]))
        assert torch.allclose(other[:place], here[:place], rtol=0, atol=1e-12)
        assert bool(((other[place:] - here[place:]).abs().amax(-1) > 1e-6).all())


def test_a_small_llama_on_a_cache_is_the_cold_pass() -> None:
    model = toy.llama(key(0), layers=1, heads=4, kv_heads=2, head_dim=4)
    cache, rows = dense.init(model.config, 16, dtype=torch.float64), []
    for chunk in (WORDS[:6], WORDS[6:7], WORDS[7:]):
        positions = torch.arange(cache.length, cache.length + len(chunk))
        out, cache = model.apply(model.params, chunk, positions, cache, dense.attend)
        rows.append(out)
        cache = dense.advance(cache, len(chunk))
    assert torch.allclose(torch.cat(rows), logits(model, WORDS), atol=1e-12)


@pytest.mark.parametrize(
    ("given", "more", "error", "said"),
    [
        (3, {}, TypeError, "the key is 3; expected one key"),
        (split(key(0), 2), {}, TypeError, "the key is keys of shape [2]; expected one key"),
        (key(0), {"dtype": torch.int64}, TypeError, "dtype is torch.int64; expected a floating-point dtype"),
        (key(0), {"dtype": "float32"}, TypeError, "dtype is 'float32'; expected a floating-point dtype"),
        (key(0), {"heads": 3, "kv_heads": 2}, ValueError, "received 3 heads and 2 kv_heads"),
        (key(0), {"layers": 0}, ValueError, "layers must be at least 1, received 0"),
    ],
)
def test_what_a_small_llama_refuses(given: Any, more: dict[str, Any], error: type[Exception], said: str) -> None:
    message = rf"^[^\n]*{re.escape(said)}[^\n]*$|Type-check error"  # with the hook, types are refused before
    with pytest.raises((error, TypeCheckError), match=message):
        toy.llama(given, **more)
