"""The ``rows`` product in the C library (``c/rows.c``), and as torch's custom operator ``specdec::rows``.

As an operator it lives in compiled and vmapped code, which does not look into it."""

from ctypes import byref

import torch
from torch import Tensor

from specdec_kernels import native
from specdec_kernels.dispatch import untraced
from specdec_kernels.packed import Packed
from specdec_kernels.step import TYPES, matrix

__all__ = ["fits", "operator", "rows_native"]


def fits(x: Tensor, weight: Tensor | Packed) -> bool:
    """Whether the library can multiply these, were it there: numbers in memory, and no gradient wanted.

    >>> fits(torch.ones(1, 2), torch.ones(3, 2)), fits(torch.ones(1, 2, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64))
    (True, False)
    """
    codes = weight.codes if isinstance(weight, Packed) else weight
    if x.dtype not in TYPES or not untraced(x, codes) or (torch.is_grad_enabled() and (x.requires_grad or codes.requires_grad)):
        return False
    return matrix(weight) is not None if isinstance(weight, Packed) else weight.dtype in TYPES


def rows_native(x: Tensor, weight: Tensor | Packed) -> Tensor:
    """Multiplies in float32 sums, sixteen lanes wide, whose order depends on nothing but the number of inputs.

    Args:
        x: [M, inputs], float32, bfloat16 or float16.
        weight: [outputs, inputs], float32, bfloat16, float16 or packed.

    Returns:
        [M, outputs], the dtype of x.

    >>> rows_native(torch.ones(1, 2), torch.ones(3, 2)) if native.wait() else torch.full((1, 3), 2.0)
    tensor([[2., 2., 2.]])
    """
    if not isinstance(weight, Packed):
        weight = weight.contiguous() if matrix(weight) is None else weight  # a name of its own: the copy must outlive the call
    laid = matrix(weight)
    library = native.library()
    assert laid is not None, "checked before"
    assert library is not None, "checked before"
    wide = x.to(torch.float32).contiguous()
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=torch.float32)
    if out.numel() and library.specdec_rows(byref(laid), _at(wide), _at(out), x.shape[0], torch.get_num_threads()):
        raise MemoryError("no memory for the rows of a product")
    return out.to(x.dtype)


def _at(tensor: Tensor) -> object:
    from ctypes import c_void_p

    return c_void_p(tensor.data_ptr())


@torch.library.custom_op("specdec::rows", mutates_args=())
def operator(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T for a plain weight, as ``rows`` computes it where it runs.

    >>> operator(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tensor([[1., 3.]])
    """
    from specdec_kernels.rows import rows

    return rows(x.detach(), weight.detach())


@operator.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


def _keep(ctx: object, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)  # type: ignore[attr-defined]


def _backward(ctx: object, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
    return grad @ weight, grad.mT @ x


operator.register_autograd(_backward, setup_context=_keep)


@operator.register_vmap
def _(info: object, in_dims: tuple[int | None, int | None], x: Tensor, weight: Tensor) -> tuple[Tensor, int]:
    """Rows of many samples are rows of one product; weights of many are products of their own."""
    if in_dims[1] is None:
        assert in_dims[0] is not None
        moved = x.movedim(in_dims[0], 0)
        return operator(moved.flatten(0, 1), weight).unflatten(0, moved.shape[:2]), 0
    weights = weight.movedim(in_dims[1], 0)
    samples = x.expand(weights.shape[0], *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
    return torch.stack([operator(one, own) for one, own in zip(samples.unbind(), weights.unbind(), strict=True)]), 0
