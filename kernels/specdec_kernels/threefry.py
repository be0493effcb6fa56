"""Threefry-2x32 with 20 rounds: the counter-based generator behind every random bit (Salmon et al., SC 2011; Random123).

The contract: ``threefry2x32(key0, key1, count0, count1) -> (word0, word1)``, elementwise and broadcasting, unsigned 32-bit words held in
int64 tensors (torch lacks uint64 shifts on a CPU; int64 under a 32-bit mask is exact in eager, vmapped and compiled code).

    ks = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA);  x += ks
    round r:  x0 += x1;  x1 = rotl(x1, R[r mod 8]) ^ x0,     R = 13 15 26 6 17 29 16 24
    after every 4 rounds, j = 1..5:  x0 += ks[j mod 3];  x1 += ks[(j+1) mod 3] + j
"""

from torch import Tensor

__all__ = ["threefry2x32", "threefry2x32_words"]

MASK = 0xFFFFFFFF
PARITY = 0x1BD11BDA
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
ROUNDS = 20


def threefry2x32(key0: Tensor, key1: Tensor, count0: Tensor, count1: Tensor) -> tuple[Tensor, Tensor]:
    """Encrypts counters under keys, elementwise.

    Args:
        key0, key1, count0, count1: int64, any shapes that broadcast, values in [0, 2**32).

    Returns:
        Two int64 tensors of the broadcast shape, values in [0, 2**32).

    >>> import torch
    >>> zero = torch.zeros((), dtype=torch.int64)
    >>> [hex(int(word)) for word in threefry2x32(zero, zero, zero, zero)]  # Random123's first known answer
    ['0x6b200159', '0x99ba4efe']
    """
    return _encrypt(key0, key1, count0, count1)  # type: ignore[return-value]


def threefry2x32_words(key0: int, key1: int, count0: int, count1: int) -> tuple[int, int]:
    """The same function on Python integers: a handful of words costs less this way than the launch of 140 tensor operations.

    >>> threefry2x32_words(0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3) == (0xC4923A9C, 0x483DF7A0)
    True
    """
    return _encrypt(key0, key1, count0, count1)  # type: ignore[return-value]


def _encrypt(key0: Tensor | int, key1: Tensor | int, count0: Tensor | int, count1: Tensor | int) -> tuple[Tensor | int, Tensor | int]:
    schedule = (key0, key1, key0 ^ key1 ^ PARITY)
    x0 = (count0 + key0) & MASK
    x1 = (count1 + key1) & MASK
    for round_number in range(ROUNDS):
        rotation = ROTATIONS[round_number % 8]
        x0 = (x0 + x1) & MASK
        x1 = (((x1 << rotation) | (x1 >> (32 - rotation))) & MASK) ^ x0
        if round_number % 4 == 3:
            injection = round_number // 4 + 1
            x0 = (x0 + schedule[injection % 3]) & MASK
            x1 = (x1 + schedule[(injection + 1) % 3] + injection) & MASK
    return x0, x1
