"""Threefry-2x32 in Triton: the rounds as a function that other kernels call, and a kernel over tensors (the law is ``threefry``).

On a GPU the 20 rounds stay in registers: 32 bytes are read and 16 written for each pair of words, where the tensor operations of the reference
move each intermediate word through memory. Words are uint32, whose sums wrap and whose right shifts bring in zeros.
"""

from types import MappingProxyType
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_kernels.dispatch import chosen
from specdec_kernels.variant import Variant

__all__ = ["threefry2x32", "variants"]

BLOCK = 1024
PARITY = tl.constexpr(0x1BD11BDA)  # as in threefry.PARITY


@triton.jit
@no_type_check
def _four_rounds(x0, x1, a: tl.constexpr, b: tl.constexpr, c: tl.constexpr, d: tl.constexpr):
    x0 = x0 + x1
    x1 = ((x1 << a) | (x1 >> (32 - a))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << b) | (x1 >> (32 - b))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << c) | (x1 >> (32 - c))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << d) | (x1 >> (32 - d))) ^ x0
    return x0, x1


@triton.jit
@no_type_check
def rounds(key0, key1, count0, count1):
    """Both output words (uint32) of uint32 keys and counters that broadcast; to be called from kernels."""
    key2 = key0 ^ key1 ^ tl.full((), PARITY, tl.uint32)
    x0 = count0 + key0
    x1 = count1 + key1
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    x0, x1 = x0 + key1, x1 + (key2 + tl.full((), 1, tl.uint32))
    x0, x1 = _four_rounds(x0, x1, 17, 29, 16, 24)
    x0, x1 = x0 + key2, x1 + (key0 + tl.full((), 2, tl.uint32))
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    x0, x1 = x0 + key0, x1 + (key1 + tl.full((), 3, tl.uint32))
    x0, x1 = _four_rounds(x0, x1, 17, 29, 16, 24)
    x0, x1 = x0 + key1, x1 + (key2 + tl.full((), 4, tl.uint32))
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    return x0 + key2, x1 + (key0 + tl.full((), 5, tl.uint32))


@triton.jit(do_not_specialize=["count"])
@no_type_check
def _kernel(key0, key1, count0, count1, word0, word1, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    k0 = tl.load(key0 + at, mask=here, other=0).to(tl.uint32)
    k1 = tl.load(key1 + at, mask=here, other=0).to(tl.uint32)
    c0 = tl.load(count0 + at, mask=here, other=0).to(tl.uint32)
    c1 = tl.load(count1 + at, mask=here, other=0).to(tl.uint32)
    w0, w1 = rounds(k0, k1, c0, c1)
    tl.store(word0 + at, w0.to(tl.int64), mask=here)
    tl.store(word1 + at, w1.to(tl.int64), mask=here)


def threefry2x32(key0: Tensor, key1: Tensor, count0: Tensor, count1: Tensor) -> tuple[Tensor, Tensor]:
    """``threefry.threefry2x32`` by the kernel, bit for bit.

    Args:
        key0, key1, count0, count1: int64, any shapes that broadcast, values in [0, 2**32).

    Returns:
        Two int64 tensors of the broadcast shape, values in [0, 2**32).

    Raises:
        TypeError: a tensor that is not int64.
        ValueError: tensors on several devices, or on a CPU in a process that does not interpret kernels.

    >>> zero = torch.zeros(1, dtype=torch.int64)
    >>> [hex(int(word)) for word in threefry2x32(zero, zero, zero, zero)]
    ['0x6b200159', '0x99ba4efe']
    """
    given = (key0, key1, count0, count1)
    for name, words in zip(("key0", "key1", "count0", "count1"), given, strict=True):
        if words.dtype is not torch.int64:
            raise TypeError(f"{name} has dtype {words.dtype}; expected int64")
    chosen("triton", *given)
    spread = [words.contiguous() for words in torch.broadcast_tensors(*given)]
    out = torch.empty_like(spread[0]), torch.empty_like(spread[0])
    count = out[0].numel()
    if count:
        variant = _variant()
        kernel: Any = variant.kernel
        kernel[(triton.cdiv(count, BLOCK),)](*spread, *out, count, **variant.constants, num_warps=variant.warps, num_stages=variant.stages)
    return out


def variants() -> tuple[Variant, ...]:
    """Every configuration that ``threefry2x32`` launches.

    >>> [variant.name for variant in variants()]
    ['threefry2x32']
    """
    return (_variant(),)


def _variant() -> Variant:
    words = ("key0", "key1", "count0", "count1", "word0", "word1")
    signature = {**dict.fromkeys(words, "*i64"), "count": "i32", "BLOCK": "constexpr"}
    return Variant("threefry2x32", _kernel, MappingProxyType(signature), MappingProxyType({"BLOCK": BLOCK}), warps=4, stages=1)
