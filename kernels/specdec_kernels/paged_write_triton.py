"""Copies into a pool of pages as kernels: rows into slots, and pages onto pages. Bits are moved, so only the size of a number matters."""

from types import MappingProxyType
from typing import no_type_check

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from specdec_kernels.variant import Variant

__all__ = ["copy_pages_triton", "paged_write_triton", "variant", "variants"]

WORDS = MappingProxyType({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64})
BLOCK = 1024


@triton.jit(do_not_specialize=["pages", "page", "units", "key_units", "value_units"])
@no_type_check
def _write(key_pool, value_pool, key, value, slots, pages, page, units, key_units, value_units, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    """One row, BLOCK numbers of it; a row is units * UNIT numbers, and the next key lies key_units * UNIT numbers on."""
    width = units * UNIT
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    inside = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (inside < width) & (slot >= 0) & (slot < pages.to(tl.int64) * page)
    tl.store(key_pool + slot * width + inside, tl.load(key + row * key_units * UNIT + inside, mask=mask), mask=mask)
    tl.store(value_pool + slot * width + inside, tl.load(value + row * value_units * UNIT + inside, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["pages", "units"])
@no_type_check
def _copy(key_pool, value_pool, sources, targets, pages, units, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    """One page of one layer, BLOCK numbers of it; a page is units * UNIT numbers."""
    width = units * UNIT
    above = tl.program_id(1).to(tl.int64) * pages
    source = (above + tl.load(sources + tl.program_id(0)).to(tl.int64)) * width
    target = (above + tl.load(targets + tl.program_id(0)).to(tl.int64)) * width
    inside = tl.program_id(2).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = inside < width
    tl.store(key_pool + target + inside, tl.load(key_pool + source + inside, mask=mask), mask=mask)
    tl.store(value_pool + target + inside, tl.load(value_pool + source + inside, mask=mask), mask=mask)


def variant(size: int, width: int, *, pages: bool = False) -> Variant:
    """One of the two kernels, for numbers of a size; of the width only whether 16 divides it matters.

    Args:
        size: bytes of a number: 1, 2, 4 or 8.
        width: numbers of a row, or of a page.
        pages: the kernel that copies pages.

    >>> variant(2, 1024).name
    'paged_write, 16 bits, rows in steps of 16'
    """
    unit = 1 if width % 16 else 16
    word = f"*i{8 * size}"
    constants = {"UNIT": unit, "BLOCK": BLOCK}
    pools = {"key_pool": word, "value_pool": word}
    if pages:
        kinds = {**pools, "sources": "*i64", "targets": "*i64", "pages": "i32", "units": "i32"}
        said, kernel = f"copy_pages, {8 * size} bits, pages in steps of {unit}", _copy
    else:
        kinds = {**pools, "key": word, "value": word, "slots": "*i64", "pages": "i32", "page": "i32"}
        kinds |= dict.fromkeys(("units", "key_units", "value_units"), "i32")
        said, kernel = f"paged_write, {8 * size} bits, rows in steps of {unit}", _write
    return Variant(said, kernel, {**kinds, **dict.fromkeys(constants, "constexpr")}, constants, warps=4, stages=1)


def variants() -> tuple[Variant, ...]:
    """Every variant that a launch can ask for.

    >>> len(variants())
    16
    """
    return tuple(variant(size, width, pages=pages) for pages in (False, True) for size in WORDS for width in (16, 1))


def paged_write_triton(key_pages: Tensor, value_pages: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Launches the kernel on arguments that ``paged_write`` has checked. DONATES ``key_pages`` and ``value_pages``.

    >>> pools = torch.zeros(2, 1, 1, 1), torch.zeros(2, 1, 1, 1)
    >>> paged_write_triton(*pools, torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.tensor([1]))
    >>> pools[0].flatten()
    tensor([0., 1.])
    """
    width = key_pages.shape[2] * key_pages.shape[3]
    chosen = variant(key_pages.element_size(), width)
    unit = chosen.constants["UNIT"]
    rows = [part if _dense(part, unit) else part.contiguous() for part in (key, value)]  # parts of one product are read where they lie
    tensors = [_bits(tensor) for tensor in (key_pages, value_pages, *rows)]
    sizes = {"pages": key_pages.shape[0], "page": key_pages.shape[1], "units": width // unit}
    sizes |= {"key_units": rows[0].stride(0) // unit, "value_units": rows[1].stride(0) // unit}
    launch = chosen.kernel[(slots.shape[0], triton.cdiv(width, BLOCK))]
    launch(*tensors, slots.to(torch.int64).contiguous(), **sizes, **chosen.constants, num_warps=chosen.warps, num_stages=chosen.stages)


def copy_pages_triton(key_pages: Tensor, value_pages: Tensor, sources: Tensor, targets: Tensor, layers: int) -> None:
    """Launches the kernel on arguments that ``copy_pages`` has checked. DONATES ``key_pages`` and ``value_pages``.

    >>> pools = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1), torch.zeros(2, 1, 1, 1)
    >>> copy_pages_triton(*pools, torch.tensor([0]), torch.tensor([1]), 1)
    >>> pools[0].flatten()
    tensor([1., 1.])
    """
    width = key_pages[0].numel()
    chosen = variant(key_pages.element_size(), width, pages=True)
    numbers = [some.to(torch.int64).contiguous() for some in (sources, targets)]
    sizes = {"pages": key_pages.shape[0] // layers, "units": width // chosen.constants["UNIT"]}
    launch = chosen.kernel[(sources.shape[0], layers, triton.cdiv(width, BLOCK))]
    pools = [_bits(pool) for pool in (key_pages, value_pages)]
    launch(*pools, *numbers, **sizes, **chosen.constants, num_warps=chosen.warps, num_stages=chosen.stages)


def _dense(rows: Tensor, unit: int) -> bool:
    """Whether each row lies in one piece, and the next one whole units on."""
    return rows.stride(2) == 1 and rows.stride(1) == rows.shape[2] and rows.stride(0) % unit == 0 and rows.stride(0) > 0


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(WORDS[tensor.element_size()])
