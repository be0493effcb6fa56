"""The small-row product as a kernel: the weights stream by once for every 16 rows."""

from types import MappingProxyType
from typing import no_type_check

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from specdec_kernels.variant import Variant

__all__ = ["narrowed", "rows_triton", "variant", "variants"]

ROWS = 16
NAMES = MappingProxyType({torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"})


@triton.jit
@no_type_check
def narrowed(x, dtype: tl.constexpr):
    """Rounds float32 to a dtype of storage, to nearest, ties to even; for bfloat16 on the bits, since the interpreter's own cast cuts them off.

    >>> type(narrowed).__name__ in ("InterpretedFunction", "JITFunction")
    True
    """
    if dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(x == x, rounded, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


@triton.jit(do_not_specialize=["count", "outputs", "units"])
@no_type_check
def _kernel(
    out,
    x,
    weight,
    count,
    outputs,
    units,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of rows and OUTPUTS outputs; inputs = units * UNIT, so that a row is known to start where 16 numbers can be read at once."""
    inputs = units * UNIT
    columns = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    lines = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inner = tl.arange(0, INPUTS)
    x_rows = x + lines.to(tl.int64)[:, None] * inputs
    weight_rows = weight + columns.to(tl.int64)[:, None] * inputs
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for start in range(0, inputs, INPUTS):
        places = start + inner[None, :]
        left = tl.load(x_rows + places, mask=(lines < count)[:, None] & (places < inputs), other=0.0).to(tl.float32)
        right = tl.load(weight_rows + places, mask=(columns < outputs)[:, None] & (places < inputs), other=0.0).to(tl.float32)
        total = tl.dot(left, tl.trans(right), total, input_precision=PRECISION)
    where = lines.to(tl.int64)[:, None] * outputs + columns[None, :]
    tl.store(out + where, narrowed(total, out.dtype.element_ty), mask=(lines < count)[:, None] & (columns < outputs)[None, :])


def variant(dtype: torch.dtype, inputs: int) -> Variant:
    """The kernel for rows of this dtype and this many inputs: only whether 16 divides them matters.

    Args:
        dtype: float32, float16 or bfloat16.
        inputs: at least 0.

    >>> variant(torch.float32, 576).constants["UNIT"], variant(torch.float32, 577).constants["UNIT"]
    (16, 1)
    """
    name, unit = NAMES[dtype], 1 if inputs % 16 else 16
    precision = "ieee" if dtype is torch.float32 else "tf32"  # half types are exact in tf32
    constants = {"UNIT": unit, "ROWS": ROWS, "OUTPUTS": 32, "INPUTS": 64 if dtype is torch.float32 else 128, "PRECISION": precision}
    pointers = dict.fromkeys(("out", "x", "weight"), f"*{name}")
    numbers = dict.fromkeys(("count", "outputs", "units"), "i32")
    signature = {**pointers, **numbers, **dict.fromkeys(constants, "constexpr")}
    return Variant(f"rows, {name}, inputs in steps of {unit}", _kernel, signature, constants, warps=4, stages=3 if dtype is torch.float32 else 4)


def variants() -> tuple[Variant, ...]:
    """Every variant that a launch can ask for.

    >>> len(variants())
    6
    """
    return tuple(variant(dtype, inputs) for dtype in NAMES for inputs in (16, 1))


def rows_triton(x: Tensor, weight: Tensor) -> Tensor:
    """Launches the kernel on arguments that ``rows`` has checked.

    Args:
        x: [M, inputs].
        weight: [outputs, inputs].

    Returns:
        [M, outputs], the dtype of x.

    >>> rows_triton(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tensor([[1., 3.]])
    """
    count, inputs = x.shape
    outputs = weight.shape[0]
    out = x.new_empty((count, outputs))
    if out.numel():
        chosen = variant(x.dtype, inputs)
        grid = (triton.cdiv(outputs, chosen.constants["OUTPUTS"]), triton.cdiv(count, ROWS))
        sizes = {"count": count, "outputs": outputs, "units": inputs // chosen.constants["UNIT"]}
        launch = chosen.kernel[grid]
        launch(out, x.contiguous(), weight.contiguous(), **sizes, **chosen.constants, num_warps=chosen.warps, num_stages=chosen.stages)
    return out
