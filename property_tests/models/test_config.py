"""Reading descriptions of models: what is taken, and one sentence for what is not."""

from typing import Any

import pytest

from specdec_fn.models import Config, RopeConfig

HF = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}
GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 1e5,
    "llama.rope.dimension_count": 64,
    "tokenizer.ggml.tokens": ["x"] * 49152,
}


def test_hf_llama() -> None:
    assert Config.from_hf(HF) == Config(
        "llama",
        vocab_size=64,
        context=128,
        width=32,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        ffn=48,
        norm_eps=1e-5,
        rope=RopeConfig(base=5000.0),
    )


def test_hf_old_and_new_rope_keys_mean_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    plain = {key: value for key, value in HF.items() if key != "rope_theta"}
    old = Config.from_hf({**HF, "rope_scaling": {"type": "llama3", **scaling}})
    new = Config.from_hf({**plain, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5000.0, **scaling}})
    assert old == new
    assert old.rope == RopeConfig(base=5000.0, scaling="llama3", factor=8.0, original_context=64)


def test_hf_switches_follow_the_architecture() -> None:
    qwen2, qwen3 = (Config.from_hf({**HF, "model_type": name, "tie_word_embeddings": True, "head_dim": 16}) for name in ("qwen2", "qwen3"))
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen2.tied, qwen2.head_dim) == (True, False, True, 16)
    assert (qwen3.qkv_bias, qwen3.qk_norm) == (False, True)


def test_hf_unused_sliding_window_is_no_obstacle() -> None:
    """Qwen2 folders name a window that no layer uses."""
    named = {**HF, "model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    assert Config.from_hf({**named, "use_sliding_window": False}) == Config.from_hf({**named, "use_sliding_window": True})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt2"}, "unknown architecture 'gpt2'; expected one of llama, qwen2, qwen3"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, "sliding_attention"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "needs a factor"),
        ({"partial_rotary_factor": 0.5}, "0.5"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_key_value_heads": 3}, "4 heads and 3 kv_heads"),
        ({"num_attention_heads": 5}, "width 32 and 5 heads"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, received 0"),
        ({"rope_theta": float("nan")}, "base must be a positive finite number"),
    ],
)
def test_hf_refusals(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        Config.from_hf({**HF, **change})
    assert said in str(caught.value)


def test_gguf_of_the_embedded_model() -> None:
    assert Config.from_gguf(GGUF, tied=True) == Config(
        "llama",
        vocab_size=49152,
        context=8192,
        width=576,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        ffn=1536,
        norm_eps=1e-5,
        rope=RopeConfig(base=1e5),
        tied=True,
    )


def test_gguf_sizes_may_be_given_once_a_layer_and_the_head_width_apart() -> None:
    per_layer = {**GGUF, "llama.attention.head_count_kv": [3] * 30, "llama.attention.key_length": 32, "llama.rope.dimension_count": 32}
    config = Config.from_gguf(per_layer, tied=False)
    assert (config.kv_heads, config.head_dim, config.tied) == (3, 32, False)


def test_gguf_rope() -> None:
    scaled = {**GGUF, "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 2048}
    assert Config.from_gguf(scaled, tied=True).rope == RopeConfig(base=1e5, scaling="yarn", factor=4.0, original_context=2048)
    assert Config.from_gguf({**GGUF, "llama.rope.scale_linear": 2.0}, tied=True).rope == RopeConfig(base=1e5, scaling="linear", factor=2.0)
    assert Config.from_gguf(GGUF, tied=True, rope_divisors=[1.0, 8.0]).rope.divisors == (1.0, 8.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"general.architecture": "mamba"}, "unknown architecture 'mamba'; expected one of llama, qwen2, qwen3"),
        ({"llama.block_count": None}, "lacks 'llama.block_count'"),
        ({"tokenizer.ggml.tokens": None}, "lacks 'llama.vocab_size'"),
        ({"llama.expert_count": 8}, "expert_count = 8"),
        ({"llama.attention.sliding_window": 4096}, "window of 4096"),
        ({"llama.rope.dimension_count": 32}, "must equal the head width 64, received 32"),
        ({"llama.attention.head_count_kv": [3] * 29 + [9]}, "[3, 9]"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope' is not supported"),
    ],
)
def test_gguf_refusals(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        Config.from_gguf({**GGUF, **change}, tied=True)
    assert said in str(caught.value)


def test_a_configuration_is_a_key() -> None:
    assert len({Config.from_hf(HF), Config.from_hf(dict(HF)), Config.from_gguf(GGUF, tied=True)}) == 2


def test_an_unknown_architecture_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown architecture 'rwkv'; expected one of llama, qwen2, qwen3, toy"):
        Config("rwkv", vocab_size=1, context=1)
