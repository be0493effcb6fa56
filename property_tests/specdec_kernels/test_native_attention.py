"""The C library's attention against attention written out in float64; and each row has the bits of plain decoding, in any company and any pages."""

import functools
import itertools
import math
import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from specdec_fn.kv import dense, paged, store
from specdec_fn.kv.paged import Span
from specdec_kernels import native, row_attention

HEADS = ((9, 3, 64), (4, 4, 32), (8, 1, 128), (10, 2, 80), (6, 1, 16), (16, 2, 64))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EARLIER = (0, 1, 63, 64, 65, 190, 300, 1100)  # keys are parted from 192 on, and into eight parts at most from 1024 on
LONG = EARLIER[-1] + 20
Heads = tuple[int, int, int]


@pytest.fixture(autouse=True, scope="module")
def there() -> None:
    assert native.wait(), native.status()


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@functools.cache
def rows_of(count: int, heads: Heads, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (numbers(count, n, heads[2], dtype=dtype, seed=i) for i, n in enumerate((heads[0], heads[1], heads[1])))
    return query * 2, key, value


def cache_of(length: int, rows: tuple[Tensor, ...], capacity: int) -> dense.DenseCache:
    """A cache of two layers whose second holds the first rows; every other slot holds NaN."""
    _, key, value = rows
    sizes = SimpleNamespace(layers=2, kv_heads=key.shape[1], head_dim=key.shape[2])
    made = dense.init(sizes, capacity, dtype=key.dtype)
    for part, given in ((made.keys, key), (made.values, value)):
        for tensor in part:
            tensor.fill_(math.nan)
        part[1][:length] = given[:length]
    return dense.advance(made, length)


def cut(rows: tuple[Tensor, ...], start: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (part[start:end] for part in rows)
    return query, key, value


def exact(rows: tuple[Tensor, ...], start: int, end: int) -> Tensor:
    """``attend_pure`` in float64, of the very numbers that the cache holds."""
    wide = tuple(part.double() for part in rows)
    return dense.attend_pure(cache_of(start, wide, end), 1, *cut(wide, start, end))[0]


def close(out: Tensor, wanted: Tensor, rows: tuple[Tensor, ...]) -> None:
    """Scores of size 40 rounded to float32 move a weight by 40 u; sums of positive weights add a few more; the result is rounded once."""
    largest = float(rows[2].abs().max())
    allowed = 2e-5 * largest + wanted.abs() * (0 if out.dtype is torch.float32 else torch.finfo(out.dtype).eps / 2)
    assert out.dtype is rows[0].dtype
    assert ((out.double() - wanted).abs() <= allowed).all(), (out.double() - wanted).abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_a_dense_cache(heads: Heads, dtype: torch.dtype) -> None:
    """Any number of earlier slots and of rows: right, and each row the bits that it has alone; the cache holds the new rows, and nothing else new."""
    rows = rows_of(LONG, heads, dtype)
    for earlier in EARLIER:
        wanted = exact(rows, earlier, earlier + 17)
        single = []
        cache = cache_of(earlier, rows, LONG)
        for at in range(earlier, earlier + 17):
            out, cache = dense.attend_invariant(cache, 1, *cut(rows, at, at + 1))
            cache = dense.advance(cache, 1)
            single.append(out)
        alone = torch.cat(single)
        close(alone, wanted, rows)
        for count in (1, 2, 3, 5, 8, 16, 17):
            for attend in (dense.attend_invariant, *((dense.attend,) if count <= dense.FEW else ())):
                out, cache = attend(cache_of(earlier, rows, LONG), 1, *cut(rows, earlier, earlier + count))
                assert torch.equal(out, alone[:count]), (earlier, count, attend.__name__)
                for held, given in ((cache.keys, rows[1]), (cache.values, rows[2])):
                    assert torch.equal(held[1][: earlier + count], given[: earlier + count])
                    assert held[1][earlier + count :].isnan().all()
                    assert held[0].isnan().all()


@pytest.mark.parametrize("heads", HEADS)
def test_threads_and_layouts_change_no_bit(heads: Heads) -> None:
    rows = rows_of(LONG, heads, torch.float32)
    for earlier in (100, 300, 1100):
        wanted = dense.attend_invariant(cache_of(earlier, rows, LONG), 1, *cut(rows, earlier, earlier + 7))[0]
        before = torch.get_num_threads()
        try:
            for threads in (1, 2, 3, 5):
                torch.set_num_threads(threads)
                assert torch.equal(dense.attend_invariant(cache_of(earlier, rows, LONG), 1, *cut(rows, earlier, earlier + 7))[0], wanted)
        finally:
            torch.set_num_threads(before)
    wanted = dense.attend_invariant(cache_of(100, rows, 110), 1, *cut(rows, 100, 107))[0]
    query, key, value = cut(rows, 100, 107)
    for turn in (lambda part: part.transpose(0, 1).contiguous().transpose(0, 1), lambda part: part.repeat_interleave(2, 2)[..., ::2]):
        for given in ((turn(query), key, value), (query, turn(key), value), (query, key, turn(value)), (turn(query), turn(key), turn(value))):
            assert torch.equal(dense.attend_invariant(cache_of(100, rows, 110), 1, *given)[0], wanted)
    fused = torch.cat((query, key, value), 1).split((heads[0], heads[1], heads[1]), 1)  # as a pass hands them over
    assert torch.equal(dense.attend_invariant(cache_of(100, rows, 110), 1, *fused)[0], wanted)


def test_scores_of_any_size() -> None:
    """Large scores leave the largest alone, and equal ones share; a sick key makes the rows that see it sick, and no other."""
    heads = (4, 2, 16)
    query, key, value = rows_of(90, heads, torch.float32)
    big = (query * 1e4, key, value)
    out = dense.attend_invariant(cache_of(70, big, 90), 1, *cut(big, 70, 80))[0]
    best = torch.einsum("tkgd,skd->tkgs", big[0][70:80].double().unflatten(1, (2, 2)), key[:80].double())
    best = best.masked_fill(torch.arange(80) > torch.arange(70, 80)[:, None, None, None], -math.inf).argmax(-1).flatten(1)
    kv_head = torch.arange(4) // 2
    torch.testing.assert_close(out, value[best, kv_head], rtol=1e-5, atol=1e-5)
    level = (query * 0, key, value)
    out = dense.attend_invariant(cache_of(70, level, 90), 1, *cut(level, 70, 72))[0]
    torch.testing.assert_close(out[1], value[:72].double().mean(0).float().repeat_interleave(2, 0), rtol=1e-5, atol=1e-6)
    for earlier, sick in itertools.product((70, 400), (math.nan, math.inf, -math.inf)):
        query, key, value = rows_of(earlier + 20, heads, torch.float32)
        for place, seen in ((earlier + 5, 5), (17, 0)):  # among the new rows, and in the first part of the earlier ones
            ill, span = (query, key.clone(), value), (earlier, earlier + 10)
            ill[1][place, 1, 3] = sick
            out = dense.attend_invariant(cache_of(earlier, ill, earlier + 20), 1, *cut(ill, *span))[0]
            well = dense.attend_invariant(cache_of(earlier, (query, key, value), earlier + 20), 1, *cut((query, key, value), *span))[0]
            assert torch.equal(out[:seen], well[:seen])
            assert torch.equal(out[:, :2], well[:, :2])
            assert torch.equal(out[seen:, 2:].isnan(), exact(ill, *span)[seen:, 2:].isnan())


def pool_of(ends: Sequence[int], counts: Sequence[int], page: int, heads: Heads, dtype: torch.dtype) -> tuple[store.Store, tuple[Span, ...]]:
    """Sequences whose i-th has the first keys of ``rows_of``, on pages in an order of chance; every slot that is no one's holds NaN."""
    draw = random.Random(len(ends) * 100 + page)
    needed = [math.ceil(end / page) for end in ends]
    free = draw.sample(range(sum(needed) + 5), sum(needed))
    pool = store.init(SimpleNamespace(layers=2, kv_heads=heads[1], head_dim=heads[2]), sum(needed) + 5, page, dtype=dtype)
    pool.keys.fill_(math.nan), pool.values.fill_(math.nan)
    _, key, value = rows_of(320, heads, dtype)
    spans = []
    for end, count, pages in zip(ends, counts, needed, strict=True):
        own = [free.pop() for _ in range(pages)]
        slots = [own[position // page] * page + position % page for position in range(end)]
        for part, given in ((pool.keys, key), (pool.values, value)):
            store.rows(part, 1, pool.pages)[torch.tensor(slots[: end - count], dtype=torch.int64)] = given[: end - count]
        spans.append(Span(slots, count))
    return pool, tuple(spans)


@pytest.mark.parametrize("page", [1, 3, 16])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [HEADS[0], HEADS[2], HEADS[3]])
def test_pages_give_the_bits_of_the_dense_cache(heads: Heads, dtype: torch.dtype, page: int) -> None:
    """Several sequences, rows and lengths at once, each as alone; in both forms, since few rows of either go through the library."""
    rows = rows_of(320, heads, dtype)
    ends, counts = (1, 80, 7, 300, 65), (1, 5, 7, 1, 15)
    pool, spans = pool_of(ends, counts, page, heads, dtype)
    given = [torch.cat([part[end - count : end] for end, count in zip(ends, counts, strict=True)]) for part in rows]
    wanted = [
        dense.attend_invariant(cache_of(end - count, rows, 320), 1, *cut(rows, end - count, end))[0] for end, count in zip(ends, counts, strict=True)
    ]
    for attend in (paged.attend_invariant(spans), paged.attend(spans, share=heads[0] // heads[1], dtype=dtype)):
        out, after = attend(store.Store(pool.keys.clone(), pool.values.clone(), *list(vars(pool).values())[2:]), 1, *given)
        for part, alone in zip(out.split(counts), wanted, strict=True):
            assert torch.equal(part, alone)
        for held, new in ((after.keys, rows[1]), (after.values, rows[2])):
            for span, end in zip(spans, ends, strict=True):
                assert torch.equal(store.rows(held, 1, pool.pages)[torch.tensor(span.slots)], new[:end])
            assert store.rows(held, 0, pool.pages).isnan().all()


def tree(count: int, draw: random.Random) -> Tensor:
    """Which rows see which where each row hangs under an earlier one, or under none."""
    seen = torch.eye(count, dtype=torch.bool)
    for row in range(1, count):
        parent = draw.randrange(-1, row)
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_a_tree_has_the_bits_of_its_path_as_a_chain(dtype: torch.dtype) -> None:
    heads = HEADS[0]
    rows = rows_of(320, heads, dtype)
    for earlier, count in itertools.product((0, 66), (1, 6, 12)):
        seen = tree(count, random.Random(count))
        pool, (span,) = pool_of([earlier + count], [count], 3, heads, dtype)
        given = cut(rows, earlier, earlier + count)
        out, _ = paged.attend_invariant([span._replace(seen=seen)])(pool, 1, *given)
        for row in range(count):
            path = seen[row].nonzero().squeeze(1)
            chain = tuple(torch.cat((part[:earlier], own[path])) for part, own in zip(rows, given, strict=True))
            alone = dense.attend_invariant(cache_of(earlier, chain, 320), 1, *cut(chain, earlier, earlier + len(path)))[0]
            assert torch.equal(out[row], alone[-1]), (earlier, count, row)


def test_a_line_is_a_tree_of_one_branch() -> None:
    heads, dtype = HEADS[1], torch.float32
    given = cut(rows_of(320, heads, dtype), 40, 47)
    pool, spans = pool_of([47], [7], 3, heads, dtype)
    plain = paged.attend_invariant(spans)(pool, 1, *given)[0]
    line = torch.ones(7, 7, dtype=torch.bool).tril()
    assert torch.equal(paged.attend_invariant([spans[0]._replace(seen=line)])(pool, 1, *given)[0], plain)


def test_rows_without_keys_and_rows_that_write_nothing() -> None:
    """The door beneath: a row that sees nothing gives 0, and a row with slot -1 leaves the cache alone."""
    query, key, value = cut(rows_of(320, HEADS[4], torch.float32), 0, 3)
    keys, values = torch.zeros(8, 1, 16), torch.zeros(8, 1, 16)
    seen = row_attention.Seen(*map(torch.tensor, ([5, -1, 2], [5, 2, 5], [0, 1, 2], [2, 0, 1])))
    out = row_attention.attend(query, key, value, keys, values, seen)
    assert (out[1] == 0).all()
    assert torch.equal(out[2], value[0].expand(6, -1))
    assert keys.abs().sum(-1).nonzero()[:, 0].tolist() == [2, 5]
    assert torch.equal(keys[5], key[0])
    assert torch.equal(values[2], value[2])


@pytest.mark.parametrize("case", ["head_dim", "float64", "mixed", "gradient", "meta"])
def test_what_the_library_does_not_take_goes_through_torch(case: str) -> None:
    size = 24 if case == "head_dim" else 16
    dtype = torch.float64 if case == "float64" else torch.float32
    query, key, value = (numbers(3, n, size, dtype=dtype, seed=n) for n in (2, 1, 1))
    keys = torch.zeros(8, 1, size, dtype=torch.bfloat16 if case == "mixed" else dtype)
    assert row_attention.fits(torch.zeros(3, 2, 16), torch.zeros(3, 1, 16), torch.zeros(8, 1, 16))
    if case == "gradient":
        query.requires_grad_()
    if case == "meta":
        query, keys = query.to("meta"), keys.to("meta")
    assert not row_attention.fits(query, key, keys)
    if case in ("head_dim", "float64"):
        cache = dense.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=size), 8, dtype=dtype)
        wanted = dense.attend_pure(cache, 0, query, key, value)[0]
        torch.testing.assert_close(dense.attend_invariant(cache, 0, query, key, value)[0], wanted, rtol=1e-5, atol=1e-5)
