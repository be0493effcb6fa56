"""The Llama family (Llama, Qwen2, Qwen3) as a pure function of its parameters.

A pass is: embed, then for each block norm, fused query-key-value product, rotation, attention, output product, norm, fused gate-up product,
gate, down product, then norm and the vocabulary head. Every step but attention treats its rows apart, so the form whose bits do not depend on
the number of rows is the same pass with its row-wise steps run a row, or a tile of rows, at a time (``Rowwise``).
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils import _pytree as torch_pytree

from specdec_fn.models.config import LLAMA_FAMILY, Config
from specdec_fn.models.fused import steps
from specdec_fn.models.model import Attend, Forward, Model
from specdec_fn.models.native import Laid, Native
from specdec_fn.models.product import product, tiled
from specdec_fn.models.rope import attention_factor, frequencies, rotate, rotation
from specdec_fn.models.rowwise import WIDER, Between, Rowwise, Unit, each, embedded, gate, norm, of_steps
from specdec_fn.typing import Float, Int, Tensor
from specdec_kernels.packed import Packed, joined, unpacked

__all__ = ["Layer", "Params", "assemble", "model", "shapes", "stepwise"]

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
    qkv: Tensor | Packed
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor | Packed
    ffn_norm: Tensor
    gate_up: Tensor | Packed
    down: Tensor | Packed


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

    embedding: Tensor | Packed
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor | Packed | None


class _Static(NamedTuple):
    """What a pass knows before its arguments."""

    config: Config
    between: Callable[[], Between]  # made in each pass, so that a model is data and functions by name, and can be pickled
    native: Native


def model(config: Config, params: Params) -> Model:
    """Builds the model of a configuration and its parameters.

    On a CPU what lies between attentions is one call of the C library, if that is there and the rows are few (``native``); else it is torch's
    operators, on a GPU with kernels for the small steps (``fused``).

    Returns:
        a ``Model`` with ``prefill`` and with an invariant form, in which a row's bits do not depend on its company: the C library's, or products in
        tiles of 8 rows and every other step a row at a time.

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
    plain = Rowwise(product, *steps(config)) if params.norm.is_cuda else Rowwise(product, norm, rotate, gate, rotation)
    apart = Rowwise(tiled, each(norm), each(rotate, 3), each(gate), each(rotation))
    native = Native(config, _angles(config, params), attention_factor(config.rope), Laid(config, params))
    static, alone = (
        _Static(config, _between(config, params, plain), native),
        _Static(config, _between(config, params, apart), native._replace(invariant=True)),
    )
    return Model(config, params, **_forward(static)._asdict(), invariant=_forward(alone))


def _angles(config: Config, params: Params) -> Tensor:
    return frequencies(config.rope, config.head_dim).to(params.norm.device)


def _between(config: Config, params: Params, do: Rowwise) -> Callable[[], Between]:
    """What lies between attentions, of these steps."""
    wide = WIDER.get(params.norm.dtype, params.norm.dtype)

    def number(value: float) -> Tensor:
        return torch.full((), value, dtype=wide, device=params.norm.device)

    unit, head_unit = (Unit(number(0.0), number((size * config.norm_eps) ** 0.5), size**0.5) for size in (config.width, config.head_dim))
    sizes = (unit, head_unit, _angles(config, params), attention_factor(config.rope), params.norm.dtype)
    return functools.partial(of_steps, config, do, *sizes)


def stepwise(config: Config, params: Params, do: Rowwise) -> Forward:
    """The passes of a model with every step a call of ``do``, wherever its parameters are: what ``model`` does without the C library.

    >>> from specdec_fn.models.rowwise import gate, norm
    >>> config = Config("llama", vocab_size=5, context=8, width=4, layers=1, heads=2, kv_heads=1, head_dim=2, ffn=3, tied=True)
    >>> params = assemble(config, lambda name: torch.ones(shapes(config)[name]))
    >>> forward = stepwise(config, params, Rowwise(product, norm, rotate, gate, rotation))
    >>> forward.apply(params, torch.tensor([1, 4]), torch.tensor([0, 1]), None, lambda kv, layer, q, k, v: (q, kv))[0].shape
    torch.Size([2, 5])
    """
    return _forward(_Static(config, _between(config, params, do), Native(config, _angles(config, params), 1.0, Laid(config, None), never=True)))


def _forward(static: _Static) -> Forward:
    return Forward(*(functools.partial(step, static) for step in (_apply, _prefill, _apply_at)))


def _apply(
    static: _Static, params: Params, tokens: Int[Tensor, "tokens"], positions: Int[Tensor, "tokens"], kv: Any, attend: Attend
) -> tuple[Float[Tensor, "tokens vocab"], Any]:
    logits = static.native.whole(params, tokens, positions, kv, attend)
    if isinstance(logits, Tensor):
        return logits, kv
    x, kv, do = _blocks(static, params, tokens, positions, kv, attend)
    return do.head(x, params), kv


def _apply_at(
    static: _Static,
    params: Params,
    tokens: Int[Tensor, "tokens"],
    positions: Int[Tensor, "tokens"],
    kv: Any,
    attend: Attend,
    rows: Int[Tensor, "rows"],
) -> tuple[Float[Tensor, "rows vocab"], Any]:
    logits = static.native.whole(params, tokens, positions, kv, attend, wanted=rows)
    if isinstance(logits, Tensor):
        return logits, kv
    x, kv, do = _blocks(static, params, tokens, positions, kv, attend)
    return do.head(x[rows], params), kv


def _prefill(static: _Static, params: Params, tokens: Int[Tensor, "tokens"], positions: Int[Tensor, "tokens"], kv: Any, attend: Attend) -> Any:
    if static.native.whole(params, tokens, positions, kv, attend, keys_only=True):
        return kv
    return _blocks(static, params, tokens, positions, kv, attend, keys_only=True)[1]


def _blocks(
    static: _Static,
    params: Params,
    tokens: Int[Tensor, "tokens"],
    positions: Int[Tensor, "tokens"],
    kv: Any,
    attend: Attend,
    keys_only: bool = False,
) -> tuple[Float[Tensor, "tokens width"], Any, Between]:
    """All blocks, and what the head is to be computed with; ``keys_only`` stops once the last one has handed its keys over."""
    config, layers = static.config, params.layers
    parts = (config.heads, config.kv_heads, config.kv_heads)
    x = embedded(params.embedding, tokens)
    if isinstance(params.embedding, Packed):
        x = x.to(params.norm.dtype)
    do = static.native.between(params, x) or static.between()
    turn = do.turn(positions)
    heads: Tensor | None = do.begin(x, layers[0], turn)
    for index, layer in enumerate(layers):
        assert heads is not None
        query, key, value = heads.split_with_sizes(parts, 1)
        out, kv = attend(kv, index, query, key, value)
        if keys_only and index == len(layers) - 1:
            break
        x, heads = do.between(x, out, layer, layers[index + 1] if index + 1 < len(layers) else None, turn)
    return x, kv, do


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


def assemble(config: Config, get: Callable[[str], Tensor | Packed]) -> Params:
    """Asks for every tensor by its canonical name and fuses what is multiplied together.

    A tensor is asked for once, right before it is needed, and let go once it is copied into its place: the peak is the parameters plus one
    tensor.

    Args:
        config: the sizes; they decide which names are asked for (``shapes`` lists them).
        get: name -> tensor, float, in the half-split order of rotary components; or, for a matrix, a ``Packed`` one.

    Raises:
        ValueError: a tensor has another shape than the configuration says. Whatever ``get`` raises for a missing name passes through.

    >>> config = Config("llama", vocab_size=5, context=8, width=4, layers=1, heads=2, kv_heads=1, head_dim=2, ffn=3, tied=True)
    >>> assemble(config, lambda name: torch.zeros(shapes(config)[name])).layers[0].qkv.shape
    torch.Size([8, 4])
    """
    expected = shapes(config)

    def take(name: str) -> Any:
        tensor = get(name)
        if tuple(tensor.shape) != expected[name]:
            raise ValueError(f"tensor {name} has shape {tuple(tensor.shape)}; the configuration expects {expected[name]}")
        return tensor

    def fuse(*names: str) -> Any:
        rows = [expected[name][0] for name in names]
        first = take(names[0])
        if isinstance(first, Packed):
            return joined([first, *map(take, names[1:])], vectors)
        whole = first.new_empty((sum(rows), *expected[names[0]][1:]))
        places = whole.split(rows)
        places[0].copy_(first)
        del first
        for place, name in zip(places[1:], names[1:], strict=True):
            part = take(name)
            place.copy_(unpacked(part) if isinstance(part, Packed) else part)
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

    embedding, last = take("embedding"), take("norm")
    vectors = last.dtype
    layers = tuple(block(i) for i in range(config.layers))
    return Params(embedding, layers, last, None if config.tied else take("head"))
