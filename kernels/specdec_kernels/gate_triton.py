"""The gate as a kernel: a program for each row and each 1024 places of it."""

from typing import no_type_check

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from specdec_kernels.rows_triton import narrowed
from specdec_kernels.variant import Variant

__all__ = ["gate_triton", "variant", "variants"]

BLOCK = 1024
GRAIN = 16  # rows whose halves are multiples of this are read in wide loads


@triton.jit(do_not_specialize=["units"])
@no_type_check
def _kernel(out, rows, units, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    ffn = units * UNIT
    token = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(rows + token * 2 * ffn + place, mask=place < ffn, other=0.0).to(tl.float32)
    up = tl.load(rows + token * 2 * ffn + ffn + place, mask=place < ffn, other=0.0).to(tl.float32)
    small = tl.exp(-tl.abs(x))  # at most 1, so that nothing overflows
    gated = x * tl.where(x < 0, small, 1.0) / (1.0 + small) * up
    tl.store(out + token * ffn + place, narrowed(gated, out.dtype.element_ty), mask=place < ffn)


def gate_triton(rows: Tensor) -> Tensor:
    """Launches the kernel; argument and result as in ``gate``, which has checked it.

    >>> gate_triton(torch.tensor([[0.0, 30.0, 5.0, 2.0]]))
    tensor([[ 0., 60.]])
    """
    rows = rows.contiguous()
    tokens, ffn = rows.shape[0], rows.shape[1] // 2
    made = variant(rows.dtype, ffn)
    out = rows.new_empty(tokens, ffn)
    if tokens:
        launch, units = made.kernel[(tokens, -(-ffn // BLOCK))], ffn // made.constants["UNIT"]
        launch(out, rows, units, **made.constants, num_warps=made.warps, num_stages=made.stages)
    return out


def variant(dtype: torch.dtype, ffn: int) -> Variant:
    """How the kernel is built for rows of one dtype and width.

    >>> variant(torch.bfloat16, 11008).name
    'gate, bf16, 16'
    """
    word = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    unit = 1 if ffn % GRAIN else GRAIN
    signature = {"out": f"*{word}", "rows": f"*{word}", "units": "i32", "UNIT": "constexpr", "BLOCK": "constexpr"}
    return Variant(f"gate, {word}, {unit}", _kernel, signature, {"UNIT": unit, "BLOCK": BLOCK}, 4, 1)


def variants() -> tuple[Variant, ...]:
    """Lists every way in which ``gate_triton`` builds its kernel.

    >>> len(variants())
    6
    """
    return tuple(variant(dtype, ffn) for dtype in (torch.float32, torch.float16, torch.bfloat16) for ffn in (1, GRAIN))
