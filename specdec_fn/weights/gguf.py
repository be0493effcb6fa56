"""Reads a GGUF file from a buffer: metadata, the table of tensors, and single tensors on demand.

A file is a header, key-value metadata, a table of tensors (name, shape, type, offset) and, from the next aligned position on, the data to which
the offsets are relative. Everything is little endian here. Parsing touches the head only, so a memory-mapped file costs what is read of it.
Layout: the GGUF description of the ggml project, versions 2 and 3.
"""

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from specdec_fn.typing import Tensor
from specdec_fn.weights.gguf_quants import Buffer, by_id, byte_count, dequantize

__all__ = ["Entry", "Gguf", "parse", "raw", "tensor", "unpermute"]

Rows = TypeVar("Rows", np.ndarray[Any, Any], Tensor)

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MOST_AXES = 4  # the format's own limit
MOST_NESTING = 4  # arrays inside arrays; a bound, since each level is one call deep

# Value types of metadata: number -> struct letter. 8 is a string, 9 an array.
_SCALARS = MappingProxyType({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"})
_STRING, _ARRAY = 8, 9


class Entry(NamedTuple):
    """Where one tensor lies.

    Attributes:
        kind: its type, a name of ``gguf_quants.formats``.
        shape: outermost axis first, as torch counts (the file has them the other way round).
        start: its first byte, counted from the start of the file.
        size: its bytes.
    """

    kind: str
    shape: tuple[int, ...]
    start: int
    size: int


class Gguf(NamedTuple):
    """The head of a GGUF file.

    Attributes:
        version: 2 or 3.
        alignment: bytes; the data and every tensor start at a multiple of it.
        metadata: key to number, bool, string, or tuple of these.
        entries: tensor name to where it lies.
    """

    version: int
    alignment: int
    metadata: Mapping[str, Any]
    entries: Mapping[str, Entry]


def parse(buffer: Buffer) -> Gguf:
    """Reads the head of a GGUF file; the tensors' bytes are not touched.

    Args:
        buffer: the whole file, for example a memory map.

    Raises:
        ValueError: not a GGUF file; another version; big endian; cut short in the head or in a tensor's data; text that is not UTF-8; a key or
            tensor named twice; an alignment that is no power of two; a tensor of unknown type, with too many axes or an empty one, with rows
            that are no whole number of blocks, off the alignment, or overlapping another.

    >>> parse(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    Gguf(version=3, alignment=32, metadata={}, entries={})
    >>> parse(b"PK")
    Traceback (most recent call last):
    ...
    ValueError: not a GGUF file: it starts with b'PK', expected b'GGUF'
    """
    head = _Cursor(memoryview(buffer).cast("B"))
    magic = bytes(head.data[:4])
    if magic != MAGIC:
        raise ValueError(f"not a GGUF file: it starts with {magic!r}, expected {MAGIC!r}")
    head.at = 4
    version = head.number("I", "the version")
    if version not in VERSIONS:
        if version and not version & 0xFFFF:
            raise ValueError("the GGUF file is big endian; expected little endian")
        raise ValueError(f"the GGUF file has version {version}; expected one of {VERSIONS}")
    tensor_count, key_count = head.number("Q", "the number of tensors"), head.number("Q", "the number of keys")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = head.text("a metadata key")
        if key in metadata:
            raise ValueError(f"the GGUF file has the metadata key {key!r} twice")
        metadata[key] = head.value(head.number("I", f"the type of {key!r}"), key)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise ValueError(f"the GGUF file's general.alignment is {alignment!r}; expected a power of two")
    table: dict[str, Entry] = {}
    for _ in range(tensor_count):
        name, entry = head.entry()
        if name in table:
            raise ValueError(f"the GGUF file has the tensor {name!r} twice")
        if entry.start % alignment:
            raise ValueError(f"tensor {name!r} lies at offset {entry.start}, which is no multiple of the alignment {alignment}")
        table[name] = entry
    # Offsets count from the first aligned byte after the table, which is known only now.
    base = -(-head.at // alignment) * alignment
    entries = {name: entry._replace(start=entry.start + base) for name, entry in table.items()}
    _check_extents(entries, len(head.data))
    return Gguf(version, alignment, metadata, entries)


def tensor(buffer: Buffer, entry: Entry, dtype: torch.dtype = torch.float32, *, interleaved: int = 0) -> Tensor:
    """Decodes one tensor of the file.

    Args:
        buffer: the buffer that was parsed.
        entry: from ``parse(buffer).entries``.
        dtype: floating-point type of the result, a fresh tensor of shape ``entry.shape``.
        interleaved: for a query or key projection of the llama architecture, the number of its heads, whose rows ``unpermute`` then puts in
            order; 0 for every other tensor.

    Raises:
        ValueError: as ``gguf_quants.dequantize`` and ``unpermute``.

    >>> tensor(bytes(2) + struct.pack("<2f", 1.5, -2.0), Entry("F32", (2,), 2, 8))
    tensor([ 1.5000, -2.0000])
    """
    if not interleaved:
        return dequantize(memoryview(buffer).cast("B")[entry.start : entry.start + entry.size], entry.kind, entry.shape, dtype)
    return dequantize(raw(buffer, entry, interleaved).data.cast("B"), entry.kind, entry.shape, dtype)


def raw(buffer: Buffer, entry: Entry, interleaved: int = 0) -> np.ndarray[Any, Any]:
    """The bytes of one tensor, a row of blocks for each row of weights: a row of blocks can be moved before it is decoded, at a fraction of its size.

    Args:
        buffer, entry, interleaved: as for ``tensor``.

    Returns:
        uint8 [rows, bytes of a row]; a view of the buffer where nothing had to be moved.

    >>> raw(bytes(2) + struct.pack("<2f", 1.5, -2.0), Entry("F32", (2, 1), 2, 8)).shape
    (2, 4)
    """
    rows: np.ndarray[Any, Any] = np.frombuffer(memoryview(buffer).cast("B")[entry.start : entry.start + entry.size], np.uint8)
    rows = rows.reshape(entry.shape[0], -1)
    return unpermute(rows, interleaved) if interleaved else rows


def unpermute(rows: Rows, heads: int) -> Rows:
    """Puts the rows of a query or key projection of the llama architecture back into the order that rotating halves needs.

    For that architecture alone the file interleaves the two halves of each head's rotary pairs: row 2 j + s of a head holds row s D/2 + j, with D
    the width of a head and s in {0, 1}. Other architectures (qwen2, qwen3) are stored as they are.

    Args:
        rows: the projection as [heads times D, ...], an array or a tensor, decoded or still in blocks.
        heads: query heads for the query, key-value heads for the key.

    Returns:
        a fresh one of the same shape.

    Raises:
        ValueError: the rows are not a whole number of heads of even width.

    >>> unpermute(np.arange(8), heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    count = rows.shape[0]
    if heads <= 0 or count % (2 * heads):
        raise ValueError(f"{count} rows cannot be {heads} heads of even width")
    return rows[np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).ravel()]


class _Cursor:
    """A place in the head; it lives only as long as one call of ``parse``."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int, what: str) -> memoryview:
        end = self.at + size
        if end > len(self.data):
            raise ValueError(f"the GGUF file is cut short: {what} needs bytes up to {end}, but the file ends at {len(self.data)}")
        self.at, start = end, self.at
        return self.data[start:end]

    def number(self, letter: str, what: str) -> Any:
        size = struct.calcsize("<" + letter)
        return struct.unpack("<" + letter, self.take(size, what))[0]

    def text(self, what: str) -> str:
        return _decoded(self.take(self.number("Q", f"the length of {what}"), what), what)

    def value(self, kind: int, key: str, nesting: int = 0) -> Any:
        what = f"the value of {key!r}"
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], what)
        if kind == _STRING:
            return self.text(what)
        if kind != _ARRAY:
            raise ValueError(f"metadata key {key!r} has the unknown value type {kind}; expected 0 to 12")
        if nesting == MOST_NESTING:
            raise ValueError(f"metadata key {key!r} nests arrays deeper than {MOST_NESTING}")
        inner, count = self.number("I", what), self.number("Q", what)
        if inner in _SCALARS:
            raw = self.take(count * struct.calcsize("<" + _SCALARS[inner]), what)
            return struct.unpack(f"<{count}{_SCALARS[inner]}", raw)
        if inner == _STRING:
            return self.texts(count, what)
        return tuple(self.value(inner, key, nesting + 1) for _ in range(count))

    def texts(self, count: int, what: str) -> tuple[str, ...]:
        # Written out flat: a vocabulary has 100,000 of these and they are most of the time that parsing takes.
        data, at, end = self.data, self.at, len(self.data)
        length = struct.Struct("<Q").unpack_from
        texts: list[str] = []
        add = texts.append
        try:
            for _ in range(count):
                start = at + 8
                at = start + length(data, at)[0] if start <= end else start
                if at > end:
                    raise ValueError(f"the GGUF file is cut short: {what} needs bytes up to {at}, but the file ends at {end}")
                add(str(data[start:at], "utf-8"))
        except UnicodeDecodeError:
            raise ValueError(f"the GGUF file is damaged: item {len(texts)} of {what} is not UTF-8 text") from None
        self.at = at
        return tuple(texts)

    def entry(self) -> tuple[str, Entry]:
        """One row of the tensor table; ``start`` is still relative to the data."""
        name = self.text("a tensor's name")
        what = f"the table row of tensor {name!r}"
        axes = self.number("I", what)
        if axes > MOST_AXES:
            raise ValueError(f"tensor {name!r} has {axes} axes; expected at most {MOST_AXES}")
        shape = tuple(reversed(struct.unpack(f"<{axes}Q", self.take(8 * axes, what))))
        if 0 in shape:
            raise ValueError(f"tensor {name!r} has the shape {shape}; expected axes of at least 1")
        number, offset = self.number("I", what), self.number("Q", what)
        if number not in by_id:
            known = ", ".join(f"{form.name} ({form.number})" for form in by_id.values())
            raise ValueError(f"tensor {name!r} has the type {number}, which is not supported; expected one of {known}")
        form = by_id[number]
        try:
            size = byte_count(form, shape)
        except ValueError as error:
            raise ValueError(f"tensor {name!r}: {error}") from None
        return name, Entry(form.name, shape, offset, size)


def _decoded(raw: memoryview, what: str) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"the GGUF file is damaged: {what} is not UTF-8 text but {bytes(raw[:40])!r}") from None


def _check_extents(entries: Mapping[str, Entry], file_size: int) -> None:
    before, last = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].size)):
        end = entry.start + entry.size
        if end > file_size:
            raise ValueError(f"the GGUF file is cut short: tensor {name!r} needs bytes up to {end}, but the file ends at {file_size}")
        if entry.start < before:
            raise ValueError(f"tensors {last!r} and {name!r} overlap in the GGUF file")
        before, last = end, name
