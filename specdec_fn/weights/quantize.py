"""From floats, or from a file's own blocks, to packed matrices: what ``load(quantize=...)`` asks for each matrix of a model."""

import torch

from specdec_fn.weights.gguf import Buffer, Entry, raw
from specdec_kernels.packed import Packed, packed

__all__ = ["FILE", "KINDS", "checked_kind", "from_blocks", "packed"]

KINDS = ("int8", "int4", "q8_0", "q4_0", "q4_1")
BLOCKS = ("q8_0", "q4_0", "q4_1")
FILE = "file"  # the blocks of the file itself, where they are of a kind in BLOCKS


def checked_kind(kind: str | None) -> str | None:
    """The kind, if it is one.

    Raises:
        ValueError: it is none.

    >>> checked_kind("q4_0")
    'q4_0'
    """
    if kind is not None and kind not in (*KINDS, FILE):
        raise ValueError(f"quantize is {kind!r}; expected one of {', '.join((*KINDS, FILE))}, or None")
    return kind


def from_blocks(buffer: Buffer, entry: Entry, *, interleaved: int = 0) -> Packed | None:
    """One matrix of a GGUF file in its own blocks; None where they are of another kind.

    Args:
        buffer: the buffer that was parsed.
        entry: of the matrix.
        interleaved: as for ``gguf.tensor``.

    >>> import numpy as np
    >>> block = np.float16([0.5]).tobytes() + bytes([0x98] * 16)
    >>> from specdec_kernels.packed import unpacked
    >>> unpacked(from_blocks(bytes(2) + block, Entry("Q4_0", (1, 32), 2, 18)))[0, [0, 16]]
    tensor([0.0000, 0.5000])
    """
    kind = entry.kind.lower()
    if kind not in BLOCKS or len(entry.shape) != 2:
        return None
    rows = torch.from_numpy(raw(buffer, entry, interleaved).copy())
    return Packed(rows, None, kind, entry.shape[1])
