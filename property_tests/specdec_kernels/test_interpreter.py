"""What the kernels' tests rely on in triton's interpreter. Where one of these fails, the version of triton is wrong, not a kernel.

Some versions compute on the bits of bfloat16, ignore a scalar mask or ``other=0``, or multiply through lists. The kernels are written around what
remains: half types are cast at the load, and rounded on their bits at the store (``rows_triton.narrowed``).
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from specdec_kernels.rows_triton import narrowed

WRONG = f"triton {version('triton')} interprets kernels wrongly; 3.7.1 is known to be right"
HALVES = (torch.bfloat16, torch.float16)


def test_kernels_are_interpreted_here() -> None:
    assert triton.knobs.runtime.interpret, "these tests need TRITON_INTERPRET=1, set before triton is imported"


@triton.jit
def _double(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(tl.float32) * 2.0 + 0.5)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_types_are_numbers_once_they_are_cast_at_the_load(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -1.5, 3.140625, 65280.0, 2.0**-14, float("inf")], dtype=dtype)
    out = torch.empty(8)
    _double[(1,)](x, out, N=8)
    assert torch.equal(out, x.float() * 2 + 0.5), WRONG


@triton.jit
def _narrow(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, narrowed(tl.load(x + at), out.dtype.element_ty))


@pytest.mark.parametrize("dtype", HALVES)
def test_stores_of_half_types_round_to_nearest_even(dtype: torch.dtype) -> None:
    """Ties in both directions, what lies just beside them, and a carry into the exponent."""
    step = 2.0**-7 if dtype is torch.bfloat16 else 2.0**-10
    one = torch.tensor([1 + step / 2, 1 + step * 3 / 2, 1 + step * 0.51, 1 + step * 0.49, 2 - step / 2, 2 - step / 4, 1 / 3, 1e-3])
    x = torch.cat((one, -one))
    out = torch.empty(16, dtype=dtype)
    _narrow[(1,)](x, out, N=16)
    assert torch.equal(out, x.to(dtype)), WRONG


@triton.jit
def _scalar(out, limit, N: tl.constexpr):
    at = tl.program_id(0)
    tl.store(out + at, 7, mask=at < limit)
    tl.store(out + N + at, at, mask=limit > N)


def test_a_scalar_mask_is_heeded_by_a_store() -> None:
    out = torch.full((8,), -1, dtype=torch.int32)
    _scalar[(4,)](out, 2, N=4)
    assert out.tolist() == [7, 7, -1, -1, -1, -1, -1, -1], WRONG


@triton.jit
def _masked(x, out, count, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at, mask=at < count, other=0.0))
    tl.store(out + N + at, tl.load(x + at, mask=at < count, other=-float("inf")))
    tl.store(out + 2 * N, tl.load(x, mask=count < 0, other=0.0))


def test_a_masked_load_gives_what_it_is_told_to() -> None:
    """NaN lies where it may not read: a product with 0 would not hide it."""
    nan, low = float("nan"), -float("inf")
    out = torch.full((9,), nan)
    _masked[(1,)](torch.tensor([3.0, 4.0, nan, nan]), out, 2, N=4)
    assert out.tolist() == [3.0, 4.0, 0.0, 0.0, 3.0, 4.0, low, low, 0.0], WRONG


@triton.jit
def _sums(x, total, running, N: tl.constexpr):
    at = tl.arange(0, N)
    wide = tl.load(x + at).to(tl.float64)
    tl.store(total, tl.sum(wide, 0))
    tl.store(running + at, tl.cumsum(wide, 0))


def test_sums_in_float64_keep_its_digits() -> None:
    x = torch.tensor([1.0, 2.0**-40, 2.0**-45, -1.0])
    total, running = torch.zeros(1, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    _sums[(1,)](x, total, running, N=4)
    assert total.item() == 2.0**-40 + 2.0**-45, WRONG
    assert torch.equal(running, x.double().cumsum(0)), WRONG


@triton.jit
def _words(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    word = tl.load(x + at).to(tl.uint32)
    tl.store(out + at, (word + word).to(tl.int64))
    tl.store(out + N + at, (word >> 31).to(tl.int64))
    tl.store(out + 2 * N + at, (word << 1).to(tl.int64))
    tl.store(out + 3 * N + at, (word - tl.full((), 1, tl.uint32)).to(tl.int64))


def test_unsigned_words_wrap_and_shift_in_zeros() -> None:
    x = torch.tensor([0, 1, 2**31, 2**32 - 1], dtype=torch.int64)
    out = torch.empty(16, dtype=torch.int64)
    _words[(1,)](x, out, N=4)
    mask = 2**32 - 1
    assert torch.equal(out.view(4, 4), torch.stack((2 * x & mask, x >> 31, 2 * x & mask, (x - 1) & mask))), WRONG


@triton.jit
def _dot(a, b, out, N: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    left, right = tl.load(a + at).to(tl.float32), tl.load(b + at).to(tl.float32)
    tl.store(out + at, tl.dot(left, tl.trans(right), input_precision=PRECISION))


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "ieee"), (torch.bfloat16, "tf32"), (torch.float16, "tf32")])
def test_a_product_is_one_of_float32(dtype: torch.dtype, precision: str) -> None:
    """Whole numbers below 2**24, so that every order of the sum gives the same: any other digit is a lost one."""
    a, b = (torch.arange(256).view(16, 16) * factor % 127 - 63 for factor in (7, 11))
    out = torch.empty(16, 16)
    _dot[(1,)](a.to(dtype), b.to(dtype), out, N=16, PRECISION=precision)
    assert torch.equal(out, (a @ b.T).float()), WRONG


@triton.jit
def _indirect(table, out, stride, N: tl.constexpr):
    row = tl.load(table).to(tl.int64)
    tl.store(out + tl.arange(0, N), row * stride + tl.arange(0, N))


def test_an_offset_is_as_wide_as_it_is_cast_to() -> None:
    out = torch.empty(4, dtype=torch.int64)
    table = torch.tensor([70_000], dtype=torch.int32)
    _indirect[(1,)](table, out, 70_000, N=4)
    assert out.tolist() == [70_000**2 + i for i in range(4)], WRONG


PLAIN = """
import torch
from specdec_kernels import laws_triton, sample_triton, threefry_triton, verify_triton
one, word = torch.ones(1), torch.zeros(1, 1, dtype=torch.int64)
row = torch.zeros(1, 4), one, word[0], one, 0 * one
law = torch.ones(1, 2, 4)
for call in (
    lambda: verify_triton.verify("token", law, word, None, word[0], accept=word, final=word[0]),
    lambda: laws_triton.laws(*row),
    lambda: sample_triton.sample(*row, word[0]),
    lambda: threefry_triton.threefry2x32(word, word, word, word),
):
    try:
        call()
    except ValueError as error:
        print(error)
"""


def test_launchers_say_what_is_missing_where_kernels_are_not_interpreted() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "kernels")
    done = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, timeout=120, env=environment)
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr
    assert all(line.startswith("impl is 'triton', and the tensors are on the cpu; expected tensors on a GPU") for line in lines)
