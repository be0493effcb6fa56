"""One way a kernel is built: what the launch of an operation asks for, and what the gate compiles ahead of time, is the same value."""

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Variant"]


class Variant(NamedTuple):
    """A kernel with its compile-time choices.

    Attributes:
        name: words that tell it from the other variants of all operations, such as "paged_attention, head 64, bfloat16, tree".
        kernel: the function under ``triton.jit``.
        signature: every parameter in order with its type in Triton's words, such as "*bf16", "i32", "fp64", or "constexpr".
        constants: the values of the parameters that are constexpr.
        warps: warps of a program.
        stages: stages of the software pipeline.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    warps: int = 4
    stages: int = 2
