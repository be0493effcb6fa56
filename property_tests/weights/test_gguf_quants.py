"""Decoding of blocks, against the gguf package bit for bit and against blocks worked out by hand."""

import builtins
import sys

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.weights import gguf_quants

QUANTISED = [name for name, form in gguf_quants.formats.items() if form.weights > 1]


def expected(raw: np.ndarray, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    rows = raw.reshape(*shape[:-1], -1)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind]).reshape(shape)


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype == np.float32
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.uint32)[~nan], wanted.view(np.uint32)[~nan])


@given(kind=st.sampled_from(sorted(gguf_quants.formats)), rows=st.integers(1, 5), per_row=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_random_bytes_decode_to_the_same_bits(kind: str, rows: int, per_row: int, seed: int) -> None:
    """F3: scales may be infinite, subnormal or not a number: all bytes are blocks."""
    form = gguf_quants.formats[kind]
    raw = np.random.default_rng(seed).integers(0, 256, rows * per_row * form.size, np.uint8)
    shape = (rows, per_row * form.weights)
    assert_same_bits(gguf_quants.dequantize(raw.tobytes(), kind, shape).numpy(), expected(raw, kind, shape))


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_and_more_than_one_chunk(kind: str, dtype: torch.dtype) -> None:
    form = gguf_quants.formats[kind]
    blocks = 2 * gguf_quants.CHUNK + 7
    raw = np.random.default_rng(5).integers(0, 256, (blocks, form.size), np.uint8)
    shape = (blocks, form.weights)
    wanted = torch.from_numpy(expected(raw, kind, shape).copy()).to(dtype)
    found = gguf_quants.dequantize(raw.tobytes(), kind, shape, dtype)
    assert found.dtype == dtype
    assert torch.equal(found.nan_to_num(7.25), wanted.nan_to_num(7.25))


@pytest.mark.parametrize("kind", QUANTISED)
def test_the_table_agrees_with_the_package(kind: str) -> None:
    form = gguf_quants.formats[kind]
    number = gguf.GGMLQuantizationType[kind]
    assert (form.number, (form.weights, form.size)) == (number.value, gguf.GGML_QUANT_SIZES[number])


def test_blocks_worked_out_by_hand() -> None:
    """F3: low halves first; Q8_0's integers are signed; Q4_0's zero is 8."""
    ramp = bytes((i << 4) | (15 - i) for i in range(16))
    q4_1 = gguf_quants.dequantize(np.float16([0.5, -1]).tobytes() + ramp, "Q4_1", (32,)).tolist()
    assert q4_1 == [6.5 - i / 2 for i in range(16)] + [-1 + i / 2 for i in range(16)]
    q4_0 = gguf_quants.dequantize(np.float16([2]).tobytes() + ramp, "Q4_0", (32,)).tolist()
    assert q4_0 == [14.0 - 2 * i for i in range(16)] + [-16.0 + 2 * i for i in range(16)]
    q8_0 = gguf_quants.dequantize(np.float16([0.5]).tobytes() + np.int8([-128, -1, 0, 127] * 8).tobytes(), "Q8_0", (32,)).tolist()
    assert q8_0 == [-64.0, -0.5, 0.0, 63.5] * 8


def test_the_result_owns_its_memory() -> None:
    raw = bytearray(np.float32([1, 2]).tobytes())
    found = gguf_quants.dequantize(raw, "F32", (2,))
    raw[:] = bytes(8)
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize(("shape", "kind", "size"), [((0, 32), "Q4_0", 0), ((), "F32", 4), ((3, 0), "F16", 0)])
def test_empty_and_scalar_tensors(shape: tuple[int, ...], kind: str, size: int) -> None:
    assert gguf_quants.dequantize(bytes(size), kind, shape).shape == shape


@pytest.mark.parametrize(
    ("size", "kind", "shape", "message"),
    [
        (19, "Q4_1", (32,), r"needs 20 bytes, but was given 19"),
        (20, "Q4_1", (33,), r"row of 33 weights is not a whole number of blocks of 32"),
        (4, "F32", (2,), r"needs 8 bytes, but was given 4"),
        (4, "Q2_K", (256,), r"'Q2_K' is not one of"),
    ],
)
def test_wrong_sizes_are_refused(size: int, kind: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gguf_quants.dequantize(bytes(size), kind, shape)


def test_without_the_gguf_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: object, **kwargs: object) -> object:
        if name == "gguf":
            raise ImportError(name)
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.delitem(sys.modules, "gguf")
    with pytest.raises(ValueError, match=r"type Q6_K .* pip install 'specdec_fn\[gguf\]'"):
        gguf_quants.dequantize(bytes(210), "Q6_K", (256,))
    assert gguf_quants.dequantize(bytes(34), "Q8_0", (32,)).tolist() == [0.0] * 32
