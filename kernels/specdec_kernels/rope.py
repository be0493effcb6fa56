"""Rotary positions: every plane of the leading heads turned by its angle, the other heads handed on, in one launch."""

import torch
from torch import Tensor

from specdec_kernels.dispatch import chosen

__all__ = ["rope"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST = 256  # components of a head that the kernel holds


def rope(rows: Tensor, cos: Tensor, sin: Tensor, *, heads: int, impl: str = "auto") -> Tensor:
    """Turns component i and component i + D/2 of the first ``heads`` heads by the angle of plane i: (a cos - b sin, b cos + a sin).

    Queries, keys and values lie side by side in a row; queries and keys are turned, values pass. Computed in float32, rounded once.

    Args:
        rows: [T, all heads, D], float32, float16 or bfloat16 (the reference also takes float64, and computes in it); D even, at most 256 in
            the kernel.
        cos: [T, D/2], the dtype of rows or float32: the cosine of each plane's angle, the same for all heads. The rows may lie apart, as in
            ``cos[:, 0, : D // 2]`` of ``specdec_fn.models.rope.rotation``.
        sin: [T, D/2], likewise; positive as the angle is, as in ``sin[:, 0, D // 2 :]`` of that function.
        heads: how many leading heads are turned.
        impl: "auto", "torch" or "triton".

    Returns:
        [T, all heads, D], a new tensor.

    Raises:
        ValueError: shapes or dtypes that do not match, a number of heads out of range, a dtype or head size the kernel does not have, tensors on
            two devices, an impl that cannot run.

    >>> rope(torch.tensor([[[2.0, 1.0], [2.0, 1.0]]]), torch.tensor([[0.0]]), torch.tensor([[1.0]]), heads=1)
    tensor([[[-1.,  2.],
             [ 2.,  1.]]])
    """
    way = chosen(impl, rows, cos, sin)
    if rows.ndim != 3 or rows.shape[2] < 2 or rows.shape[2] % 2:
        raise ValueError(f"rows is {list(rows.shape)}; expected [T, all heads, D] with an even D")
    half = rows.shape[2] // 2
    for name, angle in (("cos", cos), ("sin", sin)):
        if angle.shape != (rows.shape[0], half):
            raise ValueError(f"{name} is {list(angle.shape)}; expected [T, D/2], here {[rows.shape[0], half]}")
        if angle.dtype is not cos.dtype or angle.dtype not in (rows.dtype, torch.float32):
            raise ValueError(f"{name} is {angle.dtype}; expected {rows.dtype}, the dtype of rows, or torch.float32, cos and sin alike")
    if type(heads) is not int or not 0 <= heads <= rows.shape[1]:
        raise ValueError(f"heads is {heads!r}; expected 0 to {rows.shape[1]}, the heads of rows")
    if rows.dtype not in DTYPES and (way == "triton" or rows.dtype is not torch.float64):
        raise ValueError(f"rows is {rows.dtype}; expected float32, float16 or bfloat16")
    if way == "triton":
        if 2 * half > LARGEST:
            raise ValueError(f"rows has heads of {2 * half} components; expected at most {LARGEST}")
        from specdec_kernels.rope_triton import rope_triton

        return rope_triton(rows, cos, sin, heads)
    wide = torch.promote_types(rows.dtype, torch.float32)
    first, second = rows[:, :heads].to(wide).split(half, -1)
    c, s = cos.to(wide).unsqueeze(1), sin.to(wide).unsqueeze(1)
    turned = torch.cat((first * c - second * s, second * c + first * s), -1).to(rows.dtype)
    return torch.cat((turned, rows[:, heads:]), 1)
