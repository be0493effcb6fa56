"""Names of tensors, against the gguf package's own map from transformers' names."""

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.weights import names

BLOCK = ("attention_norm", "q", "k", "v", "output", "ffn_norm", "gate", "up", "down")
NORMED = (*BLOCK, "q_norm", "k_norm")
TOP = ("embedding", "norm", "head")
ARCHITECTURES = {gguf.MODEL_ARCH.LLAMA: BLOCK, gguf.MODEL_ARCH.QWEN2: BLOCK, gguf.MODEL_ARCH.QWEN3: NORMED}


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_both_tables_agree_with_the_converters(architecture: gguf.MODEL_ARCH) -> None:
    table = gguf.get_tensor_name_map(architecture, 12)
    for ours in [*TOP, *(f"layers.{i}.{part}" for i in (0, 3, 11) for part in ARCHITECTURES[architecture])]:
        assert table.get_name(names.to_transformers(ours), try_suffixes=(".weight",)) == names.to_gguf(ours)


@given(layer=st.integers(0, 99_999), part=st.sampled_from(NORMED), bias=st.sampled_from(["", ".bias"]))
def test_there_and_back(layer: int, part: str, bias: str) -> None:
    ours = f"layers.{layer}.{part}{bias}"
    assert names.from_gguf([names.to_gguf(ours)]) == {ours: names.to_gguf(ours)}
    assert names.from_transformers([names.to_transformers(ours)]) == {ours: names.to_transformers(ours)}


@pytest.mark.parametrize("ours", TOP)
def test_there_and_back_at_the_top(ours: str) -> None:
    assert list(names.from_gguf([names.to_gguf(ours)])) == list(names.from_transformers([names.to_transformers(ours)])) == [ours]


def test_what_means_nothing_is_left_out() -> None:
    """F4."""
    assert names.from_gguf(["rope_freqs.weight", "blk.0.extra.weight", "blk.00.attn_q.weight", "blk.x.attn_q.weight", "", "blk.0.attn_q"]) == {}
    assert names.from_transformers(["model.layers.0.self_attn.rotary_emb.inv_freq", "visual.norm.weight", "score.weight"]) == {}


def test_a_model_saved_without_its_head_has_no_prefix() -> None:
    assert names.from_transformers(["embed_tokens.weight", "layers.1.mlp.down_proj.weight"]) == {
        "embedding": "embed_tokens.weight",
        "layers.1.down": "layers.1.mlp.down_proj.weight",
    }
