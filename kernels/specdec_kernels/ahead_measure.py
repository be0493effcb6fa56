"""What is compiled ahead of time, and what it takes: the walk over the kernels of a package, and the resources of one variant on one target.

Compiling needs no GPU: triton hands its code to the assembler of the target, which is part of triton, and the binary states its registers and its
memory. It does need a process in which kernels are not interpreted. This is a part of the command ``specdec_kernels.ahead``.
"""

import importlib
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from specdec_kernels.ahead_table import Row
from specdec_kernels.variant import Variant

__all__ = ["TARGETS", "collected", "measured", "rooms", "usage_of_amd", "usage_of_cuda"]

TARGETS = MappingProxyType({"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "sm_100": ("cuda", 100, 32), "gfx942": ("hip", "gfx942", 64)})
Usage = tuple[int, int, int]  # registers, bytes spilled, scalar registers spilled to lanes


def rooms(package: str) -> tuple[str, ...]:
    """Names every module of a package that ends in ``_triton``, sorted; nothing is registered, so that none is forgotten.

    >>> "specdec_kernels.threefry" in rooms("specdec_kernels")
    False
    """
    path = importlib.import_module(package).__path__
    return tuple(sorted(found.name for found in pkgutil.walk_packages(path, f"{package}.") if found.name.endswith("_triton")))


def collected(package: str) -> tuple[list[tuple[str, Variant]], list[str]]:
    """Gathers the variants of every kernel of a package, each with the short name of its room, and one sentence for each kernel that has none.

    A kernel is a function under ``triton.jit`` that no other one calls.

    >>> collected("json")  # a package without kernels
    ([], ['json has no kernels; expected modules whose names end in _triton'])
    """
    modules = [importlib.import_module(name) for name in rooms(package)]
    if not modules:
        return [], [f"{package} has no kernels; expected modules whose names end in _triton"]
    said: list[str] = []
    found: list[tuple[str, Variant]] = []
    for module in modules:
        found += [(module.__name__.rsplit(".", 1)[1], variant) for variant in getattr(module, "variants", tuple)()]
    every = [(module, name, kernel) for module in modules for name, kernel in _kernels(module)]
    reached = {id(variant.kernel) for _, variant in found} | {id(used) for _, _, kernel in every for used in _called(kernel)}
    for module, name, kernel in every:
        if id(kernel) not in reached:
            said.append(f"{module.__name__} has the kernel {name}, which no variants() names; expected the configurations that are to be compiled")
    return found, said


def _kernels(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The functions under ``triton.jit`` that are written in a module."""
    for name, value in vars(module).items():
        if hasattr(value, "fn") and hasattr(value, "arg_names") and getattr(value.fn, "__module__", None) == module.__name__:
            yield name, value


def _called(kernel: Any) -> Iterator[Any]:
    """What a kernel names, of its own module and of the modules that it names."""
    names, seen = kernel.fn.__code__.co_names, kernel.fn.__globals__
    values = [seen[name] for name in names if name in seen]
    yield from (value for value in values if value is not kernel)
    yield from (vars(value)[name] for value in values if isinstance(value, ModuleType) for name in names if name in vars(value))


def measured(room: str, variant: Variant, target: str) -> Row:
    """Compiles a variant for a target and reads what it takes.

    Raises:
        Exception: whatever triton or the assembler says where it does not compile.

    >>> measured("none_triton", Variant("none", None, {}, {}), "sm_75")
    Traceback (most recent call last):
    ValueError: target is 'sm_75'; expected one of sm_80, sm_90, sm_100, gfx942
    """
    if target not in TARGETS:
        raise ValueError(f"target is {target!r}; expected one of {', '.join(TARGETS)}")
    import triton  # type: ignore[import-untyped]
    from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
    from triton.compiler import ASTSource  # type: ignore[import-untyped]

    # A launch builds for pointers at multiples of 16 bytes, which is where torch puts every tensor of its own.
    aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(variant.signature.values()) if kind.startswith("*")}
    source = ASTSource(fn=variant.kernel, signature=dict(variant.signature), constexprs=dict(variant.constants), attrs=aligned)
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    made = triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options)  # type: ignore[arg-type]
    usage = usage_of_amd(made.asm["amdgcn"]) if target.startswith("gfx") else usage_of_cuda(_resources(made.asm["cubin"]))
    return Row(room, variant.name, target, variant.warps, variant.stages, *usage, int(made.metadata.shared))


def _resources(cubin: bytes) -> str:
    import triton  # type: ignore[import-untyped]

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout


def usage_of_cuda(resources: str) -> Usage:
    """Reads registers and bytes of local memory (the stack, and what is beside it) from what ``cuobjdump -res-usage`` prints.

    Raises:
        ValueError: it does not say.

    >>> usage_of_cuda("Function k:\\n  REG:168 STACK:64 SHARED:0 LOCAL:8 CONSTANT[0]:392")
    (168, 72, 0)
    """
    found = re.findall(r"\bREG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", resources)
    if not found:
        raise ValueError(f"cuobjdump printed {resources.strip()!r}; expected REG, STACK, SHARED and LOCAL")
    return max(int(registers) for registers, _, _ in found), sum(int(stack) + int(local) for _, stack, local in found), 0


def usage_of_amd(assembly: str) -> Usage:
    """Reads vector registers, spilled bytes and scalar registers in lanes from the metadata at the end of AMD assembly.

    Raises:
        ValueError: it does not say.

    >>> usage_of_amd(".vgpr_count: 40\\n.vgpr_spill_count: 2\\n.sgpr_spill_count: 1\\n.private_segment_fixed_size: 16")
    (40, 16, 1)
    """
    words = ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")
    counts = [re.search(rf"^\s*\.{word}:\s*(\d+)", assembly, re.M) for word in words]
    if None in counts:
        raise ValueError(f"the assembly does not state {words[counts.index(None)]}; expected the metadata of a kernel")
    registers, vectors, scalars, scratch = (int(count[1]) for count in counts if count)
    return registers, max(4 * vectors, scratch), scalars
