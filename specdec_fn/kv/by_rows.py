"""Attention for a pass over sequences in one pool of pages, in the C library: a row sees a list of slots, and no slot is moved or copied."""

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from specdec_fn.kv.dense import Attend
from specdec_fn.kv.store import Store
from specdec_fn.pytree import donates, enforced
from specdec_fn.typing import Float, Tensor
from specdec_kernels import row_attention

if TYPE_CHECKING:
    from specdec_fn.kv.paged import Span

__all__ = ["by_rows"]

Queries = Float[Tensor, "tokens heads head_dim"]
Keys = Float[Tensor, "tokens kv_heads head_dim"]


def by_rows(spans: "Sequence[Span]", other: Callable[[], Attend]) -> Attend:
    """Builds the attention of a pass in the C library: each row over the slots that it sees, in one order, wherever they lie.

    Args:
        spans: the sequences, in the order of their rows.
        other: builds the attention for tensors that the library does not take.

    Returns:
        an ``attend`` value whose ``kv`` is a ``Store``, which it DONATES. It says beforehand what it does (``planned``).

    >>> from types import SimpleNamespace
    >>> from specdec_fn.kv import store
    >>> from specdec_fn.kv.paged import Span, attend_pure
    >>> from specdec_kernels import native
    >>> pool = store.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=16), 4, 2, dtype=torch.float32)
    >>> spans, ones = [Span([6, 7], 1)], torch.ones(1, 1, 16)
    >>> by_rows(spans, lambda: attend_pure(spans))(pool, 0, ones, ones, ones)[0][0, 0, 0].item() > 0.9
    True
    """
    seen = _seen(spans)

    @donates("kv")
    def paged(kv: Store, layer: int, query: Queries, key: Keys, value: Keys) -> tuple[Queries, Store]:
        if not row_attention.fits(query, key, kv.keys):
            return other()(kv, layer, query, key, value)
        return row_attention.attend(query, key, value, kv.keys, kv.values, seen, first=layer * kv.pages * kv.page_size), kv

    def planned(kv: Store, rows: int, dtype: torch.dtype, invariant: bool) -> row_attention.Plan | None:
        del rows, invariant
        if enforced():
            return None
        pools = ([pool[layer * kv.pages : (layer + 1) * kv.pages] for layer in range(kv.layers)] for pool in (kv.keys, kv.values))
        keys, values = (tuple(one) for one in pools)
        return row_attention.planned(keys, values, dtype, seen)

    paged.planned = planned  # type: ignore[attr-defined]
    return paged


def _seen(spans: "Sequence[Span]") -> row_attention.Seen:
    """What every row of the pass sees, as slots; rows of a chain share their sequence's, a row of a tree has a line of its own."""
    written: list[int] = []
    slots: list[int] = []
    starts: list[int] = []
    counts: list[int] = []
    for span in spans:
        before, own = len(span.slots) - span.count, list(span.slots[-span.count :])
        written += own
        if span.seen is None:
            starts += [len(slots)] * span.count
            counts += range(before + 1, before + span.count + 1)
            slots += span.slots
            continue
        for row in span.seen.tolist():
            line = [slot for slot, sees in zip(own, row, strict=True) if sees]
            starts.append(len(slots))
            counts.append(before + len(line))
            slots += [*span.slots[:before], *line]
    return row_attention.Seen(*(torch.frombuffer(array("q", part), dtype=torch.int64) for part in (written, slots, starts, counts)))
