"""Threefry-2x32 with 20 rounds: the counter-based generator behind every random bit (Salmon et al., SC 2011; Random123).

The contract: ``threefry2x32(key0, key1, count0, count1) -> (word0, word1)``, elementwise and broadcasting, unsigned 32-bit words held in
int64 tensors (torch has no shifts of unsigned tensors on a CPU). Inside, the same 32 bits are held in int32, whose sums wrap by themselves: half
the bytes and three quarters of the operations of int64 under a mask.

    ks = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA);  x += ks
    round r:  x0 += x1;  x1 = rotl(x1, R[r mod 8]) ^ x0,     R = 13 15 26 6 17 29 16 24
    after every 4 rounds, j = 1..5:  x0 += ks[j mod 3];  x1 += ks[(j+1) mod 3] + j
"""

from collections.abc import Callable, Sequence
from ctypes import c_int64
from operator import add
from typing import Any

import torch
from torch import Tensor

from specdec_kernels import native
from specdec_kernels.dispatch import chosen

__all__ = ["threefry2x32", "threefry2x32_few", "threefry2x32_words"]

MASK = 0xFFFFFFFF
PARITY = 0x1BD11BDA
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
ROUNDS = 20


def threefry2x32(key0: Tensor, key1: Tensor, count0: Tensor, count1: Tensor, *, impl: str = "auto") -> tuple[Tensor, Tensor]:
    """Encrypts counters under keys, elementwise.

    Args:
        key0, key1, count0, count1: int64, any shapes that broadcast, values in [0, 2**32).
        impl: "torch", "triton", or "auto": the kernel for tensors on a GPU, except those that are traced (inside vmap or compiled code).

    Returns:
        Two int64 tensors of the broadcast shape, values in [0, 2**32).

    Raises:
        ValueError: another impl, or "triton" where no kernel runs: without triton, without a GPU or its interpreter, or on traced tensors.

    >>> import torch
    >>> zero = torch.zeros((), dtype=torch.int64)
    >>> [hex(int(word)) for word in threefry2x32(zero, zero, zero, zero)]  # Random123's first known answer
    ['0x6b200159', '0x99ba4efe']
    """
    if (impl != "auto" or key0.is_cuda) and _way(impl, key0, key1, count0, count1) == "triton":
        from specdec_kernels import threefry_triton

        return threefry_triton.threefry2x32(key0, key1, count0, count1)
    k0, k1, c0, c1 = (word.to(torch.int32) for word in (key0, key1, count0, count1))
    word0, word1 = _encrypt(k0, k1, c0, c1, add, _rotate_signed)
    return word0.to(torch.int64) & MASK, word1.to(torch.int64) & MASK


def threefry2x32_words(key0: int, key1: int, count0: int, count1: int) -> tuple[int, int]:
    """The same function on Python integers: a handful of words costs less this way than the launch of 140 tensor operations.

    >>> threefry2x32_words(0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3) == (0xC4923A9C, 0x483DF7A0)
    True
    """
    return _encrypt(key0, key1, count0, count1, _add, _rotate)


def threefry2x32_few(key0: int, key1: int, counters: Sequence[int]) -> list[tuple[int, int]]:
    """The words of counters (0, c) under one key: in the C library where it is loaded, else on Python integers.

    Args:
        key0, key1: the words of the key, in [0, 2**32).
        counters: each in [0, 2**32); what is larger counts modulo that.

    Returns:
        Two words in [0, 2**32) for each.

    >>> threefry2x32_few(0, 0, [0, 1]) == [threefry2x32_words(0, 0, 0, 0), threefry2x32_words(0, 0, 0, 1)]
    True
    """
    library = None if torch.compiler.is_compiling() else native.loaded()
    if library is None:
        return [threefry2x32_words(key0, key1, 0, counter) for counter in counters]
    out = (c_int64 * (2 * len(counters)))()
    library.specdec_threefry((c_int64 * 2)(key0, key1), (c_int64 * len(counters))(*counters), out, c_int64(len(counters)))
    return list(zip(out[::2], out[1::2], strict=True))


def _way(impl: str, *words: Tensor) -> str:
    """Which implementation runs; a kernel needs numbers in memory, and all on one device."""
    wrapped = torch.compiler.is_compiling() or any(
        type(word) is not Tensor or torch._C._functorch.is_functorch_wrapped_tensor(word) for word in words
    )
    if impl == "triton" and wrapped:
        raise ValueError("impl is 'triton', and the words are traced; expected impl='torch' or 'auto' inside vmap and compiled code")
    if impl == "auto" and (wrapped or len({word.device for word in words}) > 1):
        return "torch"
    return chosen(impl, *words)


def _encrypt(key0: Any, key1: Any, count0: Any, count1: Any, add: Callable[..., Any], rotate: Callable[..., Any]) -> tuple[Any, Any]:
    """The rounds, on whatever holds 32 bits and has these two operations on them."""
    schedule = (key0, key1, key0 ^ key1 ^ PARITY)
    x0, x1 = add(count0, key0), add(count1, key1)
    for round_number in range(ROUNDS):
        x0 = add(x0, x1)
        x1 = rotate(x1, ROTATIONS[round_number % 8]) ^ x0
        if round_number % 4 == 3:
            injection = round_number // 4 + 1
            x0 = add(x0, schedule[injection % 3])
            x1 = add(x1, add(schedule[(injection + 1) % 3], injection))
    return x0, x1


def _add(a: int, b: int) -> int:
    return (a + b) & MASK


def _rotate(x: int, by: int) -> int:
    return ((x << by) | (x >> (32 - by))) & MASK


def _rotate_signed(x: Tensor, by: int) -> Tensor:
    """int32 shifts right with copies of the sign, which the mask takes off."""
    return (x << by) | ((x >> (32 - by)) & ((1 << by) - 1))
