"""The uniform numbers behind the race's exponential noise: one for each token of the vocabulary, from 64 random bits each.

    u = (k + 1/2) 2**-64,   k = word0 << 32 | word1 of threefry's block i under the key

computed as word0 2**-32 + (word1 + 1/2) 2**-64, so that numbers near 0 keep their relative precision. The C library makes the same bits as torch,
in 32-bit lanes, at a fraction of the time: a pass of ``coupled`` draws rows times vocabulary of them.
"""

from ctypes import c_double, c_int64, c_void_p

import torch
from torch import Tensor

from specdec_kernels import native
from specdec_kernels.dispatch import untraced
from specdec_kernels.threefry import threefry2x32

__all__ = ["race_uniform"]

MASK = 0xFFFFFFFF


def race_uniform(keys: Tensor, columns: int, *, negative: bool = False, impl: str = "auto") -> Tensor:
    """The numbers of blocks 0 to columns - 1 under each key.

    Args:
        keys: int64 [..., 2], the words of keys, values in [0, 2**32).
        columns: numbers a key.
        negative: -u in place of u, which is what ``log1p`` is given next.
        impl: "auto", "torch", or "native" (a CPU, and plain tensors); the bits are the same.

    Returns:
        float64 [..., columns] in (0, 1], or in [-1, 0) where negative; 1 or -1 where the sum rounds to it.

    Raises:
        ValueError: another impl, "native" where the library cannot run, or keys that are no words.

    >>> race_uniform(torch.tensor([0, 0]), 2) * 2**32 // 1 == torch.tensor([0x6B200159, 0x375F238F])
    tensor([True, True])
    """
    if impl not in ("auto", "torch", "native"):
        raise ValueError(f"impl is {impl!r}; expected 'auto', 'torch' or 'native'")
    if keys.dtype is not torch.int64 or keys.shape[-1:] != (2,):
        raise ValueError(f"keys are {keys.dtype} {list(keys.shape)}; expected int64 [..., 2], the words of keys")
    fits = impl != "torch" and untraced(keys) and (native.wait() if impl == "native" else native.ready())
    if fits:
        library, flat = native.library(), keys.contiguous()
        assert library is not None, "it is ready"
        out = torch.empty((*keys.shape[:-1], columns), dtype=torch.float64)
        rows = flat.numel() // 2
        places, sizes = (c_void_p(flat.data_ptr()), c_void_p(out.data_ptr())), (c_int64(rows), c_int64(columns))
        library.specdec_noise(*places, *sizes, c_double(-1.0 if negative else 1.0), torch.get_num_threads())
        return out
    if impl == "native":
        raise ValueError(f"impl is 'native', and the library cannot run here ({native.status()}); expected impl='auto' or 'torch'")
    index = torch.arange(columns, dtype=torch.int64, device=keys.device)
    word0, word1 = threefry2x32(keys[..., 0, None], keys[..., 1, None], index >> 32, index & MASK)
    uniform = word0.to(torch.float64).mul_(2.0**-32).add_(word1.to(torch.float64).add_(0.5).mul_(2.0**-64))
    return uniform.neg_() if negative else uniform
