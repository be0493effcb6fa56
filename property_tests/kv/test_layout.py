"""Attention of a captured pass: what ``attend_pure`` states, in any bucket that the pass fits in, and nothing of the padding."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn.kv import paged, store
from specdec_fn.kv.layout import Layout, attend, layout
from specdec_fn.kv.paged import Span
from specdec_fn.kv.table import Table, slots
from specdec_fn.random import key, uniform

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2, 4, 2, 16
SIZES = SimpleNamespace(layers=LAYERS, kv_heads=KV_HEADS, head_dim=HEAD_DIM)


@st.composite
def passes(draw: Any) -> dict[str, Any]:
    """Sequences with pages of their own, and a bucket that they fit in."""
    page_size = draw(st.integers(1, 5))
    sequences = draw(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 4)), min_size=1, max_size=3))  # positions before the pass, rows
    needed = [-(-(before + count) // page_size) for before, count in sequences]
    ids = draw(st.permutations(range(sum(needed) + 2)))
    tables = [Table(tuple(ids[sum(needed[:place]) : sum(needed[: place + 1])]), before) for place, (before, _) in enumerate(sequences)]
    return {
        "page_size": page_size,
        "pages": len(ids),
        "tables": tables,
        "ends": [before + count for before, count in sequences],
        "bucket": {
            "sequences": len(sequences) + draw(st.integers(0, 2)),
            "rows": max(count for _, count in sequences) + draw(st.integers(0, 2)),
            "pages": max(needed) + draw(st.integers(0, 2)),
        },
    }


def rows_of(seed: int, *shape: int) -> torch.Tensor:
    return uniform(key(seed), shape, torch.float32) - 0.5


@pytest.mark.parametrize("impl", ["torch", "triton"])
@settings(max_examples=settings.default.max_examples // 2)
@given(passes())
def test_a_bucket_changes_nothing(impl: str, one: dict[str, Any]) -> None:
    """Outputs, pool and neighbours, with NaN in every slot that no sequence has written."""
    page_size, tables, ends = one["page_size"], one["tables"], one["ends"]
    pool = store.init(SIZES, one["pages"], page_size, dtype=torch.float32)
    for part in (pool.keys, pool.values):
        part.fill_(torch.nan)
    spans = []
    for place, (table, end) in enumerate(zip(tables, ends, strict=True)):
        own = slots(table, 0, end, page_size=page_size)
        spans.append(Span(own, end - table.length))
        for layer in range(LAYERS):
            old = rows_of(place * 7 + layer, 2, table.length, KV_HEADS, HEAD_DIM)
            pool = store.write(pool, layer, old[0], old[1], torch.tensor(own[: table.length], dtype=torch.int64))
    where = layout(tables, ends, page_size=page_size, **one["bucket"])
    total, rows = where.slots.shape[0], where.rows
    query, new_keys, new_values = rows_of(1, total, HEADS, HEAD_DIM), rows_of(2, total, KV_HEADS, HEAD_DIM), rows_of(3, total, KV_HEADS, HEAD_DIM)
    kept = [place * rows + row for place, span in enumerate(spans) for row in range(span.count)]
    padding = [row for row in range(total) if row not in kept]
    for part in (query, new_keys, new_values):
        part[padding] = torch.nan  # whatever a model makes of the rows that are padding

    before = store.clone(pool)
    attention = attend(where, page_size=page_size, impl=impl)
    for layer in range(LAYERS):
        wanted, stated = paged.attend_pure(spans)(before, layer, query[kept], new_keys[kept], new_values[kept])
        found, pool = attention(pool, layer, query, new_keys, new_values)
        assert torch.equal(pool.keys.nan_to_num(9), stated.keys.nan_to_num(9))
        assert torch.equal(pool.values.nan_to_num(9), stated.values.nan_to_num(9))
        assert (found[kept] - wanted).abs().max() <= 1e-5
        before = stated


def test_padding_writes_nothing() -> None:
    """K10: a pass of nothing but padding leaves the pool as it was, the slots that an id of 0 or -1 could name among them."""
    pool = store.init(SIZES, 3, 2, dtype=torch.float32)
    for part in (pool.keys, pool.values):
        part.copy_(torch.arange(part.numel(), dtype=torch.float32).view(part.shape))
    before = store.clone(pool)
    idle = layout([], [], page_size=2, sequences=2, rows=3, pages=2)
    for impl in ("torch", "triton"):
        out, pool = attend(idle, page_size=2, impl=impl)(pool, 1, torch.ones(6, HEADS, HEAD_DIM), *torch.full((2, 6, KV_HEADS, HEAD_DIM), -7.0))
        assert torch.equal(pool.keys, before.keys)
        assert torch.equal(pool.values, before.values)
        assert not out.any()


def test_a_layout_is_as_it_is_stated() -> None:
    found = layout([Table((4, 2, 9), 3), Table((5,), 0)], [5, 2], page_size=2, sequences=3, rows=4, pages=3)
    assert found.pages.tolist() == [[4, 2, 9], [5, -1, -1], [-1, -1, -1]]
    assert (found.lengths.tolist(), found.counts.tolist(), found.rows) == ([5, 2, 0], [2, 2, 0], 4)
    assert found.slots.tolist() == [5, 18, -1, -1, 10, 11, -1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize(
    ("tables", "ends", "bucket"),
    [
        ([Table((0,), 1)] * 2, [2, 2], {"sequences": 1, "rows": 1, "pages": 1}),
        ([Table((0,), 1)], [3], {"sequences": 1, "rows": 1, "pages": 1}),
        ([Table((0, 1), 4)], [5], {"sequences": 1, "rows": 1, "pages": 1}),
        ([Table((0,), 1)], [1], {"sequences": 1, "rows": 1, "pages": 1}),
    ],
)
def test_what_does_not_fit_is_refused(tables: list[Table], ends: list[int], bucket: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected at most"):
        layout(tables, ends, page_size=4, **bucket)


def test_a_layout_is_a_pytree_of_tensors() -> None:
    found = layout([Table((0,), 1)], [2], page_size=4, sequences=1, rows=1, pages=1)
    assert isinstance(found, Layout)
    assert all(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves(found))
