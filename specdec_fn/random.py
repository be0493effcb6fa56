"""Keys and bits: a counter-based generator whose numbers depend on a key and an index, and on nothing else.

Keys and bits equal ``jax.random``'s under ``jax_enable_x64`` (threefry2x32 with 20 rounds, partitionable layout), so that an experiment can
be replayed there. The float maps are ours: 53 bits in float64, 24 in float32, both on [0, 1). There is no global generator: a key is
threaded first, and the same key always gives the same numbers, whatever the shape, the batch or the order of the calls.

    split:   child j of key   = threefry(key, (hi j, lo j))
    fold_in: key folded with d = threefry(key, (0, d))
    bits:    i-th 32-bit word = w0 ^ w1, i-th 64-bit word = w0 << 32 | w1,   (w0, w1) = threefry(key, (hi i, lo i))
"""

import math
import operator
from collections.abc import Iterator, Sequence
from typing import SupportsIndex

import torch
from torch import Tensor

from specdec_fn.pytree import state
from specdec_fn.typing import Float, Int
from specdec_kernels.threefry import MASK, threefry2x32, threefry2x32_few

__all__ = ["Key", "bits", "fold_in", "key", "key_data", "split", "uniform"]

FEW = 32  # up to this many counters, single words are faster than tensor operations, with the C library and without


@state()
class Key:
    """One key, or an array of keys; make it with ``key`` and derive from it with ``split`` and ``fold_in``.

    Indexing, ``len`` and iteration run over the leading axis of an array of keys. The words inside are for ``key_data`` alone.
    """

    words: Int[Tensor, "*shape 2"]

    @property
    def shape(self) -> torch.Size:
        """Shape of the array of keys; ``()`` for a single one."""
        return self.words.shape[:-1]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("this is a single key and has no length; split(key, n) gives an array of n keys")
        return self.shape[0]

    def __getitem__(self, index: int | slice) -> "Key":
        if not self.shape:
            raise TypeError("this is a single key and cannot be indexed; split(key, n) gives an array of n keys")
        return Key(self.words[index].clone())

    def __iter__(self) -> Iterator["Key"]:
        return (self[i] for i in range(len(self)))


def key(seed: SupportsIndex) -> Key:
    """Makes a key from an integer seed.

    Args:
        seed: in [-2**63, 2**63); negative seeds count in two's complement.

    Raises:
        TypeError: the seed is not an integer.
        ValueError: the seed is out of range.

    >>> key_data(key(42)).tolist()
    [0, 42]
    """
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"seed is {seed!r}; expected an integer in [-2**63, 2**63)") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"seed is {number}; expected an integer in [-2**63, 2**63)")
    return _key((number >> 32) & MASK, number & MASK)


def key_data(key: Key) -> Int[Tensor, "*shape 2"]:
    """The two 32-bit words of each key, as int64 in [0, 2**32).

    >>> key_data(split(key(0))).tolist() == [[0x6B200159, 0x99BA4EFE], [0x375F238F, 0xCDDB151D]]
    True
    """
    return key.words.clone()


def split(key: Key, num: int = 2) -> Key:
    """Derives an array of ``num`` independent keys, appended as the last axis of ``key.shape``.

    Raises:
        ValueError: ``num`` is negative.

    >>> a, b = split(key(0))
    >>> len(split(key(0), 5))
    5
    """
    if num < 0:
        raise ValueError(f"num is {num}; expected a number of keys, 0 or more")
    return Key(torch.stack(_blocks(key, num), dim=-1))


def fold_in(key: Key, data: int | Int[Tensor, "..."]) -> Key:
    """Derives a key from a key and a number, so that a tree of addresses needs no stored state.

    Args:
        data: in [0, 2**32): an integer, or a tensor of integers that broadcasts against ``key.shape``.

    Raises:
        TypeError: data is not integral.
        ValueError: data is out of range (inside ``vmap`` and compiled code, tensors cannot be inspected and are taken as they are).

    >>> key_data(fold_in(key(0), 7)).tolist() == [0xA1EF7A4D, 0x116EB6B3]
    True
    """
    if not isinstance(data, Tensor):
        try:
            number = operator.index(data)
        except TypeError:
            raise TypeError(f"data is {data!r}; expected an integer in [0, 2**32) or a tensor of them") from None
        if not 0 <= number <= MASK:
            raise ValueError(f"data is {number}; expected an integer in [0, 2**32)")
        if _is_few(key, 1):
            return _key(*_few(key, [number])[0])
        data = torch.tensor(number, dtype=torch.int64, device=key.words.device)
    elif data.is_floating_point() or data.is_complex() or data.dtype is torch.bool:
        raise TypeError(f"data has dtype {data.dtype}; expected integers in [0, 2**32)")
    elif _is_few(key, data.numel()) and data.device.type == "cpu" and not _is_traced(data):
        numbers = data.flatten().tolist()
        if numbers and not (min(numbers) >= 0 and max(numbers) <= MASK):
            raise ValueError(f"data spans {min(numbers)} to {max(numbers)}; expected integers in [0, 2**32)")
        return Key(torch.tensor(_few(key, numbers), dtype=torch.int64).reshape((*data.shape, 2)))
    elif not _is_traced(data) and data.numel() and not (int(data.min()) >= 0 and int(data.max()) <= MASK):
        raise ValueError(f"data spans {int(data.min())} to {int(data.max())}; expected integers in [0, 2**32)")
    data = data.to(torch.int64)
    return Key(torch.stack(threefry2x32(key.words[..., 0], key.words[..., 1], torch.zeros_like(data), data), dim=-1))


def bits(key: Key, shape: Sequence[int] = (), width: int = 32) -> Int[Tensor, "..."]:
    """Random bits of the given width, as int64 of shape ``key.shape + shape``.

    Args:
        width: 32 gives values in [0, 2**32); 64 gives all of int64 (two's complement).

    Raises:
        ValueError: another width, or a negative dimension.

    >>> [hex(word) for word in bits(key(42), (4,)).tolist()]
    ['0x7d1c13a2', '0xae0730d9', '0x9dc3f9f9', '0x8f9ec1d7']
    """
    if width not in (32, 64):
        raise ValueError(f"width is {width!r}; expected 32 or 64")
    shape = tuple(shape)
    if any(size < 0 for size in shape):
        raise ValueError(f"shape is {shape}; expected dimensions of 0 or more")
    word0, word1 = _blocks(key, math.prod(shape))
    flat = word0 ^ word1 if width == 32 else (word0 << 32) | word1
    return flat.reshape(key.shape + shape)


def uniform(key: Key, shape: Sequence[int] = (), dtype: torch.dtype = torch.float64) -> Float[Tensor, "..."]:
    """Uniform numbers on the grid {k 2**-B} of [0, 1), of shape ``key.shape + shape``: B = 53 in float64, 24 in float32.

    Zero is on the grid and one is not, so ``u * q < p`` never accepts where p is 0 and always accepts where p is q.

    Raises:
        ValueError: another dtype.

    >>> uniform(key(42), (2,), dtype=torch.float32)
    tensor([0.4887, 0.6798])
    """
    if dtype not in (torch.float64, torch.float32):
        raise ValueError(f"dtype is {dtype}; expected torch.float64 or torch.float32")
    shape = tuple(shape)
    if all(size >= 0 for size in shape) and _is_few(key, math.prod(shape)):
        words = _few(key, range(math.prod(shape)))
        wide = dtype is torch.float64
        values = [((w0 << 32 | w1) >> 11) * 2.0**-53 if wide else ((w0 ^ w1) >> 8) * 2.0**-24 for w0, w1 in words]
        return torch.tensor(values, dtype=dtype, device=key.words.device).reshape(shape)
    if dtype is torch.float64:
        return ((bits(key, shape, 64) >> 11) & (2**53 - 1)).to(dtype) * 2.0**-53
    return (bits(key, shape, 32) >> 8).to(dtype) * 2.0**-24


def _blocks(key: Key, count: int) -> tuple[Tensor, Tensor]:
    """The two words of blocks 0 to count - 1 under each key: int64 of shape key.shape + (count,)."""
    if _is_few(key, count):
        words = torch.tensor(_few(key, range(count)), dtype=torch.int64, device=key.words.device).reshape(count, 2)
        return words[:, 0], words[:, 1]
    index = torch.arange(count, dtype=torch.int64, device=key.words.device)
    return threefry2x32(key.words[..., 0, None], key.words[..., 1, None], index >> 32, index & MASK)


def _few(key: Key, counters: Sequence[int]) -> list[tuple[int, int]]:
    key0, key1 = key.words.tolist()
    return threefry2x32_few(key0, key1, counters)


def _key(word0: int, word1: int) -> Key:
    return Key(torch.tensor((word0, word1), dtype=torch.int64))


def _is_few(key: Key, count: int) -> bool:
    return count <= FEW and key.words.dim() == 1 and key.words.device.type == "cpu" and not _is_traced(key.words)


def _is_traced(tensor: Tensor) -> bool:
    """Whether the tensor stands for values that Python may not look at: inside vmap, grad, compiled or fake-tensor code."""
    if torch.compiler.is_compiling():
        return True
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor) or type(tensor) not in (Tensor, torch.nn.Parameter)
