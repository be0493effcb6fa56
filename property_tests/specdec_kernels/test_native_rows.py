"""The small-row product of the C library, for every form of weight: against float64, in any company, and what it refuses."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from specdec_kernels import native
from specdec_kernels.packed import Packed, packed
from specdec_kernels.rows import rows
from specdec_kernels.rows_native import rows_native

Fence = Callable[[Tensor], Tensor]
U = 2.0**-24  # half a unit in the last place of float32
FLOATS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
BLOCKS = ("q8_0", "q4_0", "q4_1")
FORMS = (*FLOATS, *(f"{kind}+{way}" for kind in ("int8", *BLOCKS) for way in ("float32", "int8")))
COUNTS = (*range(1, 17), 33)


@pytest.fixture(autouse=True, scope="module")
def there() -> None:
    assert native.wait(), native.status()


class Given(NamedTuple):
    """A weight, and in float64 what it stands for: ``parts`` are the terms whose magnitudes bound the error of a product."""

    weight: Tensor | Packed
    values: np.ndarray[Any, Any]
    parts: np.ndarray[Any, Any]
    group: int | None  # activations under one scale, or None


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def fits(form: str, inputs: int) -> bool:
    return form in FLOATS or form == "int8+float32" or inputs % 32 == 0


def given(form: str, outputs: int, inputs: int, fence: Fence = lambda tensor: tensor) -> Given:
    plain = numbers(outputs, inputs, seed=outputs * 1000 + inputs)
    if form in FLOATS:
        kept = fence(plain.to(FLOATS[form]))
        values = kept.double().numpy()
        return Given(kept, values, abs(values), None)
    kind, _, way = form.partition("+")
    made = packed(plain, kind, activations=way)
    weight = Packed(fence(made.codes), made.scales if made.scales is None else fence(made.scales), kind, inputs, way)
    values, parts = read(made)
    return Given(weight, values, parts, None if way == "float32" else 256 if kind == "int8" else 32)


def read(weight: Packed) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What packed bytes stand for, read byte by byte, and the magnitudes of the terms."""
    raw = weight.codes.numpy()
    if weight.scales is not None:
        values = raw.astype(np.float64) * weight.scales.double().numpy()[:, None]
        return values, abs(values)
    size, heads = {"q8_0": (34, 1), "q4_0": (18, 1), "q4_1": (20, 2)}[weight.kind]
    blocks = raw.reshape(raw.shape[0], -1, size)
    scales = np.ascontiguousarray(blocks[..., : 2 * heads]).view(np.float16).astype(np.float64)
    codes = blocks[..., 2 * heads :]
    if weight.kind == "q8_0":
        whole = codes.view(np.int8).astype(np.float64)
    else:
        whole = np.concatenate([codes & 15, codes >> 4], -1).astype(np.float64) - (8 if weight.kind == "q4_0" else 0)
    d, m = scales[..., :1], scales[..., 1:] if heads == 2 else 0.0
    shape = (raw.shape[0], -1)
    return (whole * d + m).reshape(shape), (abs(whole * d) + abs(m)).reshape(shape)


def eight_bits(x: np.ndarray[Any, Any], group: int) -> np.ndarray[Any, Any]:
    """Activations as 8-bit numbers under the scale of their group, in float32 as the library finds them, then exactly."""
    out = np.zeros(x.shape)
    for first in range(0, x.shape[1], group):
        part = x[:, first : first + group].astype(np.float32)
        most = abs(part).max(1, keepdims=True)
        up = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
        out[:, first : first + group] = np.rint(part * up).astype(np.float64) * (most / np.float32(127)).astype(np.float64)
    return out


def close(out: Tensor, x: Tensor, made: Given) -> None:
    """A chain of at most three roundings a group of sixteen and eight more; a scale is two roundings; the result is rounded to the dtype of x."""
    wide = x.double().numpy()
    used = wide if made.group is None else eight_bits(wide, made.group)
    exact = used @ made.values.T
    bound = (3 * (x.shape[1] / 16) + 12) * U * (abs(used) @ made.parts.T) + 1e-37
    if x.dtype is not torch.float32:
        bound = bound * 1.01 + abs(exact) * torch.finfo(x.dtype).eps / 2
    assert out.shape == exact.shape
    assert out.dtype is x.dtype
    assert (abs(out.double().numpy() - exact) <= bound).all(), abs(out.double().numpy() - exact).max()
    if made.group is not None:  # and no activation moves by more than half its step
        steps = np.stack([abs(wide[:, i : i + made.group]).max(1) / 127 for i in range(0, x.shape[1], made.group)], 1).repeat(made.group, 1)
        moved = 0.5001 * steps[:, : x.shape[1]] @ abs(made.values).T
        assert (abs(exact - wide @ made.values.T) <= moved).all()


@pytest.mark.parametrize("outputs", [1, 3, 70])
@pytest.mark.parametrize("inputs", [1, 7, 16, 32, 40, 96, 160, 576])
@pytest.mark.parametrize("form", FORMS)
def test_the_product_in_any_company(form: str, inputs: int, outputs: int, fenced: Fence) -> None:
    """Every row against float64, and the same bits at every number of rows and at every place."""
    if not fits(form, inputs):
        with pytest.raises(ValueError, match="expected a multiple of 32"):
            given(form, outputs, inputs)
        return
    made, x = given(form, outputs, inputs, fenced), fenced(numbers(33, inputs, seed=9))
    whole = rows(x, made.weight, impl="native")
    close(whole, x, made)
    for count in COUNTS:
        assert torch.equal(rows(x[:count], made.weight, impl="native"), whole[:count]), count
        assert torch.equal(rows(x[-count:], made.weight, impl="native"), whole[-count:]), count
    assert torch.equal(rows(x.flip(0), made.weight, impl="native"), whole.flip(0))


@pytest.mark.parametrize("form", FORMS)
def test_threads_and_weight_rows_change_no_bit(form: str) -> None:
    made, x = given(form, 70, 96), numbers(9, 96)
    whole = rows(x, made.weight, impl="native")
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(rows(x, made.weight, impl="native"), whole), threads
    finally:
        torch.set_num_threads(before)
    for row in (0, 1, 5, 37, 69):
        one = made.weight[row : row + 1] if isinstance(made.weight, Tensor) else taken_row(made.weight, row)
        assert torch.equal(rows(x, one, impl="native")[:, 0], whole[:, row]), row


def taken_row(weight: Packed, row: int) -> Packed:
    scales = None if weight.scales is None else weight.scales[row : row + 1].clone()
    return Packed(weight.codes[row : row + 1].clone(), scales, weight.kind, weight.inputs, weight.activations)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_half_the_bytes(form: str, dtype: torch.dtype) -> None:
    """The result has the dtype of x, rounded once; a plain weight has that dtype as well."""
    x = numbers(5, 96).to(dtype)
    made = given(form, 40, 96)
    if form in FLOATS and FLOATS[form] is not dtype:
        with pytest.raises(ValueError, match="expected one dtype"):
            rows(x, made.weight, impl="native")
        return
    close(rows(x, made.weight, impl="native"), x, made)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sick", [float("nan"), float("inf"), float("-inf")])
def test_a_sick_row_is_sick_alone(form: str, sick: float) -> None:
    made, x = given(form, 40, 96), numbers(6, 96)
    well = rows(x, made.weight, impl="native")
    for place in (0, 50, 95):
        ill = x.clone()
        ill[3, place] = sick
        out = rows(ill, made.weight, impl="native")
        assert not out[3].isfinite().any()
        others = [0, 1, 2, 4, 5]
        assert torch.equal(out[others], well[others])


@pytest.mark.parametrize("form", FORMS)
def test_zeros_and_nothing(form: str) -> None:
    made = given(form, 40, 96)
    x = numbers(3, 96)
    x[1] = 0.0
    out = rows(x, made.weight, impl="native")
    assert (out[1] == 0).all()
    assert out[[0, 2]].abs().min() > 0
    assert rows(x[:0], made.weight, impl="native").shape == (0, 40)
    if isinstance(made.weight, Tensor):
        assert rows(x, made.weight[:0], impl="native").shape == (3, 0)
        assert (rows(x[:, :0], made.weight[:, :0], impl="native") == 0).all()


@pytest.mark.parametrize("dtype", FLOATS.values())
def test_tensors_that_lie_otherwise(dtype: torch.dtype, fenced: Fence) -> None:
    """Rows of x apart, turned or repeated; rows of weights apart, turned, repeated; each against its own contiguous copy."""
    x, weight = numbers(6, 200).to(dtype), fenced(numbers(30, 200, seed=1).to(dtype))
    whole = {
        "x strided": (x[:, ::2], weight[:, :100]),
        "x turned": (x[:, :48].T.contiguous().T, weight[:, :48]),
        "x repeated": (x[:1].expand(4, -1), weight),
        "x every second row": (x[::2], weight),
        "rows of weights apart": (x[:, 3:90], weight[::3, 3:90]),
        "weights turned": (x[:, :96], weight[:, :96].T.contiguous().T),
        "weights repeated": (x, weight[:1].expand(5, -1)),
        "one input": (x[:, :1], weight[:1].T[:7]),
    }
    for name, (some, own) in whole.items():
        expected = rows(some.clone(memory_format=torch.contiguous_format), own.clone(memory_format=torch.contiguous_format), impl="native")
        for _ in range(20):  # memory that is given back too early is not always taken at once
            assert torch.equal(rows(some, own, impl="native"), expected), name


def test_packed_rows_apart() -> None:
    """Rows of codes may lie apart; what else the library does not read, torch multiplies."""
    x = numbers(3, 64, seed=3)
    for kind in ("int8", *BLOCKS):
        made = packed(numbers(20, 64), kind)
        scales = None if made.scales is None else made.scales[::2]
        every = Packed(made.codes[::2], scales if scales is None else scales.clone(), kind, 64)
        copied = Packed(made.codes[::2].clone(), every.scales, kind, 64)
        assert torch.equal(rows(x, every, impl="native"), rows(x, copied, impl="native")), kind
        torch.testing.assert_close(rows(x, Packed(every.codes, scales, kind, 64)), rows(x, copied), rtol=1e-4, atol=1e-4)
        turned = Packed(made.codes.T.contiguous().T, made.scales, kind, 64)
        torch.testing.assert_close(rows(x, turned), rows(x, made), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_arguments_are_left_alone_and_auto_is_the_library(form: str) -> None:
    made, x = given(form, 33, 64), numbers(5, 64)
    tensors = [made.weight] if isinstance(made.weight, Tensor) else [made.weight.codes, *([] if made.weight.scales is None else [made.weight.scales])]
    before = [tensor.clone() for tensor in (x, *tensors)]
    out = rows(x, made.weight, impl="native")
    assert all(torch.equal(old, new) for old, new in zip(before, (x, *tensors), strict=True))
    assert torch.equal(rows(x, made.weight), out)
    assert torch.equal(rows_native(x, made.weight), out)
    assert (rows(x, made.weight, impl="torch") - out).abs().max() < 2e-5 * out.abs().max() * (1 if made.group is None else 1000)


@pytest.mark.parametrize("kind", ["int8", *BLOCKS])
def test_magnitudes_at_the_ends_of_the_numbers(kind: str) -> None:
    """Activations so small that 127 / largest overflows count as they are or as nothing; so large that a sum overflows, as infinity."""
    weight = packed(torch.ones(2, 64), kind)
    for size in (1e-30, 1e-38, 1e-44):
        out = rows(torch.full((1, 64), size), weight, impl="native")
        assert out.isfinite().all()
        assert (out <= 65 * size).all()
        assert (rows(torch.full((1, 64), size), weight, impl="torch") <= 65 * size).all()
    assert (rows(torch.full((1, 64), 3e38), weight, impl="native") == float("inf")).all()


REFUSALS: list[tuple[str, Callable[[], Any], str]] = [
    ("axes", lambda: rows(torch.zeros(3), torch.zeros(4, 3), impl="native"), r"x and weight are \[3\] and \[4, 3\]; expected"),
    ("inputs", lambda: rows(torch.zeros(1, 3), torch.zeros(4, 2), impl="native"), r"x and weight are \[1, 3\] and \[4, 2\]; expected"),
    ("packed inputs", lambda: rows(torch.zeros(1, 33), packed(torch.zeros(2, 32), "q4_0"), impl="native"), r"\[1, 33\] and \[2, 32\]"),
    ("dtypes", lambda: rows(torch.zeros(1, 2).half(), torch.zeros(4, 2), impl="native"), "x is torch.float16 and weight is torch.float32"),
    ("integers", lambda: rows(torch.zeros(1, 2).int(), torch.zeros(4, 2).int(), impl="native"), "x is torch.int32; expected float32"),
    ("float64", lambda: rows(torch.zeros(1, 2).double(), torch.zeros(4, 2).double(), impl="native"), "impl is 'native'"),
    ("place", lambda: rows(torch.zeros(1, 2, device="meta"), torch.zeros(4, 2, device="meta"), impl="native"), "are on the meta; expected"),
    ("places", lambda: rows(torch.zeros(1, 2), torch.zeros(4, 2, device="meta"), impl="native"), "are on .*; expected one device"),
    ("gradient", lambda: rows(torch.zeros(1, 2, requires_grad=True), torch.zeros(4, 2), impl="native"), "impl is 'native', and the library cannot"),
    ("impl", lambda: rows(torch.zeros(1, 2), torch.zeros(4, 2), impl="c"), "impl is 'c'"),
    ("triton", lambda: rows(torch.zeros(1, 32), packed(torch.zeros(2, 32), "q4_0"), impl="triton"), "impl is 'triton' and the weight is"),
    ("kind", lambda: packed(torch.zeros(2, 32), "q5_0"), "kind is 'q5_0'; expected one of int8, q8_0, q4_0, q4_1"),
    ("no matrix", lambda: packed(torch.zeros(32), "q4_0"), r"the weight is torch.float32 \[32\]; expected floats"),
    ("no floats", lambda: packed(torch.zeros(2, 32).int(), "q4_0"), "the weight is torch.int32"),
    ("NaN", lambda: packed(torch.full((2, 32), float("nan")), "q4_0"), "NaN or infinity; expected finite"),
    ("no float16", lambda: packed(torch.full((2, 32), 1e7), "q4_0"), "expected"),
    ("blocks", lambda: packed(torch.zeros(2, 40), "q8_0"), "a row has 40 inputs; expected a multiple of 32"),
    ("groups", lambda: packed(torch.zeros(2, 40), "int8", activations="int8"), "a row has 40 inputs; expected a multiple of 32"),
    ("activations", lambda: packed(torch.zeros(2, 32), "int8", activations="int4"), "'int4'; expected"),
    ("a kind", lambda: Packed(torch.zeros(1, 18, dtype=torch.uint8), None, "q4", 32), "received kind 'q4'"),
    ("bytes", lambda: Packed(torch.zeros(1, 17, dtype=torch.uint8), None, "q4_0", 32), r"codes are torch.uint8 \[1, 17\]; expected"),
    ("no scales", lambda: Packed(torch.zeros(1, 32, dtype=torch.int8), None, "int8", 32), "scales are None"),
    ("scales", lambda: Packed(torch.zeros(1, 34, dtype=torch.uint8), torch.ones(1), "q8_0", 32), "scales are given"),
    ("short scales", lambda: Packed(torch.zeros(3, 32, dtype=torch.int8), torch.ones(1), "int8", 32), "scales are .*; expected"),
    ("wide scales", lambda: Packed(torch.zeros(3, 32, dtype=torch.int8), torch.ones(3).double(), "int8", 32), "scales are .*; expected"),
    (
        "part of a group",
        lambda: Packed(torch.zeros(3, 33, dtype=torch.int8), torch.ones(3), "int8", 33, "int8"),
        "33 inputs; expected a multiple of 32",
    ),
]


@pytest.mark.parametrize(("refused", "message"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
def test_a_refusal_is_one_sentence(refused: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        refused()
    assert "\n" not in str(caught.value)
    assert ". " not in str(caught.value)
