"""The forward against transformers, its own pieces, and torch.func."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from specdec_fn.kv import dense
from specdec_fn.models import Config, Model, RopeConfig, causal, llama, logits

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 16,
}
PLACES = {
    "attention_norm": "input_layernorm.weight",
    "output": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    **{name: f"self_attn.{name}_proj.weight" for name in "qkv"},
    **{f"{name}.bias": f"self_attn.{name}_proj.bias" for name in "qkv"},
    **{name: f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
}
WHOLE = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}


def from_transformers(theirs: PreTrainedModel) -> Model:
    weights = theirs.state_dict()

    def get(name: str) -> torch.Tensor:
        if name in WHOLE:
            return weights[WHOLE[name]]
        _, layer, rest = name.split(".", 2)
        return weights[f"model.layers.{layer}.{PLACES[rest]}"]

    config = Config.from_hf(theirs.config.to_dict())
    return llama.model(config, llama.assemble(config, get))


def shaken(made: Callable[[Any], PreTrainedModel], config: Any) -> PreTrainedModel:
    """A model whose every parameter is random: as made, norms are 1 and biases 0, which would hide them."""
    theirs = made(config).eval()
    make = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=make))
    return theirs


def random_model(config: Config, seed: int = 0, dtype: torch.dtype = torch.float64) -> Model:
    make = torch.Generator().manual_seed(seed)
    shapes = llama.shapes(config)
    params = llama.assemble(config, lambda name: (0.3 * torch.randn(shapes[name], generator=make, dtype=torch.float64) + 0.05).to(dtype))
    return llama.model(config, params)


SMALL = Config("llama", vocab_size=17, context=64, width=12, layers=2, heads=4, kv_heads=2, head_dim=6, ffn=10, rope=RopeConfig(base=100.0))
BIASED = Config("qwen2", vocab_size=17, context=64, width=12, layers=2, heads=2, kv_heads=2, head_dim=6, ffn=10, tied=True, qkv_bias=True)
NORMED = Config("qwen3", vocab_size=17, context=64, width=12, layers=2, heads=4, kv_heads=1, head_dim=6, ffn=10, qk_norm=True)
FAMILY = pytest.mark.parametrize("config", [SMALL, BIASED, NORMED], ids=lambda config: config.architecture)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("configure", "made", "more"),
    [
        (LlamaConfig, LlamaForCausalLM, {}),
        (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 1, "num_attention_heads": 8}),
        (LlamaConfig, LlamaForCausalLM, {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}}),
        (
            LlamaConfig,
            LlamaForCausalLM,
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 500.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
            },
        ),
        (Qwen2Config, Qwen2ForCausalLM, {"head_dim": 8}),
        (
            Qwen2Config,
            Qwen2ForCausalLM,
            {
                "head_dim": 8,
                "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32},
            },
        ),
        (Qwen3Config, Qwen3ForCausalLM, {}),
    ],
)
def test_logits_are_those_of_transformers(configure: Any, made: Any, more: dict[str, Any], tied: bool) -> None:
    theirs = shaken(made, configure(**{**SIZES, **more}, tie_word_embeddings=tied, attn_implementation="eager"))
    ours = from_transformers(theirs)
    tokens = torch.arange(40) * 7 % 64
    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0]
        torch.testing.assert_close(logits(ours, tokens), expected, atol=1e-5, rtol=1e-5)
    assert (ours.params.head is None) == tied


@FAMILY
def test_five_rows_on_a_cache_of_seven_are_five_single_passes(config: Config) -> None:
    """G3: logits, keys and values of a verify window are those of single tokens."""
    model = random_model(config, dtype=torch.float32)
    tokens = torch.arange(12) * 5 % 17

    def start() -> dense.DenseCache:
        cache = dense.init(config, 16, dtype=torch.float32)
        return dense.advance(model.apply(model.params, tokens[:7], torch.arange(7), cache, dense.attend)[1], 7)

    together, wide = model.apply(model.params, tokens[7:], torch.arange(7, 12), start(), dense.attend)
    narrow, alone = start(), []
    for position in range(7, 12):
        row, narrow = model.apply(model.params, tokens[position : position + 1], torch.tensor([position]), narrow, dense.attend)
        narrow = dense.advance(narrow, 1)
        alone.append(row)
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=0)
    for layer in range(config.layers):
        torch.testing.assert_close(wide.keys[layer][:12], narrow.keys[layer][:12], atol=1e-4, rtol=0)
        torch.testing.assert_close(wide.values[layer][:12], narrow.values[layer][:12], atol=1e-4, rtol=0)
    torch.testing.assert_close(together, logits(model, tokens)[7:], atol=1e-4, rtol=0)


@FAMILY
def test_prefill_leaves_the_cache_that_apply_leaves(config: Config) -> None:
    model = random_model(config)
    assert model.prefill is not None
    tokens, positions = torch.arange(9) % 17, torch.arange(9)
    filled = model.prefill(model.params, tokens, positions, dense.init(config, 12, dtype=torch.float64), dense.attend)
    applied = model.apply(model.params, tokens, positions, dense.init(config, 12, dtype=torch.float64), dense.attend)[1]
    assert all(map(torch.equal, (*filled.keys, *filled.values), (*applied.keys, *applied.values)))


@FAMILY
def test_gradients_through_the_parameters(config: Config) -> None:
    """The derivative along a direction against a central difference, in float64."""
    model = random_model(config)
    tokens = torch.tensor([3, 1, 4, 1, 5])

    def loss(params: Any) -> torch.Tensor:
        return model.apply(params, tokens, torch.arange(5), None, causal)[0].logsumexp(-1).sum()

    gradient = torch.func.grad(loss)(model.params)
    make = torch.Generator().manual_seed(1)
    way = pytree.tree_map(lambda leaf: torch.randn(leaf.shape, generator=make, dtype=leaf.dtype), model.params)

    def moved(step: float) -> torch.Tensor:
        return loss(pytree.tree_map(lambda leaf, by: leaf + step * by, model.params, way))

    expected = (moved(1e-5) - moved(-1e-5)) / 2e-5
    leaves = zip(pytree.tree_leaves(gradient), pytree.tree_leaves(way), strict=True)
    found = sum(((g * by).sum() for g, by in leaves), torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@FAMILY
def test_a_stack_of_parameters_under_vmap(config: Config) -> None:
    models = [random_model(config, seed) for seed in range(3)]
    tokens = torch.tensor([3, 1, 4, 1, 5])
    stack = pytree.tree_map(lambda *leaves: torch.stack(leaves), *(model.params for model in models))
    lifted = torch.func.vmap(lambda params: models[0].apply(params, tokens, torch.arange(5), None, causal)[0])(stack)
    torch.testing.assert_close(lifted, torch.stack([logits(model, tokens) for model in models]))


def test_a_second_derivative() -> None:
    """A Hessian-vector product through the whole pass against a difference of gradients."""
    model = random_model(SMALL)
    flat, spec = pytree.tree_flatten(model.params)

    def loss(leaves: list[torch.Tensor]) -> torch.Tensor:
        return logits(model._replace(params=pytree.tree_unflatten(leaves, spec)), [3, 1, 4]).logsumexp(-1).sum()

    found = torch.func.grad(lambda leaves: sum((g.sum() for g in torch.func.grad(loss)(leaves)), torch.zeros((), dtype=torch.float64)))(flat)
    up, down = (torch.func.grad(loss)([leaf + step for leaf in flat]) for step in (1e-5, -1e-5))
    for h, a, b in zip(found, up, down, strict=True):
        torch.testing.assert_close(h, (a - b) / 2e-5, rtol=1e-5, atol=1e-5)


def test_query_heads_read_their_own_group() -> None:
    """Query head h reads key-value head h // (H / HK), not h % HK; here head 1 must read key head 0."""
    value = torch.tensor([[[1.0, 1.0], [2.0, 2.0]]])
    out, _ = causal(None, 0, torch.ones(1, 4, 2), torch.ones(1, 2, 2), value)
    assert out[0, :, 0].tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2), (torch.float16, 0.03)])
def test_other_dtypes_run_and_are_near_float64(dtype: torch.dtype, near: float) -> None:
    exact, rough = random_model(SMALL), random_model(SMALL, dtype=dtype)
    tokens = torch.arange(9) % 17
    cache = dense.advance(rough.apply(rough.params, tokens[:4], torch.arange(4), dense.init(SMALL, 9, dtype=dtype), dense.attend)[1], 4)
    found, _ = rough.apply(rough.params, tokens[4:], torch.arange(4, 9), cache, dense.attend)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), logits(exact, tokens)[4:], atol=near, rtol=near)


def test_parameters_of_another_dtype_fit_the_same_model() -> None:
    model = random_model(SMALL, dtype=torch.float32)
    wide = pytree.tree_map(torch.Tensor.double, model.params)
    found = logits(model._replace(params=wide), [1, 2, 3])
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, logits(llama.model(SMALL, wide), [1, 2, 3]), rtol=1e-7, atol=1e-7)


def test_assemble_asks_once_and_only_for_what_is_there() -> None:
    for config in (SMALL, BIASED, NORMED):
        asked: list[str] = []

        def get(name: str, config: Config = config, asked: list[str] = asked) -> torch.Tensor:
            asked.append(name)
            return torch.zeros(llama.shapes(config)[name])

        llama.assemble(config, get)
        assert sorted(asked) == sorted(llama.shapes(config))
    assert "head" not in llama.shapes(BIASED)
    assert "layers.1.v.bias" in llama.shapes(BIASED)
    assert "layers.1.k_norm" in llama.shapes(NORMED)


def test_refusals() -> None:
    shapes = {**llama.shapes(SMALL), "layers.1.up": (12, 10)}
    with pytest.raises(ValueError, match=r"tensor layers\.1\.up has shape \(12, 10\); the configuration expects \(10, 12\)"):
        llama.assemble(SMALL, lambda name: torch.zeros(shapes[name]))
    params = random_model(SMALL).params
    with pytest.raises(ValueError, match="1 blocks; the configuration expects 2"):
        llama.model(SMALL, dataclasses.replace(params, layers=params.layers[:1]))
    with pytest.raises(ValueError, match="'toy' is not of the Llama family; expected one of llama, qwen2, qwen3"):
        llama.model(Config("toy", vocab_size=17, context=64), params)
    with pytest.raises(ValueError, match=r"\[0, 17\), received 17"):
        logits(random_model(SMALL), [17])
