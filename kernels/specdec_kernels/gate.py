"""The gate of a feed-forward layer: silu(gate) * up, from both halves of a row, in one launch (arXiv 2002.05202)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_kernels.dispatch import chosen

__all__ = ["gate"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def gate(rows: Tensor, *, impl: str = "auto") -> Tensor:
    """Gates the second half of each row by the first: silu(first) * second, with silu(x) = x / (1 + exp(-x)), in float32, rounded once.

    Args:
        rows: [T, 2 ffn], float32, float16 or bfloat16 (the reference also takes float64, and computes in it).
        impl: "auto", "torch" or "triton".

    Returns:
        [T, ffn], the dtype of rows.

    Raises:
        ValueError: another shape, a dtype the kernel does not have, an impl that cannot run.

    >>> gate(torch.tensor([[0.0, 30.0, 5.0, 2.0]]))
    tensor([[ 0., 60.]])
    """
    way = chosen(impl, rows)
    if rows.ndim != 2 or rows.shape[1] == 0 or rows.shape[1] % 2:
        raise ValueError(f"rows is {list(rows.shape)}; expected [T, 2 ffn]")
    if rows.dtype not in DTYPES and (way == "triton" or rows.dtype is not torch.float64):
        raise ValueError(f"rows is {rows.dtype}; expected float32, float16 or bfloat16")
    if way == "triton":
        from specdec_kernels.gate_triton import gate_triton

        return gate_triton(rows)
    first, second = rows.to(torch.promote_types(rows.dtype, torch.float32)).chunk(2, -1)
    return (F.silu(first) * second).to(rows.dtype)
