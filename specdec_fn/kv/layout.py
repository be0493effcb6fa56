"""Where the rows of a pass lie in the pool, as tensors of one shape: what a pass reads that is captured once and run many times.

``kv.paged`` builds its attention from lists, anew for each pass, and so fits each pass closely. A captured pass cannot: its shapes are those of a
bucket, and what does not fill the bucket is padding, which reads nothing of anybody's and writes nowhere.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from specdec_fn.kv import table
from specdec_fn.kv.dense import Attend
from specdec_fn.kv.store import Store
from specdec_fn.kv.table import Table
from specdec_fn.pytree import donates
from specdec_fn.typing import Float, Int, Tensor
from specdec_kernels import paged_attention, paged_write
from specdec_kernels.dispatch import chosen

__all__ = ["Layout", "attend", "layout"]

Queries = Float[Tensor, "tokens heads head_dim"]
Keys = Float[Tensor, "tokens kv_heads head_dim"]


class Layout(NamedTuple):
    """The sequences of a pass in which each has as many rows; a pytree of tensors.

    Attributes:
        pages: int64 [B, P], the pages of each sequence in order, then -1.
        lengths: int64 [B], its positions, its rows of the pass included and last; 0 for a place that is not taken.
        counts: int64 [B], its rows of the pass, which stand first among its rows of the bucket; 0 for a place that is not taken.
        slots: int64 [B * rows], where each row's key and value go; -1 for a row that is padding.
    """

    pages: Int[Tensor, "batch pages"]
    lengths: Int[Tensor, "batch"]
    counts: Int[Tensor, "batch"]
    slots: Int[Tensor, "tokens"]

    @property
    def rows(self) -> int:
        """Rows of each sequence."""
        return self.slots.shape[0] // self.lengths.shape[0]


def layout(
    tables: Sequence[Table], ends: Sequence[int], *, page_size: int, sequences: int, rows: int, pages: int, device: torch.device | str = "cpu"
) -> Layout:
    """Lays out a pass in a bucket of ``sequences`` places with ``rows`` rows and ``pages`` pages each.

    A sequence with fewer rows than the bucket has its own first and padding behind them. A padding row writes nowhere, and what comes out of it
    means nothing.

    Args:
        tables: of the sequences, at most ``sequences``; the pass goes on where their ``length`` ends.
        ends: for each, the positions it has with its rows of the pass, 1 to ``rows`` more than its length.
        page_size: slots of a page.
        device: of the result.

    Raises:
        ValueError: more sequences, rows or pages than the bucket has.

    >>> layout([Table((4, 2), 3)], [5], page_size=4, sequences=2, rows=3, pages=2)
    Layout(pages=tensor([[ 4,  2],
            [-1, -1]]), lengths=tensor([5, 0]), counts=tensor([2, 0]), slots=tensor([19,  8, -1, -1, -1, -1]))
    """
    needed = [table.pages_for(end, page_size=page_size) for end in ends]
    counts = [end - own.length for own, end in zip(tables, ends, strict=True)]
    if len(tables) > sequences or max(counts, default=1) > rows or max(needed, default=0) > pages or min(counts, default=1) < 1:
        asked = f"{len(tables)} sequences with {min(counts)} to {max(counts)} rows and up to {max(needed)} pages"
        raise ValueError(f"received {asked}; expected at most {sequences} sequences with 1 to {rows} rows and {pages} pages")
    ids = [[*own.pages[:count], *[-1] * (pages - count)] for own, count in zip(tables, needed, strict=True)]
    ids += [[-1] * pages] * (sequences - len(tables))
    slots: list[int] = []
    for own, end, count in zip(tables, ends, counts, strict=True):
        slots += [*table.slots(own, own.length, end, page_size=page_size), *[-1] * (rows - count)]
    slots += [-1] * (rows * sequences - len(slots))
    free = [0] * (sequences - len(tables))
    return Layout(*(torch.tensor(part, dtype=torch.int64).to(device) for part in (ids, [*ends, *free], [*counts, *free], slots)))


def attend(layout: Layout, *, page_size: int, impl: str = "auto") -> Attend:
    """Builds the attention of a pass from its layout: no shape in it depends on a value, and nothing looks at one.

    Args:
        layout: of the pass; each of its rows sees the rows of its sequence up to its own, and all that came before them.
        page_size: slots of a page, as in the pool.
        impl: "triton" for the kernels, "torch" for operators of torch that are as fast on a CPU as their shapes allow; "auto" decides by device.

    Returns:
        an ``attend`` value whose ``kv`` is a ``Store``, which it DONATES.

    >>> from types import SimpleNamespace
    >>> from specdec_fn.kv import store
    >>> pool = store.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, 2, dtype=torch.float32)
    >>> values = torch.tensor([1.0, 3.0])[:, None, None]
    >>> two = Layout(torch.tensor([[3, 0]]), torch.tensor([2]), torch.tensor([2]), torch.tensor([6, 7]))
    >>> attend(two, page_size=2)(pool, 0, torch.ones(2, 1, 1), torch.ones(2, 1, 1), values)[0].flatten()
    tensor([1., 2.])
    """
    if chosen(impl, layout.slots) == "triton":
        return _with_kernels(layout)
    batch, rows = layout.lengths.shape[0], layout.rows
    places, seen = _read(layout, page_size)
    hidden = torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, float("-inf"))

    @donates("kv")
    def paged(kv: Store, layer: int, query: Queries, key: Keys, value: Keys) -> tuple[Queries, Store]:
        kv_heads, head_dim = key.shape[1:]
        first = layer * kv.pages
        slots = torch.where(layout.slots < 0, -1, layout.slots + first * page_size)
        paged_write(kv.keys, kv.values, key, value, slots, impl="torch", trusted=True)
        # A place that is not taken reads the first slot of the layer, and what comes out is set to 0.
        flat = (places + first * page_size).flatten()
        keys, values = (part.flatten(0, 1).index_select(0, flat).view(batch, -1, kv_heads, head_dim) for part in (kv.keys, kv.values))
        folded = query.view(batch, rows, kv_heads, -1, head_dim).permute(0, 2, 1, 3, 4).flatten(2, 3)
        mask = hidden.to(query.dtype).repeat_interleave(query.shape[1] // kv_heads, 1).unsqueeze(1)
        out = F.scaled_dot_product_attention(folded, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask)
        out = torch.where(layout.lengths.view(-1, 1, 1, 1) > 0, out, 0)
        return out.unflatten(2, (rows, -1)).transpose(1, 2).reshape(query.shape), kv

    return paged


def _with_kernels(layout: Layout) -> Attend:
    batch, rows = layout.lengths.shape[0], layout.rows
    starts = torch.arange(0, (batch + 1) * rows, rows, dtype=torch.int32, device=layout.slots.device)
    table, lengths, counts = (part.to(torch.int32) for part in layout[:3])  # once a pass, and not in every layer

    @donates("kv")
    def paged(kv: Store, layer: int, query: Queries, key: Keys, value: Keys) -> tuple[Queries, Store]:
        own = slice(layer * kv.pages, (layer + 1) * kv.pages)  # a view: the table need not be moved for each layer
        keys, values = paged_write(kv.keys[own], kv.values[own], key, value, layout.slots, impl="triton", trusted=True)
        out = paged_attention(query.contiguous(), keys, values, table, starts, lengths, query_count=counts, impl="triton", trusted=True)
        return out, kv

    return paged


def _read(layout: Layout, page_size: int) -> tuple[Tensor, Tensor]:
    """The slots that each sequence reads, [B, S], S = P * page_size, and [B, rows, S], True where a row sees one of them.

    What lies past the sequence's end is read as its first slot, which holds numbers: what was never written may hold NaN, and 0 times NaN is NaN.
    """
    pages = layout.pages.shape[1]
    column, row = (torch.arange(count, device=layout.pages.device) for count in (pages * page_size, layout.rows))
    slots = (layout.pages.clamp(min=0).unsqueeze(2) * page_size + column[:page_size]).flatten(1)
    end = layout.lengths.unsqueeze(1)
    own = torch.minimum(row, layout.counts.unsqueeze(1) - 1)  # a row that is padding sees what the last row before it sees
    seen = column <= (end - layout.counts.unsqueeze(1) + own).clamp(min=0).unsqueeze(2)
    return torch.where(column < end, slots, slots[:, :1]), seen
