"""Attention for a pass over many sequences whose keys and values lie scattered in one pool of pages.

``attend(spans)`` and ``attend_invariant(spans)`` build the ``attend`` value of one pass from what each sequence owns (``Span``). What depends on
the spans alone (which slots are read and written, masks, who shares a call) is worked out when the value is built, not in every layer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from specdec_fn.kv import store
from specdec_fn.kv.dense import Attend
from specdec_fn.kv.store import Store
from specdec_fn.pytree import donates
from specdec_fn.typing import Bool, Float, Tensor

__all__ = ["Span", "attend", "attend_invariant", "attend_pure"]

MANY = 16  # rows of a sequence from which on it has a call of its own


class Span(NamedTuple):
    """One sequence in a pass.

    Attributes:
        slots: the slots of all its positions in order, its rows in the pass included and last; of a tree, its rows in the order of the pass.
        count: its rows in the pass, the last ``count`` of those positions.
        seen: [count, count], True at [t, s] where row t sees row s; None: row t sees the rows up to its own.
    """

    slots: Sequence[int]
    count: int
    seen: Bool[Tensor, "count count"] | None = None


class _Group(NamedTuple):
    """Spans that share a call.

    Attributes:
        spans: how many.
        count: rows of each.
        rows: their places in the pass, or the first of a run of places.
        read: [spans * longest] slots; or the first of a run of slots.
        longest: keys of the longest span.
        mask: [spans, 1, count, longest], added to the scores; None: every row sees every key.
    """

    spans: int
    count: int
    rows: Tensor | int
    read: Tensor | int
    longest: int
    mask: Tensor | None


def attend(spans: Sequence[Span]) -> Attend:
    """Builds the attention of a pass over several sequences, whose rows lie one after another in the pass.

    Returns:
        an ``attend`` value whose ``kv`` is a ``Store``, which it DONATES: it writes all rows to their slots, then attends.

    >>> from types import SimpleNamespace
    >>> pool = store.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, 2, dtype=torch.float32)
    >>> values = torch.tensor([1.0, 3.0, 8.0])[:, None, None]
    >>> attend([Span([6, 7], 2), Span([2], 1)])(pool, 0, torch.ones(3, 1, 1), torch.ones(3, 1, 1), values)[0].flatten()
    tensor([1., 2., 8.])
    """
    spans = checked(spans)
    written = _places([slot for span in spans for slot in span.slots[-span.count :]])
    groups = tuple(_group(spans, members) for members in _together(spans))
    order = [row for members in _together(spans) for row in _rows(spans, members)]
    back = None if order == list(range(len(order))) else torch.tensor(order).argsort()

    @donates("kv")
    def paged(
        kv: Store,
        layer: int,
        query: Float[Tensor, "tokens heads head_dim"],
        key: Float[Tensor, "tokens kv_heads head_dim"],
        value: Float[Tensor, "tokens kv_heads head_dim"],
    ) -> tuple[Float[Tensor, "tokens heads head_dim"], Store]:
        kv = _write(kv, layer, key, value, written)
        keys, values = (store.rows(pool, layer, kv.pages) for pool in (kv.keys, kv.values))
        out = [_call(group, query, keys, values) for group in groups]
        whole = out[0] if len(out) == 1 else torch.cat(out)
        return (whole if back is None else whole.index_select(0, back.to(whole.device))), kv

    return paged


def attend_invariant(spans: Sequence[Span]) -> Attend:
    """Builds the attention that gives each row the bits it has where its sequence is alone in a dense cache.

    >>> from types import SimpleNamespace
    >>> pool = store.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, 2, dtype=torch.float32)
    >>> values = torch.tensor([1.0, 3.0, 8.0])[:, None, None]
    >>> attend_invariant([Span([6, 7], 2), Span([2], 1)])(pool, 0, torch.ones(3, 1, 1), torch.ones(3, 1, 1), values)[0].flatten()
    tensor([1., 2., 8.])
    """
    spans = checked(spans)
    written = _places([slot for span in spans for slot in span.slots[-span.count :]])
    reads = tuple(torch.tensor(list(span.slots)) for span in spans)
    lines = tuple(None if span.seen is None else tuple(row.nonzero().squeeze(1) for row in span.seen) for span in spans)
    counts = [span.count for span in spans]

    @donates("kv")
    def paged(
        kv: Store,
        layer: int,
        query: Float[Tensor, "tokens heads head_dim"],
        key: Float[Tensor, "tokens kv_heads head_dim"],
        value: Float[Tensor, "tokens kv_heads head_dim"],
    ) -> tuple[Float[Tensor, "tokens heads head_dim"], Store]:
        kv = _write(kv, layer, key, value, written)
        out: list[Tensor] = []
        for part, read, own in zip(query.split(counts), reads, lines, strict=True):
            keys, values = (store.rows(pool, layer, kv.pages).index_select(0, read.to(pool.device)) for pool in (kv.keys, kv.values))
            start = read.shape[0] - part.shape[0]
            if own is None:
                out += [_over(row, keys[:end], values[:end]) for end, row in enumerate(part.split(1), start + 1)]
            else:
                for row, line in zip(part.split(1), own, strict=True):
                    seen = [torch.cat((pool[:start], pool[start:][line])) for pool in (keys, values)]
                    out.append(_over(row, *seen))
        return torch.cat(out), kv

    return paged


def attend_pure(spans: Sequence[Span]) -> Attend:
    """States what ``attend`` means without touching ``kv``: new tensors, and attention written out, a sequence at a time.

    >>> from types import SimpleNamespace
    >>> pool = store.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, 2, dtype=torch.float32)
    >>> _, new = attend_pure([Span([6], 1)])(pool, 0, torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.ones(1, 1, 1))
    >>> pool.keys.flatten()[6], new.keys.flatten()[6]
    (tensor(0.), tensor(1.))
    """
    spans = checked(spans)

    def paged(
        kv: Store,
        layer: int,
        query: Float[Tensor, "tokens heads head_dim"],
        key: Float[Tensor, "tokens kv_heads head_dim"],
        value: Float[Tensor, "tokens kv_heads head_dim"],
    ) -> tuple[Float[Tensor, "tokens heads head_dim"], Store]:
        written = torch.tensor([slot for span in spans for slot in span.slots[-span.count :]], device=key.device)
        kv = store.write_pure(kv, layer, key, value, written)
        out = []
        for span, part in zip(spans, query.split([span.count for span in spans]), strict=True):
            read = torch.tensor(list(span.slots), device=key.device)
            keys, values = (store.rows(pool, layer, kv.pages)[read] for pool in (kv.keys, kv.values))
            heads = part.unflatten(1, (key.shape[1], -1))
            scores = torch.einsum("tkgd,skd->kgts", heads, keys) / query.shape[2] ** 0.5
            weights = scores.masked_fill(~_seen(span).to(key.device), float("-inf")).softmax(-1)
            out.append(torch.einsum("kgts,skd->tkgd", weights, values).flatten(1, 2))
        return torch.cat(out), kv

    return paged


def checked(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The spans, once they are found to be possible."""
    assert spans, "no spans: a pass has at least one row"
    for span in spans:
        assert 1 <= span.count <= len(span.slots), f"{span.count} rows among {len(span.slots)} positions"
        assert span.seen is None or span.seen.shape == (span.count, span.count), f"{span.count} rows and a mask of {tuple(span.seen.shape)}"
    return tuple(spans)


def _seen(span: Span) -> Tensor:
    """[count, positions], True where a row of the span sees a position."""
    start = len(span.slots) - span.count
    own = torch.ones(span.count, span.count, dtype=torch.bool).tril() if span.seen is None else span.seen
    return F.pad(own, (start, 0), value=True)


def _together(spans: tuple[Span, ...]) -> list[list[int]]:
    """Which spans share a call: those of as many rows and similar length."""
    groups: list[list[int]] = []
    for index in sorted(range(len(spans)), key=lambda i: (spans[i].count, len(spans[i].slots))):
        span, first = spans[index], spans[groups[-1][0]] if groups else None
        if first is not None and span.count == first.count < MANY and len(span.slots) <= 1.25 * len(first.slots) + 16:
            groups[-1].append(index)
        else:
            groups.append([index])
    return sorted(sorted(group) for group in groups)


def _rows(spans: tuple[Span, ...], members: list[int]) -> list[int]:
    """The places in the pass of the rows of some spans."""
    starts = [0]
    for span in spans:
        starts.append(starts[-1] + span.count)
    return [row for index in members for row in range(starts[index], starts[index + 1])]


def _group(spans: tuple[Span, ...], members: list[int]) -> _Group:
    group = [spans[index] for index in members]
    count, longest = group[0].count, max(len(span.slots) for span in group)
    # A span is made longer with a slot of its own: what lies elsewhere may be another's, or nothing yet, and 0 times NaN is NaN.
    read = _places([slot for span in group for slot in (*span.slots, *[span.slots[-1]] * (longest - len(span.slots)))])
    seen = torch.stack([F.pad(_seen(span), (0, longest - len(span.slots))) for span in group]).unsqueeze(1)
    mask = None if seen.all() else torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))
    return _Group(len(group), count, _places(_rows(spans, members)), read, longest, mask)


def _places(places: list[int]) -> Tensor | int:
    """Places as a tensor, or the first of them where they are a run."""
    return places[0] if places == list(range(places[0], places[0] + len(places))) else torch.tensor(places)


def _take(pool: Tensor, places: Tensor | int, count: int) -> Tensor:
    """The rows of a tensor at some places: a view where they are a run, else a copy."""
    return pool.narrow(0, places, count) if isinstance(places, int) else pool.index_select(0, places.to(pool.device))


def _write(kv: Store, layer: int, key: Tensor, value: Tensor, written: Tensor | int) -> Store:
    if not isinstance(written, int):
        return store.write(kv, layer, key, value, written.to(key.device), whole=True)
    for pool, new in ((kv.keys, key), (kv.values, value)):
        store.rows(pool, layer, kv.pages).narrow(0, written, key.shape[0]).copy_(new)
    return kv


def _call(group: _Group, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attends for the rows of one group, [spans * count, heads, head_dim]."""
    spans, count, longest = group.spans, group.count, group.longest
    heads, kv_heads = query.shape[1], keys.shape[1]
    shape = (spans, count, kv_heads, heads // kv_heads, query.shape[2])
    # The query heads that share a key head are rows of the call beside one another: no key is read twice.
    folded = _take(query, group.rows, spans * count).reshape(shape).transpose(1, 2).flatten(2, 3)
    read = [_take(pool, group.read, spans * longest).unflatten(0, (spans, longest)).transpose(1, 2) for pool in (keys, values)]
    mask = group.mask
    if mask is not None:
        mask = mask.to(query.device, query.dtype)
        if count > 1:
            mask = mask.repeat_interleave(shape[3], 2)
    out = F.scaled_dot_product_attention(folded, *read, attn_mask=mask)
    return out.unflatten(2, (count, shape[3])).transpose(1, 2).reshape(spans * count, heads, query.shape[2])


def _over(row: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query row over exactly these keys: the call of ``dense.over``, shape by shape and stride by stride."""
    folded = row.clone(memory_format=torch.contiguous_format).view(1, keys.shape[1], -1, keys.shape[2])
    return F.scaled_dot_product_attention(folded, *(part.transpose(0, 1).unsqueeze(0) for part in (keys, values))).reshape(row.shape)
