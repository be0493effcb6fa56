"""Norm, rotary positions and gate: both implementations against dense float64, in every dtype of storage."""

import math

import pytest
import torch

from specdec_fn.models.rope import RopeConfig, frequencies, rotate, rotation
from specdec_kernels import gate_triton, rms_norm_triton, rope_triton
from specdec_kernels.gate import gate
from specdec_kernels.rms_norm import rms_norm
from specdec_kernels.rope import rope

F64 = torch.float64
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
IMPLS = pytest.mark.parametrize("impl", ["torch", "triton"])
NAN = math.nan


def normal(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(found, exact):
    """Within 1e-5 in float32, and within one unit in the last place of a half type."""
    assert found.shape == exact.shape
    if found.dtype is torch.float32:
        torch.testing.assert_close(found.to(F64), exact, rtol=1e-5, atol=1e-5)
        return
    info = torch.finfo(found.dtype)
    unit = torch.exp2(exact.abs().clamp(min=info.smallest_normal).log2().floor()) * info.eps
    assert ((found.to(F64) - exact).abs() <= unit).all()


def run(variant, grid, *given):
    variant.kernel[grid](*given, **variant.constants, num_warps=variant.warps, num_stages=variant.stages)


def exact_norm(x, weight, eps):
    wide = x.to(F64)
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.to(F64)


@DTYPES
@pytest.mark.parametrize("width", [1, 16, 515, 4096, 8197])
def test_rms_norm(fenced, dtype, width):
    x, residual, weight = (normal(*shape, seed=seed).to(dtype) for seed, shape in enumerate([(2, width), (2, width), (width,)]))
    for impl in ("torch", "triton"):
        close(rms_norm(x, weight, 1e-5, impl=impl), exact_norm(x, weight, 1e-5))
        normed, total = rms_norm(x, weight, 1e-5, residual=residual, impl=impl)
        assert torch.equal(total, x + residual)
        close(normed, exact_norm(x + residual, weight, 1e-5))
    made = rms_norm_triton.variant(dtype, width, True)
    out, total = (fenced(torch.full((2, width), NAN).to(dtype)) for _ in range(2))
    run(made, (2,), out, total, fenced(x), fenced(residual), fenced(weight), width // made.constants["UNIT"], 1e-5)
    assert torch.equal(total, x + residual)
    close(out, exact_norm(x + residual, weight, 1e-5))


@IMPLS
def test_rms_norm_of_zeros_and_of_rows_that_lie_apart(impl):
    assert torch.equal(rms_norm(torch.zeros(1, 8), torch.ones(8), 1e-6, impl=impl), torch.zeros(1, 8))
    held, weight = normal(3, 40, seed=5), normal(17, seed=6)
    close(rms_norm(held[:, 3:20], weight, 0.0, impl=impl), exact_norm(held[:, 3:20], weight, 0.0))
    assert rms_norm(torch.zeros(0, 8), torch.ones(8), 1e-6, impl=impl).shape == (0, 8)


@DTYPES
@pytest.mark.parametrize(("parts", "size"), [((3, 2, 2), 80), ((6, 2, 2), 16), ((1, 1, 1), 256)])
def test_rope(fenced, dtype, parts, size):
    """The angles as the models compute them; the exact value from the models' own turn in float64 of the angles as stored."""
    rows, heads, half = normal(2, sum(parts), size).to(dtype), parts[0] + parts[1], size // 2
    tables = rotation(torch.tensor([3, 50_000]), frequencies(RopeConfig(), size), 1.0, dtype, parts)
    exact = rotate(rows.to(F64), *(table.to(F64) for table in tables))
    cos, sin = tables[0][:, 0, :half], tables[1][:, 0, half:]
    for impl in ("torch", "triton"):
        turned = rope(rows, cos, sin, heads=heads, impl=impl)
        close(turned, exact)
        assert torch.equal(turned[:, heads:], rows[:, heads:])
        close(rope(rows, cos.float(), sin.float(), heads=heads, impl=impl), exact)
        assert torch.equal(rope(rows, cos, sin, heads=0, impl=impl), rows)
    made = rope_triton.variant(dtype, dtype, size)
    out = fenced(torch.full_like(rows, NAN))
    grid = (2, -(-sum(parts) // rope_triton.GROUP))
    run(made, grid, out, fenced(rows), fenced(cos), fenced(sin), sum(parts), heads, half, half, half)
    close(out, exact)


@DTYPES
@pytest.mark.parametrize("ffn", [1, 48, 1029])
def test_gate(fenced, dtype, ffn):
    rows = normal(2, 2 * ffn, seed=ffn, scale=4.0).to(dtype)
    rows[0, 0], rows[1, 0], rows[0, ffn] = -60_000.0, 60_000.0, 0.5
    first, second = rows.to(F64).chunk(2, -1)
    exact = first * torch.sigmoid(first) * second
    exact = exact.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    rows[1, ffn] = exact[1, 0] = 0.0
    for impl in ("torch", "triton"):
        close(gate(rows, impl=impl), exact)
    made = gate_triton.variant(dtype, ffn)
    out = fenced(torch.full((2, ffn), NAN).to(dtype))
    run(made, (2, -(-ffn // gate_triton.BLOCK)), out, fenced(rows), ffn // made.constants["UNIT"])
    close(out, exact)


def test_float64_is_computed_in_float64():
    x, weight = normal(3, 8).to(F64), normal(8, seed=1).to(F64)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), exact_norm(x, weight, 1e-5), rtol=1e-14, atol=0)
    torch.testing.assert_close(gate(x), x[:, :4] * torch.sigmoid(x[:, :4]) * x[:, 4:], rtol=1e-13, atol=0)
    angle = normal(3, 4, seed=2).to(F64)
    a, b = x[:, :4], x[:, 4:]
    turned = torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)
    torch.testing.assert_close(rope(x[:, None], angle.cos(), angle.sin(), heads=1)[:, 0], turned, rtol=1e-14, atol=1e-15)


def test_variants_are_what_is_launched():
    made = [*rms_norm_triton.variants(), *rope_triton.variants(), *gate_triton.variants()]
    assert len({variant.name for variant in made}) == len(made) == 57
    for variant in made:
        assert list(variant.signature) == list(variant.kernel.arg_names)
        assert {name for name, word in variant.signature.items() if word == "constexpr"} == set(variant.constants)


@IMPLS
def test_what_is_refused(impl):
    x, weight, angle = torch.zeros(2, 8), torch.ones(8), torch.zeros(2, 4)
    heads = torch.zeros(2, 3, 8)
    for call, match in (
        (lambda: rms_norm(x[0], weight, 1e-5, impl=impl), "x and weight are"),
        (lambda: rms_norm(x, weight[:7], 1e-5, impl=impl), "x and weight are"),
        (lambda: rms_norm(x, weight, 1e-5, residual=x[:1], impl=impl), "residual is"),
        (lambda: rms_norm(x, weight.half(), 1e-5, impl=impl), "weight is"),
        (lambda: rms_norm(x.int(), weight.int(), 1e-5, impl=impl), "x is torch.int32; expected float32"),
        (lambda: rms_norm(x, weight, NAN, impl=impl), "eps is nan"),
        (lambda: rms_norm(x, weight, -1e-5, impl=impl), "eps is -1e-05"),
        (lambda: rope(heads[..., :7], angle, angle, heads=1, impl=impl), "rows is"),
        (lambda: rope(heads, angle[:, :3], angle, heads=1, impl=impl), "cos is"),
        (lambda: rope(heads, angle, angle[:1], heads=1, impl=impl), "sin is"),
        (lambda: rope(heads, angle, angle.half(), heads=1, impl=impl), "sin is torch.float16"),
        (lambda: rope(heads, angle, angle, heads=4, impl=impl), "heads is 4; expected 0 to 3"),
        (lambda: rope(heads.int(), angle, angle, heads=1, impl=impl), "rows is torch.int32"),
        (lambda: gate(x[:, :7], impl=impl), "rows is"),
        (lambda: gate(x.int(), impl=impl), "rows is torch.int32"),
        (lambda: gate(x, impl="cuda"), "impl is 'cuda'"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def test_what_only_the_kernels_refuse():
    big = torch.zeros(1, 1, 258)
    with pytest.raises(ValueError, match="heads of 258 components; expected at most 256"):
        rope(big, big[0, :, :129], big[0, :, :129], heads=1, impl="triton")
    with pytest.raises(ValueError, match="expected float32, float16 or bfloat16"):
        gate(torch.zeros(1, 2, dtype=F64), impl="triton")
