"""A weight matrix in 8 or 4 bits: codes and scales as the products read them, and what they stand for.

Five kinds. ``int8`` has one float32 scale for each weight row, ``int4`` a float32 scale and offset for each group of 64 (weight i < 32
of a group is the low half of byte i, weight 32 + i the high half). ``q8_0``, ``q4_0`` and
``q4_1`` are the blocks of 32 weights of the GGUF format, as a file holds them: a float16 scale d (for ``q4_1`` an offset m, too) before the
codes; weight i < 16 of a 4-bit block is the low half of byte i, weight 16 + i the high half. The weights are s c, s c + m, d c, d (c - 8) and d c
+ m. ``specdec_fn.weights.gguf_quants`` reads the same blocks from a file.
"""

import itertools
from collections.abc import Iterable, Sequence
from ctypes import c_float, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as torch_pytree

from specdec_kernels import native
from specdec_kernels.dispatch import untraced

__all__ = ["Packed", "joined", "packed", "taken", "unpacked"]

GROUP = 32  # weights of a block
KINDS = ("int8", "q8_0", "q4_0", "q4_1", "int4")
BYTES = (32, 34, 18, 20, 16)  # of a block of each kind
FACTORS = (0.96, 0.92, 0.88, 0.84, 0.8)  # by which a range is made narrower, at its ends in the shares below
SHARES = (0.3, 0.5, 0.7)
SCALED = ("int8", "int4")
ACTIVATIONS = ("float32", "int8")


@dataclass(frozen=True)
class Packed:
    """A matrix of ``outputs`` rows; a pytree whose leaves are its tensors.

    Attributes:
        codes: uint8 [outputs, bytes of a row]; int8 for kind "int8".
        scales: float32 [outputs] for kind "int8", [outputs, 2 groups] for "int4", scales before offsets, else None.
        kind: "int8", "int4", "q8_0", "q4_0" or "q4_1".
        inputs: weights of a row; a multiple of 32 but for "int8".
        activations: "int8": what is multiplied is rounded to 8 bits as well, in groups of 32 (64 for kind "int4", 256 for "int8") by the largest
            magnitude of each, and products are sums of integers; "float32": it is not.
    """

    codes: Tensor
    scales: Tensor | None
    kind: str
    inputs: int
    activations: str = "int8"

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.activations not in ACTIVATIONS:
            raise ValueError(f"received kind {self.kind!r} and activations {self.activations!r}; expected one of {KINDS} and one of {ACTIVATIONS}")
        row = row_bytes(self.kind, self.inputs)
        if self.codes.ndim != 2 or self.codes.element_size() != 1 or self.codes.shape[1] != row:
            received = f"{self.codes.dtype} {list(self.codes.shape)}"
            raise ValueError(f"codes are {received}; expected bytes [outputs, {row}] for {self.inputs} inputs of kind {self.kind}")
        if (self.kind in SCALED) != (self.scales is not None):
            received = "given" if self.scales is not None else "None"
            raise ValueError(f"scales are {received} and kind is {self.kind!r}; expected scales for {' and '.join(SCALED)}, and none for the others")
        wanted = [self.codes.shape[0]] if self.kind == "int8" else [self.codes.shape[0], row // 16]
        if self.scales is not None and (self.scales.dtype is not torch.float32 or list(self.scales.shape) != wanted):
            raise ValueError(f"scales are {self.scales.dtype} {list(self.scales.shape)}; expected float32 {wanted}")
        if self.activations == "int8" and self.inputs % GROUP:
            raise ValueError(f"a row has {self.inputs} inputs; expected a multiple of {GROUP} for activations of 8 bits")

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs, as those of the matrix."""
        return self.codes.shape[0], self.inputs


def row_bytes(kind: str, inputs: int) -> int:
    """Bytes of a row of weights."""
    if kind == "int8":
        return inputs
    if inputs % GROUP:
        raise ValueError(f"a row has {inputs} inputs; expected a multiple of {GROUP} for kind {kind!r}")
    groups = inputs // GROUP
    return (groups + groups % 2 if kind == "int4" else groups) * BYTES[KINDS.index(kind)]


class _Static(NamedTuple):
    kind: str
    inputs: int
    activations: str
    scaled: bool


def _flatten(value: Packed) -> tuple[list[Any], _Static]:
    leaves = [value.codes] if value.scales is None else [value.codes, value.scales]
    return leaves, _Static(value.kind, value.inputs, value.activations, value.scales is not None)


def _unflatten(leaves: Iterable[Any], static: _Static) -> Packed:
    # Not through __init__: the leaves may be any placeholders.
    made: Any = object.__new__(Packed)
    codes, *scales = leaves
    fields = {"codes": codes, "scales": scales[0] if static.scaled else None}
    made.__dict__.update(fields | {"kind": static.kind, "inputs": static.inputs, "activations": static.activations})
    return made


torch_pytree.register_pytree_node(Packed, _flatten, _unflatten)


def packed(weight: Tensor, kind: str, *, activations: str | None = None, importance: Tensor | None = None) -> Packed:
    """Rounds a matrix to a kind's grid.

    int8: scale = largest magnitude of the row / 127. q8_0: the same for each block. q4_0: d = the entry of largest magnitude / -8, so that one
    end of the grid -8..7 is met, codes rounded to the nearest (GGML's rule). q4_1: d = (largest - least) / 15 and m = least. Scales are rounded
    to float16 in blocks before the codes are chosen. int4: of sixteen ranges of a group, its own and narrower ones, that with the smallest
    squared error; scale = range / 15, offset = its lower end.

    Args:
        weight: float [outputs, inputs].
        kind: one of the five.
        activations: of the result; None: "int8", and "float32" where a row is no whole number of groups of 32.
        importance: float [inputs], how much an error in each input matters: best the mean square of what is multiplied. None: all alike. Used by
            "int4" alone.

    Raises:
        ValueError: an unknown kind, no matrix of floats, values that are not finite, scales past float16, or inputs that
            are no multiple of 32 for any kind but "int8", or for activations of 8 bits.

    >>> unpacked(packed(torch.tensor([[0.0, 127.0, -50.4]]), "int8"))
    tensor([[  0., 127., -50.]])
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}")
    if weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(f"the weight is {weight.dtype} {list(weight.shape)}; expected floats [outputs, inputs]")
    outputs, inputs = weight.shape
    row_bytes(kind, inputs)
    way = activations or ("float32" if inputs % GROUP else "int8")
    if way == "int8" and inputs % GROUP:
        raise ValueError(f"a row has {inputs} inputs; expected a multiple of {GROUP} for activations of 8 bits")
    wide = weight.detach().to(torch.float32)
    if not bool(wide.isfinite().all()):
        raise ValueError("the weight holds NaN or infinity; expected finite numbers")
    if kind == "int8":
        scale = wide.abs().amax(1) / 127 if inputs else wide.new_zeros(outputs)
        codes = (wide / torch.where(scale > 0, scale, 1.0)[:, None]).round().clamp(-127, 127).to(torch.int8)
        return Packed(codes, scale, kind, inputs, way)
    if kind == "int4":
        return _int4(wide, importance, way)
    blocks = wide.reshape(outputs, -1, GROUP)
    low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
    if kind == "q8_0":
        d = (torch.maximum(high, -low) / 127).to(torch.float16)
        bytes_ = _codes(blocks, d, 0.0, -127, 127).to(torch.int8).view(torch.uint8)
        heads: tuple[Tensor, ...] = (d,)
    elif kind == "q4_0":
        d = (torch.where(-low >= high, low, high) / -8).to(torch.float16)
        bytes_ = _halves(_codes(blocks, d, 0.0, -8, 7) + 8)
        heads = (d,)
    else:
        d, m = ((high - low) / 15).to(torch.float16), low.to(torch.float16)
        bytes_ = _halves(_codes(blocks, d, m.to(torch.float32), 0, 15))
        heads = (d, m)
    if not all(bool(head.isfinite().all()) for head in heads):
        raise ValueError(f"the weight has magnitudes up to {float(wide.abs().max()):.3g}; expected such as a float16 scale of kind {kind!r} can hold")
    whole = torch.cat([*(head.view(torch.uint8) for head in heads), bytes_], -1)
    return Packed(whole.reshape(outputs, -1), None, kind, inputs, way)


def _codes(blocks: Tensor, d: Tensor, offset: Tensor | float, least: int, most: int) -> Tensor:
    step = d.to(torch.float32)
    return ((blocks - offset) / torch.where(step != 0, step, 1.0)).round().clamp(least, most)


def _int4(weight: Tensor, importance: Tensor | None, way: str) -> Packed:
    """The range of each group that leaves the smallest squared error, of a few ranges that are narrower than the group's own."""
    (outputs, inputs), pair = weight.shape, 2 * GROUP
    count = -(-inputs // pair)
    matters = weight.new_ones(inputs) if importance is None else importance.to(torch.float32).contiguous()
    tries = tuple(itertools.product(FACTORS, SHARES))
    if untraced(weight, matters) and native.wait():
        codes, scales = torch.empty((outputs, count * GROUP), dtype=torch.uint8), torch.empty((outputs, 2 * count))
        given = (c_void_p(part.data_ptr()) for part in (weight.contiguous(), matters))
        ratios = ((c_float * len(tries))(*column) for column in zip(*tries, strict=True))
        sizes, made = (c_int64(outputs), c_int64(inputs)), (c_void_p(part.data_ptr()) for part in (codes, scales))
        library = native.library()
        assert library is not None, "it is ready"
        library.specdec_int4(*given, *sizes, *ratios, len(tries), *made, torch.get_num_threads())
        return Packed(codes, scales, "int4", inputs, way)
    groups, cares = (F.pad(part, (0, -inputs % pair)).unflatten(-1, (-1, pair)) for part in (weight, matters))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    if inputs % pair:
        cares = cares * (torch.arange(count * pair) < inputs).unflatten(0, (-1, pair))
    best = [low, low, torch.zeros_like(groups), torch.full_like(low, torch.inf)]
    for factor, share in ((1.0, 0.5), *tries):
        offset, scale = low + (high - low) * (1 - factor) * share, (high - low) * factor / 15
        chosen = ((groups - offset) / torch.where(scale > 0, scale, 1.0) + 0.5).floor().clamp(0, 15)
        error = ((chosen * scale + offset - groups).square() * cares).sum(-1, keepdim=True)
        best = [torch.where(error < best[3], new, old) for new, old in zip((scale, offset, chosen, error), best, strict=True)]
    scales = torch.cat([best[0].squeeze(-1), best[1].squeeze(-1)], -1)
    return Packed(_halves(best[2]).reshape(outputs, -1), scales, "int4", inputs, way)


def _halves(codes: Tensor) -> Tensor:
    low, high = codes.to(torch.uint8).chunk(2, -1)
    return low | high << 4


def unpacked(weight: Packed) -> Tensor:
    """The matrix that a packed one stands for, exactly: float32 [outputs, inputs].

    >>> unpacked(packed(torch.linspace(-8, 7, 32)[None], "q4_0"))[0, [0, 31]]
    tensor([-8.,  7.])
    """
    if weight.kind == "int8":
        assert weight.scales is not None
        return weight.codes.to(torch.float32) * weight.scales[:, None]
    if weight.kind == "int4":
        assert weight.scales is not None
        pairs = weight.codes.reshape(weight.codes.shape[0], -1, GROUP)
        codes, (scale, offset) = torch.cat([pairs & 15, pairs >> 4], -1).to(torch.float32), weight.scales.chunk(2, -1)
        return (codes * scale[..., None] + offset[..., None]).flatten(1)[:, : weight.inputs]
    size = BYTES[KINDS.index(weight.kind)]
    blocks = weight.codes.reshape(weight.codes.shape[0], -1, size)
    d = blocks[..., :2].contiguous().view(torch.float16).to(torch.float32)
    if weight.kind == "q8_0":
        values = blocks[..., 2:].contiguous().view(torch.int8).to(torch.float32) * d
    else:
        start = 2 if weight.kind == "q4_0" else 4
        codes = torch.cat([blocks[..., start:] & 15, blocks[..., start:] >> 4], -1).to(torch.float32)
        values = (codes - 8) * d if weight.kind == "q4_0" else codes * d + blocks[..., 2:4].contiguous().view(torch.float16).to(torch.float32)
    return values.flatten(1)


def taken(weight: Packed, rows: Tensor) -> Tensor:
    """Some rows of the matrix, as an embedding takes them: float32 [*rows, inputs].

    >>> taken(packed(127 * torch.eye(32), "q8_0"), torch.tensor([3]))[0, 3]
    tensor(127.)
    """
    scales = None if weight.scales is None else weight.scales[rows.flatten()]
    some = Packed(weight.codes[rows.flatten()], scales, weight.kind, weight.inputs, weight.activations)
    return unpacked(some).reshape(*rows.shape, weight.inputs)


def joined(parts: Sequence[Tensor | Packed], dtype: torch.dtype) -> Tensor | Packed:
    """Matrices under one another: packed if all are, of one kind; else as floats.

    >>> joined([packed(torch.eye(32), "q8_0"), packed(torch.eye(32), "q8_0")], torch.float32).shape
    (64, 32)
    """
    some = [part for part in parts if isinstance(part, Packed)]
    if len(some) == len(parts) and len({(part.kind, part.activations) for part in some}) == 1:
        scales = None if some[0].scales is None else torch.cat([part.scales for part in some if part.scales is not None])
        return Packed(torch.cat([part.codes for part in some]), scales, some[0].kind, some[0].inputs, some[0].activations)
    return torch.cat([unpacked(part).to(dtype) if isinstance(part, Packed) else part.to(dtype) for part in parts])
