"""The product of a few rows and a weight matrix whose sums do not depend on how many rows there are: x @ weight.T.

A library's product adds in an order that changes with the number of rows, so a row's last bits change with its company. Here a tile has 16 rows
always, the last one filled up with zeros, and each of its sums runs over the inputs in one fixed order.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_kernels.dispatch import chosen

__all__ = ["rows"]

TILE = 16
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def rows(x: Tensor, weight: Tensor, *, impl: str = "auto") -> Tensor:
    """Multiplies every row by a weight matrix, x @ weight.T, with sums in float32 whose order does not depend on the number of rows.

    One implementation on one machine gives a row the same bits whatever rows stand beside it, and wherever it stands. The two implementations
    may differ in the last bits.

    Args:
        x: [M, inputs], float32, float16 or bfloat16 (the reference also takes float64, and adds in it).
        weight: [outputs, inputs], the same dtype.
        impl: "auto", "torch" or "triton".

    Returns:
        [M, outputs], the dtype of x.

    Raises:
        ValueError: shapes or dtypes that do not match, a dtype the kernel does not have, tensors on two devices, an impl that cannot run.

    >>> rows(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    tensor([[1., 2., 3.]])
    """
    way = chosen(impl, x, weight)
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x and weight are {list(x.shape)} and {list(weight.shape)}; expected [rows, inputs] and [outputs, inputs]")
    if x.dtype is not weight.dtype:
        raise ValueError(f"x is {x.dtype} and weight is {weight.dtype}; expected one dtype")
    if x.dtype not in DTYPES and (way == "triton" or x.dtype is not torch.float64):
        raise ValueError(f"x is {x.dtype}; expected float32, float16 or bfloat16")
    if way == "triton":
        from specdec_kernels.rows_triton import rows_triton

        return rows_triton(x, weight)
    wide = torch.promote_types(x.dtype, torch.float32)
    matrix = weight.to(wide).mT
    # Filled up even where full: each tile is then its own allocation, at one alignment.
    tiles = [F.pad(part.to(wide), (0, 0, 0, TILE - part.shape[0])) @ matrix for part in x.split(TILE)]
    return torch.cat(tiles)[: x.shape[0]].to(x.dtype)
