"""The pass with the vocabulary head for some of its rows: those rows of the whole pass, and the same keys and values."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn.kv import dense
from specdec_fn.models import Config, Model, RopeConfig, invariant, llama, toy
from specdec_fn.random import key

PLAIN = Config("llama", vocab_size=33, context=64, width=12, layers=2, heads=3, kv_heads=1, head_dim=6, ffn=23, rope=RopeConfig(base=100.0))
TIED = Config("llama", vocab_size=64, context=64, width=16, layers=2, heads=2, kv_heads=2, head_dim=8, ffn=32, tied=True)
BIASED = Config("qwen2", vocab_size=64, context=64, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=64, tied=True, qkv_bias=True)
NORMED = Config("qwen3", vocab_size=64, context=64, width=32, layers=1, heads=4, kv_heads=4, head_dim=14, ffn=96, qk_norm=True)
FORMS = pytest.mark.parametrize("config", [PLAIN, TIED, BIASED, NORMED], ids=["llama", "tied", "qwen2", "qwen3"])
BEFORE, COUNT = 3, 9  # tokens in the cache, and rows of the pass


def random_model(config: Config, dtype: torch.dtype) -> Model:
    make = torch.Generator().manual_seed(0)
    shapes = llama.shapes(config)
    return llama.model(config, llama.assemble(config, lambda name: (0.3 * torch.randn(shapes[name], generator=make) + 0.05).to(dtype)))


def started(model: Model, attend: dense.Attend) -> dense.DenseCache:
    """A cache that holds the first tokens."""
    cache = dense.init(model.config, 16, dtype=model.params.embedding.dtype)
    ids = torch.arange(BEFORE) * 7 % model.config.vocab_size
    return dense.advance(model.apply(model.params, ids, torch.arange(BEFORE), cache, attend)[1], BEFORE)


def both(model: Model, attend: dense.Attend, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of the whole pass, and what ``apply_at`` gives; the caches are the same."""
    args = model.params, torch.arange(COUNT) * 11 % model.config.vocab_size, torch.arange(BEFORE, BEFORE + COUNT)
    asked = torch.tensor(list(rows), dtype=torch.int64)
    whole, expected = model.apply(*args, started(model, attend), attend)
    assert model.apply_at is not None
    some, cache = model.apply_at(*args, started(model, attend), attend, asked)
    for layer in range(model.config.layers):
        assert cache.keys[layer].equal(expected.keys[layer])
        assert cache.values[layer].equal(expected.values[layer])
    return whole[asked], some


@FORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_in_the_invariant_form_every_bit_is_that_of_the_whole_pass(config: Config, dtype: torch.dtype) -> None:
    model = invariant(random_model(config, dtype))

    @settings(max_examples=max(8, settings.default.max_examples // 5))
    @given(st.lists(st.integers(0, COUNT - 1), max_size=12))
    def any_rows(rows: list[int]) -> None:
        whole, some = both(model, dense.attend_invariant, rows)
        assert some.dtype is torch.promote_types(dtype, torch.float32)
        assert some.shape == (len(rows), config.vocab_size)
        assert some.equal(whole)

    any_rows()


@FORMS
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_rows_of_the_pass_up_to_rounding(config: Config, dtype: torch.dtype, tolerance: float) -> None:
    """The head's product adds in an order that depends on how many rows there are; all rows at once are the very same call."""
    model = random_model(config, dtype)
    for rows in ([COUNT - 1], [0, 4, 8], [5, 2, 2], [*range(COUNT)], []):
        whole, some = both(model, dense.attend, rows)
        assert some.shape == (len(rows), config.vocab_size)
        torch.testing.assert_close(some, whole, atol=tolerance, rtol=tolerance)
    assert both(model, dense.attend, range(COUNT))[1].equal(both(model, dense.attend, range(COUNT))[0])


def test_the_small_models() -> None:
    """The random Llama has the pass in both forms; the bigram, whose rows cost nothing, has not."""
    for model in (toy.llama(key(0), layers=1), invariant(toy.llama(key(0), layers=1))):
        whole, some = both(model, dense.attend_invariant, [6, 1])
        torch.testing.assert_close(some, whole, atol=1e-13, rtol=1e-13)
    assert toy.bigram(torch.eye(2)).apply_at is None
