"""The small-row product as torch's operator ``specdec::rows``: its declaration, compiled and vmapped code, and derivatives."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from specdec_kernels import native
from specdec_kernels.rows import rows
from specdec_kernels.rows_native import operator

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True, scope="module")
def there() -> None:
    assert native.wait(), native.status()


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 5])
def test_the_operator_is_declared_as_it_behaves(count: int, dtype: torch.dtype) -> None:
    x, weight = numbers(count, 40, dtype=dtype), numbers(7, 40, dtype=dtype, seed=1)
    torch.library.opcheck(operator, (x, weight))
    torch.library.opcheck(operator, (x.requires_grad_(), weight.requires_grad_()))
    torch.library.opcheck(operator, (x, weight.detach()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_code_gives_the_bits_of_eager_code(dtype: torch.dtype) -> None:
    x, weight = numbers(5, 96, dtype=dtype), numbers(33, 96, dtype=dtype, seed=1)
    seen: list[str] = []

    def look(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    def step(a: Tensor, b: Tensor) -> Tensor:
        return rows(a, b) + 1

    compiled = torch.compile(step, fullgraph=True, backend=look)
    assert torch.equal(compiled(x, weight), rows(x, weight, impl="native") + 1)
    assert any("rows" in target for target in seen)
    assert not any("matmul" in target or "linear" in target for target in seen)
    traced = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(traced(x, weight), rows(x, weight, impl="native") + 1)


def test_compiled_gradients() -> None:
    x, weight = numbers(5, 96).requires_grad_(), numbers(33, 96, seed=1).requires_grad_()
    torch.compile(lambda a, b: rows(a, b).pow(2).sum(), fullgraph=True, backend="aot_eager")(x, weight).backward()
    wanted = torch.autograd.grad((x @ weight.T).pow(2).sum(), (x, weight))
    for found, expected in zip((x.grad, weight.grad), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(0, None), (1, None), (2, None), (None, 0), (None, 1), (0, 0), (1, 2)])
def test_vmap_gives_the_bits_of_single_calls(dims: tuple[int | None, int | None], dtype: torch.dtype) -> None:
    samples, weights = numbers(4, 5, 48, dtype=dtype), numbers(4, 9, 48, dtype=dtype, seed=1)
    wide = [given.movedim(0, dim) if dim is not None else given[0] for given, dim in zip((samples, weights), dims, strict=True)]
    out = vmap(rows, in_dims=dims)(*wide)
    assert out.dtype is dtype
    for index in range(4):
        x, weight = (given[0 if dim is None else index] for given, dim in zip((samples, weights), dims, strict=True))
        assert torch.equal(out[index], rows(x, weight, impl="native")), index


def test_vmap_within_vmap() -> None:
    samples, weights = numbers(3, 2, 5, 16), numbers(2, 9, 16, seed=1)
    out = vmap(vmap(rows), in_dims=(0, None))(samples, weights)
    for i in range(3):
        for j in range(2):
            assert torch.equal(out[i, j], rows(samples[i, j], weights[j], impl="native"))


@pytest.mark.parametrize("many", [False, True])
def test_derivatives_are_those_of_the_product(many: bool) -> None:
    def loss(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, weight: product(x, weight).sin().sum()

    ours, plain = (grad(loss(product), argnums=(0, 1)) for product in (rows, lambda x, weight: x @ weight.mT))
    x, weight = numbers(*([4] if many else []), 5, 48), numbers(9, 48, seed=1)
    if many:
        ours, plain = (vmap(one, in_dims=(0, None)) for one in (ours, plain))
    for found, expected in zip(ours(x, weight), plain(x, weight), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_autograd_in_eager_code() -> None:
    """Also twice over."""
    x, weight = numbers(3, 32).double().requires_grad_(), numbers(4, 32, seed=1).double().requires_grad_()
    assert torch.autograd.gradcheck(rows, (x, weight))
    assert torch.autograd.gradgradcheck(rows, (x, weight))
    small = numbers(3, 32).requires_grad_()
    (found,) = torch.autograd.grad(operator(small, weight.float().detach()).sum(), small)
    torch.testing.assert_close(found, weight.float().detach().sum(0).expand(3, -1))
