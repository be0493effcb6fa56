"""DESIGN rule 7: in the invariant form no bit of a token's logits depends on how the tokens were cut into passes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn.kv import dense
from specdec_fn.load import load
from specdec_fn.models import Config, Model, RopeConfig, invariant, llama, logits

ODD = Config("llama", vocab_size=33, context=64, width=10, layers=2, heads=3, kv_heads=1, head_dim=6, ffn=23, rope=RopeConfig(base=100.0))
BIASED = Config("qwen2", vocab_size=64, context=64, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=64, tied=True, qkv_bias=True)
NORMED = Config("qwen3", vocab_size=64, context=64, width=32, layers=2, heads=4, kv_heads=4, head_dim=14, ffn=96, qk_norm=True)
REAL = Config("llama", vocab_size=640, context=512, width=576, layers=2, heads=9, kv_heads=3, head_dim=64, ffn=1536, tied=True)


def random_model(config: Config, dtype: torch.dtype) -> Model:
    make = torch.Generator().manual_seed(0)
    shapes = llama.shapes(config)
    params = llama.assemble(config, lambda name: (0.2 * torch.randn(shapes[name], generator=make) + 0.1 * ("norm" in name)).to(dtype))
    return llama.model(config, params)


def in_passes(model: Model, tokens: torch.Tensor, sizes: list[int], capacity: int) -> torch.Tensor:
    """Logits of all tokens, run in passes of the given sizes, the last size repeated; slots hold garbage until they are written."""
    cache = dense.init(model.config, capacity, dtype=model.params.embedding.dtype)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(float("nan"))
    rows, at, sizes = [], 0, list(sizes)
    while at < len(tokens):
        size = min(sizes.pop(0) if len(sizes) > 1 else sizes[0], len(tokens) - at)
        out, cache = model.apply(model.params, tokens[at : at + size], torch.arange(at, at + size), cache, dense.attend_invariant)
        cache = dense.advance(cache, size)
        rows.append(out)
        at += size
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("config", [ODD, BIASED, NORMED], ids=lambda config: config.architecture)
def test_any_cut_gives_the_bits_of_single_rows(config: Config, dtype: torch.dtype) -> None:
    model = invariant(random_model(config, dtype))
    tokens = torch.arange(30) * 11 % config.vocab_size
    single = in_passes(model, tokens, [1], 30)

    @settings(max_examples=max(10, settings.default.max_examples // 3))
    @given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(30, 41))
    def any_cut(sizes: list[int], capacity: int) -> None:
        assert torch.equal(in_passes(model, tokens, sizes, capacity), single)

    any_cut()


def test_the_sizes_of_the_embedded_model() -> None:
    model = invariant(random_model(REAL, torch.float32))
    tokens = torch.arange(80) * 101 % REAL.vocab_size
    single = in_passes(model, tokens, [1], 80)
    for rows in (2, 3, 4, 5, 6, 7, 8, 13, 64, 80):
        assert torch.equal(in_passes(model, tokens, [rows], 80 + rows), single), rows


def test_the_embedded_model() -> None:
    """A prompt in chunks, then windows of drafts of which some are rejected, against one row at a time."""
    model = invariant(load("smollm2-135m")[0])
    tokens = torch.tensor([504, 3575, 282, 4649, 314, 7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33])
    single = in_passes(model, tokens, [1], 17)
    assert torch.equal(in_passes(model, tokens, [5, 6, 2, 4], 64), single)
    assert torch.equal(in_passes(model, tokens, [17], 32), single)
    torch.testing.assert_close(single, logits(model, tokens), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("config", [ODD, BIASED, NORMED], ids=lambda config: config.architecture)
def test_it_is_the_same_model(config: Config) -> None:
    model = random_model(config, torch.float64)
    same = invariant(model)
    tokens = torch.arange(20) % config.vocab_size
    torch.testing.assert_close(in_passes(same, tokens, [7], 20), logits(model, tokens), atol=1e-10, rtol=1e-10)
    assert same.params is model.params
    assert same.prefill is not None
    filled = same.prefill(model.params, tokens, torch.arange(20), dense.init(config, 20, dtype=torch.float64), dense.attend_invariant)
    applied = same.apply(model.params, tokens, torch.arange(20), dense.init(config, 20, dtype=torch.float64), dense.attend_invariant)[1]
    assert all(map(torch.equal, (*filled.keys, *filled.values), (*applied.keys, *applied.values)))


def test_a_model_without_the_form_says_so() -> None:
    with pytest.raises(ValueError, match="this qwen3 model has no invariant form"):
        invariant(random_model(NORMED, torch.float32)._replace(invariant=None))
