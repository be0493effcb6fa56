"""The reader of GGUF heads: against the gguf package's writer and reader, and against files damaged on purpose."""

import contextlib
import struct
from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.weights import gguf

ALIGNMENTS = (16, 32, 64)
VECTORS = {"zero": np.arange(4, dtype=np.float32), "one": np.arange(4, 8, dtype=np.float32), "two": np.arange(8, 12, dtype=np.float32)}
METADATA: dict[str, Any] = {
    "a.u8": 200, "a.i8": -5, "a.u16": 60000, "a.i16": -300, "a.u32": 4_000_000_000, "a.i32": -70000, "a.f32": 0.5, "a.bool": True,
    "a.text": "ñ 한국어", "a.u64": 2**63 + 1, "a.i64": -(2**40), "a.f64": 1e-300, "a.texts": ("", "b", "ć"), "a.numbers": (1, -2, 3),
    "a.floats": (0.25, 4.0), "a.flags": (True, False),
}  # fmt: skip


def write(path: Path, alignment: int) -> bytes:
    writer = package.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    kinds = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "uint64", "int64", "float64"]
    for kind, (key, value) in zip(kinds, METADATA.items(), strict=False):
        getattr(writer, f"add_{kind}")(key, value)
    for key in ("a.texts", "a.numbers", "a.floats", "a.flags"):
        writer.add_array(key, list(METADATA[key]))
    for name, values in VECTORS.items():
        writer.add_tensor(name, values)
    raw = np.arange(2 * 20, dtype=np.uint8).reshape(2, 20)
    writer.add_tensor("packed", raw, raw_dtype=package.GGMLQuantizationType.Q4_1)
    writer.add_tensor("half", np.float16([[1, 2, 3], [4, 5, 6]]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module", params=ALIGNMENTS)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, bytes]:
    return request.param, write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", request.param)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", 32)


def test_every_value_and_tensor_comes_back(file: tuple[int, bytes]) -> None:
    """F5: three 16-byte tensors at each alignment, the first at offset 0, offsets relative to the start of the data."""
    alignment, data = file
    head = gguf.parse(data)
    assert (head.version, head.alignment) == (3, alignment)
    for key, value in METADATA.items():
        assert head.metadata[key] == value, key
        assert type(head.metadata[key]) is type(value), key
    assert list(head.entries) == [*VECTORS, "packed", "half"]
    for name, values in VECTORS.items():
        assert head.entries[name].start % alignment == 0
        assert torch.equal(gguf.tensor(data, head.entries[name]), torch.from_numpy(values))
    assert head.entries["packed"].shape == (2, 32)
    assert gguf.tensor(data, head.entries["half"], torch.float64).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_positions_agree_with_the_packages_reader(file: tuple[int, bytes], tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(file[1])
    head = gguf.parse(file[1])
    for found in package.GGUFReader(tmp_path / "tiny.gguf").tensors:
        entry = head.entries[found.name]
        assert (entry.start, entry.size, entry.kind) == (found.data_offset, found.n_bytes, found.tensor_type.name)
        assert entry.shape == tuple(int(axis) for axis in reversed(found.shape))


def test_version_2_and_buffers_of_every_kind(data: bytes) -> None:
    older = bytearray(data)
    older[4:8] = struct.pack("<I", 2)
    for buffer in (bytes(older), older, memoryview(older)):
        assert gguf.parse(buffer).entries == gguf.parse(data).entries


def key_value(key: str, kind: int, payload: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + payload


def row(name: str, axes: tuple[int, ...], number: int, offset: int) -> bytes:
    return struct.pack(f"<Q{len(name)}sI{len(axes)}QIQ", len(name), name.encode(), len(axes), *axes, number, offset)


def built(keys: list[bytes], rows: list[bytes], tail: bytes = b"", version: bytes = struct.pack("<I", 3)) -> bytes:
    head = b"GGUF" + version + struct.pack("<QQ", len(rows), len(keys)) + b"".join(keys + rows)
    return head + bytes(-len(head) % 32) + tail


F32, UINT32 = 0, 4
BAD = {
    "empty": (b"", "not a GGUF file: it starts with b''"),
    "another kind of file": (b"PK\x03\x04 a zip", r"not a GGUF file: it starts with b'PK"),
    "version 1": (built([], [], version=struct.pack("<I", 1)), r"has version 1; expected one of \(2, 3\)"),
    "big endian": (built([], [], version=struct.pack(">I", 3)), "is big endian; expected little endian"),
    "alignment 0": (built([key_value("general.alignment", UINT32, struct.pack("<I", 0))], []), "general.alignment is 0; expected a power of two"),
    "alignment 24": (built([key_value("general.alignment", UINT32, struct.pack("<I", 24))], []), "general.alignment is 24"),
    "alignment of another type": (built([key_value("general.alignment", 6, struct.pack("<f", 32))], []), r"general.alignment is 32\.0"),
    "alignment true": (built([key_value("general.alignment", 7, b"\1")], []), "general.alignment is True"),
    "unknown value type": (built([key_value("k", 13, b"")], []), "'k' has the unknown value type 13"),
    "unknown type in an array": (built([key_value("k", 9, struct.pack("<IQ", 77, 1))], []), "'k' has the unknown value type 77"),
    "arrays without end": (built([key_value("k", 9, struct.pack("<IQ", 9, 1) * 5000)], []), "'k' nests arrays deeper than 4"),
    "the same key twice": (built([key_value("k", 7, b"\1")] * 2, []), "the metadata key 'k' twice"),
    "text that is not UTF-8": (built([key_value("k", 8, struct.pack("<Q", 2) + b"\xff\xfe")], []), "the value of 'k' is not UTF-8"),
    "an item that is not UTF-8": (built([key_value("k", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xff")], []), "item 0 of the value of 'k' is not UTF-8"),
    "a text longer than the file": (built([key_value("k", 8, struct.pack("<Q", 2**63))], []), "cut short: the value of 'k' needs bytes up to"),
    "an array longer than the file": (built([key_value("k", 9, struct.pack("<IQ", 10, 2**61))], []), "cut short: the value of 'k'"),
    "texts longer than the file": (built([key_value("k", 9, struct.pack("<IQQ", 8, 2**61, 2**62))], []), "cut short: the value of 'k'"),
    "more keys than the file holds": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**62), "cut short: the length of a metadata key"),
    "more tensors than the file holds": (b"GGUF" + struct.pack("<IQQ", 3, 2**62, 0), "cut short: the length of a tensor's name"),
    "unknown tensor type": (
        built([], [row("t", (4,), 99, 0)], bytes(16)),
        r"tensor 't' has the type 99, which is not supported; expected one of F32 \(0\)",
    ),
    "unsupported tensor type": (built([], [row("t", (256,), 10, 0)], bytes(84)), r"tensor 't' has the type 10, which"),
    "five axes": (built([], [row("t", (1,) * 5, F32, 0)], bytes(16)), "tensor 't' has 5 axes; expected at most 4"),
    "an axis of 0": (built([], [row("t", (0, 2**63), F32, 0)]), r"tensor 't' has the shape \(9223372036854775808, 0\); expected axes of at least 1"),
    "a row of half a block": (built([], [row("t", (48,), 3, 0)], bytes(40)), "tensor 't': a Q4_1 row of 48 weights is not a whole number of blocks"),
    "off the alignment": (built([], [row("t", (1,), F32, 4)], bytes(16)), "tensor 't' lies at offset 4, which is no multiple of the alignment 32"),
    "data cut short": (built([], [row("t", (5,), F32, 0)], bytes(16)), "cut short: tensor 't' needs bytes up to 84, but the file ends at 80"),
    "a size that wraps in 64 bits": (built([], [row("t", (2**32, 2**32), F32, 0)], bytes(16)), "cut short: tensor 't'"),
    "an offset that wraps in 64 bits": (built([], [row("t", (4,), F32, 2**64 - 32)], bytes(16)), "cut short: tensor 't'"),
    "two tensors in one place": (built([], [row("a", (4,), F32, 0), row("b", (4,), F32, 0)], bytes(16)), "tensors 'a' and 'b' overlap"),
    "the same tensor twice": (built([], [row("a", (4,), F32, 0), row("a", (4,), F32, 32)], bytes(64)), "the tensor 'a' twice"),
}


@pytest.mark.parametrize("case", BAD)
def test_damaged_files_give_one_clear_sentence(case: str) -> None:
    """F3, F5."""
    data, message = BAD[case]
    with pytest.raises(ValueError, match=message) as caught:
        gguf.parse(data)
    assert type(caught.value) is ValueError
    assert "\n" not in str(caught.value)


def test_the_good_twin_of_the_damaged_files_is_read() -> None:
    data = built([key_value("general.alignment", UINT32, struct.pack("<I", 32))], [row("t", (2, 2), F32, 0)], np.float32([1, 2, 3, 4]).tobytes())
    assert gguf.tensor(data, gguf.parse(data).entries["t"]).tolist() == [[1, 2], [3, 4]]


def test_a_file_cut_anywhere_is_refused(data: bytes) -> None:
    """F5: every length short of the last tensor's end."""
    end = max(entry.start + entry.size for entry in gguf.parse(data).entries.values())
    for size in range(end):
        with pytest.raises(ValueError, match=r"cut short|not a GGUF"):
            gguf.parse(data[:size])
    assert gguf.parse(data[:end]).entries


@given(flips=st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=4), keep=st.integers(0, 2**20), cut=st.booleans())
def test_damage_raises_nothing_but_value_error(data: bytes, flips: list[tuple[int, int]], keep: int, cut: bool) -> None:
    damaged = bytearray(data)
    for place, change in flips:
        damaged[place % len(damaged)] ^= change
    if cut:
        del damaged[keep % len(damaged) :]
    with contextlib.suppress(ValueError):
        head = gguf.parse(damaged)
        for entry in head.entries.values():
            assert gguf.tensor(damaged, entry).shape == entry.shape


@given(heads=st.integers(1, 4), half=st.integers(1, 5), width=st.integers(1, 3))
def test_unpermute_undoes_what_the_converter_does(heads: int, half: int, width: int) -> None:
    """F2: the converter's own statement of the permutation, in numpy, is the oracle."""
    rows = heads * 2 * half
    weight = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    stored = weight.reshape(heads, 2, half, width).swapaxes(1, 2).reshape(rows, width)
    np.testing.assert_array_equal(gguf.unpermute(stored, heads), weight)
    assert torch.equal(gguf.unpermute(torch.from_numpy(stored[:, 0].copy()), heads), torch.from_numpy(weight[:, 0].copy()))
    data, entry = stored.tobytes(), gguf.Entry("F32", (rows, width), 0, stored.nbytes)
    assert torch.equal(gguf.tensor(data, entry, interleaved=heads), torch.from_numpy(weight))
    assert torch.equal(gguf.tensor(data, entry), torch.from_numpy(stored))


def test_unpermute_refuses_rows_that_are_no_heads() -> None:
    with pytest.raises(ValueError, match="6 rows cannot be 2 heads of even width"):
        gguf.unpermute(np.zeros((6, 1)), 2)
