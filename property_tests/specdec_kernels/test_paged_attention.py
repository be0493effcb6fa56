"""Paged attention, reference and kernel (interpreted), against attention written out in float64."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from specdec_kernels import paged_attention_triton
from specdec_kernels.paged_attention import paged_attention

NAN = float("nan")
Fence = Callable[[Tensor], Tensor]


class Case(NamedTuple):
    """The arguments of a call, and what was written to the pool."""

    query: Tensor
    key_pages: Tensor
    value_pages: Tensor
    block_table: Tensor
    query_start: Tensor
    context_len: Tensor
    mask: Tensor | None
    keys: list[Tensor]
    values: list[Tensor]

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return self[:6]


def case(
    lengths: Sequence[int],
    counts: Sequence[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head: int = 64,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    tree: bool = False,
    padding: int = 0,
    spare: int = 1,
    numbers: torch.dtype = torch.int32,
    seed: int = 0,
) -> Case:
    """Sequences on shuffled pages of a pool that is NaN wherever nothing is written, a table of -1 wherever nothing is needed."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-length // page) for length in lengths]
    pages = torch.randperm(sum(needed) + 2, generator=generator).tolist()
    pools = [torch.full((len(pages), page, kv_heads, head), NAN, dtype=dtype) for _ in range(2)]
    table = torch.full((len(lengths), max(needed, default=0) + spare), -1, dtype=numbers)
    laid: list[list[Tensor]] = [[], []]
    for number, length in enumerate(lengths):
        own = [pages.pop() for _ in range(needed[number])]
        table[number, : len(own)] = torch.tensor(own, dtype=numbers)
        for pool, kept in zip(pools, laid, strict=True):
            kept.append(torch.randn(length, kv_heads, head, generator=generator).to(dtype))
            for position in range(length):
                pool[own[position // page], position % page] = kept[-1][position]
    tokens = sum(counts) + padding
    query = torch.randn(tokens, heads, head, generator=generator).to(dtype)
    starts = torch.tensor([0, *counts], dtype=numbers).cumsum(0, dtype=numbers)
    mask = torch.rand(tokens, max(counts), generator=generator) < 0.5 if tree else None
    return Case(query, *pools, table, starts, torch.tensor(lengths, dtype=numbers), mask, *laid)


def dense(made: Case, scale: float | None = None) -> Tensor:
    """float64[T, H, D], one row and one head after another."""
    out = torch.zeros(made.query.shape, dtype=torch.float64)
    group = made.query.shape[1] // made.key_pages.shape[2]
    scale = made.query.shape[2] ** -0.5 if scale is None else scale
    for number, (keys, values) in enumerate(zip(made.keys, made.values, strict=True)):
        first, end = made.query_start[number : number + 2].tolist()
        prefix = keys.shape[0] - (end - first)
        for row in range(first, end):
            if made.mask is None:
                seen = list(range(prefix + row - first + 1))
            else:
                seen = [*range(prefix), *(prefix + own for own in range(end - first) if made.mask[row, own])]
            for head in range(made.query.shape[1]) if seen else ():
                scores = keys[seen, head // group].double() @ made.query[row, head].double() * scale
                out[row, head] = scores.softmax(0) @ values[seen, head // group].double()
    return out


def launched(made: Case, fenced: Fence, *, invariant: bool = False, scale: float | None = None) -> Tensor:
    """The kernel's result, written over NaN, every buffer between guard words."""
    out = fenced(torch.full_like(made.query, NAN))
    buffers = [fenced(tensor) for tensor in made.arguments]
    mask = None if made.mask is None else fenced(made.mask.view(torch.uint8))
    scale = made.query.shape[2] ** -0.5 if scale is None else scale
    counts = fenced(buffers[4].diff())
    paged_attention_triton.launch(out, *buffers[:5], counts, buffers[5], mask=mask, scale=scale, invariant=invariant)
    for before, after in zip(made.arguments, buffers, strict=True):
        assert torch.equal(bits(before), bits(after))
    return out


def bits(tensor: Tensor) -> Tensor:
    """As integers of the same size, so that NaN equals itself."""
    return tensor.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def close(got: Tensor, expected: Tensor) -> None:
    """1e-5 in float32; one unit in the last place of the nearest number in float16 and bfloat16, or 1e-6 where a sum cancels."""
    assert not got.isnan().any()
    if got.dtype is torch.float32:
        assert (got - expected).abs().max() <= 1e-5
        return
    steps = []
    for tensor in (got, expected.to(got.dtype)):
        whole = bits(tensor).to(torch.int32)
        steps.append(torch.where(whole < 0, -(whole & 0x7FFF), whole))
    assert (((steps[0] - steps[1]).abs() <= 1) | ((got - expected).abs() <= 1e-6)).all()


SHAPES = [(64, 9, 3), (80, 4, 4), (96, 8, 2), (128, 1, 1), (256, 4, 2)]
LENGTHS, COUNTS = (1, 15, 16, 17, 33), (1, 5, 0, 3, 2)


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("invariant", [False, True])
def test_rows_of_padding_between_sequences(impl: str, invariant: bool) -> None:
    """Places for seven rows in each sequence, fewer of them taken: the others are 0, whatever their queries hold."""
    made = case(LENGTHS, COUNTS, head=64, heads=4, kv_heads=2)
    expected, room = dense(made), 7
    kept = torch.tensor([number * room + row for number, count in enumerate(COUNTS) for row in range(count)])
    query = torch.full((len(COUNTS) * room, *made.query.shape[1:]), NAN)
    query[kept] = made.query
    starts = torch.arange(len(COUNTS) + 1, dtype=torch.int32) * room
    where = (made.block_table, starts, made.context_len)
    got = paged_attention(query, made.key_pages, made.value_pages, *where, query_count=torch.tensor(COUNTS), impl=impl, invariant=invariant)
    close(got[kept], expected)
    got[kept] = 0
    assert not got.any()


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize(("head", "heads", "kv_heads"), SHAPES)
def test_float32_is_dense_attention(head: int, heads: int, kv_heads: int, tree: bool, fenced: Fence) -> None:
    made = case(LENGTHS, COUNTS, head=head, heads=heads, kv_heads=kv_heads, tree=tree, padding=2)
    expected = dense(made)
    close(paged_attention(*made.arguments, mask=made.mask), expected)
    close(paged_attention(*made.arguments, mask=made.mask, invariant=True), expected)
    close(launched(made, fenced), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("head", "heads", "kv_heads"), SHAPES[::2])
def test_half_types_are_right_to_one_unit(head: int, heads: int, kv_heads: int, dtype: torch.dtype, fenced: Fence) -> None:
    made = case(LENGTHS, COUNTS, head=head, heads=heads, kv_heads=kv_heads, dtype=dtype, tree=head == 96)
    expected = dense(made)
    close(paged_attention(*made.arguments, mask=made.mask), expected)
    close(paged_attention(*made.arguments, mask=made.mask, invariant=True), expected)
    close(launched(made, fenced), expected)
    if head == 64:
        close(launched(made, fenced, invariant=True), expected)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33])
def test_one_sequence_of_each_length(length: int, fenced: Fence) -> None:
    made = case([length], [1], spare=0)
    close(paged_attention(*made.arguments), dense(made))
    close(launched(made, fenced), dense(made))


@pytest.mark.parametrize("tree", [False, True])
def test_long_contexts_go_in_stretches(tree: bool, fenced: Fence, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of very different lengths share the launch: some stretches are empty, some rows see nothing of one."""
    made = case((150, 2, 40), (3, 1, 0), heads=2, kv_heads=1, tree=tree, padding=2)
    monkeypatch.setattr(paged_attention_triton, "LEAST", 32)
    asked = paged_attention_triton.plan(torch.float32, 6, 3, 2, 1, 64, 11 * 16, masked=tree, invariant=False)
    assert asked.splits > 4
    expected = dense(made)
    if not tree:
        monkeypatch.setattr(paged_attention_triton, "ROOM", 1)  # a tile at a time
    close(launched(made, fenced), expected)


def test_long_queries_go_in_tiles(fenced: Fence) -> None:
    made = case((40, 21), (37, 12), heads=9, kv_heads=3)
    close(launched(made, fenced), dense(made))
    close(paged_attention(*made.arguments, impl="triton"), dense(made))


def test_a_group_larger_than_a_tile(fenced: Fence) -> None:
    made = case((18, 3), (2, 1), heads=40, kv_heads=1)
    close(launched(made, fenced), dense(made))


def test_the_reference_lays_out_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = case(LENGTHS, COUNTS, tree=True, padding=1)
    whole = paged_attention(*made.arguments, mask=made.mask)
    monkeypatch.setattr(sys.modules["specdec_kernels.paged_attention"], "BLOCK", 1)
    assert (paged_attention(*made.arguments, mask=made.mask) - whole).abs().max() < 1e-6


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_scale_and_any_head_size(impl: str) -> None:
    made = case((9,), (3,), head=16 if impl == "triton" else 17)
    close(paged_attention(*made.arguments, scale=0.7, impl=impl), dense(made, scale=0.7))


def test_the_reference_in_float64() -> None:
    made = case(LENGTHS, COUNTS, dtype=torch.float64)
    for invariant in (False, True):
        assert (paged_attention(*made.arguments, invariant=invariant) - dense(made)).abs().max() < 1e-12


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_nothing_to_see_gives_zero(impl: str, invariant: bool) -> None:
    made = case((5, 7), (2, 0), padding=3, heads=2, kv_heads=1)
    out = paged_attention(*made.arguments, impl=impl, invariant=invariant)
    assert (out[:2] != 0).all()
    assert (out[2:] == 0).all()
    blind = torch.zeros(5, 2, dtype=torch.bool)
    alone = case((2,), (2,), heads=2, kv_heads=1)
    assert (paged_attention(*alone.arguments, mask=blind[:2], impl=impl, invariant=invariant) == 0).all()
    none = made.context_len * 0
    assert (paged_attention(*made.arguments[:5], none, impl=impl, invariant=invariant) == 0).all()
    assert (paged_attention(*made.arguments[:5], none, mask=blind, impl=impl, invariant=invariant) == 0).all()


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_empty_calls(impl: str) -> None:
    made = case((5,), (2,))
    nobody = made.block_table[:0], made.query_start[:1], made.context_len[:0]
    assert (paged_attention(*made.arguments[:3], *nobody, impl=impl) == 0).all()
    assert paged_attention(made.query[:0], *made.arguments[1:3], *nobody, impl=impl).shape == (0, 4, 64)
    bare = made.block_table[:, :0], made.query_start * 0, made.context_len * 0
    assert (paged_attention(*made.arguments[:3], *bare, impl=impl) == 0).all()


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_arguments_as_callers_have_them(impl: str) -> None:
    """int64 numbers, views with strides, a mask wider than needed; nothing is changed, nothing is shared."""
    made = case(LENGTHS, COUNTS, tree=True, numbers=torch.int64)
    assert made.mask is not None
    query = torch.stack([made.query, made.query], 1)[:, 0]
    table = torch.stack([made.block_table, made.block_table], 2)[:, :, 0]
    mask = torch.cat([made.mask, torch.ones(11, 3, dtype=torch.bool)], 1).T.contiguous().T
    arguments = (query, *made.arguments[1:3], table, *made.arguments[4:])
    before = [bits(tensor).clone() for tensor in (*arguments, mask)]
    out = paged_attention(*arguments, mask=mask, impl=impl)
    close(out, dense(made))
    assert all(torch.equal(bits(tensor), old) for tensor, old in zip((*arguments, mask), before, strict=True))
    assert out.untyped_storage().data_ptr() not in {tensor.untyped_storage().data_ptr() for tensor in arguments}


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_invariant_bits(impl: str, tree: bool, fenced: Fence, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of one sequence, asked for one by one and together, on pages of any size, with neighbours and in a wide table: the same bits."""
    monkeypatch.setattr(paged_attention_triton, "FIXED", 32)
    generator = torch.Generator().manual_seed(3)
    length, count, heads = 75, 6, 3
    keys, values = (torch.randn(length, 1, 64, generator=generator) for _ in range(2))
    query = torch.randn(count, heads, 64, generator=generator)
    mask = torch.rand(count, count, generator=generator) < 0.5 if tree else None

    def rows(first: int, end: int, page: int, neighbours: int, spare: int) -> Tensor:
        """Rows first..end - 1, the context ending with row end - 1 (a tree: with the last one, all rows before being context that is seen or not)."""
        stop = length - count + end
        made = case(
            (*(20 + 9 * n for n in range(neighbours)), stop),
            (*range(1, neighbours + 1), end - first),
            heads=heads,
            kv_heads=1,
            page=page,
            spare=spare,
        )
        for pool, written in ((made.key_pages, keys), (made.value_pages, values)):
            for position in range(stop):
                pool[made.block_table[-1, position // page], position % page] = written[position]
        made.query[-(end - first) :] = query[first:end]
        seen = None
        if mask is not None:
            seen = torch.ones(made.query.shape[0], max(end - first, neighbours), dtype=torch.bool)
            seen[-(end - first) :, : end - first] = mask[first:end, first:end]
        made = made._replace(mask=seen)
        out = launched(made, fenced, invariant=True) if impl == "triton" else paged_attention(*made.arguments, mask=seen, invariant=True)
        return out[-(end - first) :]

    together = rows(0, count, 16, 0, 0)
    for page, neighbours, spare in ((1, 0, 0), (7, 2, 7), (32, 0, 5)):
        assert torch.equal(bits(rows(0, count, page, neighbours, spare)), bits(together)), page
    if not tree:
        for first, end in ((0, 1), (5, 6), (1, 4)):
            assert torch.equal(bits(rows(first, end, 16, 1, 1)), bits(together[first:end])), first


def test_static_shapes() -> None:
    """Fake tensors have no values: any look at one, or any shape that depends on one, is an error here."""
    made = case(LENGTHS, COUNTS, tree=True, padding=2)
    for mask in (None, made.mask):
        for invariant in (False, True):
            with FakeTensorMode() as mode:
                fake = [mode.from_tensor(tensor) for tensor in made.arguments]
                seen = None if mask is None else mode.from_tensor(mask)
                assert paged_attention(*fake, mask=seen, invariant=invariant).shape == made.query.shape

            def call(*arguments: Tensor, mask: Tensor | None = mask, invariant: bool = invariant) -> Tensor:
                return paged_attention(*arguments, mask=mask, invariant=invariant)

            if invariant is (mask is None):
                continue
            whole = torch.compile(call, fullgraph=True, dynamic=False, backend="eager")(*made.arguments)
            assert torch.equal(whole, call(*made.arguments))
            torch._dynamo.reset()


def test_exports() -> None:
    class Step(torch.nn.Module):
        def forward(self, *arguments: Tensor) -> Tensor:
            return paged_attention(*arguments)

    made = case((5, 17), (1, 3))
    exported = torch.export.export(Step(), made.arguments, strict=False)
    assert torch.equal(exported.module()(*made.arguments), paged_attention(*made.arguments))


def test_no_batch_asks_for_a_new_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever varies from call to call is a number under do_not_specialize, and the build asked for is one and the same."""
    asked = []
    real = paged_attention_triton.plan

    def spy(*arguments: Any, **options: Any) -> Any:
        asked.append(real(*arguments, **options))
        return asked[-1]

    monkeypatch.setattr(paged_attention_triton, "plan", spy)
    for batch in (1, 3, 8, 15, 16, 17):
        made = case([2] * batch, [1] * batch, heads=1, kv_heads=1, head=16, page=1, spare=batch % 5 * 4)
        paged_attention(*made.arguments, impl="triton")
    assert len(asked) == 6
    assert all(item.attend == asked[0].attend for item in asked)
    for variant in paged_attention_triton.variants():
        free = [name for name, kind in variant.signature.items() if kind.startswith("i")]
        assert set(free) <= set(variant.kernel.kwargs["do_not_specialize"])
        assert list(variant.signature) == list(inspect.signature(variant.kernel.fn).parameters)
        assert set(variant.constants) == {name for name, kind in variant.signature.items() if kind == "constexpr"}


def test_every_plan_is_among_the_variants() -> None:
    names = {variant.name for variant in paged_attention_triton.variants()}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for tokens, batch in ((1, 1), (5, 1), (16, 16), (80, 16), (512, 1), (600, 9)):
            for heads, kv_heads in ((9, 3), (32, 32), (32, 8), (71, 1), (1, 1)):
                for head in (64, 80, 96, 128, 256):
                    for invariant in (False, True):
                        shape = (dtype, tokens, batch, heads, kv_heads, head, 4096)
                        for masked in (False, True):
                            asked = paged_attention_triton.plan(*shape, masked=masked, invariant=invariant)
                            assert asked.attend.name in names
                            assert asked.join is None or asked.join.name in names
                            assert asked.parts * asked.share * kv_heads == heads
                            assert asked.share <= asked.attend.constants["ROWS"]


BIG = """
import torch
from specdec_kernels.paged_attention import paged_attention
pages, page, heads, head = 262_146, 16, 8, 64
assert pages * page * heads * head > 2**31
pools = [torch.empty(pages, page, heads, head, dtype=torch.float16) for _ in range(2)]
table = torch.tensor([[pages - 1, 3]], dtype=torch.int32)
for pool in pools:
    for number in table[0].tolist():
        pool[number] = torch.randn(page, heads, head, generator=torch.Generator().manual_seed(number)).half()
query = torch.randn(1, heads, head).half()
rest = (table, torch.tensor([0, 1], dtype=torch.int32), torch.tensor([20], dtype=torch.int32))
small = [pool[table[0].long()].clone() for pool in pools]
near = (query, *small, torch.tensor([[0, 1]], dtype=torch.int32), *rest[1:])
for impl in ("torch", "triton"):
    assert torch.equal(paged_attention(query, *pools, *rest, impl=impl), paged_attention(*near, impl=impl)), impl
"""


def test_offsets_past_two_to_the_31() -> None:
    """In a process of its own: a wrapped offset may well kill it. Memory that nobody writes is not taken from the system."""
    done = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def wrong() -> list[tuple[str, dict[str, Any], str]]:
    made = case((20, 5), (2, 1), tree=True)
    assert made.mask is not None
    query, keys, values, table, starts, lengths = made.arguments
    outside, missing = table.clone(), table.clone()
    outside[0, 0] = keys.shape[0]
    missing[0, 1] = -1
    return [
        ("query axes", {"query": query[0]}, "query is"),
        ("pool shapes", {"value_pages": values[:, :8]}, "key_pages and value_pages are"),
        ("head sizes", {"query": query[:, :, :32].contiguous()}, "key_pages and value_pages are"),
        ("grouping", {"query": query[:, :3]}, "query has 3 heads"),
        ("dtypes", {"query": query.half()}, "expected one dtype"),
        ("integers", {"query": query.int(), "key_pages": keys.int(), "value_pages": values.int()}, "expected one dtype"),
        ("strides", {"key_pages": keys.transpose(1, 2).contiguous().transpose(1, 2)}, "key_pages has strides"),
        ("value strides", {"value_pages": values.transpose(1, 2).contiguous().transpose(1, 2)}, "value_pages has strides"),
        ("table type", {"block_table": table.float()}, "block_table is torch.float32"),
        ("table axes", {"block_table": table[0]}, "block_table is"),
        ("starts", {"query_start": starts[:2]}, "query_start, context_len and query_count have 2, 2, 2"),
        ("lengths", {"context_len": lengths[:1]}, "query_start, context_len and query_count have 3, 1, 1"),
        ("mask type", {"mask": made.mask.int()}, "mask is torch.int32"),
        ("mask rows", {"mask": made.mask[:2]}, "mask is torch.bool of shape"),
        ("mask columns", {"mask": made.mask[:, :1]}, "mask has 1 columns"),
        ("devices", {"context_len": lengths.to("meta")}, "expected one device"),
        ("first start", {"query_start": starts + 1}, "query_start is"),
        ("falling starts", {"query_start": torch.tensor([0, 3, 2])}, "query_start is"),
        ("last start", {"query_start": torch.tensor([0, 2, 4])}, "query_start is"),
        ("short context", {"context_len": torch.tensor([20, -1])}, "context_len is"),
        ("shorter context", {"context_len": torch.tensor([1, 5])}, "context_len is"),
        ("long context", {"context_len": torch.tensor([20, 49])}, "context_len is"),
        ("page past the pool", {"block_table": outside}, "block_table has pages from"),
        ("page below -1", {"block_table": table - 1}, "block_table has pages from"),
        ("missing page", {"block_table": missing}, "block_table is -1 where"),
        ("impl", {"impl": "cuda"}, "impl is 'cuda'"),
    ]


@pytest.mark.parametrize(("change", "message"), [pytest.param(change, message, id=name) for name, change, message in wrong()])
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_bad_input(impl: str, change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention_triton, "launch", None)  # nothing is launched
    good = dict(list(case((20, 5), (2, 1), tree=True)._asdict().items())[:7])
    with pytest.raises(ValueError, match=message):
        paged_attention(**{**good, "impl": impl, **change})


@pytest.mark.parametrize(("head", "dtype"), [(72, torch.float32), (272, torch.float32), (64, torch.float64)])
def test_a_head_or_dtype_that_no_kernel_has(head: int, dtype: torch.dtype) -> None:
    made = case((3,), (1,), head=head, dtype=dtype)
    with pytest.raises(ValueError, match=f"with heads of {head}; expected"):
        paged_attention(*made.arguments, impl="triton")
    close(paged_attention(*made.arguments).float(), dense(made))


def test_trusted_values_are_not_looked_at() -> None:
    made = case((20, 5), (2, 1))
    lengths = torch.tensor([20, 0], dtype=torch.int32)
    table = made.block_table.clone()
    table[1] = -7
    out = paged_attention(*made.arguments[:3], table, made.query_start, lengths, trusted=True)
    close(out[:2], dense(made)[:2])
    assert (out[2:] == 0).all()
