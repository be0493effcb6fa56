"""transformers as a decoder of the same weights: its own Llama, its own ``generate``, its own prompt lookup."""

import time
from typing import Any

import torch

from specdec_fn.cli.bench.turns import Decode, Decoded

__all__ = ["decoder", "llama_of"]


class _Clock:
    """A streamer that notes when the first new tokens came, and how many they were: what follows is decoding without the prefill."""

    def __init__(self) -> None:
        self.calls, self.first, self.at = 0, 0, 0.0

    def put(self, tokens: torch.Tensor) -> None:
        self.calls += 1  # the first call hands over the prompt
        if self.calls == 2:
            self.first, self.at = tokens.numel(), time.perf_counter()

    def end(self) -> None:
        """Nothing is kept."""


def decoder(theirs: Any, ids: list[int], count: int, *, lookup: int | None = None) -> Decode:
    """Greedy decoding of ``count`` tokens by transformers, with its prompt lookup of so many tokens where one is given.

    Time is counted from the first tokens on, as with our own, so the prefill is not in it.
    """
    prompt = torch.tensor([ids])
    more = {} if lookup is None else {"prompt_lookup_num_tokens": lookup}

    def decode() -> Decoded:
        clock = _Clock()
        settings = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0, **more}
        made = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), streamer=clock, **settings)
        spent = time.perf_counter() - clock.at
        tokens = made[0, len(ids) :].tolist()
        return Decoded(tokens, 1e3 * spent / max(1, len(tokens) - clock.first))

    return decode


def llama_of(target: Any) -> Any:
    """transformers' own Llama with the same weights, at the same precision.

    Raises:
        ValueError: transformers is not installed; a model that is no plain llama, or whose weights are quantised.
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        raise ValueError("transformers is not installed; pip install transformers to compare with it") from None
    config, params = target.config, target.params
    if config.architecture != "llama" or config.rope.scaling != "none":
        raise ValueError(f"the model is {config.architecture!r} with rope scaling {config.rope.scaling!r}; expected a plain llama to compare")
    if not isinstance(params.embedding, torch.Tensor):
        raise ValueError("the model's weights are quantised; expected float32 or bfloat16 to compare with transformers")
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            intermediate_size=config.ffn,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.base},
            tie_word_embeddings=config.tied,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()
    theirs = theirs.to(params.embedding.dtype)
    theirs.load_state_dict(_weights(config, params), strict=False)
    return theirs


def _weights(config: Any, params: Any) -> dict[str, torch.Tensor]:
    """Our parameters under their names."""
    weights = {"model.embed_tokens.weight": params.embedding, "model.norm.weight": params.norm}
    if params.head is not None:
        weights["lm_head.weight"] = params.head
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for index, layer in enumerate(params.layers):
        place = f"model.layers.{index}."
        query, key, value = layer.qkv.split([queries, keys, keys])
        gate, up = layer.gate_up.split([config.ffn, config.ffn])
        weights |= {
            f"{place}input_layernorm.weight": layer.attention_norm,
            f"{place}self_attn.q_proj.weight": query,
            f"{place}self_attn.k_proj.weight": key,
            f"{place}self_attn.v_proj.weight": value,
            f"{place}self_attn.o_proj.weight": layer.output,
            f"{place}post_attention_layernorm.weight": layer.ffn_norm,
            f"{place}mlp.gate_proj.weight": gate,
            f"{place}mlp.up_proj.weight": up,
            f"{place}mlp.down_proj.weight": layer.down,
        }
    return weights
