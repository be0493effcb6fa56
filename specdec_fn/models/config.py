"""What a model is, before its numbers: a frozen, hashable record read from a transformers ``config.json`` or from GGUF metadata."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_fn.models.rope import RopeConfig

__all__ = ["Config", "RopeConfig"]

LLAMA_FAMILY = ("llama", "qwen2", "qwen3")
ARCHITECTURES = (*LLAMA_FAMILY, "toy")


@dataclass(frozen=True)
class Config:
    """The sizes and switches of a model.

    Attributes:
        architecture: "llama", "qwen2", "qwen3" or "toy".
        vocab_size: number of token ids.
        context: most positions the model accepts.
        width: size of the residual stream.
        layers: transformer blocks.
        heads: query heads; a multiple of kv_heads.
        kv_heads: key-value heads.
        head_dim: width of one head.
        ffn: width of the feed-forward block.
        norm_eps: added to the mean square in every norm.
        rope: rotary positions.
        tied: whether the output head is the embedding.
        qkv_bias: whether query, key and value have a bias (Qwen2).
        qk_norm: whether queries and keys are normalised head by head (Qwen3).

    Raises:
        ValueError: an unknown architecture, or sizes that do not fit together.

    >>> Config("toy", vocab_size=3, context=64).layers
    0
    """

    architecture: str
    vocab_size: int
    context: int
    width: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    norm_eps: float = 1e-5
    rope: RopeConfig = field(default_factory=RopeConfig)
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        _known(self.architecture, ARCHITECTURES)
        least = 0 if self.architecture == "toy" else 1
        for name, minimum in (("vocab_size", 1), ("context", 1), *((n, least) for n in ("width", "layers", "heads", "kv_heads", "head_dim", "ffn"))):
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} must be at least {minimum}, received {getattr(self, name)}")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, received {self.heads} heads and {self.kv_heads} kv_heads")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, received {self.head_dim}")

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "Config":
        """Reads a transformers ``config.json`` of a llama, qwen2 or qwen3 model, with ``rope_theta``/``rope_scaling`` or ``rope_parameters``.

        Raises:
            ValueError: a key is missing, the architecture is unknown, or the model uses something that is not supported here
                (sliding windows, biases of other matrices, another activation, quantised weights, another rope type).

        >>> sizes = dict(vocab_size=8, hidden_size=4, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2)
        >>> Config.from_hf(dict(model_type="llama", **sizes)).head_dim
        2
        """
        architecture = _known(_need(config, "model_type"), LLAMA_FAMILY)
        _refuse_hf(config, architecture)
        width, heads = int(_need(config, "hidden_size")), int(_need(config, "num_attention_heads"))
        context = int(config.get("max_position_embeddings") or (2048 if architecture == "llama" else 32768))
        # A config.json leaves out what equals its class's default, and the defaults differ.
        head_dim = config.get("head_dim") or (128 if architecture == "qwen3" else _head_dim(width, heads))
        kv_heads = config.get("num_key_value_heads", None if architecture == "llama" else 32)
        return cls(
            architecture=architecture,
            vocab_size=int(_need(config, "vocab_size")),
            context=context,
            width=width,
            layers=int(_need(config, "num_hidden_layers")),
            heads=heads,
            kv_heads=int(kv_heads or heads),
            head_dim=int(head_dim),
            ffn=int(_need(config, "intermediate_size")),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=_rope_from_hf(config, context),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], *, tied: bool, rope_divisors: Sequence[float] = ()) -> "Config":
        """Reads the metadata of a GGUF file.

        Args:
            metadata: the file's key-value pairs, for example ``llama.block_count``.
            tied: whether the file has no ``output.weight``; only its tensor list can tell.
            rope_divisors: the values of the tensor ``rope_freqs.weight`` where the file has one.

        Raises:
            ValueError: a key is missing, the architecture is unknown, or the model uses something that is not supported here
                (experts, sliding windows, head counts that differ by layer, partly rotated heads, another rope type).

        >>> sizes = {"block_count": 1, "context_length": 64, "embedding_length": 4, "feed_forward_length": 6, "attention.head_count": 2}
        >>> metadata = {"general.architecture": "qwen2", "qwen2.vocab_size": 8, **{f"qwen2.{key}": size for key, size in sizes.items()}}
        >>> Config.from_gguf(metadata, tied=True).qkv_bias
        True
        """
        architecture = _known(_need(metadata, "general.architecture"), LLAMA_FAMILY)

        def need(key: str) -> Any:
            return _need(metadata, f"{architecture}.{key}")

        def get(key: str, default: Any) -> Any:
            value = metadata.get(f"{architecture}.{key}")
            return default if value is None else value

        if int(get("expert_count", 0)):
            raise ValueError(
                f"mixtures of experts are not supported, received {architecture}.expert_count = {get('expert_count', 0)}; expected 0 or none"
            )
        context = int(need("context_length"))
        window = int(get("attention.sliding_window", 0))
        if 0 < window < context:
            raise ValueError(f"sliding windows are not supported, received a window of {window} tokens in a context of {context}; expected none")
        width, heads = int(need("embedding_length")), _one(need("attention.head_count"), "attention.head_count")
        head_dim = int(get("attention.key_length", 0)) or _head_dim(width, heads)
        for key in ("rope.dimension_count", "attention.value_length"):
            if int(get(key, head_dim)) != head_dim:
                raise ValueError(f"{architecture}.{key} must equal the head width {head_dim}, received {get(key, head_dim)}")
        tokens = metadata.get("tokenizer.ggml.tokens")
        return cls(
            architecture=architecture,
            vocab_size=int(need("vocab_size")) if tokens is None else len(tokens),
            context=context,
            width=width,
            layers=int(need("block_count")),
            heads=heads,
            kv_heads=_one(get("attention.head_count_kv", heads), "attention.head_count_kv"),
            head_dim=head_dim,
            ffn=_one(need("feed_forward_length"), "feed_forward_length"),
            norm_eps=float(get("attention.layer_norm_rms_epsilon", 1e-5)),
            rope=_rope_from_gguf(get, context, tuple(float(d) for d in rope_divisors)),
            tied=tied,
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
        )


def _known(architecture: Any, known: tuple[str, ...]) -> str:
    if architecture not in known:
        raise ValueError(f"unknown architecture {architecture!r}; expected one of {', '.join(known)}")
    return str(architecture)


def _need(record: Mapping[str, Any], key: str) -> Any:
    if record.get(key) is None:
        raise ValueError(f"the model's configuration lacks {key!r}; received {len(record)} other keys")
    return record[key]


def _head_dim(width: int, heads: int) -> int:
    if heads < 1 or width % heads:
        raise ValueError(f"width must be a multiple of the query heads where no head width is given, received width {width} and {heads} heads")
    return width // heads


def _one(value: Any, name: str) -> int:
    """A size that a file may give once or once a layer."""
    values = {int(value)} if isinstance(value, int) or not hasattr(value, "__len__") else {int(v) for v in value}
    if len(values) != 1:
        raise ValueError(f"{name} must be the same in every layer, received {sorted(values)}")
    return values.pop()


def _refuse_hf(config: Mapping[str, Any], architecture: str) -> None:
    """One sentence for each thing that would be read wrongly if it were ignored."""
    layers = int(_need(config, "num_hidden_layers"))
    kinds = config.get("layer_types")
    if kinds is None and architecture != "llama" and config.get("use_sliding_window") and config.get("sliding_window", 4096):
        kinds = ["full_attention" if i < int(config.get("max_window_layers", 28)) else "sliding_attention" for i in range(layers)]
    other = sorted(set(kinds or ()) - {"full_attention"})
    if other:
        raise ValueError(f"layers with {', '.join(other)} are not supported; expected full_attention in every layer")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise ValueError(f"{key} = {config[key]!r} is not supported (it adds biases that this forward does not have); expected false")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(f"hidden_act {config['hidden_act']!r} is not supported; expected 'silu'")
    if config.get("quantization_config"):
        raise ValueError("folders with a quantization_config are not supported; expected float weights")


def _rope_from_hf(config: Mapping[str, Any], context: int) -> RopeConfig:
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = given.get("rope_type") or given.get("type") or "default"
    base = given.get("rope_theta") or config.get("rope_theta") or 10_000.0
    share = given.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
    if share != 1.0:
        raise ValueError(f"partly rotated heads are not supported, received partial_rotary_factor {share!r}; expected 1.0")
    if kind == "default":
        return RopeConfig(base=float(base))
    if kind not in ("linear", "llama3", "yarn"):
        raise ValueError(f"rope type {kind!r} is not supported; expected one of default, linear, llama3, yarn")
    original = int(given.get("original_max_position_embeddings") or context)
    factor = given.get("factor") or (context / original if kind == "yarn" else None)
    if factor is None:
        raise ValueError(f"rope type {kind!r} needs a factor, received {sorted(given)}")
    optional: dict[str, Any] = {
        name: float(given[name])
        for name in ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor")
        if given.get(name) is not None
    }
    if kind == "yarn" and "attention_factor" not in optional and given.get("mscale") and given.get("mscale_all_dim"):
        logarithm = 0.1 * math.log(max(float(factor), 1.0))
        optional["attention_factor"] = (given["mscale"] * logarithm + 1.0) / (given["mscale_all_dim"] * logarithm + 1.0)
    truncate = bool(given.get("truncate", True))
    return RopeConfig(base=float(base), scaling=str(kind), factor=float(factor), original_context=original, truncate=truncate, **optional)


def _rope_from_gguf(get: Any, context: int, divisors: tuple[float, ...]) -> RopeConfig:
    base = float(get("rope.freq_base", 10_000.0))
    linear = float(get("rope.scale_linear", 1.0))
    kind = str(get("rope.scaling.type", "none" if linear == 1.0 else "linear"))
    if kind == "none":
        return RopeConfig(base=base, divisors=divisors)
    factor = float(get("rope.scaling.factor", linear))
    if kind != "yarn":
        return RopeConfig(base=base, scaling=kind, factor=factor, divisors=divisors)
    named = (("beta_fast", "rope.scaling.yarn_beta_fast"), ("beta_slow", "rope.scaling.yarn_beta_slow"))
    betas: dict[str, Any] = {name: float(get(key, None)) for name, key in named if get(key, None) is not None}
    original = int(get("rope.scaling.original_context_length", context))
    return RopeConfig(base=base, scaling="yarn", factor=factor, original_context=original, divisors=divisors, **betas)
