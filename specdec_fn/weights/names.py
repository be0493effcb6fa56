"""Names of tensors: those of GGUF files and of transformers' checkpoints, in terms of ours.

Ours are flat: ``embedding``, ``norm``, ``head``, and for block i ``layers.{i}.`` followed by ``attention_norm``, ``q``, ``k``, ``v``, ``q_norm``,
``k_norm``, ``output``, ``ffn_norm``, ``gate``, ``up`` or ``down``; a bias is ``layers.{i}.q.bias`` and so on. A foreign name that is not in the
tables has no meaning here and is left out; one that has a meaning is listed even if few models use it, so that the loader can refuse a model
whose tensors it would otherwise silently drop.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

__all__ = ["from_gguf", "from_transformers", "to_gguf", "to_transformers"]

# ours: (GGUF, transformers), each without ".weight"
_MATRICES = MappingProxyType(
    {
        "attention_norm": ("attn_norm", "input_layernorm"),
        "q": ("attn_q", "self_attn.q_proj"),
        "k": ("attn_k", "self_attn.k_proj"),
        "v": ("attn_v", "self_attn.v_proj"),
        "q_norm": ("attn_q_norm", "self_attn.q_norm"),
        "k_norm": ("attn_k_norm", "self_attn.k_norm"),
        "output": ("attn_output", "self_attn.o_proj"),
        "ffn_norm": ("ffn_norm", "post_attention_layernorm"),
        "gate": ("ffn_gate", "mlp.gate_proj"),
        "up": ("ffn_up", "mlp.up_proj"),
        "down": ("ffn_down", "mlp.down_proj"),
    }
)
_TOP = MappingProxyType({"embedding": ("token_embd", "embed_tokens"), "norm": ("output_norm", "norm"), "head": ("output", "lm_head")})


def _table(rows: Mapping[str, tuple[str, str]], which: int) -> Mapping[str, str]:
    """Foreign name to ours, for weights and biases."""
    weights = {foreign[which] + ".weight": ours for ours, foreign in rows.items()}
    biases = {foreign[which] + ".bias": ours + ".bias" for ours, foreign in rows.items()}
    return MappingProxyType(weights | biases)


_GGUF, _GGUF_TOP = _table(_MATRICES, 0), _table(_TOP, 0)
_TRANSFORMERS, _TRANSFORMERS_TOP = _table(_MATRICES, 1), _table(_TOP, 1)
_NUMBER = "(0|[1-9][0-9]{0,5})"
_GGUF_LAYER = re.compile(rf"blk\.{_NUMBER}\.(.+)")
# A bare LlamaModel is saved without the prefix "model.".
_TRANSFORMERS_LAYER = re.compile(rf"(?:model\.)?layers\.{_NUMBER}\.(.+)")


def from_gguf(names: Iterable[str]) -> dict[str, str]:
    """Maps our names to the GGUF names among ``names``, leaving out those that mean nothing here.

    >>> from_gguf(["token_embd.weight", "blk.3.attn_k.bias", "rope_freqs.weight"])
    {'embedding': 'token_embd.weight', 'layers.3.k.bias': 'blk.3.attn_k.bias'}
    """
    return _translate(names, _GGUF_LAYER, _GGUF, _GGUF_TOP)


def from_transformers(names: Iterable[str]) -> dict[str, str]:
    """Maps our names to the names of a transformers checkpoint among ``names``, leaving out those that mean nothing here.

    >>> from_transformers(["model.norm.weight", "model.layers.0.mlp.up_proj.weight", "model.rotary_emb.inv_freq"])
    {'norm': 'model.norm.weight', 'layers.0.up': 'model.layers.0.mlp.up_proj.weight'}
    """
    return _translate(names, _TRANSFORMERS_LAYER, _TRANSFORMERS, _TRANSFORMERS_TOP)


def to_gguf(ours: str) -> str:
    """The GGUF name of one of our tensors.

    >>> to_gguf("layers.3.attention_norm"), to_gguf("head")
    ('blk.3.attn_norm.weight', 'output.weight')
    """
    return _named(ours, "blk", _GGUF, _GGUF_TOP)


def to_transformers(ours: str) -> str:
    """The name that transformers gives one of our tensors.

    >>> to_transformers("layers.3.q.bias"), to_transformers("head"), to_transformers("norm")
    ('model.layers.3.self_attn.q_proj.bias', 'lm_head.weight', 'model.norm.weight')
    """
    return ("" if ours == "head" else "model.") + _named(ours, "layers", _TRANSFORMERS, _TRANSFORMERS_TOP)


def _translate(names: Iterable[str], pattern: re.Pattern[str], inside: Mapping[str, str], top: Mapping[str, str]) -> dict[str, str]:
    ours: dict[str, str] = {}
    for name in names:
        layer = pattern.fullmatch(name)
        if layer and layer[2] in inside:
            ours[f"layers.{layer[1]}.{inside[layer[2]]}"] = name
        elif name.removeprefix("model.") in top:
            ours[top[name.removeprefix("model.")]] = name
    return ours


def _named(ours: str, prefix: str, inside: Mapping[str, str], top: Mapping[str, str]) -> str:
    if not ours.startswith("layers."):
        return next(foreign for foreign, mine in top.items() if mine == ours)
    _, number, part = ours.split(".", 2)
    return f"{prefix}.{number}." + next(foreign for foreign, mine in inside.items() if mine == part)
