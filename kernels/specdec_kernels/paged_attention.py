"""Attention of a ragged batch of query rows over keys and values that lie scattered in a pool of pages.

The last rows of every sequence are its queries; their keys are written already. One call covers decode (one row), verification of a draft (K + 1
rows, causal or along a tree) and chunked prefill (many rows), all mixed.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_kernels.dispatch import chosen
from specdec_kernels.paged_write import readable

__all__ = ["paged_attention"]

BLOCK = 2**25  # numbers that the reference lays together at once, unless one row alone needs more
TILE = 64  # keys of a tile of the invariant reference
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    context_len: Tensor,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    impl: str = "auto",
    invariant: bool = False,
    query_count: Tensor | None = None,
    trusted: bool = False,
) -> Tensor:
    """Attends from every query row to the keys of its sequence that it sees: softmax(scale * q @ k.T) @ v, with sums in float32 or wider.

    Row t of sequence b is row t - query_start[b] of the last query_start[b + 1] - query_start[b] positions of its context (or of the last
    query_count[b]; the rows behind those are padding and give 0). Nothing is read of a slot past the context, of a page that no sequence needs, or
    of a table entry past the need. Within the context values must be finite: one that is not spoils rows of its sequence that do not see it, too
    (0 times NaN). All shapes inside follow from the shapes of the arguments: the reference can be traced, the kernel captured.

    Invariant: a row's bits depend on its query, on the keys it sees and on the keys before them, and on nothing else: not on the batch, the
    number of query rows, the page size, where pages lie, or the width of the table. Keys are summed in tiles of one size from position 0, and in
    the kernel in stretches of one length. The promise holds within one implementation, dtype, head size and grouping, on one machine.

    A pool or query whose first number does not lie at a multiple of 16 bytes (a view into a larger tensor; torch's own tensors always do) gets
    another build of the kernel, slower, which the ahead-of-time gate has not compiled.

    Args:
        query: [T, H, D], float32, float16 or bfloat16 (the reference also takes float64).
        key_pages: [N, page, HK, D], the whole pool of all layers, contiguous: not [N, HK, page, D], and not keys and values in one. HK divides H,
            and head h reads key head h // (H / HK).
        value_pages: the same for values.
        block_table: int32 or int64[B, max_pages], the pages of each sequence in order, as rows of the pool; -1 pads.
        query_start: int32 or int64[B + 1], from 0, ascending; rows at and past query_start[B] are padding and give 0.
        context_len: int32 or int64[B], positions of each sequence, its query rows included; a row without a context gives 0.
        mask: bool[T, at least the longest query], True where a row sees that one of its sequence's own query keys; earlier keys are always
            seen. None: a row sees the keys up to its own.
        scale: of the scores; None: D ** -0.5.
        impl: "auto", "torch" or "triton".
        invariant: bits that do not depend on company; slower.
        query_count: int32 or int64[B], the query rows of each sequence where they are fewer than its starts leave room for, as in a captured pass
            whose sequences have places for as many rows each. None: all.
        trusted: the caller's word that the values of table, starts and lengths are right: to look at them waits for a GPU. Nobody looks while a
            graph is traced or captured.

    Returns:
        [T, H, D], the dtype of the query.

    Raises:
        ValueError: shapes, dtypes or devices that do not match; H is no multiple of HK; a head size that no kernel has; a pool that is not
            contiguous; a table entry outside the pool, or -1 where it is needed; starts that do not begin at 0, fall or end past T; a context
            above 0 that is shorter than its query rows, or one longer than its pages; an impl that cannot run.

    >>> query, keys = torch.ones(2, 1, 1), torch.zeros(1, 4, 1, 1)
    >>> values = torch.tensor([1.0, 3.0, 8.0, float("nan")]).view(1, 4, 1, 1)
    >>> paged_attention(query, keys, values, torch.tensor([[0]]), torch.tensor([0, 2]), torch.tensor([3])).flatten()
    tensor([2., 4.])
    """
    way = chosen(impl, query, key_pages, value_pages, block_table, query_start, context_len, mask, query_count)
    _check_shapes(query, key_pages, value_pages, block_table, query_start, context_len, mask, query_count)
    head = query.shape[2]
    if way == "triton" and (query.dtype not in DTYPES or head % 16 or not 16 <= head <= 256):
        sizes = "float32, float16 or bfloat16 and a multiple of 16 up to 256"
        raise ValueError(f"query is {query.dtype} with heads of {head}; expected {sizes}, or impl='torch'")
    if not trusted and readable(block_table, query_start, context_len):
        _check_values(query, key_pages, block_table, query_start, context_len, mask, query_count)
    factor = head**-0.5 if scale is None else float(scale)
    capacity = block_table.shape[1] * key_pages.shape[1]
    if not query.numel() or not key_pages.numel() or not block_table.numel():
        return torch.zeros_like(query, memory_format=torch.contiguous_format)
    if way == "triton":
        from specdec_kernels.paged_attention_triton import paged_attention_triton

        places = (query, key_pages, value_pages, block_table, query_start, context_len)
        return paged_attention_triton(*places, mask=mask, scale=factor, invariant=invariant, query_count=query_count)

    # Each row by itself: its sequence, its position, its row of the table.
    rows = torch.arange(query.shape[0], device=query.device)
    starts, contexts, table = (numbers.to(torch.int64) for numbers in (query_start, context_len, block_table))
    counts = starts.diff() if query_count is None else query_count.to(torch.int64)
    sequence = torch.searchsorted(starts[1:].contiguous(), rows, right=True)
    live = sequence < table.shape[0]
    sequence = sequence.clamp(max=table.shape[0] - 1)
    live = live & (rows - starts[sequence] < counts[sequence])
    context = torch.where(live, contexts[sequence], 0)
    prefix = context - torch.where(live, counts[sequence], 0)
    position = prefix + rows - starts[sequence]
    wide = torch.promote_types(query.dtype, torch.float32)
    asked = query.to(wide).unflatten(1, (key_pages.shape[2], -1)) * factor
    add = _sums_in_tiles if invariant else _sums
    out = []
    for some in rows.split(max(1, BLOCK // (capacity * key_pages.shape[2] * head))):
        own = None if mask is None else (mask[some], prefix[some])
        out.append(add(asked[some], key_pages, value_pages, table[sequence[some]], context[some], position[some], own))
    return torch.cat(out).flatten(1, 2).to(query.dtype)


Own = tuple[Tensor, Tensor] | None  # rows of the mask, and the positions of their first columns


def _sums(asked: Tensor, key_pages: Tensor, value_pages: Tensor, table: Tensor, context: Tensor, position: Tensor, own: Own) -> Tensor:
    """Attention of some rows, each over all the pages in its row of the table."""
    places = torch.arange(table.shape[1] * key_pages.shape[1], device=table.device)
    keys, values = (
        _laid(pool[table.clamp(0, pool.shape[0] - 1)].flatten(1, 2), places < context[:, None], asked.dtype) for pool in (key_pages, value_pages)
    )
    visible = _visible(places, context, position, own)[:, None, None]
    scores = torch.einsum("rkgd,rskd->rkgs", asked, keys).masked_fill(~visible, float("-inf"))
    peak = scores.amax(-1, keepdim=True)
    weights = (scores - torch.where(peak == float("-inf"), 0.0, peak)).exp()
    return _mean(torch.einsum("rkgs,rskd->rkgd", weights, values), weights.sum(-1))


def _sums_in_tiles(asked: Tensor, key_pages: Tensor, value_pages: Tensor, table: Tensor, context: Tensor, position: Tensor, own: Own) -> Tensor:
    """The same in tiles of keys from position 0, and each sum is a tree of single additions: no library chooses an order."""
    page = key_pages.shape[1]
    peak = torch.full_like(asked[..., 0], float("-inf"))
    total, gathered = torch.zeros_like(peak), torch.zeros_like(asked)
    for begin in range(0, table.shape[1] * page, TILE):
        places = torch.arange(begin, begin + TILE, device=table.device)
        numbers = table[:, (places // page).clamp(max=table.shape[1] - 1)].clamp(0, key_pages.shape[0] - 1)
        slots = numbers * page + places % page
        filled = places < context[:, None]
        keys, values = (_laid(pool.view(-1, *pool.shape[2:])[slots], filled, asked.dtype) for pool in (key_pages, value_pages))
        visible = _visible(places, context, position, own)[:, None, None]
        scores = _tree(asked[:, :, :, None] * keys.transpose(1, 2)[:, :, None]).masked_fill(~visible, float("-inf"))
        higher = torch.maximum(peak, scores.amax(-1))
        base = torch.where(higher == float("-inf"), 0.0, higher)
        shrink = (peak - base).exp()
        weights = (scores - base[..., None]).exp()
        total = total * shrink + _tree(weights)
        gathered = gathered * shrink[..., None] + _tree(weights[..., None, :] * values.permute(0, 2, 3, 1)[:, :, None])
        peak = higher
    return _mean(gathered, total)


def _laid(rows: Tensor, filled: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros where nothing is written: a weight of 0 does not silence a NaN."""
    return torch.where(filled[:, :, None, None], rows, 0).to(dtype)


def _visible(places: Tensor, context: Tensor, position: Tensor, own: Own) -> Tensor:
    """Which positions each row sees, [rows, places]."""
    inside = places < context[:, None]
    if own is None:
        return inside & (places <= position[:, None])
    mask, prefix = own
    column = places - prefix[:, None]
    if not mask.shape[1]:
        return inside & (column < 0)
    seen = mask.gather(1, column.clamp(0, mask.shape[1] - 1)) & (column < mask.shape[1])
    return inside & ((column < 0) | seen)


def _mean(gathered: Tensor, total: Tensor) -> Tensor:
    """Zeros for a row that saw nothing."""
    return torch.where(total[..., None] == 0, 0.0, gathered / torch.where(total == 0, 1.0, total)[..., None])


def _tree(numbers: Tensor) -> Tensor:
    """Sums the last axis by halves."""
    size = numbers.shape[-1]
    numbers = F.pad(numbers, (0, (1 << (size - 1).bit_length()) - size))
    while numbers.shape[-1] > 1:
        low, high = numbers.chunk(2, -1)
        numbers = low + high
    return numbers.squeeze(-1)


def _check_shapes(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    table: Tensor,
    starts: Tensor,
    contexts: Tensor,
    mask: Tensor | None,
    own: Tensor | None,
) -> None:
    pools = f"{list(key_pages.shape)} and {list(value_pages.shape)}"
    if query.ndim != 3 or not query.shape[2]:
        raise ValueError(f"query is {list(query.shape)}; expected [rows, heads, head size]")
    if key_pages.ndim != 4 or key_pages.shape != value_pages.shape or key_pages.shape[3] != query.shape[2]:
        raise ValueError(f"key_pages and value_pages are {pools}; expected [pages, page size, kv heads, {query.shape[2]}] twice")
    if not key_pages.shape[2] or query.shape[1] % key_pages.shape[2]:
        raise ValueError(f"query has {query.shape[1]} heads; expected a multiple of the {key_pages.shape[2]} of the pool")
    dtypes = (query.dtype, key_pages.dtype, value_pages.dtype)
    if len(set(dtypes)) > 1 or query.dtype not in (*DTYPES, torch.float64):
        raise ValueError(f"query, key_pages and value_pages are {', '.join(map(str, dtypes))}; expected one dtype of float32, float16, bfloat16")
    for name, pool in (("key_pages", key_pages), ("value_pages", value_pages)):
        if not pool.is_contiguous():
            raise ValueError(f"{name} has strides {list(pool.stride())}; expected a contiguous pool")
    counts = contexts if own is None else own
    for name, numbers, dims in (("block_table", table, 2), ("query_start", starts, 1), ("context_len", contexts, 1), ("query_count", counts, 1)):
        if numbers.ndim != dims or numbers.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{name} is {numbers.dtype} of shape {list(numbers.shape)}; expected int32 or int64 with {dims} axes")
    batch = table.shape[0]
    sizes = (starts.shape[0], contexts.shape[0], counts.shape[0])
    if sizes != (batch + 1, batch, batch):
        wanted = f"{batch + 1}, {batch} and {batch} for the {batch} rows of block_table"
        raise ValueError(f"query_start, context_len and query_count have {', '.join(map(str, sizes))} entries; expected {wanted}")
    if mask is not None and (mask.dtype is not torch.bool or mask.ndim != 2 or mask.shape[0] != query.shape[0]):
        raise ValueError(f"mask is {mask.dtype} of shape {list(mask.shape)}; expected bool with {query.shape[0]} rows, one for each query row")


def _check_values(query: Tensor, key_pages: Tensor, table: Tensor, starts: Tensor, contexts: Tensor, mask: Tensor | None, own: Tensor | None) -> None:
    page, counts = key_pages.shape[1], starts.diff()
    if int(starts[0]) != 0 or bool((counts < 0).any()) or int(starts[-1]) > query.shape[0]:
        raise ValueError(f"query_start is {starts.tolist()}; expected 0 first, then never less than before, and at most {query.shape[0]}")
    if own is not None:
        if bool(((own < 0) | (own > counts)).any()):
            raise ValueError(f"query_count is {own.tolist()}; expected 0 to {counts.tolist()}, the rows between the starts")
        counts = own
    if bool(((contexts < counts) & (contexts != 0)).any()):
        raise ValueError(f"context_len is {contexts.tolist()}; expected at least the query rows, {counts.tolist()}, or 0")
    if bool((contexts > table.shape[1] * page).any()):
        raise ValueError(f"context_len is {contexts.tolist()}; expected at most {table.shape[1] * page}, the places that block_table has pages for")
    if bool(((table < -1) | (table >= key_pages.shape[0])).any()):
        raise ValueError(
            f"block_table has pages from {int(table.min())} to {int(table.max())}; expected -1 or one of the {key_pages.shape[0]} of the pool"
        )
    needed = torch.arange(table.shape[1], device=table.device) * page < contexts[:, None]
    if bool((needed & (table < 0)).any()):
        raise ValueError("block_table is -1 where a context has tokens; expected a page of the pool")
    if mask is not None and counts.numel() and mask.shape[1] < int(counts.max()):
        raise ValueError(f"mask has {mask.shape[1]} columns; expected at least {int(counts.max())}, the longest query")
