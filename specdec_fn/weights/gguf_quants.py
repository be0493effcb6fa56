"""The number formats of GGUF tensors: from packed blocks to floats.

A quantised tensor is a row of blocks; a block packs 32 (or 256) weights as small integers beside a half-precision scale. The formats that the
embedded model and most small models use are decoded here; five more are handed to the ``gguf`` package when it is installed. Decoding is exact:
every value is the float32 that the format defines, bit for bit what the ``gguf`` package computes.
"""

from collections.abc import Callable, Mapping
from mmap import mmap
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from specdec_fn.typing import Tensor

__all__ = ["Buffer", "Format", "by_id", "byte_count", "dequantize", "formats"]

Buffer = bytes | bytearray | memoryview | mmap

# Blocks decoded at a time: what is worked on stays in the processor's cache, and the peak memory is the result's. Fastest of 1024 to 65536.
CHUNK = 4096


class Format(NamedTuple):
    """How a tensor type lays out its blocks.

    Attributes:
        name: the type's name, for example ``"Q4_1"``.
        number: the number that stands for it in a file.
        weights: weights in a block.
        size: bytes of a block.
        native: whether it is decoded here; otherwise by the ``gguf`` package.
    """

    name: str
    number: int
    weights: int
    size: int
    native: bool


_known = (
    Format("F32", 0, 1, 4, True),
    Format("F16", 1, 1, 2, True),
    Format("Q4_0", 2, 32, 18, True),
    Format("Q4_1", 3, 32, 20, True),
    Format("Q5_0", 6, 32, 22, False),
    Format("Q5_1", 7, 32, 24, False),
    Format("Q8_0", 8, 32, 34, True),
    Format("Q4_K", 12, 256, 144, False),
    Format("Q5_K", 13, 256, 176, False),
    Format("Q6_K", 14, 256, 210, False),
    Format("BF16", 30, 1, 2, True),
)
formats: Mapping[str, Format] = MappingProxyType({form.name: form for form in _known})
by_id: Mapping[int, Format] = MappingProxyType({form.number: form for form in _known})


def dequantize(data: Buffer, kind: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Decodes the packed blocks of one tensor.

    With d the block's scale, m its offset (both float16 in the file) and q its integers, the weights are d (q - 8) for Q4_0, d q + m for Q4_1
    and d q for Q8_0, computed in float32; weight i < 16 of a 4-bit block is the low half of byte i, weight 16 + i the high half. Other dtypes
    are rounded from the float32 value. Layouts: the GGML format description of the llama.cpp project.

    Args:
        data: the tensor's bytes, exactly as many as the shape needs.
        kind: a name in ``formats``.
        shape: outermost axis first; blocks run along the last axis.
        dtype: the floating-point type of the result.

    Raises:
        ValueError: an unknown kind; a last axis that is no whole number of blocks; another number of bytes than the shape needs; a kind that
            needs the ``gguf`` package where that is not installed.

    >>> block = np.float16([0.5, -1.0]).tobytes() + bytes((i << 4) | (15 - i) for i in range(16))
    >>> dequantize(block, "Q4_1", (32,))[:4]
    tensor([6.5000, 6.0000, 5.5000, 5.0000])
    """
    if kind not in formats:
        raise ValueError(f"tensor type {kind!r} is not one of {sorted(formats)}")
    form = formats[kind]
    needed = byte_count(form, shape)
    raw = np.frombuffer(data, np.uint8)
    if raw.size != needed:
        raise ValueError(f"a {kind} tensor of shape {shape} needs {needed} bytes, but was given {raw.size}")
    out = torch.empty(shape, dtype=dtype)
    if not needed:
        return out
    if form.weights == 1:
        # A copy, because torch has no read-only tensors and the bytes may be a file's.
        out.copy_(torch.from_numpy(raw.copy()).view(_plain[kind]).reshape(shape))
        return out
    decode = _native[kind] if form.native else _borrowed(kind)
    blocks, flat = raw.reshape(-1, form.size), out.view(-1, form.weights)
    scratch = np.empty((min(CHUNK, len(blocks)), form.weights), np.float32)
    direct = flat.numpy() if dtype == torch.float32 else None
    with np.errstate(all="ignore"):  # infinite scales are the file's own, not an accident of ours
        for start in range(0, len(blocks), CHUNK):
            part = blocks[start : start + CHUNK]
            if direct is not None:
                decode(part, direct[start : start + CHUNK])
            else:
                decode(part, scratch[: len(part)])
                flat[start : start + CHUNK] = torch.from_numpy(scratch[: len(part)])
    return out


def byte_count(form: Format, shape: tuple[int, ...]) -> int:
    """The bytes that a tensor takes; Python's integers do not wrap, so a hostile shape cannot look small.

    Raises:
        ValueError: the last axis is no whole number of blocks.

    >>> byte_count(formats["Q4_1"], (2, 64))
    80
    """
    count = 1
    for axis in shape:
        count *= axis
    last = shape[-1] if shape else 1
    if last % form.weights:
        raise ValueError(f"a {form.name} row of {last} weights is not a whole number of blocks of {form.weights}")
    return count // form.weights * form.size


Blocks = np.ndarray[Any, np.dtype[np.uint8]]
Values = np.ndarray[Any, np.dtype[np.float32]]

_plain = MappingProxyType({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16})


def _halves(blocks: Blocks, count: int) -> Values:
    """The float16 numbers at the head of each block, as float32 columns."""
    return np.ascontiguousarray(blocks[:, : 2 * count]).view("<f2").astype(np.float32)


def _nibbles(packed: Blocks, out: Values) -> None:
    np.copyto(out[:, :16], packed & 15)
    np.copyto(out[:, 16:], packed >> 4)


def _q4_0(blocks: Blocks, out: Values) -> None:
    _nibbles(blocks[:, 2:], out)
    out -= np.float32(8)
    out *= _halves(blocks, 1)


def _q4_1(blocks: Blocks, out: Values) -> None:
    scale = _halves(blocks, 2)
    _nibbles(blocks[:, 4:], out)
    # Two separate roundings, as the format has them: a fused multiply-add would differ in the last bit.
    out *= scale[:, :1]
    out += scale[:, 1:]


def _q8_0(blocks: Blocks, out: Values) -> None:
    np.copyto(out, blocks[:, 2:].view(np.int8))
    out *= _halves(blocks, 1)


_native: Mapping[str, Callable[[Blocks, Values], None]] = MappingProxyType({"Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0})


def _borrowed(kind: str) -> Callable[[Blocks, Values], None]:
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        raise ValueError(f"tensors of type {kind} are decoded by the gguf package, which is not installed: pip install 'specdec_fn[gguf]'") from None

    def decode(blocks: Blocks, out: Values) -> None:
        out[...] = quants.dequantize(blocks, GGMLQuantizationType[kind])

    return decode
