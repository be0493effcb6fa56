"""The product of a few rows and a weight matrix whose sums do not depend on how many rows there are: x @ weight.T.

A library's product adds in an order that changes with the number of rows, so a row's last bits change with its company. Here a sum runs over the
inputs in one fixed order. Three implementations: torch (tiles of 16 rows always, the last filled up with zeros), Triton on a GPU, and the C library
on a CPU, which streams the weights once however many rows there are.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_kernels import native
from specdec_kernels.dispatch import chosen
from specdec_kernels.packed import GROUP, Packed, unpacked

__all__ = ["rounded", "rows"]

TILE = 16
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TINY = 1e-30  # below it activations are 0
WIDE = 256  # activations under one scale where the weights are of kind "int8"


def rows(x: Tensor, weight: Tensor | Packed, *, impl: str = "auto") -> Tensor:
    """Multiplies every row by a weight matrix, x @ weight.T, with sums in float32 whose order does not depend on the number of rows.

    One implementation on one machine gives a row the same bits whatever rows stand beside it, and wherever it stands. Implementations may differ in
    the last bits. "auto" takes the C library on a CPU once it is built (``native.wait()`` waits for that) and torch before; in compiled and vmapped
    code it is the custom operator ``specdec::rows``.

    Args:
        x: [M, inputs], float32, float16 or bfloat16 (torch also takes float64, and adds in it).
        weight: [outputs, inputs], the same dtype, any of the three beside a float32 x, or packed.
        impl: "auto", "torch", "native" or "triton".

    Returns:
        [M, outputs], the dtype of x.

    Raises:
        ValueError: shapes or dtypes that do not match, a dtype the kernel does not have, tensors on two devices, an impl that cannot run.

    >>> rows(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    tensor([[1., 2., 3.]])
    """
    codes = weight.codes if isinstance(weight, Packed) else weight
    way = _way(impl, x, codes)
    if x.ndim != 2 or codes.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x and weight are {list(x.shape)} and {list(weight.shape)}; expected [rows, inputs] and [outputs, inputs]")
    if x.dtype not in DTYPES and (way != "torch" or x.dtype is not torch.float64):
        raise ValueError(f"x is {x.dtype}; expected float32, float16 or bfloat16")
    if not isinstance(weight, Packed) and x.dtype is not weight.dtype and (x.dtype is not torch.float32 or weight.dtype not in DTYPES):
        raise ValueError(f"x is {x.dtype} and weight is {weight.dtype}; expected one dtype")
    if way == "triton":
        from specdec_kernels.rows_triton import rows_triton

        if isinstance(weight, Packed) or x.dtype is not weight.dtype:
            raise ValueError(f"impl is 'triton' and the weight is {codes.dtype} beside {x.dtype}; expected one float dtype, or impl='torch'")
        return rows_triton(x, weight)
    if impl in ("auto", "native") and x.device.type == "cpu":
        from specdec_kernels import rows_native

        plain = not isinstance(weight, Packed) and x.dtype is weight.dtype and x.dtype in DTYPES
        if plain and _opaque():
            made: Tensor = rows_native.operator(x, weight)
            return made
        if rows_native.fits(x, weight) and (native.wait() if impl == "native" else native.ready()):
            return rows_native.rows_native(x, weight)
        if impl == "native":
            raise ValueError(f"impl is 'native', and the library cannot run here ({native.status()}); expected impl='auto' or 'torch'")
    return _reference(x, weight)


def _opaque() -> bool:
    """Whether the call is traced by a compiler or mapped over by vmap, and by nothing that would want its derivative: grad takes the reference."""
    if torch.compiler.is_compiling():
        return True
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return bool(stack) and all(one.key() == torch._C._functorch.TransformType.Vmap for one in stack)


def _way(impl: str, x: Tensor, codes: Tensor) -> Literal["torch", "triton"]:
    if impl != "native":
        return chosen(impl, x, codes)
    if chosen("torch", x, codes) and x.device.type != "cpu":
        raise ValueError(f"impl is 'native', and the tensors are on the {x.device.type}; expected tensors on a CPU, or impl='auto'")
    return "torch"


def _reference(x: Tensor, weight: Tensor | Packed) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    kept = x.dtype
    if isinstance(weight, Packed):
        x, matrix = rounded(x.to(wide), weight), unpacked(weight).to(wide).mT
    else:
        matrix = weight.to(wide).mT
    # Filled up even where full: each tile is then its own allocation, at one alignment.
    tiles = [F.pad(part.to(wide), (0, 0, 0, TILE - part.shape[0])) @ matrix for part in x.split(TILE)]
    return torch.cat(tiles)[: x.shape[0]].to(kept)


def rounded(x: Tensor, weight: Packed) -> Tensor:
    """The activations that a packed weight is multiplied by: rounded to 8 bits in groups where ``weight.activations`` is "int8", else as they are.

    A group's scale is its largest magnitude / 127; a group that holds NaN or infinity becomes NaN.

    Args:
        x: float [M, inputs].
        weight: of that many inputs.

    >>> from specdec_kernels.packed import packed
    >>> rounded(torch.tensor([[127.0, 1.4] + [0.0] * 30]), packed(torch.ones(1, 32), "q8_0"))[0, :2]
    tensor([127.,   1.])
    """
    if weight.activations == "float32":
        return x.clone()
    size = {"int8": WIDE, "int4": 2 * GROUP}.get(weight.kind, GROUP)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    groups = F.pad(wide, (0, -wide.shape[1] % size)).unflatten(1, (-1, size))
    most = groups.abs().amax(-1, keepdim=True)
    scale = torch.where(most.isfinite(), most / 127, torch.nan)
    up = torch.where(most > TINY, 127 / most, 0.0)
    return ((groups * up).round() * scale).flatten(1)[:, : x.shape[1]].to(x.dtype)
