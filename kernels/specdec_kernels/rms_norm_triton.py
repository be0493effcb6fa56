"""The norm as a kernel: a program for each row, which stays in registers up to a width of 8192."""

from typing import no_type_check

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from specdec_kernels.rows_triton import narrowed
from specdec_kernels.variant import Variant

__all__ = ["rms_norm_triton", "variant", "variants"]

BLOCKS = ((512, 4), (4096, 8), (8192, 16))  # components at a time, and warps; wider rows are read twice
GRAIN = 16  # widths that are multiples of this are read in wide loads


@triton.jit
@no_type_check
def _loaded(x, residual, at, offsets, width, ADD: tl.constexpr):
    """Components as float32, and their sum with the residual as it is stored, which is what the norm sees."""
    value = tl.load(x + at + offsets, mask=offsets < width, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + at + offsets, mask=offsets < width, other=0.0).to(tl.float32)
        value = narrowed(value, x.dtype.element_ty).to(tl.float32)
    return value


@triton.jit(do_not_specialize=["units", "eps"])
@no_type_check
def _kernel(out, total, x, residual, weight, units, eps, UNIT: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr):
    width = units * UNIT
    at = tl.program_id(0).to(tl.int64) * width
    squares = tl.full([BLOCK], 0.0, tl.float32)
    value = squares
    for start in range(0, width, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value = _loaded(x, residual, at, offsets, width, ADD)
        if ADD:
            tl.store(total + at + offsets, narrowed(value, total.dtype.element_ty), mask=offsets < width)
        squares += value * value
    scale = tl.rsqrt(tl.sum(squares, 0) / width + eps)
    for start in range(0, width, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        if width > BLOCK:
            value = _loaded(x, residual, at, offsets, width, ADD)
        factor = tl.load(weight + offsets, mask=offsets < width, other=0.0).to(tl.float32)
        tl.store(out + at + offsets, narrowed(value * scale * factor, out.dtype.element_ty), mask=offsets < width)


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
    """Launches the kernel; arguments and result as in ``rms_norm``, which has checked them.

    >>> rms_norm_triton(torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0, None)
    tensor([[0.8485, 1.1314]])
    """
    tokens, width = x.shape
    made = variant(x.dtype, width, residual is not None)
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    added = None if residual is None else residual.contiguous()
    total = None if residual is None else torch.empty_like(x)
    if tokens:
        launch, units = made.kernel[(tokens,)], width // made.constants["UNIT"]
        spare = x  # stands for tensors that the kernel does not touch
        launch(
            out,
            spare if total is None else total,
            x,
            spare if added is None else added,
            weight,
            units,
            eps,
            **made.constants,
            num_warps=made.warps,
            num_stages=made.stages,
        )
    return out if total is None else (out, total)


def variant(dtype: torch.dtype, width: int, add: bool) -> Variant:
    """How the kernel is built for rows of one width.

    >>> variant(torch.bfloat16, 4096, True).name
    'rms_norm, bf16, 4096, 16, residual'
    """
    word = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    block, warps = next((size for size in BLOCKS if size[0] >= width), BLOCKS[-1])
    unit = 1 if width % GRAIN else GRAIN
    signature = dict.fromkeys(("out", "total", "x", "residual", "weight"), f"*{word}") | {"units": "i32", "eps": "fp32"}
    signature |= dict.fromkeys(("UNIT", "ADD", "BLOCK"), "constexpr")
    name = f"rms_norm, {word}, {block}, {unit}" + ", residual" * add
    return Variant(name, _kernel, signature, {"UNIT": unit, "ADD": add, "BLOCK": block}, warps, 1)


def variants() -> tuple[Variant, ...]:
    """Lists every way in which ``rms_norm_triton`` builds its kernel.

    >>> len(variants())
    36
    """
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    widths = [size - less for size, _ in BLOCKS for less in (0, 1)]
    return tuple(variant(dtype, width, add) for dtype in dtypes for width in widths for add in (False, True))
