"""Attention for a pass over many sequences whose keys and values lie scattered in one pool of pages.

``attend(spans)`` and ``attend_invariant(spans)`` build the ``attend`` value of one pass from what each sequence owns (``Span``). What depends on
the spans alone (which slots are read and written, masks, who shares a call) is worked out when the value is built, not in every layer.
"""

import dataclasses
import itertools
import math
import operator
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from specdec_fn.kv import store
from specdec_fn.kv.by_rows import by_rows
from specdec_fn.kv.dense import Attend
from specdec_fn.kv.store import Store
from specdec_fn.pytree import donates
from specdec_fn.typing import Bool, Float, Tensor
from specdec_kernels import native

__all__ = ["Span", "attend", "attend_invariant", "attend_pure"]

# Named here, since an annotation is made anew where a function is, and these functions are made in every pass.
Queries = Float[Tensor, "tokens heads head_dim"]
Keys = Float[Tensor, "tokens kv_heads head_dim"]
MANY = 16  # rows of a sequence from which on it has a call of its own
SPREAD = 48  # slots by which the sequences of one call differ at most
CROWD = 4096  # slots that one call reads at most, unless it is for one sequence
LONG = 192  # slots from which on a run of them is read where it lies, in a call of its own


class Span(NamedTuple):
    """One sequence in a pass.

    Attributes:
        slots: the slots of all its positions in order, its rows in the pass included and last; of a tree, its rows in the order of the pass.
        count: its rows in the pass, the last ``count`` of those positions.
        seen: [count, count], True at [t, s] where row t sees row s of the pass; None: it sees the rows up to its own. The diagonal is True.
    """

    slots: Sequence[int]
    count: int  # type: ignore[assignment]
    seen: Bool[Tensor, "count count"] | None = None


class _Group(NamedTuple):
    """Spans that share a call.

    Attributes:
        spans: how many.
        each: rows of each.
        rows: the places of all their rows in the pass; or the first, where these are a run.
        slots: [spans * length], the slots that are read; or the first, where these are a run.
        length: keys of the longest span; the others are made as long.
        mask: [spans, 1, each, length], added to the scores; [spans, 1, each * share, length] where ``share`` query heads are rows; None: every
            row sees every key, or ``causal`` says which.
        causal: row t sees the keys up to t.
    """

    spans: int
    each: int
    rows: Tensor | int
    slots: Tensor | int
    length: int
    mask: Tensor | None
    causal: bool


def attend(spans: Sequence[Span], *, share: int = 1, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Attend:
    """Builds the attention of a pass over several sequences, whose rows lie one after another in the pass.

    On a CPU a pass with fewer than 16 rows of each sequence goes through the C library, a row at a time (``by_rows``).

    What shares a call of torch's was measured (9 query and 3 key-value heads of 64, float32, one thread). A call costs some 25 us, as much as 60
    to 100 slots of padding: sequences with as many rows share one if their lengths differ by at most 48. One call in place of 16 for 16 rows at
    128 slots takes 0.7 of the time, one in place of 4 for 4 times 6 rows at 200 slots 0.8; 16 lengths from 20 to 1,500, 98 apart, stay apart
    (joined up to a quarter of their length: 1.08). A call reads at most 4,096 slots, past which joining gained nothing. 16 rows or more of one
    sequence are a call of their own; to fold heads into rows gains nothing there. So is a run of 192 slots or more, read where it lies (8 of 256:
    0.8 of the time of one call; 16 of 128: 1.1). Whatever is no run is laid together slot by slot; page by page took 0.93 of the time of that
    step alone.

    Args:
        spans: the sequences, in the order of their rows.
        share: query heads that share a key head.
        dtype: of the queries.
        device: where the pool is. Where one of the three is otherwise, each layer puts that right again: the result is the same.

    Returns:
        an ``attend`` value whose ``kv`` is a ``Store``, which it DONATES: it writes the rows to their slots, then attends.

    >>> from types import SimpleNamespace
    >>> pool = store.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, 2, dtype=torch.float32)
    >>> values = torch.tensor([1.0, 3.0, 8.0])[:, None, None]
    >>> attend([Span([6, 7], 2), Span([2], 1)])(pool, 0, torch.ones(3, 1, 1), torch.ones(3, 1, 1), values)[0].flatten()
    tensor([1., 2., 8.])
    """
    spans = _checked(spans)
    if max(span.count for span in spans) < MANY and torch.device(device).type == "cpu" and native.ready():
        return by_rows(spans, lambda: _attend_in_groups(spans, share, dtype, device))
    return _attend_in_groups(spans, share, dtype, device)


def _attend_in_groups(spans: tuple[Span, ...], share: int, dtype: torch.dtype, device: torch.device | str) -> Attend:
    """``attend`` in calls of torch."""
    written = _places([slot for span in spans for slot in span.slots[-span.count :]], device)
    together = _together(spans)
    groups = tuple(_group(spans, members, share, dtype, device) for members in together)
    order = [row for members in together for row in _rows(spans, members)]
    back = None if order == sorted(order) else _tensor(order, device).argsort()
    room = max(group.spans * group.length if isinstance(group.slots, Tensor) else 0 for group in groups)

    @donates("kv")
    def paged(kv: Store, layer: int, query: Queries, key: Keys, value: Keys) -> tuple[Queries, Store]:
        kv = _with_room(_write(kv, layer, key, value, written), room)
        out = [_call(group, query, kv, layer) for group in groups]
        whole = out[0] if len(out) == 1 else torch.cat(out)
        return (whole if back is None else whole.index_select(0, back.to(whole.device))), kv

    return paged


def attend_invariant(spans: Sequence[Span], *, device: torch.device | str = "cpu") -> Attend:
    """Builds the attention that gives each row the bits it has where its sequence is alone in a dense cache, chunk by chunk or row by row.

    On a CPU that is the C library, as in ``dense.attend_invariant``. Elsewhere the keys of one sequence are laid together in order, and each of its
    rows makes the call that is made there at that position, over exactly the keys it sees. Pages, the other sequences and their order have no part
    in it.

    Args:
        spans: the sequences, in the order of their rows.
        device: where the pool is.

    Returns:
        an ``attend`` value whose ``kv`` is a ``Store``, which it DONATES.

    >>> from types import SimpleNamespace
    >>> pool = store.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, 2, dtype=torch.float32)
    >>> values = torch.tensor([1.0, 3.0, 8.0])[:, None, None]
    >>> attend_invariant([Span([6, 7], 2), Span([2], 1)])(pool, 0, torch.ones(3, 1, 1), torch.ones(3, 1, 1), values)[0].flatten()
    tensor([1., 2., 8.])
    """
    spans = _checked(spans)
    if torch.device(device).type == "cpu" and native.wait():
        return by_rows(spans, lambda: _attend_gathered(spans, device))
    return _attend_gathered(spans, device)


def _attend_gathered(spans: tuple[Span, ...], device: torch.device | str) -> Attend:
    """``attend_invariant`` in calls of torch."""
    written = _written(spans, device)
    slots = tuple(_tensor(span.slots, device) for span in spans)
    lines = tuple(None if span.seen is None else tuple(row.nonzero().squeeze(1) for row in span.seen) for span in spans)
    counts = [span.count for span in spans]
    room = max(len(span.slots) for span in spans)

    @donates("kv")
    def paged(kv: Store, layer: int, query: Queries, key: Keys, value: Keys) -> tuple[Queries, Store]:
        kv = _with_room(store.write(kv, layer, key, value, written.to(key.device), whole=True), room)
        out: list[Tensor] = []
        for rows, places, own in zip(query.split(counts), slots, lines, strict=True):
            keys, values = _gathered(kv, layer, places, 1, places.shape[0])
            start = places.shape[0] - rows.shape[0]
            if own is None:
                out += [_over(row, keys, values, end) for end, row in enumerate(rows.split(1), start + 1)]
                continue
            branches = [part[:, :, start:].clone() for part in (keys, values)]
            for row, line in zip(rows.split(1), own, strict=True):
                end = start + line.shape[0]
                for part, branch in zip((keys, values), branches, strict=True):
                    part[:, :, start:end] = branch[:, :, line]
                out.append(_over(row, keys, values, end))
        return torch.cat(out), kv

    return paged


def attend_pure(spans: Sequence[Span]) -> Attend:
    """States what ``attend`` means without touching ``kv``: new tensors, and attention written out, a sequence at a time.

    Args:
        spans: the sequences, in the order of their rows.

    >>> from types import SimpleNamespace
    >>> pool = store.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, 2, dtype=torch.float32)
    >>> _, new = attend_pure([Span([6], 1)])(pool, 0, torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.ones(1, 1, 1))
    >>> pool.keys.flatten()[6], new.keys.flatten()[6]
    (tensor(0.), tensor(1.))
    """
    spans = _checked(spans)

    def paged(kv: Store, layer: int, query: Queries, key: Keys, value: Keys) -> tuple[Queries, Store]:
        kv = store.write_pure(kv, layer, key, value, _written(spans, key.device))
        out = []
        for span, rows in zip(spans, query.split([span.count for span in spans]), strict=True):
            keys, values = (store.rows(pool, layer, kv.pages)[_tensor(span.slots, pool.device)] for pool in (kv.keys, kv.values))
            scores = torch.einsum("tkgd,skd->kgts", rows.unflatten(1, (key.shape[1], -1)), keys) / query.shape[2] ** 0.5
            weights = scores.masked_fill(~_seen(span).to(key.device), float("-inf")).softmax(-1)
            out.append(torch.einsum("kgts,skd->tkgd", weights, values).flatten(1, 2))
        return torch.cat(out), kv

    return paged


# Once a pass


def _checked(spans: Sequence[Span]) -> tuple[Span, ...]:
    assert spans, "no spans: a pass has at least one row"
    for span in spans:
        assert 1 <= span.count <= len(span.slots), f"{span.count} rows among {len(span.slots)} positions"
        assert span.seen is None or span.seen.shape == (span.count, span.count), f"{span.count} rows and a mask of {tuple(span.seen.shape)}"
    return tuple(spans)


def _written(spans: Sequence[Span], device: torch.device | str) -> Tensor:
    """The slot of every row of the pass."""
    return _tensor([slot for span in spans for slot in span.slots[-span.count :]], device)


def _tensor(places: Sequence[int], device: torch.device | str) -> Tensor:
    """As ``torch.tensor`` makes it, which takes five times as long for a list."""
    return torch.frombuffer(array("q", places), dtype=torch.int64).to(device)


def _together(spans: tuple[Span, ...]) -> list[list[int]]:
    """Which spans share a call: those of as many rows and similar length, but for long runs."""
    alone: list[int] = []
    others: list[int] = []
    for index, span in enumerate(spans):
        (alone if span.count >= MANY or (len(span.slots) >= LONG and _is_run(span.slots)) else others).append(index)
    groups: list[list[int]] = []
    for index in sorted(others, key=lambda index: (spans[index].count, len(spans[index].slots))):
        span, shortest = spans[index], spans[groups[-1][0]] if groups else None
        alike = shortest is not None and span.count == shortest.count and len(span.slots) <= len(shortest.slots) + SPREAD
        if alike and (len(groups[-1]) + 1) * len(span.slots) <= CROWD:
            groups[-1].append(index)
        else:
            groups.append([index])
    return sorted([*([index] for index in alone), *(sorted(group) for group in groups)])


def _rows(spans: tuple[Span, ...], members: list[int]) -> list[int]:
    """The places in the pass of the rows of some spans."""
    starts = [0, *itertools.accumulate(span.count for span in spans)]
    return [row for index in members for row in range(starts[index], starts[index + 1])]


def _group(spans: tuple[Span, ...], members: list[int], share: int, dtype: torch.dtype, device: torch.device | str) -> _Group:
    group = [spans[index] for index in members]
    count, length = group[0].count, max(len(span.slots) for span in group)
    # A span is made longer with a slot of its own: what lies elsewhere may be another's, or nothing yet, and 0 times NaN is NaN.
    slots = [slot for span in group for slot in (*span.slots, *[span.slots[-1]] * (length - len(span.slots)))]
    causal = length == count >= MANY and group[0].seen is None
    mask = None if causal else _mask(group, length, share, dtype, device)
    return _Group(len(group), count, _places(_rows(spans, members), device), _places(slots, device), length, mask, causal)


def _mask(group: list[Span], length: int, share: int, dtype: torch.dtype, device: torch.device | str) -> Tensor | None:
    """0 where a row sees a key, minus infinity where it does not."""
    count = group[0].count
    starts = [len(span.slots) - count for span in group]
    hidden = torch.arange(length) > torch.tensor(starts).view(-1, 1, 1, 1) + torch.arange(count).view(-1, 1)
    for index, (span, start) in enumerate(zip(group, starts, strict=True)):
        if span.seen is not None:
            hidden[index, 0, :, start : start + count] = ~span.seen
    if not hidden.any():
        return None
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf")).to(device)
    return mask.repeat_interleave(share, 2) if 1 < count < MANY else mask


def _seen(span: Span) -> Tensor:
    """[count, positions], True where a row of the span sees a position."""
    own = torch.ones(span.count, span.count, dtype=torch.bool).tril() if span.seen is None else span.seen
    return F.pad(own, (len(span.slots) - span.count, 0), value=True)


def _places(places: list[int], device: torch.device | str) -> Tensor | int:
    """Places as a tensor, or the first of them where they are a run."""
    return places[0] if _is_run(places) else _tensor(places, device)


def _is_run(places: Sequence[int]) -> bool:
    return places[-1] - places[0] == len(places) - 1 and all(map(operator.eq, places, range(places[0], places[0] + len(places))))


# In every layer


def _with_room(kv: Store, slots: int) -> Store:
    """The store with scratch for the keys and the values of so many slots."""
    if not slots:
        return kv
    size = 2 * _half(kv, slots)
    if kv.scratch and kv.scratch[0].shape[0] >= size:
        return kv
    with torch.inference_mode(False):
        return dataclasses.replace(kv, scratch=(kv.keys.new_zeros(size),))


def _half(kv: Store, slots: int) -> int:
    """Numbers that the keys of so many slots take, rounded up so that the values after them are aligned as a tensor of their own is."""
    return math.ceil(slots * kv.keys.shape[2] * kv.keys.shape[3] / 64) * 64


def _write(kv: Store, layer: int, key: Tensor, value: Tensor, slots: Tensor | int) -> Store:
    """``store.write``; rows whose slots are a run are copied as one piece."""
    if not isinstance(slots, int):
        return store.write(kv, layer, key, value, slots.to(key.device), whole=True)
    _, page_size, kv_heads, head_dim = kv.keys.shape
    first = (layer * kv.pages * page_size + slots) * kv_heads * head_dim
    for pool, new in ((kv.keys, key), (kv.values, value)):
        pool.as_strided(new.shape, (kv_heads * head_dim, head_dim, 1), pool.storage_offset() + first).copy_(new)
    return kv


def _gathered(kv: Store, layer: int, slots: Tensor | int, spans: int, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values as [spans, kv_heads, length, head_dim]: where they lie if that is a run of slots, else laid together in the scratch."""
    _, page_size, kv_heads, head_dim = kv.keys.shape
    width = kv_heads * head_dim
    shape, strides = (spans, kv_heads, length, head_dim), (length * width, head_dim, width, 1)
    if isinstance(slots, int):
        first = (layer * kv.pages * page_size + slots) * width
        keys, values = (pool.as_strided(shape, strides, pool.storage_offset() + first) for pool in (kv.keys, kv.values))
        return keys, values
    room, half = kv.scratch[0], _half(kv, spans * length)
    slots = slots.to(room.device)
    for pool, start in ((kv.keys, 0), (kv.values, half)):
        rows = store.rows(pool, layer, kv.pages)
        torch.index_select(rows, 0, slots, out=room.as_strided((spans * length, kv_heads, head_dim), (width, head_dim, 1), start))
    return room.as_strided(shape, strides, 0), room.as_strided(shape, strides, half)


def _call(group: _Group, query: Tensor, kv: Store, layer: int) -> Tensor:
    """Attends for the rows of one group: [spans * count, heads, head_dim]."""
    spans, count, mask = group.spans, group.each, group.mask
    keys, values = _gathered(kv, layer, group.slots, spans, group.length)
    rows = query if query.shape[0] == spans * count else _taken(query, group.rows, spans * count)
    mask = mask if mask is None else mask.to(query.device, query.dtype)
    if count >= MANY:
        out = F.scaled_dot_product_attention(rows.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=mask, is_causal=group.causal, enable_gqa=True)
        return out.squeeze(0).transpose(0, 1)
    # The query heads that share a key head are rows of the call beside one another: no key is read twice.
    if count == 1:
        out = F.scaled_dot_product_attention(rows.reshape(spans, keys.shape[1], -1, query.shape[2]), keys, values, attn_mask=mask)
        return out.reshape(spans, *query.shape[1:])
    apart = (spans, count, keys.shape[1], -1, query.shape[2])
    folded = rows.reshape(apart).transpose(1, 2).flatten(2, 3)
    if mask is not None and mask.shape[2] not in (1, folded.shape[2]):
        mask = mask[:, :, :: mask.shape[2] // count].repeat_interleave(folded.shape[2] // count, 2)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    return out.unflatten(2, (count, -1)).transpose(1, 2).reshape(spans * count, *query.shape[1:])


def _taken(query: Tensor, rows: Tensor | int, count: int) -> Tensor:
    return query.narrow(0, rows, count) if isinstance(rows, int) else query.index_select(0, rows.to(query.device))


def _over(row: Tensor, keys: Tensor, values: Tensor, end: int) -> Tensor:
    """One query row over the first ``end`` keys: the call of ``dense.over``, shape by shape and stride by stride."""
    folded = row.clone(memory_format=torch.contiguous_format).view(1, keys.shape[1], -1, keys.shape[3])
    return F.scaled_dot_product_attention(folded, keys[:, :, :end], values[:, :, :end]).reshape(row.shape)
