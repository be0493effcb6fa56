"""Rotary positions against transformers' frequencies and against complex numbers."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specdec_fn.models.config import Config
from specdec_fn.models.rope import RopeConfig, attention_factor, frequencies, rotate, rotation

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        YARN,
        {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.7, "truncate": False},
        {**YARN, "mscale": 0.8, "mscale_all_dim": 0.5},
    ],
)
@pytest.mark.parametrize("head_dim", [8, 64])
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any], head_dim: int) -> None:
    sizes = {"hidden_size": 4 * head_dim, "num_attention_heads": 4, "max_position_embeddings": 256, "head_dim": head_dim}
    theirs = LlamaConfig(**sizes, rope_parameters={"rope_theta": 10_000.0, **scaling})
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, "cpu")
    ours = Config.from_hf(theirs.to_dict()).rope
    torch.testing.assert_close(frequencies(ours, head_dim).float(), expected, rtol=1e-6, atol=1e-9)
    assert attention_factor(ours) == pytest.approx(factor, rel=1e-12)


def test_divisors_divide_the_frequencies() -> None:
    """F4: GGUF files of Llama 3 carry the stretching as a tensor, rope_freqs.weight."""
    plain = frequencies(RopeConfig(), 4)
    assert torch.equal(frequencies(RopeConfig(divisors=(1.0, 8.0)), 4), plain / torch.tensor([1.0, 8.0]))
    with pytest.raises(ValueError, match="2 planes of a head, received 3"):
        frequencies(RopeConfig(divisors=(1.0, 2.0, 3.0)), 4)


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=5), st.sampled_from([2, 6, 16]))
def test_each_plane_turns_by_a_complex_number(positions: list[int], head_dim: int) -> None:
    rope = RopeConfig(base=1000.0)
    cos, sin = rotation(torch.tensor(positions), frequencies(rope, head_dim), 1.5, torch.float64, (3, 2, 1))
    heads = torch.linspace(-1, 1, len(positions) * 6 * head_dim, dtype=torch.float64).view(len(positions), 6, head_dim)
    turned = rotate(heads, cos, sin)
    half = head_dim // 2
    for t, position in enumerate(positions):
        for plane in range(half):
            angle = position * 1000.0 ** (-plane / half)
            factor = 1.5 * complex(math.cos(angle), math.sin(angle))
            for head in range(5):
                expected = complex(heads[t, head, plane], heads[t, head, plane + half]) * factor
                assert abs(complex(turned[t, head, plane], turned[t, head, plane + half]) - expected) < 1e-9
    assert torch.equal(turned[:, 5], heads[:, 5])  # value heads pass unchanged


def test_far_positions_keep_their_digits() -> None:
    """In float32 the angle of position 2**20 is off by up to 0.06 radians."""
    position = 2**20 - 1
    cos, _ = rotation(torch.tensor([position]), torch.tensor([0.7], dtype=torch.float64), 1.0, torch.float32, (1, 0, 0))
    assert cos[0, 0, 0].item() == pytest.approx(math.cos(position * 0.7), abs=1e-6)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: RopeConfig(scaling="dynamic"), "'dynamic' is not supported; expected one of none, linear, llama3, yarn"),
        (lambda: RopeConfig(factor=0.0), "factor must be a positive finite number, received 0.0"),
        (lambda: RopeConfig(scaling="yarn"), "needs original_context"),
        (lambda: frequencies(RopeConfig(), 5), "even head_dim"),
    ],
)
def test_refusals(made: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        made()
    assert said in str(caught.value)
