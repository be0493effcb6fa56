"""Paged attention as two kernels: one goes through a stretch of the context for a tile of rows, the other joins the stretches.

A tile is some query rows of one sequence times the query heads that share a key head, so that every key is read once for all of them. Which
sequence a tile belongs to is searched in the kernel: the grid has T // (rows of a tile) + B + 1 tiles, whatever the starts say, and a tile too many
returns at once. The rows past the last sequence count as one more sequence without a context, whose rows are 0.

What a model fixes beside the head size (heads, page size) stays a plain number here: it costs a division a key, and a model brings no build of its
own. A head size is a multiple of 16 up to 256, and is padded to 64, 128 or 256.
"""

from math import e, log2
from typing import NamedTuple, no_type_check

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from specdec_kernels.rows_triton import NAMES, narrowed
from specdec_kernels.variant import Variant

__all__ = ["Plan", "joining", "launch", "paged_attention_triton", "plan", "variant", "variants"]

PADDED = (64, 128, 256)
FIXED = 512  # keys of a stretch in the invariant variant
LEAST = 256  # keys for which a stretch of its own pays
PROGRAMS = 512  # that fill a GPU: some four on each of 132 multiprocessors
ROOM = 2**24  # float32 numbers of scratch at most, unless one tile alone takes more
JOINED = 16  # stretches that are joined at once


@triton.jit
@no_type_check
def _place(tile, starts, counts, contexts, tokens, batch, each):
    """The sequence of a tile, the tile's first row within it, the sequence's first row, its rows, and its context."""
    low = 0
    high = batch + 1
    while low < high:  # the last sequence whose first tile is not past this one
        middle = (low + high) // 2
        if tl.load(starts + middle) // each + middle <= tile:
            low = middle + 1
        else:
            high = middle
    sequence = low - 1
    start = tl.load(starts + sequence)
    inside = sequence < batch
    count = tl.load(counts + sequence, mask=inside, other=0)
    count = tl.where(inside, count, tokens - start)
    context = tl.load(contexts + sequence, mask=inside, other=0)
    first = (tile - (start // each + sequence)) * each
    return sequence, first, start, count, context


@triton.jit
@no_type_check
def _stretch(limit, splits, fixed, keys):
    """Keys of one stretch: a fixed number, or an even share in whole key tiles."""
    even = tl.cdiv(tl.cdiv(limit, keys), splits) * keys
    return tl.where(fixed > 0, fixed, even)


NUMBERS = ("tokens", "batch", "width", "mask_width", "first_tile", "splits", "fixed", "page", "kv_heads", "parts", "share", "units")
PLACES = ("tokens", "batch", "first_tile", "splits", "fixed", "kv_heads", "parts", "share", "units", "rows", "keys", "masked")


@triton.jit(do_not_specialize=NUMBERS)
@no_type_check
def _attend(
    out, partial, peaks, query, keys, values, table, starts, counts, contexts, mask, tokens, batch, width, mask_width, first_tile, splits, fixed,
    page, kv_heads, parts, share, units, scale, MASKED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, PADDED: tl.constexpr,
    PRECISION: tl.constexpr
):  # fmt: skip
    """One tile of rows, one key head (or a part of its query heads), one stretch of the context."""
    part = tl.program_id(1)
    split = tl.program_id(2)
    head = units * 16
    each = ROWS // share
    sequence, first, start, count, context = _place(tl.program_id(0) + first_tile, starts, counts, contexts, tokens, batch, each)
    if first >= count:
        return

    limit = context if MASKED else tl.minimum(context, context - count + first + each)
    limit = tl.maximum(limit, 0)  # of rows without a context
    stretch = _stretch(limit, splits, fixed, KEYS)
    low = split * stretch
    high = tl.minimum(low + stretch, limit)
    if (splits > 1) & (low >= high):
        return

    line = tl.arange(0, ROWS)
    row = first + line // share
    live = (row < count) & (line < each * share)
    inner = tl.arange(0, PADDED)
    wide = (inner < head)[None, :]
    query_head = part * share + line % share
    query_row = (start + row).to(tl.int64)
    places = (query_row * (kv_heads * parts * share) + query_head)[:, None] * head + inner[None, :]
    asked = tl.load(query + places, mask=live[:, None] & wide, other=0.0).to(tl.float32)
    prefix = context - count
    table_row = table + sequence.to(tl.int64) * width

    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    gathered = tl.zeros((ROWS, PADDED), tl.float32)
    for begin in range(low, high, KEYS):
        position = begin + tl.arange(0, KEYS)
        there = position < high
        number = tl.load(table_row + position // page, mask=there, other=0).to(tl.int64)
        slot = number * page + position % page
        cells = (slot * kv_heads + part // parts)[:, None] * head + inner[None, :]
        filled = there[:, None] & wide  # nothing else of a page is ever read
        key = tl.load(keys + cells, mask=filled, other=0.0).to(tl.float32)
        value = tl.load(values + cells, mask=filled, other=0.0).to(tl.float32)

        visible = live[:, None] & there[None, :]
        if MASKED:
            own = position - prefix
            asks = visible & ((own >= 0) & (own < mask_width))[None, :]
            seen = tl.load(mask + query_row[:, None] * mask_width + own[None, :], mask=asks, other=0) != 0
            visible = visible & (seen | (own < 0)[None, :])
        else:
            visible = visible & (position[None, :] <= (prefix + row)[:, None])
        score = tl.dot(asked, tl.trans(key), input_precision=PRECISION) * scale
        score = tl.where(visible, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen no key yet
        shrink = tl.exp2(peak - base)
        weight = tl.exp2(score - base[:, None])
        total = total * shrink + tl.sum(weight, 1)
        gathered = tl.dot(weight, value, gathered * shrink[:, None], input_precision=PRECISION)
        peak = higher

    if splits > 1:
        tile_parts = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + part
        lines = (tile_parts * splits + split) * ROWS + line
        tl.store(peaks + lines * 2, peak)
        tl.store(peaks + lines * 2 + 1, total)
        tl.store(partial + lines[:, None] * PADDED + inner[None, :], gathered)
    else:
        mean = gathered / tl.where(total > 0, total, 1.0)[:, None]
        mean = tl.where((total == 0)[:, None], 0.0, mean)
        tl.store(out + places, narrowed(mean, out.dtype.element_ty), mask=live[:, None] & wide)


@triton.jit(do_not_specialize=PLACES)
@no_type_check
def _join(
    out, partial, peaks, starts, counts, contexts, tokens, batch, first_tile, splits, fixed, kv_heads, parts, share, units, rows, keys, masked,
    PADDED: tl.constexpr, JOINED: tl.constexpr
):  # fmt: skip
    """One row of one head: the sum of its stretches in their order, each weighed by its peak."""
    heads = kv_heads * parts
    tile = tl.program_id(0) // heads
    part = tl.program_id(0) % heads
    line = tl.program_id(1)
    each = rows // share
    _, first, start, count, context = _place(tile + first_tile, starts, counts, contexts, tokens, batch, each)
    row = first + line // share
    if (row >= count) | (line >= each * share):
        return

    limit = tl.where(masked > 0, context, tl.minimum(context, context - count + first + each))
    limit = tl.maximum(limit, 0)
    used = tl.cdiv(limit, tl.maximum(_stretch(limit, splits, fixed, keys), 1))
    inner = tl.arange(0, PADDED)
    peak = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    gathered = tl.zeros((PADDED,), tl.float32)
    for begin in range(0, used, JOINED):
        split = begin + tl.arange(0, JOINED)
        there = split < used
        lines = (tl.program_id(0).to(tl.int64) * splits + split) * rows + line
        tops = tl.load(peaks + lines * 2, mask=there, other=float("-inf"))
        sums = tl.load(peaks + lines * 2 + 1, mask=there, other=0.0)
        means = tl.load(partial + lines[:, None] * PADDED + inner[None, :], mask=there[:, None], other=0.0)
        higher = tl.maximum(peak, tl.max(tops, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(peak - base)
        weight = tl.exp2(tops - base)
        total = total * shrink + tl.sum(sums * weight, 0)
        gathered = gathered * shrink + tl.sum(means * weight[:, None], 0)
        peak = higher
    mean = gathered / tl.where(total > 0, total, 1.0)
    mean = tl.where(total == 0, 0.0, mean)
    place = ((start + row).to(tl.int64) * (heads * share) + part * share + line % share) * (units * 16) + inner
    tl.store(out + place, narrowed(mean, out.dtype.element_ty), mask=inner < units * 16)


class Plan(NamedTuple):
    """What one call launches; it follows from shapes alone.

    Attributes:
        attend: the kernel over keys.
        join: the kernel that joins stretches; None where there is one stretch.
        parts: programs of one key head, each with ``share`` of its query heads.
        share: query heads of a program.
        tiles: of the whole call.
        slice: tiles of one launch, which the scratch has room for.
        splits: stretches of a context.
        fixed: keys of a stretch; 0: an even share.
    """

    attend: Variant
    join: Variant | None
    parts: int
    share: int
    tiles: int
    slice: int
    splits: int
    fixed: int


def _heights(dtype: torch.dtype, padded: int) -> tuple[int, ...]:
    """The rows that a tile may have."""
    return (16,) if dtype is torch.float32 or padded == 256 else (16, 32)


def variant(dtype: torch.dtype, padded: int, rows: int, masked: bool) -> Variant:
    """The kernel over keys for a dtype and a padded head size.

    Args:
        dtype: float32, float16 or bfloat16.
        padded: 64, 128 or 256.
        rows: of a tile.
        masked: a mask says which of its own rows a row sees.

    >>> variant(torch.bfloat16, 128, 16, False).name
    'paged_attention, bf16, head 128, 16 rows'
    """
    name, plain = NAMES[dtype], dtype is torch.float32
    # What four targets have registers and 64 KiB of shared memory for without a spill. From three stages on the table is read ahead of the keys.
    keys = 16 if plain else 64 if rows == 16 and padded < 256 else 32
    stages = 2 if plain or (padded, rows) == (64, 32) else 3
    constants = {"MASKED": masked, "ROWS": rows, "KEYS": keys, "PADDED": padded, "PRECISION": "ieee" if plain else "tf32"}
    pools = dict.fromkeys(("query", "keys", "values"), f"*{name}")
    lists = {"table": "*i32", "starts": "*i32", "counts": "*i32", "contexts": "*i32", "mask": "*u8" if masked else "constexpr"}
    numbers = {**dict.fromkeys(NUMBERS, "i32"), "scale": "fp32"}
    signature = {"out": f"*{name}", "partial": "*fp32", "peaks": "*fp32", **pools, **lists, **numbers, **dict.fromkeys(constants, "constexpr")}
    said = f"paged_attention, {name}, head {padded}, {rows} rows" + (", mask" if masked else "")
    return Variant(said, _attend, signature, {**({} if masked else {"mask": None}), **constants}, warps=4, stages=stages)


def joining(dtype: torch.dtype, padded: int) -> Variant:
    """The kernel that joins stretches, for a dtype and a padded head size.

    Args:
        dtype: float32, float16 or bfloat16.
        padded: 64, 128 or 256.

    >>> joining(torch.bfloat16, 128).name
    'paged_attention join, bf16, head 128'
    """
    constants = {"PADDED": padded, "JOINED": JOINED}
    pointers = {"out": f"*{NAMES[dtype]}", "partial": "*fp32", "peaks": "*fp32", "starts": "*i32", "counts": "*i32", "contexts": "*i32"}
    signature = {**pointers, **dict.fromkeys(PLACES, "i32"), **dict.fromkeys(constants, "constexpr")}
    return Variant(f"paged_attention join, {NAMES[dtype]}, head {padded}", _join, signature, constants, warps=4, stages=2)


def variants() -> tuple[Variant, ...]:
    """Every variant that a launch can ask for.

    >>> len({variant.name for variant in variants()}) == len(variants())
    True
    """
    sizes = [(dtype, padded) for dtype in NAMES for padded in PADDED]
    attend = [variant(*size, rows, masked) for size in sizes for rows in _heights(*size) for masked in (False, True)]
    return (*attend, *(joining(*size) for size in sizes))


def plan(dtype: torch.dtype, tokens: int, batch: int, heads: int, kv_heads: int, head: int, capacity: int, *, masked: bool, invariant: bool) -> Plan:
    """Chooses tile, stretches and scratch for a call.

    Args:
        dtype: of query and pool.
        tokens: T.
        batch: B.
        heads: of the query.
        kv_heads: of the pool.
        head: the head size.
        capacity: the positions that a row of the block table has pages for.
        masked: there is a mask.
        invariant: fixed tiles and fixed stretches.

    >>> plan(torch.bfloat16, 64, 64, 32, 8, 128, 4096, masked=False, invariant=False).splits
    1
    >>> plan(torch.bfloat16, 1, 1, 32, 8, 128, 4096, masked=False, invariant=False).splits
    16
    """
    padded = next(size for size in PADDED if head <= size)
    group, heights = heads // kv_heads, _heights(dtype, padded)
    average = triton.cdiv(tokens, max(batch, 1))
    rows = heights[0] if invariant else next((height for height in heights if height >= average * group), heights[-1])
    share = next(share for share in range(min(group, rows), 0, -1) if group % share == 0)
    parts, each = group // share, rows // share
    tiles = tokens // each + batch + 1
    if invariant:
        splits = max(1, triton.cdiv(capacity, FIXED))
    else:
        work = max(batch, 1) * triton.cdiv(average, each) * kv_heads * parts
        splits = max(1, min(triton.cdiv(PROGRAMS, work), triton.cdiv(capacity, LEAST)))
    fits = ROOM // (kv_heads * parts * splits * rows * padded)
    slice = tiles if splits == 1 else max(1, min(tiles, fits))
    join = joining(dtype, padded) if splits > 1 else None
    return Plan(variant(dtype, padded, rows, masked), join, parts, share, tiles, slice, splits, FIXED if invariant else 0)


def paged_attention_triton(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    context_len: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
    invariant: bool,
    query_count: Tensor | None = None,
) -> Tensor:
    """Launches the kernels on arguments that ``paged_attention`` has checked.

    Returns:
        [T, H, D], the dtype of the query.

    >>> one, page = torch.ones(1, 1, 64), torch.ones(1, 1, 1, 64)
    >>> places = torch.tensor([[0]]), torch.tensor([0, 1]), torch.tensor([1])
    >>> paged_attention_triton(one, page, 3 * page, *places, mask=None, scale=1.0, invariant=False).unique()
    tensor([3.])
    """
    table, starts, contexts = (tensor.to(torch.int32).contiguous() for tensor in (block_table, query_start, context_len))
    counts = starts.diff() if query_count is None else query_count.to(torch.int32).contiguous()
    seen = None if mask is None else mask.contiguous().view(torch.uint8)
    make = torch.empty if query_count is None else torch.zeros  # no program comes to the rows of padding between sequences
    out = make(query.shape, dtype=query.dtype, device=query.device)
    launch(out, query.contiguous(), key_pages, value_pages, table, starts, counts, contexts, mask=seen, scale=scale, invariant=invariant)
    return out


def launch(
    out: Tensor,
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    table: Tensor,
    starts: Tensor,
    counts: Tensor,
    contexts: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
    invariant: bool,
) -> None:
    """Writes the rows of ``out`` that are somebody's, in place, and zeros behind the last sequence. DONATES ``out``.

    Args:
        out: [T, H, D], contiguous.
        query: [T, H, D], contiguous.
        key_pages, value_pages: [N, page, HK, D], contiguous.
        table: int32[B, max_pages], contiguous.
        starts: int32[B + 1].
        counts: int32[B], query rows of each sequence.
        contexts: int32[B].
        mask: uint8[T, at least the longest query], contiguous, or None.
        scale: of the scores.
        invariant: fixed tiles and fixed stretches.

    >>> out, one, page = torch.empty(1, 1, 64), torch.ones(1, 1, 64), torch.ones(1, 1, 1, 64)
    >>> places = [torch.tensor(numbers, dtype=torch.int32) for numbers in ([[0]], [0, 1], [1], [1])]
    >>> launch(out, one, page, 3 * page, *places, mask=None, scale=1.0, invariant=False)
    >>> out.unique()
    tensor([3.])
    """
    tokens, heads, head = query.shape
    _, page, kv_heads, _ = key_pages.shape
    batch, width = table.shape
    if not out.numel():
        return
    chosen = plan(query.dtype, tokens, batch, heads, kv_heads, head, width * page, masked=mask is not None, invariant=invariant)
    programs, splits = kv_heads * chosen.parts, chosen.splits
    attend, join = chosen.attend, chosen.join
    rows, keys = attend.constants["ROWS"], attend.constants["KEYS"]
    lines = 0 if join is None else chosen.slice * programs * splits * rows
    partial = torch.empty((lines, attend.constants["PADDED"]), dtype=torch.float32, device=query.device)
    peaks = torch.empty((lines, 2), dtype=torch.float32, device=query.device)
    sizes = {"tokens": tokens, "batch": batch, "splits": splits, "fixed": chosen.fixed}
    sizes |= {"kv_heads": kv_heads, "parts": chosen.parts, "share": chosen.share, "units": head // 16}
    places = {"width": width, "mask_width": 0 if mask is None else mask.shape[1], "page": page, "scale": scale * log2(e)}
    shape = {"rows": rows, "keys": keys, "masked": int(mask is not None)}
    seen = {} if mask is None else {"mask": mask}
    for first in range(0, chosen.tiles, chosen.slice):
        tiles = min(chosen.slice, chosen.tiles - first)
        tensors = [out, partial, peaks, query, key_pages, value_pages, table, starts, counts, contexts]
        options = {"num_warps": attend.warps, "num_stages": attend.stages}
        attend.kernel[(tiles, programs, splits)](*tensors, **seen, first_tile=first, **sizes, **places, **attend.constants, **options)
        if join is not None:
            tensors = [out, partial, peaks, starts, counts, contexts]
            options = {"num_warps": join.warps, "num_stages": join.stages}
            join.kernel[(tiles * programs, rows)](*tensors, first_tile=first, **sizes, **shape, **join.constants, **options)
