"""What a pass of a Llama does between two attentions, as one call of the C library: see ``c/step.c``.

``matrix`` lays out a weight, ``Step`` says what is to be done, ``run`` does it. Activations are float32 whatever the weights are, and a row's numbers
depend on no other row. The reference is ``specdec_fn.models.rowwise``: the same steps in torch.
"""

import ctypes
from ctypes import addressof, byref, c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from specdec_kernels import native
from specdec_kernels.packed import Packed

__all__ = ["TYPES", "Matrix", "Step", "matrix", "run"]

TYPES = (torch.float32, torch.bfloat16, torch.float16)  # in the order of the library's numbers for them
_PACKED = ("int8", "q8_0", "q4_0", "q4_1", "int4")


class Matrix(ctypes.Structure):
    """``matrix`` of ``c/rows.h``."""

    _fields_ = (
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("kind", c_int32),
        ("outputs", c_int32),
        ("inputs", c_int32),
        ("whole", c_int32),
        ("stride", c_int64),
    )


class Step(ctypes.Structure):
    """``step`` of ``c/step.c``."""

    _fields_ = (
        *((name, c_int32) for name in ("rows", "width", "heads", "kv_heads", "head_dim", "ffn", "threads", "type")),
        ("eps", c_float),
        ("unused", c_int32),
        ("x", c_void_p),
        ("out", c_void_p),
        ("attended", c_void_p),
        ("output", c_void_p),
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("ffn_norm", c_void_p),
        ("qkv", c_void_p),
        ("attention_norm", c_void_p),
        ("bias", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("turned", c_void_p),
        ("head", c_void_p),
        ("norm", c_void_p),
        ("logits", c_void_p),
    )


def matrix(weight: Tensor | Packed) -> Matrix | None:
    """Lays a weight out for the library; None where the library cannot read it: another dtype, device or stride.

    The result holds addresses: the weight must live as long.

    >>> matrix(torch.zeros(3, 4)).outputs, matrix(torch.zeros(3, 4, dtype=torch.float64))
    (3, None)
    """
    codes = weight.codes if isinstance(weight, Packed) else weight
    if (
        codes.device.type != "cpu"
        or codes.ndim != 2
        or (codes.stride(1) != 1 and codes.shape[1] != 1)
        or (not isinstance(weight, Packed) and codes.dtype not in TYPES)
    ):
        return None
    if isinstance(weight, Packed) and weight.kind == "int4" and weight.activations != "int8":
        return None
    if max(codes.shape) >= 2**31 - 64 or (isinstance(weight, Packed) and weight.scales is not None and not weight.scales.is_contiguous()):
        return None
    if isinstance(weight, Packed):
        kind, whole, scales = 3 + _PACKED.index(weight.kind), int(weight.activations == "int8"), weight.scales
    else:
        kind, whole, scales = TYPES.index(codes.dtype), 0, None
    at = None if scales is None else scales.data_ptr()
    stride = codes.stride(0) * codes.element_size()
    return Matrix(codes.data_ptr(), at, kind, weight.shape[0], weight.shape[1], whole, stride)


def run(step: Step, held: object) -> None:
    """Runs a step; the library must be there.

    Args:
        step: what to do.
        held: whatever keeps alive what the step points to.

    Raises:
        MemoryError: no memory for what lies between.

    >>> run(Step(threads=1), None) if native.wait() else None  # no rows, and nothing to do
    """
    del held
    made = native.library()
    assert made is not None, "the library is not there"
    if made.specdec_step(byref(step)):
        raise MemoryError("no memory for the activations of a pass")


def place(laid: Matrix | None) -> int | None:
    """Where a matrix is, for a field of ``Step``."""
    return None if laid is None else addressof(laid)
