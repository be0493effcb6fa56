"""Attention over pages against attention written out, against the dense cache bit for bit, and with poison in every slot of others."""

import itertools
import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specdec_fn.kv import branching, dense, paged, store
from specdec_fn.kv.paged import Span
from specdec_fn.models import Config, RopeConfig, llama, logits
from specdec_fn.pytree import DonatedError, checking

HEADS = ((9, 3, 64), (4, 1, 6), (3, 3, 5))
LENGTHS = (1, 15, 16, 17, 33)


class Pass(NamedTuple):
    """A pass over sequences whose slots lie at random, and everything in it."""

    spans: tuple[Span, ...]
    pool: store.Store
    rows: tuple[Tensor, Tensor, Tensor]


def made(ends: Sequence[int], counts: Sequence[int], page: int, heads: tuple[int, int, int], dtype: torch.dtype, seed: int, trees: Any = ()) -> Pass:
    """Spans of these lengths and rows on pages in random order; every slot that is no one's holds NaN, and so does the other layer."""
    draw, make = random.Random(seed), torch.Generator().manual_seed(seed)
    needed = [math.ceil(end / page) for end in ends]
    free = draw.sample(range(sum(needed) + 5), sum(needed))
    spans = []
    for index, (end, count, pages) in enumerate(zip(ends, counts, needed, strict=True)):
        own = [free.pop() for _ in range(pages)]
        slots = [own[position // page] * page + position % page for position in range(end)]
        spans.append(Span(slots, count, tree(count, draw) if index in trees else None))
    pool = store.init(SimpleNamespace(layers=2, kv_heads=heads[1], head_dim=heads[2]), sum(needed) + 5, page, dtype=dtype)
    held = torch.tensor([slot for span in spans for slot in span.slots])
    for part in (pool.keys, pool.values):
        part.fill_(math.nan)
        rows = store.rows(part, 1, pool.pages)
        rows[held] = torch.randn((len(held), *rows.shape[1:]), generator=make, dtype=dtype)
    total = sum(counts)
    query, key, value = (torch.randn(total, n, heads[2], generator=make, dtype=dtype) for n in (heads[0], heads[1], heads[1]))
    return Pass(tuple(spans), pool, (query, key, value))


def tree(count: int, draw: random.Random) -> Tensor:
    """Which rows see which where each row hangs under an earlier one, or under none."""
    seen = torch.eye(count, dtype=torch.bool)
    for row in range(1, count):
        parent = draw.randrange(-1, row)
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen


def written_out(one: Pass, layer: int = 1) -> Tensor:
    """Softmax(q k / sqrt(D)) v over exactly the keys that a row sees, a row at a time, in float64."""
    query, key, value = (part.double() for part in one.rows)
    (_, heads, size), kv_heads = query.shape, key.shape[1]
    key_head = torch.arange(heads) // (heads // kv_heads)
    out, first = torch.zeros(query.shape, dtype=torch.float64), 0
    for span in one.spans:
        start = len(span.slots) - span.count
        keys, values = (store.rows(part, layer, one.pool.pages)[list(span.slots)].double() for part in (one.pool.keys, one.pool.values))
        keys[start:], values[start:] = key[first : first + span.count], value[first : first + span.count]
        for row in range(span.count):
            own = range(row + 1) if span.seen is None else span.seen[row].nonzero().flatten().tolist()
            sees = torch.tensor([*range(start), *(start + other for other in own)])
            weights = (keys[sees][:, key_head] * query[first + row] / size**0.5).sum(-1).softmax(0)
            out[first + row] = (weights.unsqueeze(-1) * values[sees][:, key_head]).sum(0)
        first += span.count
    return out


def close(found: Tensor, expected: Tensor) -> None:
    limit = 1e-5 if found.dtype is torch.float32 else 1e-12
    torch.testing.assert_close(found.double(), expected.double(), atol=limit, rtol=0)


def same_pools(one: store.Store, other: store.Store) -> bool:
    """Equal bits, NaN among them."""
    return all(torch.equal(a.nan_to_num(77.0), b.nan_to_num(77.0)) for a, b in ((one.keys, other.keys), (one.values, other.values)))


SEVERAL = st.lists(st.tuples(st.sampled_from((*LENGTHS, 46, 70, 120)), st.sampled_from((1, 1, 2, 3, 6, 40))), min_size=1, max_size=6)
PAGE_SIZES, DTYPES = st.sampled_from((1, 3, 16)), st.sampled_from((torch.float32, torch.float64))
ATTENDS = (paged.attend, paged.attend_invariant, paged.attend_pure)


@given(
    SEVERAL, st.sampled_from((1, 3, 16)), st.sampled_from(HEADS), st.sampled_from((torch.float32, torch.float64)), st.integers(0, 10**6), st.data()
)
def test_attention_is_what_is_written_out(
    several: list[tuple[int, int]], page: int, heads: tuple[int, int, int], dtype: torch.dtype, seed: int, data: st.DataObject
) -> None:
    """Sequences of all kinds in one pass; the slots of nobody are NaN throughout, and nothing but the rows' own slots is written."""
    ends, counts = [end for end, _ in several], [min(end, count) for end, count in several]
    one = made(ends, counts, page, heads, dtype, seed, data.draw(st.sets(st.integers(0, len(several) - 1))))
    expected = written_out(one)
    after = store.write_pure(one.pool, 1, *one.rows[1:], torch.tensor([slot for span in one.spans for slot in span.slots[-span.count :]]))
    for attend in ATTENDS:
        before = store.clone(one.pool)
        found, pool = attend(one.spans)(before, 1, *one.rows)
        close(found, expected)
        assert same_pools(pool, after)
    shared, _ = paged.attend(one.spans, share=heads[0] // heads[1], dtype=dtype)(store.clone(one.pool), 1, *one.rows)
    other, _ = paged.attend(one.spans, share=5, dtype=torch.float16)(store.clone(one.pool), 1, *one.rows)
    close(shared, expected)
    assert torch.equal(shared, other)


@pytest.mark.parametrize("page", [1, 3, 16])
@pytest.mark.parametrize("heads", HEADS[:2])
def test_all_lengths_and_counts_in_one_pass(page: int, heads: tuple[int, int, int]) -> None:
    pairs = [(end, count) for end in LENGTHS for count in range(1, 7) if count <= end]
    pairs += [(40, 40), (57, 40), (73, 40)]
    one = made([end for end, _ in pairs], [count for _, count in pairs], page, heads, torch.float32, 5, range(0, len(pairs), 3))
    for attend in ATTENDS:
        close(attend(one.spans)(store.clone(one.pool), 1, *one.rows)[0], written_out(one))


@pytest.mark.parametrize("attend", ATTENDS)
@pytest.mark.parametrize("count", [3, 40])
def test_keys_that_are_not_seen_weigh_nothing(attend: Any, count: int) -> None:
    """However well they fit: a later row's key has a score that no finite mask would hide."""
    one = made([count + 2], [count], 3, HEADS[1], torch.float64, 0)
    query, key, value = one.rows
    key = key.clone()
    key[-1] = 1e6
    found, _ = attend(one.spans)(store.clone(one.pool), 1, query.abs(), key, value)
    expected = written_out(one._replace(rows=(query.abs(), key, value)))
    close(found, expected)
    assert not torch.allclose(expected[0, 0], value[-1, 0])


@pytest.mark.parametrize("counts", [[1] * 5, [4] * 5, [1, 17, 1, 4, 1]])
@pytest.mark.parametrize("attend", [paged.attend, paged.attend_invariant])
def test_poison_of_one_sequence_stays_there(counts: list[int], attend: Any) -> None:
    """R5, D13: one sequence holds NaN in its slots and its rows; the others, longer and shorter ones in the same call, are as they were."""
    ends = [33, 17, 25, 20, 30]
    for victim in range(5):
        one = made(ends, counts, 16, HEADS[0], torch.float32, victim)
        expected, rows = written_out(one), [len(span.slots) for span in one.spans]
        own = slice(sum(counts[:victim]), sum(counts[: victim + 1]))
        for part in (one.pool.keys, one.pool.values):
            store.rows(part, 1, one.pool.pages)[torch.tensor(one.spans[victim].slots)] = math.nan
        for part in one.rows:
            part[own] = math.nan
        found, _ = attend(one.spans)(one.pool, 1, *one.rows)
        others = torch.ones(sum(counts), dtype=torch.bool)
        others[own] = False
        assert rows == ends
        assert found[own].isnan().all()
        close(found[others], expected[others])


# Equal bits


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9), st.booleans()), min_size=1, max_size=4),
    PAGE_SIZES,
    st.sampled_from(HEADS),
    DTYPES,
    st.integers(0, 10**6),
)
def test_invariant_attention_has_the_bits_of_a_dense_cache(
    several: list[tuple[int, int, bool]], page: int, heads: tuple[int, int, int], dtype: torch.dtype, seed: int
) -> None:
    """Whatever the pages and the company; the dense cache is another size than it need be and is read in other chunks."""
    draw = random.Random(seed)
    counts = [min(end, count) for end, count, _ in several]
    one = made([end for end, _, _ in several], counts, page, heads, dtype, seed, [index for index, (_, _, is_tree) in enumerate(several) if is_tree])
    sizes = SimpleNamespace(layers=1, kv_heads=heads[1], head_dim=heads[2])
    parts = [part.split(counts) for part in one.rows]
    expected = []
    for span, query, key, value in zip(one.spans, *parts, strict=True):
        start = len(span.slots) - span.count
        past = [store.rows(part, 1, one.pool.pages)[list(span.slots)[:start]] for part in (one.pool.keys, one.pool.values)]
        cache = dense.advance(dense.write(dense.init(sizes, len(span.slots) + draw.randrange(9), dtype=dtype), 0, *past), start)
        if span.seen is not None:
            expected.append(branching.attend_invariant(span.seen)(cache, 0, query, key, value)[0])
            continue
        cuts = sorted({0, span.count, *(draw.randint(0, span.count) for _ in range(2))})
        for low, high in itertools.pairwise(cuts):
            out, cache = dense.attend_invariant(cache, 0, query[low:high], key[low:high], value[low:high])
            expected.append(out)
            cache = dense.advance(cache, high - low)
    found, _ = paged.attend_invariant(one.spans)(store.clone(one.pool), 1, *one.rows)
    assert torch.equal(found, torch.cat(expected))

    order = draw.sample(range(len(counts)), len(counts))
    turned = [torch.cat([part[index] for index in order]) for part in parts]
    again, _ = paged.attend_invariant([one.spans[index] for index in order])(store.clone(one.pool), 1, *turned)
    assert torch.equal(again, torch.cat([found.split(counts)[index] for index in order]))


# A model's passes


CONFIG = Config("llama", vocab_size=11, context=64, width=8, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=6, rope=RopeConfig(base=50.0))
_make = torch.Generator().manual_seed(0)
_shapes = llama.shapes(CONFIG)
MODEL = llama.model(CONFIG, llama.assemble(CONFIG, lambda name: 0.4 * torch.randn(_shapes[name], generator=_make, dtype=torch.float64)))


@given(st.integers(0, 10**6), st.sampled_from((1, 3, 4)))
def test_passes_over_many_sequences_give_the_logits_of_cold_passes(seed: int, page: int) -> None:
    """Chunks and single rows in any order, one pool from pass to pass; the scratch of one pass is not the content of the next."""
    draw = random.Random(seed)
    texts = [[draw.randrange(11) for _ in range(draw.randint(1, 30))] for _ in range(3)]
    pages = draw.sample(range(3 * math.ceil(30 / page)), 3 * math.ceil(30 / page))
    tables = [pages[index :: len(texts)] for index in range(len(texts))]
    pool, done = store.init(CONFIG, len(pages), page, dtype=torch.float64), [0] * len(texts)
    for part in (pool.keys, pool.values):
        part.fill_(math.nan)
    cold = [logits(MODEL, text) for text in texts]
    while any(count < len(text) for count, text in zip(done, texts, strict=True)):
        going = [index for index in draw.sample(range(3), draw.randint(1, 3)) if done[index] < len(texts[index])]
        if not going:
            continue
        new = [min(len(texts[index]) - done[index], draw.choice((1, 1, 3, 20))) for index in going]
        spans = [Span([tables[i][p // page] * page + p % page for p in range(done[i] + n)], n) for i, n in zip(going, new, strict=True)]
        ids = torch.tensor([token for i, n in zip(going, new, strict=True) for token in texts[i][done[i] : done[i] + n]])
        positions = torch.cat([torch.arange(done[i], done[i] + n) for i, n in zip(going, new, strict=True)])
        attend = draw.choice((paged.attend, paged.attend_invariant))
        found, pool = MODEL.apply(MODEL.params, ids, positions, pool, attend(spans))
        expected = torch.cat([cold[i][done[i] : done[i] + n] for i, n in zip(going, new, strict=True)])
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
        for i, n in zip(going, new, strict=True):
            done[i] += n


@pytest.mark.parametrize("attend", [paged.attend, paged.attend_invariant])
def test_a_donated_pool_raises_when_a_pass_uses_it_again(attend: Any) -> None:
    spans = [Span([5, 2, 7], 3), Span([1], 1)]
    tokens, positions = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 1, 2, 0])
    plain, _ = MODEL.apply(MODEL.params, tokens, positions, store.init(CONFIG, 4, 2, dtype=torch.float64), attend(spans))
    with checking():
        old = store.init(CONFIG, 4, 2, dtype=torch.float64)
        found, new = MODEL.apply(MODEL.params, tokens, positions, old, attend(spans))
        assert torch.equal(found, plain)
        with pytest.raises(DonatedError):
            MODEL.apply(MODEL.params, tokens, positions, old, attend(spans))
        again, _ = MODEL.apply(MODEL.params, tokens, positions, new, attend(spans))
        assert torch.equal(again, plain)
    assert attend(spans).donated == ("kv",)


@pytest.mark.parametrize("attend", [paged.attend, paged.attend_invariant])
def test_a_pool_outlives_the_inference_mode_of_its_passes(attend: Any) -> None:
    one = made([17, 20], [1, 1], 3, HEADS[1], torch.float64, 3)
    with torch.inference_mode():
        first, pool = attend(one.spans)(store.clone(one.pool), 1, *one.rows)
    with torch.no_grad():
        second, _ = attend(one.spans)(pool, 1, *one.rows)
    close(second, first)


def test_results_do_not_lie_in_the_pool() -> None:
    """The scratch is written over by the next layer, whose results must not change those of this one."""
    one = made([17, 20, 30], [1, 1, 6], 3, HEADS[1], torch.float64, 3)
    for attend in ATTENDS:
        value = attend(one.spans)
        first, pool = value(store.clone(one.pool), 1, *one.rows)
        copy = first.clone()
        value(pool, 1, *(2 * part for part in one.rows))
        assert torch.equal(first, copy)


# What a layer costs


class Counted(TorchFunctionMode):
    """Names of the operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


def operators(one: Pass) -> list[str]:
    """The operators of one layer, not the first of its pool."""
    attend = paged.attend(one.spans, share=one.rows[0].shape[1] // one.rows[1].shape[1], dtype=one.rows[0].dtype)
    _, pool = attend(store.clone(one.pool), 1, *one.rows)
    with Counted() as counted:
        attend(pool, 1, *one.rows)
    return counted.names


@pytest.mark.parametrize(
    ("ends", "counts", "calls"),
    [
        ([128] * 16, [1] * 16, 1),
        ([120, 168, 130, 125], [1] * 4, 1),
        ([200, 203, 207, 211], [6] * 4, 1),
        ([20, 300, 21, 1500], [1] * 4, 3),
        ([100, 100, 100, 100], [1, 2, 1, 2], 2),
        ([100, 100, 100], [16, 16, 1], 3),
        ([2100, 2100, 2100, 30], [1] * 4, 4),
        ([1500, 1500, 1500, 30], [1] * 4, 3),
    ],
)
def test_sequences_that_are_alike_share_a_call(ends: list[int], counts: list[int], calls: int) -> None:
    one = made(ends, counts, 16, HEADS[1], torch.float32, 0)
    names = operators(one)
    assert names.count("scaled_dot_product_attention") == calls
    # Keys and values once a call; the rows of the pass and of the result where they do not lie in one piece.
    assert 2 * calls <= names.count("index_select") <= 3 * calls + 1


@pytest.mark.parametrize(("ends", "counts"), [([128, 140], [1, 1]), ([200, 203], [6, 6]), ([90], [40]), ([64], [64])])
def test_a_layer_makes_no_masks(ends: list[int], counts: list[int]) -> None:
    """Masks and indices are those of the pass: a layer moves numbers that depend on its arguments, and nothing else."""
    allowed = {
        "index_copy_",
        "as_strided",
        "index_select",
        "scaled_dot_product_attention",
        "to",
        "narrow",
        "storage_offset",
        "__get__",
        "size",
        "dim",
    }
    allowed |= {"stride", "empty", "new_empty", "data_ptr", "__getitem__", "element_size", "copy_"}  # how the C library is called
    allowed |= {"reshape", "transpose", "flatten", "unflatten", "unsqueeze", "squeeze", "contiguous", "cat", "view"}
    assert set(operators(made(ends, counts, 16, HEADS[0], torch.float32, 1))) <= allowed


def test_a_run_of_slots_is_read_where_it_lies() -> None:
    """Without a copy of the keys: alone, in any place of the pool, in every layer."""
    for count in (1, 5, 40):
        one = made([70], [count], 16, HEADS[0], torch.float32, 1)
        run = one._replace(spans=(Span(range(9, 79), count),))
        for part in (run.pool.keys, run.pool.values):
            store.rows(part, 1, run.pool.pages)[9:79] = 1.0 + torch.arange(70.0).view(-1, 1, 1) / 70
        assert "index_select" not in operators(run)
        close(paged.attend(run.spans)(store.clone(run.pool), 1, *run.rows)[0], written_out(run))


@pytest.mark.parametrize("slots", [[5, 7, 6, 8], [8, 7, 6, 5], [5, 6, 8, 9]])
def test_slots_that_only_look_like_a_run(slots: list[int]) -> None:
    one = made([4], [2], 16, HEADS[1], torch.float64, 1)
    for part in (one.pool.keys, one.pool.values):
        store.rows(part, 1, one.pool.pages)[5:10] = torch.arange(30.0, dtype=torch.float64).view(5, 1, 6) / 10
    one = one._replace(spans=(Span(slots, 2),))
    close(paged.attend(one.spans)(store.clone(one.pool), 1, *one.rows)[0], written_out(one))


@pytest.mark.parametrize(("end", "joined"), [(128, True), (256, False)])
def test_long_runs_are_read_where_they_lie_in_company_too(end: int, joined: bool) -> None:
    pool = store.init(SimpleNamespace(layers=2, kv_heads=1, head_dim=6), 200, 16, dtype=torch.float32)
    make = torch.Generator().manual_seed(2)
    for part in (pool.keys, pool.values):
        part.copy_(torch.randn(part.shape, generator=make))
    spans = tuple(Span(slots, 1) for slots in (range(5, 5 + end), range(1000, 1000 + end), range(2000, 2140, 2), range(2001, 2141, 2)))
    query, key, value = (torch.randn(4, heads, 6, generator=make) for heads in (4, 1, 1))
    one = Pass(spans, pool, (query, key, value))
    assert operators(one).count("scaled_dot_product_attention") == (2 if joined else 3)
    close(paged.attend(spans)(store.clone(pool), 1, *one.rows)[0], written_out(one))


def test_bounds() -> None:
    for attend in ATTENDS:
        for spans, said in (
            ([], "no spans"),
            ([Span([1, 2], 3)], "3 rows among 2 positions"),
            ([Span([1], 0)], "0 rows among 1 positions"),
            ([Span([1, 2], 2, torch.ones(2, 1, dtype=torch.bool))], "2 rows and a mask of"),
        ):
            with pytest.raises(AssertionError, match=said):
                attend(spans)
