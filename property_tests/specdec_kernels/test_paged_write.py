"""Rows into a pool of pages, and pages onto pages: reference and kernel (interpreted), bit for bit against Python loops."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from specdec_kernels import paged_write_triton
from specdec_kernels.paged_write import copy_pages, paged_write, readable

IMPLS = ("torch", "triton")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8)
Fence = Callable[[Tensor], Tensor]


def bits(tensor: Tensor) -> Tensor:
    """As integers of the same size, so that NaN equals itself."""
    return tensor.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def noise(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Random bits of any kind: NaN, infinite and subnormal numbers among them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator).view(dtype).squeeze(-1)


def pools(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return noise(*shape, dtype=dtype, seed=1), noise(*shape, dtype=dtype, seed=2)


SLOTS = ([3, -1, 0, 11, -1], [-1, -1, -1, 5, 0], [-1] * 5, [0, 1, 2, 3, 4], [7, -1, -1, -1, -1])


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", IMPLS)
def test_rows_lie_in_their_slots(impl: str, dtype: torch.dtype, slots: list[int], fenced: Fence) -> None:
    before = pools(3, 4, 2, 5, dtype=dtype)
    given = tuple(fenced(pool) for pool in before)
    rows = tuple(fenced(noise(5, 2, 5, dtype=dtype, seed=seed)) for seed in (3, 4))
    old = [bits(tensor).clone() for tensor in rows]
    numbers = fenced(torch.tensor(slots))
    result = paged_write(*given, *rows, numbers, impl=impl)
    for pool, new, ours, row in zip(before, result, given, rows, strict=True):
        assert new is ours
        expected = bits(pool).clone()
        for place, slot in enumerate(slots):
            if slot >= 0:
                expected[slot // 4, slot % 4] = bits(row)[place]
        assert torch.equal(bits(new), expected)
    assert all(torch.equal(bits(tensor), kept) for tensor, kept in zip(rows, old, strict=True))
    assert numbers.tolist() == slots


@pytest.mark.parametrize("impl", IMPLS)
def test_wide_rows_and_strides(impl: str) -> None:
    """Rows of more than one block of the kernel, 16 numbers at once, as a slice of a wider tensor; int32 slots."""
    before = pools(2, 3, 5, 256)
    rows = noise(2, 15, 256, dtype=torch.float32, seed=5)
    given = [pool.clone() for pool in before]
    paged_write(*given, rows[:, :5], rows[:, 10:], torch.tensor([4, 1], dtype=torch.int32), impl=impl)
    for pool, new, row in zip(before, given, (rows[:, :5], rows[:, 10:]), strict=True):
        expected = bits(pool).clone()
        expected[1, 1], expected[0, 1] = bits(row[0]), bits(row[1])
        assert torch.equal(bits(new), expected)


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_are_read_where_they_lie(impl: str) -> None:
    """Parts of one product whose rows lie apart, at other distances for keys and values; turned round; one row for all."""
    product, turned = noise(6, 7, 16, dtype=torch.float32, seed=2), noise(2, 6, 16, dtype=torch.float32, seed=3).transpose(0, 1)
    odd = noise(6, 5, 3, dtype=torch.float32, seed=4)
    apart, same = product[:, 3:5], noise(1, 2, 16, dtype=torch.float32, seed=1).expand(6, 2, 16)
    for key, value in ((apart, product[:, 5:].clone()), (turned, apart), (same, turned), (odd[:, 1:3], odd[:, 3:])):
        given = pools(3, 2, 2, key.shape[2])
        paged_write(*given, key, value, torch.tensor([4, 0, -1, 1, 5, 2]), impl=impl)
        for pool, rows in zip(given, (key, value), strict=True):
            flat = pool.flatten(0, 1)
            assert torch.equal(bits(flat[[4, 0, 1, 5, 2]]), bits(rows[[0, 1, 3, 4, 5]]))


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", IMPLS)
def test_pages_are_copied_in_every_layer(impl: str, dtype: torch.dtype, layers: int, fenced: Fence) -> None:
    before = pools(layers * 5, 4, 2, 8, dtype=dtype)
    given = tuple(fenced(pool) for pool in before)
    sources, targets = fenced(torch.tensor([4, 0, 4])), fenced(torch.tensor([1, 2, 3]))
    result = copy_pages(*given, sources, targets, layers=layers, impl=impl)
    for pool, new, ours in zip(before, result, given, strict=True):
        assert new is ours
        expected = bits(pool).clone()
        for layer in range(layers):
            for source, target in ((4, 1), (0, 2), (4, 3)):
                expected[layer * 5 + target] = bits(pool)[layer * 5 + source]
        assert torch.equal(bits(new), expected)
    assert (sources.tolist(), targets.tolist()) == ([4, 0, 4], [1, 2, 3])


@pytest.mark.parametrize("impl", IMPLS)
def test_large_pages(impl: str) -> None:
    """Pages of more than one block of the kernel, and of a size that 16 does not divide."""
    before = pools(2, 7, 1, 211)
    given = [pool.clone() for pool in before]
    copy_pages(*given, torch.tensor([1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32), layers=1, impl=impl)
    for pool, new in zip(before, given, strict=True):
        assert torch.equal(bits(new), bits(pool[[1, 1]]))


@pytest.mark.parametrize("impl", IMPLS)
def test_empty_calls(impl: str) -> None:
    before = pools(2, 2, 1, 4)
    given = [pool.clone() for pool in before]
    nothing = torch.zeros(0, dtype=torch.int64)
    paged_write(*given, *(pool[:0, 0] for pool in before), nothing, impl=impl)
    copy_pages(*given, nothing, nothing, layers=2, impl=impl)
    assert all(torch.equal(bits(new), bits(pool)) for new, pool in zip(given, before, strict=True))
    none = torch.zeros(0, 2, 1, 4)
    paged_write(none, none.clone(), torch.zeros(1, 1, 4), torch.zeros(1, 1, 4), torch.tensor([-1]), impl=impl)


@pytest.mark.parametrize("slots", SLOTS)
def test_static_shapes(slots: list[int]) -> None:
    """Under fake tensors, compiled without a break, and as it is called: no shape follows from a value, and one result."""
    before = pools(3, 4, 2, 5)
    rows = [noise(5, 2, 5, dtype=torch.float32, seed=seed) for seed in (3, 4)]
    arguments = (*rows, torch.tensor(slots))
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(tensor) for tensor in (*before, *arguments)]
        assert not readable(*fake)
        assert paged_write(*fake)[0].shape == before[0].shape
        assert copy_pages(*fake[:2], fake[4][:1], fake[4][1:2], layers=1)[0].shape == before[0].shape
    plain, traced = ([pool.clone() for pool in before] for _ in range(2))
    paged_write(*plain, *arguments)
    torch.compile(paged_write, fullgraph=True, dynamic=False, backend="eager")(*traced, *arguments)
    assert all(torch.equal(bits(one), bits(other)) for one, other in zip(plain, traced, strict=True))


def test_exports() -> None:
    class Step(torch.nn.Module):
        def forward(self, *arguments: Tensor) -> Tensor:
            key_pages, value_pages = paged_write(*arguments)
            sources, targets = arguments[-1][2:3], arguments[-1][:1]
            return copy_pages(key_pages, value_pages, sources, targets, layers=1)[0].clone()

    arguments = (torch.zeros(4, 1, 1, 1), torch.zeros(4, 1, 1, 1), torch.ones(3, 1, 1), torch.ones(3, 1, 1), torch.tensor([3, -1, 0]))
    exported = torch.export.export(Step(), arguments, strict=False).module()
    assert exported(*arguments).flatten().tolist() == [1, 0, 0, 1]


def test_no_batch_asks_for_a_new_build() -> None:
    variants = paged_write_triton.variants()
    assert len({variant.name for variant in variants}) == len(variants)
    for variant in variants:
        free = [name for name, kind in variant.signature.items() if kind.startswith("i")]
        assert set(free) <= set(variant.kernel.kwargs["do_not_specialize"])
        assert list(variant.signature) == list(inspect.signature(variant.kernel.fn).parameters)
    for size in (1, 2, 4, 8):
        for width in (192, 193):
            for pages in (False, True):
                assert paged_write_triton.variant(size, width, pages=pages) in variants


BIG = """
import torch
from specdec_kernels.paged_write import copy_pages, paged_write
pages, page, heads, head = 262_146, 16, 8, 64
assert pages * page * heads * head > 2**31
for impl in ("torch", "triton"):
    pools = [torch.empty(pages, page, heads, head, dtype=torch.float16) for _ in range(2)]
    rows = [torch.randn(2, heads, head).half() for _ in range(2)]
    paged_write(*pools, *rows, torch.tensor([(pages - 1) * page + 5, -1]), impl=impl)
    copy_pages(*pools, torch.tensor([pages // 2 - 1]), torch.tensor([pages // 2 - 2]), layers=2, impl=impl)
    for pool, row in zip(pools, rows):
        assert torch.equal(pool[pages - 1, 5], row[0]) and torch.equal(pool[pages - 2, 5], row[0]), impl
"""


def test_offsets_past_two_to_the_31() -> None:
    """In a process of its own: a wrapped offset may well kill it. Memory that nobody writes is not taken from the system."""
    done = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


POOL, ROWS = torch.zeros(4, 2, 1, 8), torch.zeros(2, 1, 8)
WRITES: list[tuple[str, dict[str, Any], str]] = [
    ("pool axes", {"key_pages": POOL[0]}, "key_pages and value_pages are"),
    ("pools", {"value_pages": POOL[:3]}, "key_pages and value_pages are"),
    ("pool dtypes", {"value_pages": POOL.half()}, "key_pages is torch.float32 and value_pages is torch.float16"),
    ("strides", {"key_pages": torch.zeros(64).as_strided((4, 2, 1, 8), (8, 32, 8, 1))}, "key_pages has strides"),
    ("value strides", {"value_pages": torch.zeros(64).as_strided((4, 2, 1, 8), (8, 32, 8, 1))}, "value_pages has strides"),
    ("key", {"key": ROWS[:1]}, "key is"),
    ("value", {"value": ROWS[:, :, :4]}, "value is"),
    ("row dtype", {"value": ROWS.half()}, "value is torch.float16"),
    ("slot dtype", {"slots": torch.tensor([0.0, 1.0])}, "slots is torch.float32"),
    ("slot axes", {"slots": torch.tensor([[0], [1]])}, "slots is torch.int64 of shape"),
    ("past the pool", {"slots": torch.tensor([0, 8])}, "slots are from 0 to 8"),
    ("before the pool", {"slots": torch.tensor([0, -2])}, "slots are from -2 to 0"),
    ("twice", {"slots": torch.tensor([3, 3])}, "slots has a slot twice"),
    ("devices", {"slots": torch.tensor([0, 1], device="meta")}, "expected one device"),
    ("impl", {"impl": "cuda"}, "impl is 'cuda'"),
]
COPIES: list[tuple[str, dict[str, Any], str]] = [
    ("pools", {"value_pages": POOL[:3]}, "key_pages and value_pages are"),
    ("strides", {"value_pages": torch.zeros(64).as_strided((4, 2, 1, 8), (8, 32, 8, 1))}, "value_pages has strides"),
    ("no layers", {"layers": 0}, "layers is 0"),
    ("layers", {"layers": 3}, "layers is 3"),
    ("counts", {"targets": torch.tensor([0, 1])}, "targets is"),
    ("dtype", {"sources": torch.tensor([0.0])}, "sources is torch.float32"),
    ("axes", {"targets": torch.tensor([[0]])}, "targets is torch.int64 of shape"),
    ("source past the layer", {"sources": torch.tensor([2])}, "sources are from 2 to 2"),
    ("target before the layer", {"targets": torch.tensor([-1])}, "targets are from -1 to -1"),
    ("target twice", {"sources": torch.tensor([0, 0]), "targets": torch.tensor([1, 1])}, "targets has a page twice"),
    ("target read", {"sources": torch.tensor([1]), "targets": torch.tensor([1])}, "targets has a page that sources has"),
    ("devices", {"sources": torch.tensor([0], device="meta")}, "expected one device"),
    ("impl", {"impl": "cuda"}, "impl is 'cuda'"),
]


@pytest.mark.parametrize(("change", "message"), [pytest.param(change, message, id=name) for name, change, message in WRITES])
@pytest.mark.parametrize("impl", IMPLS)
def test_bad_writes(impl: str, change: dict[str, Any], message: str) -> None:
    given = {"key_pages": POOL.clone(), "value_pages": POOL.clone(), "key": ROWS + 1, "value": ROWS + 1, "slots": torch.tensor([0, 1]), "impl": impl}
    with pytest.raises(ValueError, match=message):
        paged_write(**{**given, **change})
    assert (given["key_pages"] == 0).all()


@pytest.mark.parametrize(("change", "message"), [pytest.param(change, message, id=name) for name, change, message in COPIES])
@pytest.mark.parametrize("impl", IMPLS)
def test_bad_copies(impl: str, change: dict[str, Any], message: str) -> None:
    given = {"key_pages": POOL.clone(), "value_pages": POOL.clone(), "sources": torch.tensor([0]), "targets": torch.tensor([1]), "layers": 2}
    with pytest.raises(ValueError, match=message):
        copy_pages(**{**given, "impl": impl, **change})


@pytest.mark.parametrize("impl", IMPLS)
def test_trusted_values_are_not_looked_at(impl: str) -> None:
    """A slot twice is no error for one who vouches for it."""
    given = [torch.zeros(4, 2, 1, 8) for _ in range(2)]
    assert (paged_write(*given, ROWS + 1, ROWS + 1, torch.tensor([3, 3]), impl=impl, trusted=True)[0][1, 1] == 1).all()
