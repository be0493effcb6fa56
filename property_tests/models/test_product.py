"""Rows times weights against exact integers, and a fixed tile's bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.models.product import product, tiled


@given(st.integers(1, 52), st.integers(1, 40), st.sampled_from([1, 32, 33, 64, 96]), st.sampled_from([torch.float32, torch.float64]))
def test_every_path_is_the_product(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    """Small integers: every order of adding is exact, so every path must agree with integer arithmetic to the bit."""
    x = torch.arange(rows * inputs).view(rows, inputs) % 7 - 3
    w = torch.arange(outputs * inputs).view(outputs, inputs) % 5 - 2
    expected = (x @ w.T).to(dtype)
    assert torch.equal(product(x.to(dtype), w.to(dtype)), expected)
    assert torch.equal(tiled(x.to(dtype), w.to(dtype)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 960), (1536, 576), (33, 47), (7, 64)])
def test_a_tiled_row_keeps_its_bits_in_any_company(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    make = torch.Generator().manual_seed(inputs)
    x = torch.randn(21, inputs, generator=make).to(dtype)
    w = torch.randn(outputs, inputs, generator=make).to(dtype)
    alone = torch.cat([tiled(row, w) for row in x.split(1)])
    for start, end in ((0, 21), (0, 8), (3, 5), (5, 21), (13, 20)):
        assert torch.equal(tiled(x[start:end], w), alone[start:end])


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(6, 5, 64), (20, 70, 64)])
def test_product_differentiates_and_lifts(rows: int, inputs: int, outputs: int) -> None:
    x, w = torch.linspace(-1, 1, rows * inputs).view(rows, inputs), torch.linspace(-2, 2, outputs * inputs).view(outputs, inputs)
    found = torch.func.grad(lambda w: product(x, w).square().sum())(w)
    torch.testing.assert_close(found, 2 * (x @ w.T).T @ x)
    stack = torch.stack((w, 2 * w))
    torch.testing.assert_close(torch.func.vmap(product, in_dims=(None, 0))(x, stack), torch.stack((x @ w.T, 2 * x @ w.T)))


def test_a_turned_product_lies_like_every_other() -> None:
    assert product(torch.ones(16, 40), torch.ones(32, 40)).is_contiguous()
