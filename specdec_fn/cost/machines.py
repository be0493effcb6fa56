"""Machines by name: how fast they read memory, how fast they multiply, and the ridge between the two.

Figures are the makers' published peaks for dense matrices (half of what is printed "with sparsity"); nothing reaches them in full.

A100 SXM 80 GB: NVIDIA A100 data sheet: 2,039 GB/s; FP32 19.5, FP16 and BF16 312 TFLOP/s, INT8 624 TOP/s.
H100 SXM: NVIDIA H100 data sheet: 3.35 TB/s, 80 GB; FP32 67, FP16 and BF16 989, FP8 and INT8 1,979.
H200 SXM: NVIDIA H200 data sheet: 4.8 TB/s, 141 GB; compute as the H100's.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["BITS", "Machine", "bits", "flops", "known", "machines", "ridge"]


class Machine(NamedTuple):
    """What the roofline needs to know of a machine.

    Attributes:
        name: of the machine.
        bandwidth: bytes a second from memory.
        compute: FLOP/s by the dtype that is multiplied, as pairs.
        memory: bytes of memory, 0 where it does not matter.
    """

    name: str
    bandwidth: float
    compute: tuple[tuple[str, float], ...]
    memory: float = 0.0


BITS: Mapping[str, float] = MappingProxyType(
    {"float32": 32.0, "bfloat16": 16.0, "float16": 16.0, "float8": 8.0, "int8": 8.0, "q8_0": 8.5, "int4": 5.0, "q4_0": 4.5, "q4_1": 5.0}
)
_HOPPER = (("float32", 67e12), ("bfloat16", 989e12), ("float16", 989e12), ("float8", 1979e12), ("int8", 1979e12))
machines: Mapping[str, Machine] = MappingProxyType(
    {
        "A100": Machine("A100", 2.039e12, (("float32", 19.5e12), ("bfloat16", 312e12), ("float16", 312e12), ("int8", 624e12)), 80e9),
        "H100": Machine("H100", 3.35e12, _HOPPER, 80e9),
        "H200": Machine("H200", 4.8e12, _HOPPER, 141e9),
    }
)


def known(name: str) -> Machine:
    """The machine of a name.

    Raises:
        ValueError: an unknown name; the known ones are listed.

    >>> known("H200").bandwidth
    4800000000000.0
    """
    if name not in machines:
        raise ValueError(f"the machine is {name!r}; expected one of {', '.join(machines)}, or this")
    return machines[name]


def bits(dtype: str) -> float:
    """Bits that a stored weight takes, the scales of its group included.

    Raises:
        ValueError: an unknown dtype; the known ones are listed.

    >>> bits("q4_0")
    4.5
    """
    if dtype not in BITS:
        raise ValueError(f"the dtype is {dtype!r}; expected one of {', '.join(BITS)}")
    return BITS[dtype]


def flops(machine: Machine, dtype: str) -> float:
    """FLOP/s for weights of a dtype: its own where the machine multiplies it, else those of 16 bits, into which GPUs unpack packed weights.

    The C library on a CPU multiplies packed weights as integers, faster than that, so there the ridge of packed weights lies higher than stated.

    Raises:
        ValueError: an unknown dtype, or a machine that states neither.

    >>> flops(known("A100"), "q4_0")
    312000000000000.0
    """
    bits(dtype)
    stated = dict(machine.compute)
    for name in (dtype, "bfloat16", "float16", "float32"):
        if name in stated:
            return stated[name]
    raise ValueError(f"machine {machine.name!r} states FLOP/s for {', '.join(stated) or 'nothing'}; expected {dtype}, bfloat16, float16 or float32")


def ridge(machine: Machine, dtype: str) -> float:
    """FLOP that the machine does in the time it reads a byte: below this intensity, a pass is bound by memory.

    Raises:
        ValueError: as ``flops``.

    >>> ridge(Machine("chapter", 2e12, (("float16", 312e12),)), "float16")
    156.0
    """
    return flops(machine, dtype) / machine.bandwidth
