"""The small-row product, reference and kernel (interpreted), against float64, and the same bits in any company."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from specdec_kernels import rows_triton
from specdec_kernels.rows import rows

IMPLS = ("torch", "triton")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Fence = Callable[[Tensor], Tensor]


def given(count: int, inputs: int, outputs: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    return tuple(torch.randn(size, inputs, generator=generator).to(dtype) for size in (count, outputs))  # type: ignore[return-value]


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (64, 32), (77, 45), (144, 33), (257, 5)])
@pytest.mark.parametrize("count", [1, 5, 16, 19])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", IMPLS)
def test_is_the_product(impl: str, dtype: torch.dtype, count: int, inputs: int, outputs: int, fenced: Fence) -> None:
    x, weight = given(count, inputs, outputs, dtype)
    fences = fenced(x), fenced(weight)
    out = rows(*fences, impl=impl)
    assert torch.equal(fences[0], x)
    assert torch.equal(fences[1], weight)
    assert out.dtype is dtype
    expected = x.double() @ weight.double().T
    noise = 1e-6 * (x.double().abs() @ weight.double().abs().T)  # float32 sums; the rest is the rounding of the result
    assert ((out.double() - expected).abs() <= noise + expected.abs() * (0 if dtype is torch.float32 else torch.finfo(dtype).eps)).all()


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy, of infinity times the zeros that fill a tile up
@pytest.mark.parametrize("dtype", DTYPES)
def test_rounds_to_nearest_even(dtype: torch.dtype) -> None:
    """Sums that lie between two numbers of storage, ties among them: what torch's own rounding gives. Infinite and NaN stay what they are."""
    eps = torch.finfo(dtype).eps
    parts = torch.tensor([[1.0, eps * k / 4] for k in range(13)] + [[-1.0, -eps * k / 4] for k in range(13)])
    half = parts.to(dtype)
    ones = torch.ones(1, 2, dtype=dtype)
    assert torch.equal(rows(half, ones, impl="triton")[:, 0], half.float().sum(1).to(dtype))
    odd = torch.tensor([[float("inf"), 1.0], [float("-inf"), 1.0], [float("nan"), 1.0]], dtype=dtype)
    assert str(rows(odd, ones, impl="triton")[:, 0].tolist()) == "[inf, -inf, nan]"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", IMPLS)
def test_company_changes_no_bit(impl: str, dtype: torch.dtype) -> None:
    x, weight = given(37, 96, 40, dtype)
    whole = rows(x, weight, impl=impl)
    for count in (1, 2, 5, 8, 15, 16, 17):
        assert torch.equal(bits(rows(x[:count], weight, impl=impl)), bits(whole[:count])), count
    for place in (3, 15, 16, 36):
        assert torch.equal(bits(rows(x[place : place + 1], weight, impl=impl)), bits(whole[place : place + 1])), place
    assert torch.equal(bits(rows(x.flip(0), weight, impl=impl)), bits(whole.flip(0)))


@pytest.mark.parametrize("impl", IMPLS)
def test_empty_and_strided(impl: str) -> None:
    x, weight = given(3, 16, 4)
    assert rows(x[:0], weight, impl=impl).shape == (0, 4)
    assert rows(x, weight[:0], impl=impl).shape == (3, 0)
    assert (rows(x[:, :0], weight[:, :0], impl=impl) == 0).all()
    turned = rows(x.T.contiguous().T, weight.T.contiguous().T, impl=impl)
    assert torch.allclose(turned, x @ weight.T, atol=1e-5)


def test_the_reference_in_float64() -> None:
    x, weight = given(3, 16, 4, torch.float64)
    assert torch.allclose(rows(x, weight), x @ weight.T, atol=1e-14)
    with pytest.raises(ValueError, match=r"x is torch\.float64"):
        rows(x, weight, impl="triton")


def test_static_shapes() -> None:
    x, weight = given(19, 16, 4)
    with FakeTensorMode() as mode:
        assert rows(mode.from_tensor(x), mode.from_tensor(weight)).shape == (19, 4)
    assert torch.equal(torch.compile(rows, fullgraph=True, dynamic=False, backend="eager")(x, weight), rows(x, weight))


def test_no_batch_asks_for_a_new_build() -> None:
    variants = rows_triton.variants()
    for variant in variants:
        free = [name for name, kind in variant.signature.items() if kind.startswith("i")]
        assert set(free) <= set(variant.kernel.kwargs["do_not_specialize"])
        assert list(variant.signature) == list(inspect.signature(variant.kernel.fn).parameters)
    assert all(rows_triton.variant(dtype, inputs) in variants for dtype in DTYPES for inputs in (576, 577, 1536, 4096))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3)}, "x and weight are"),
        ({"weight": torch.zeros(4, 3)}, "x and weight are"),
        ({"x": torch.zeros(1, 2).half()}, "expected one dtype"),
        ({"x": torch.zeros(1, 2).int(), "weight": torch.zeros(4, 2).int()}, "x is torch.int32"),
        ({"x": torch.zeros(1, 2, device="meta")}, "expected one device"),
        ({"impl": "cuda"}, "impl is 'cuda'"),
    ],
)
@pytest.mark.parametrize("impl", IMPLS)
def test_bad_input(impl: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rows(**{"x": torch.zeros(1, 2), "weight": torch.zeros(4, 2), "impl": impl, **change})
