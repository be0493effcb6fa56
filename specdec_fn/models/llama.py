"""The Llama family (Llama, Qwen2, Qwen3) as a pure function of its parameters.

A pass is: embed, then for each block norm, fused query-key-value product, rotation, attention, output product, norm, fused gate-up product,
gate, down product, then norm and the vocabulary head. Every step but attention treats its rows apart, so the form whose bits do not depend on
the number of rows is the same pass with its row-wise steps run a row, or a tile of rows, at a time (``Rowwise``).
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch.linalg import vector_norm
from torch.utils import _pytree as torch_pytree

from specdec_fn.models.config import LLAMA_FAMILY, Config
from specdec_fn.models.fused import steps
from specdec_fn.models.model import Attend, Forward, Model
from specdec_fn.models.product import product, tiled
from specdec_fn.models.rope import attention_factor, frequencies, rotate, rotation
from specdec_fn.typing import Float, Int, Tensor

__all__ = ["Layer", "Params", "assemble", "model", "shapes"]

WIDER = MappingProxyType({torch.bfloat16: torch.float32, torch.float16: torch.float32})
C = TypeVar("C", bound=type)


def _present(cls: C) -> C:
    """Registers a dataclass as a pytree whose absent (None) fields are no leaves: ``grad`` and ``vmap`` take tensors only."""
    names = [field.name for field in fields(cls)]

    def flatten(value: Any) -> tuple[list[Any], tuple[str, ...]]:
        present = tuple(name for name in names if getattr(value, name) is not None)
        return [getattr(value, name) for name in present], present

    def unflatten(children: Iterable[Any], present: tuple[str, ...]) -> Any:
        # Not through __init__: the children may be any placeholders, which a check of shapes would refuse.
        made: Any = object.__new__(cls)
        made.__dict__.update({**dict.fromkeys(names), **dict(zip(present, children, strict=True))})
        return made

    torch_pytree.register_pytree_node(cls, flatten, unflatten)
    return cls


@_present
@dataclass(frozen=True)
class Layer:
    """The parameters of one block; matrices are stored [outputs, inputs].

    Attributes:
        attention_norm: [width].
        qkv: query, key and value rows under one another, [(heads + 2 kv_heads) head_dim, width].
        qkv_bias: [(heads + 2 kv_heads) head_dim], or None.
        q_norm: [head_dim], or None.
        k_norm: [head_dim], or None.
        output: [width, heads head_dim].
        ffn_norm: [width].
        gate_up: gate rows, then up rows, [2 ffn, width].
        down: [width, ffn].
    """

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor


@_present
@dataclass(frozen=True)
class Params:
    """The parameters of a model of the Llama family.

    Attributes:
        embedding: [vocab, width].
        layers: one ``Layer`` a block.
        norm: [width].
        head: [vocab, width], or None where the embedding serves (tied).
    """

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor | None


class Unit(NamedTuple):
    """What a norm of rows of one width needs besides its weight: 0, sqrt(width eps) and sqrt(width)."""

    zero: Tensor
    floor: Tensor
    root: float


class Rowwise(NamedTuple):
    """The steps of a pass that treat rows apart."""

    product: Callable[[Tensor, Tensor], Tensor]
    norm: Callable[[Tensor, Tensor, Unit], Tensor]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    gate: Callable[[Tensor], Tensor]
    rotation: Callable[..., tuple[Tensor, Tensor]]


class _Static(NamedTuple):
    """What a pass knows before its arguments."""

    config: Config
    frequencies: Tensor
    factor: float
    unit: Unit
    head_unit: Unit
    rowwise: Rowwise


def model(config: Config, params: Params) -> Model:
    """Builds the model of a configuration and its parameters.

    Returns:
        a ``Model`` with ``prefill`` and with an invariant form: products in tiles of 8 rows, every other step a row at a time, so that a
        row's bits do not depend on its company.

    Raises:
        ValueError: the configuration is not of the Llama family, or the parameters have another number of blocks.

    >>> config = Config("llama", vocab_size=5, context=8, width=4, layers=1, heads=2, kv_heads=1, head_dim=2, ffn=3, tied=True)
    >>> llama = model(config, assemble(config, lambda name: torch.ones(shapes(config)[name])))
    >>> logits, _ = llama.apply(llama.params, torch.tensor([1, 4]), torch.tensor([0, 1]), None, lambda kv, layer, q, k, v: (q, kv))
    >>> logits.shape
    torch.Size([2, 5])
    """
    if config.architecture not in LLAMA_FAMILY:
        raise ValueError(f"architecture {config.architecture!r} is not of the Llama family; expected one of {', '.join(LLAMA_FAMILY)}")
    if len(params.layers) != config.layers:
        raise ValueError(f"the parameters have {len(params.layers)} blocks; the configuration expects {config.layers}")
    angles = frequencies(config.rope, config.head_dim).to(params.embedding.device)
    wide = WIDER.get(params.norm.dtype, params.norm.dtype)

    def number(value: float) -> Tensor:
        return torch.full((), value, dtype=wide, device=params.norm.device)

    unit, head_unit = (Unit(number(0.0), number((size * config.norm_eps) ** 0.5), size**0.5) for size in (config.width, config.head_dim))
    plain = Rowwise(product, *steps(config)) if params.norm.is_cuda else Rowwise(product, norm, rotate, gate, rotation)
    static = _Static(config, angles, attention_factor(config.rope), unit, head_unit, plain)
    apart = static._replace(rowwise=Rowwise(tiled, _each(norm), _each(rotate, 3), _each(gate), _each(rotation)))
    return Model(config, params, **_forward(static)._asdict(), invariant=_forward(apart))


def _forward(static: _Static) -> Forward:
    return Forward(*(functools.partial(step, static) for step in (_apply, _prefill, _apply_at)))


def _apply(
    static: _Static, params: Params, tokens: Int[Tensor, "tokens"], positions: Int[Tensor, "tokens"], kv: Any, attend: Attend
) -> tuple[Float[Tensor, "tokens vocab"], Any]:
    x, kv = _blocks(static, params.layers, F.embedding(tokens, params.embedding), positions, kv, attend)
    return _head(static, params, x), kv


def _apply_at(
    static: _Static,
    params: Params,
    tokens: Int[Tensor, "tokens"],
    positions: Int[Tensor, "tokens"],
    kv: Any,
    attend: Attend,
    rows: Int[Tensor, "rows"],
) -> tuple[Float[Tensor, "rows vocab"], Any]:
    x, kv = _blocks(static, params.layers, F.embedding(tokens, params.embedding), positions, kv, attend)
    return _head(static, params, x[rows]), kv


def _head(static: _Static, params: Params, x: Float[Tensor, "rows width"]) -> Float[Tensor, "rows vocab"]:
    x = static.rowwise.norm(x, params.norm, static.unit)
    return static.rowwise.product(x, params.embedding if params.head is None else params.head)


def _prefill(static: _Static, params: Params, tokens: Int[Tensor, "tokens"], positions: Int[Tensor, "tokens"], kv: Any, attend: Attend) -> Any:
    x = F.embedding(tokens, params.embedding)
    return _blocks(static, params.layers, x, positions, kv, attend, keys_only=True)[1]


def _blocks(
    static: _Static,
    layers: tuple[Layer, ...],
    x: Float[Tensor, "tokens width"],
    positions: Int[Tensor, "tokens"],
    kv: Any,
    attend: Attend,
    keys_only: bool = False,
) -> tuple[Float[Tensor, "tokens width"], Any]:
    """All blocks; ``keys_only`` stops once the last one has handed its keys over."""
    config, do, unit = static.config, static.rowwise, static.unit
    parts = (config.heads, config.kv_heads, config.kv_heads)
    cos, sin = do.rotation(positions, static.frequencies, static.factor, x.dtype, parts)
    for index, layer in enumerate(layers):
        rows = do.product(do.norm(x, layer.attention_norm, unit), layer.qkv)
        if layer.qkv_bias is not None:
            rows = rows + layer.qkv_bias
        heads = rows.reshape(-1, sum(parts), config.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            query, key, value = heads.split_with_sizes(parts, 1)
            heads = torch.cat((do.norm(query, layer.q_norm, static.head_unit), do.norm(key, layer.k_norm, static.head_unit), value), 1)
        query, key, value = do.rotate(heads, cos, sin).split_with_sizes(parts, 1)
        out, kv = attend(kv, index, query, key, value)
        if keys_only and index == len(layers) - 1:
            break
        x = do.product(out.flatten(1), layer.output).add_(x)
        x = do.product(do.gate(do.product(do.norm(x, layer.ffn_norm, unit), layer.gate_up)), layer.down).add_(x)
    return x, kv


def norm(x: Float[Tensor, "*rows width"], weight: Float[Tensor, "width"], unit: Unit) -> Float[Tensor, "*rows width"]:
    """Divides rows by their root mean square, in float32 at least: x / sqrt(mean(x^2) + eps) * weight (arXiv 1910.07467).

    Written sqrt(width) x / hypot(|x|, sqrt(width eps)) * weight: few operators, since on a few rows each costs more than its arithmetic.
    A pass has 61 norms in a model of 30 blocks; torch's rms_norm takes about twice the time on a CPU.
    """
    length = vector_norm(x, 2, -1, True, dtype=WIDER.get(x.dtype)).hypot(unit.floor)
    scaled = torch.addcdiv(unit.zero, x, length, value=unit.root) * weight
    return scaled if scaled.dtype is x.dtype else scaled.to(x.dtype)


def gate(rows: Float[Tensor, "tokens twice_ffn"]) -> Float[Tensor, "tokens ffn"]:
    """Gates the second half of each row by the first: silu(gate) * up (arXiv 2002.05202)."""
    first, second = rows.chunk(2, -1)
    return F.silu(first).mul_(second)


def _each(step: Callable[..., Any], rowwise: int = 1) -> Callable[..., Any]:
    """The step with every row passed alone: the same call on the same shape gives the same bits, whatever the other rows.

    The first ``rowwise`` arguments have a row for each token; a step may return one tensor or a pair.
    """

    def apart(*args: Any) -> Any:
        done = [step(*row, *args[rowwise:]) for row in zip(*(rows.split(1) for rows in args[:rowwise]), strict=True)]
        return torch.cat(done) if isinstance(done[0], Tensor) else tuple(map(torch.cat, zip(*done, strict=True)))

    return apart


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Names every tensor that ``assemble`` asks for, with its shape, in the order in which it asks.

    >>> sizes = dict(vocab_size=5, context=8, width=4, layers=1, heads=2, kv_heads=1, head_dim=2, ffn=3)
    >>> shapes(Config("llama", **sizes, tied=True))["layers.0.k"]
    (2, 4)
    """
    width, ffn, q, k = config.width, config.ffn, config.heads * config.head_dim, config.kv_heads * config.head_dim
    named: dict[str, tuple[int, ...]] = {"embedding": (config.vocab_size, width)}
    for i in range(config.layers):
        block: dict[str, tuple[int, ...]] = {"attention_norm": (width,), "q": (q, width), "k": (k, width), "v": (k, width)}
        if config.qkv_bias:
            block |= {"q.bias": (q,), "k.bias": (k,), "v.bias": (k,)}
        if config.qk_norm:
            block |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
        block |= {"output": (width, q), "ffn_norm": (width,), "gate": (ffn, width), "up": (ffn, width), "down": (width, ffn)}
        named |= {f"layers.{i}.{name}": shape for name, shape in block.items()}
    named["norm"] = (width,)
    if not config.tied:
        named["head"] = (config.vocab_size, width)
    return named


def assemble(config: Config, get: Callable[[str], Tensor]) -> Params:
    """Asks for every tensor by its canonical name and fuses what is multiplied together.

    A tensor is asked for once, right before it is needed, and let go once it is copied into its place: the peak is the parameters plus one
    tensor.

    Args:
        config: the sizes; they decide which names are asked for (``shapes`` lists them).
        get: name -> tensor, float, in the half-split order of rotary components.

    Raises:
        ValueError: a tensor has another shape than the configuration says. Whatever ``get`` raises for a missing name passes through.

    >>> config = Config("llama", vocab_size=5, context=8, width=4, layers=1, heads=2, kv_heads=1, head_dim=2, ffn=3, tied=True)
    >>> assemble(config, lambda name: torch.zeros(shapes(config)[name])).layers[0].qkv.shape
    torch.Size([8, 4])
    """
    expected = shapes(config)

    def take(name: str) -> Tensor:
        tensor = get(name)
        if tuple(tensor.shape) != expected[name]:
            raise ValueError(f"tensor {name} has shape {tuple(tensor.shape)}; the configuration expects {expected[name]}")
        return tensor

    def fuse(*names: str) -> Tensor:
        rows = [expected[name][0] for name in names]
        first = take(names[0])
        whole = first.new_empty((sum(rows), *expected[names[0]][1:]))
        places = whole.split(rows)
        places[0].copy_(first)
        del first
        for place, name in zip(places[1:], names[1:], strict=True):
            place.copy_(take(name))
        return whole

    def block(i: int) -> Layer:
        at = f"layers.{i}."
        return Layer(
            attention_norm=take(at + "attention_norm"),
            qkv=fuse(at + "q", at + "k", at + "v"),
            qkv_bias=fuse(at + "q.bias", at + "k.bias", at + "v.bias") if config.qkv_bias else None,
            q_norm=take(at + "q_norm") if config.qk_norm else None,
            k_norm=take(at + "k_norm") if config.qk_norm else None,
            output=take(at + "output"),
            ffn_norm=take(at + "ffn_norm"),
            gate_up=fuse(at + "gate", at + "up"),
            down=take(at + "down"),
        )

    embedding = take("embedding")
    layers = tuple(block(i) for i in range(config.layers))
    return Params(embedding, layers, take("norm"), None if config.tied else take("head"))
