"""Rotary positions as a kernel: a program for each token and eight of its heads."""

from typing import no_type_check

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from specdec_kernels.rows_triton import narrowed
from specdec_kernels.variant import Variant

__all__ = ["rope_triton", "variant", "variants"]

GROUP = 8  # heads of a program
HALVES = (32, 64, 128)  # places for half a head


@triton.jit(do_not_specialize=["all_heads", "heads", "half", "cos_stride", "sin_stride"])
@no_type_check
def _kernel(out, rows, cos, sin, all_heads, heads, half, cos_stride, sin_stride, HALF: tl.constexpr, GROUP: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    head, plane = tl.program_id(1) * GROUP + tl.arange(0, GROUP), tl.arange(0, HALF)
    inside = (head < all_heads)[:, None] & (plane < half)[None, :]
    at = (token * all_heads + head)[:, None] * (2 * half) + plane[None, :]
    first = tl.load(rows + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(rows + at + half, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + token * cos_stride + plane, mask=plane < half, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + token * sin_stride + plane, mask=plane < half, other=0.0).to(tl.float32)[None, :]
    turns = (head < heads)[:, None]
    left, right = tl.where(turns, first * c - second * s, first), tl.where(turns, second * c + first * s, second)
    tl.store(out + at, narrowed(left, out.dtype.element_ty), mask=inside)
    tl.store(out + at + half, narrowed(right, out.dtype.element_ty), mask=inside)


def rope_triton(rows: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    """Launches the kernel; arguments and result as in ``rope``, which has checked them.

    >>> rope_triton(torch.tensor([[[2.0, 1.0], [2.0, 1.0]]]), torch.tensor([[0.0]]), torch.tensor([[1.0]]), 1)
    tensor([[[-1.,  2.],
             [ 2.,  1.]]])
    """
    rows = rows.contiguous()
    cos, sin = (angle if angle.stride(1) == 1 else angle.contiguous() for angle in (cos, sin))
    tokens, all_heads, size = rows.shape
    made = variant(rows.dtype, cos.dtype, size)
    out = torch.empty_like(rows)
    if rows.numel():
        launch, sizes = made.kernel[(tokens, -(-all_heads // GROUP))], (all_heads, heads, size // 2, cos.stride(0), sin.stride(0))
        launch(out, rows, cos, sin, *sizes, **made.constants, num_warps=made.warps, num_stages=made.stages)
    return out


def variant(dtype: torch.dtype, angle: torch.dtype, size: int) -> Variant:
    """How the kernel is built for heads of ``size`` components and angles of one dtype.

    >>> variant(torch.bfloat16, torch.float32, 80).name
    'rope, bf16, fp32, 64'
    """
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    half = next(places for places in HALVES if 2 * places >= size)
    signature = {"out": f"*{names[dtype]}", "rows": f"*{names[dtype]}", "cos": f"*{names[angle]}", "sin": f"*{names[angle]}"}
    signature |= dict.fromkeys(("all_heads", "heads", "half", "cos_stride", "sin_stride"), "i32") | {"HALF": "constexpr", "GROUP": "constexpr"}
    return Variant(f"rope, {names[dtype]}, {names[angle]}, {half}", _kernel, signature, {"HALF": half, "GROUP": GROUP}, max(1, half // 32), 1)


def variants() -> tuple[Variant, ...]:
    """Lists every way in which ``rope_triton`` builds its kernel.

    >>> len(variants())
    15
    """
    half_types = (torch.float16, torch.bfloat16)
    pairs = ((torch.float32, torch.float32), *((dtype, angle) for dtype in half_types for angle in (dtype, torch.float32)))
    return tuple(variant(dtype, angle, 2 * half) for dtype, angle in pairs for half in HALVES)
