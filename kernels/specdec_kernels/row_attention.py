"""Attention of a pass of few rows over a cache on a CPU, as one call of the C library: see ``c/attend.c``.

``Seen`` is what the rows of a pass write and see; ``attend`` writes and attends, once a layer. A ``Plan`` says it for all layers at once: an
``attend`` value of a pass with an attribute ``planned`` lets the whole pass be one call (``whole_pass``). A row's numbers depend on nothing
but what it sees: not on the rows beside it, nor on where its keys lie. The reference is ``paged_attention``.
"""

import ctypes
from ctypes import byref, c_float, c_int32, c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_kernels import native
from specdec_kernels.dispatch import untraced
from specdec_kernels.step import TYPES

__all__ = ["Attention", "Plan", "Seen", "attend", "fits", "planned", "seen_up_to"]


class Seen(NamedTuple):
    """What the rows of a pass write and see; all int64, on the CPU.

    Attributes:
        written: [rows], the slot of each row's own key and value; -1: it writes none.
        slots: the slots that rows see; empty where row r sees slots 0 to counts[r] - 1.
        starts: [rows], where a row's begin in ``slots``.
        counts: [rows], how many it sees.
    """

    written: Tensor
    slots: Tensor
    starts: Tensor
    counts: Tensor


class Plan(NamedTuple):
    """What a whole pass does to a cache.

    Attributes:
        keys, values: the address of each layer's.
        rows: what the rows write and see.
    """

    keys: tuple[int, ...]
    values: tuple[int, ...]
    rows: Seen


class Attention(ctypes.Structure):
    """``attention`` of ``c/attend.c``."""

    _fields_ = (
        *((name, c_int32) for name in ("rows", "heads", "kv_heads", "head_dim", "threads", "type")),
        ("scale", c_float),
        ("dense", c_int32),
        ("query", c_void_p),
        ("key", c_void_p),
        ("value", c_void_p),
        ("stride", c_int64),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("written", c_void_p),
        ("slots", c_void_p),
        ("starts", c_void_p),
        ("counts", c_void_p),
        ("out", c_void_p),
    )


def seen_up_to(length: int, rows: int) -> Seen:
    """The rows that follow ``length`` keys of one sequence in one piece: row t sees slots 0 to length + t.

    >>> seen_up_to(3, 2).counts
    tensor([4, 5])
    """
    written = torch.arange(length, length + rows)
    none = torch.empty(0, dtype=torch.int64)
    return Seen(written, none, none, written + 1)


def fits(query: Tensor, key: Tensor, keys: Tensor, *, wait: bool = False) -> bool:
    """Whether the library attends to these: numbers of one float type in memory, heads of a multiple of 16 side by side, and no gradient wanted.

    Args:
        query: [T, H, D]; key: [T, HK, D]; keys: a cache of [slots, HK, D].
        wait: for the library, where it is being built.

    >>> fits(torch.zeros(1, 2, 8), torch.zeros(1, 1, 8), torch.zeros(4, 1, 8))  # heads of 8
    False
    """
    if query.dtype is not keys.dtype or query.dtype not in TYPES or query.shape[2] % 16 or not untraced(query, keys):
        return False
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad):
        return False
    return native.wait() if wait else native.ready()


def planned(keys: tuple[Tensor, ...], values: tuple[Tensor, ...], dtype: torch.dtype, rows: Seen) -> Plan | None:
    """The plan of a pass over caches of one tensor a layer, [slots, HK, D]; None where the library cannot attend to them.

    Args:
        keys, values: of each layer, contiguous.
        dtype: of the queries.
        rows: what they write and see.

    >>> planned((torch.zeros(2, 1, 8),), (torch.zeros(2, 1, 8),), torch.float32, seen_up_to(0, 1)) is None  # heads of 8
    True
    """
    one = keys[0]
    if one.dtype is not dtype or dtype not in TYPES or one.shape[-1] % 16 or not untraced(one):
        return None
    return Plan(tuple(part.data_ptr() for part in keys), tuple(part.data_ptr() for part in values), rows)


def attend(query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, rows: Seen, *, first: int = 0) -> Tensor:
    """Writes new rows into a cache, then attends: softmax(q k / sqrt(D)) v. DONATES ``keys`` and ``values``.

    Query head h reads key-value head h // (H / HK). The caller has asked ``fits``, and vouches for the slots.

    Args:
        query: [T, H, D].
        key, value: [T, HK, D].
        keys, values: contiguous [..., HK, D]: the cache of a layer, or a pool of which ``first`` is the layer's first slot.
        rows: what they write and see.
        first: added to every slot.

    Returns:
        [T, H, D].

    >>> keys, values, ones = torch.zeros(4, 1, 16), torch.zeros(4, 1, 16), torch.ones(1, 1, 16)
    >>> attend(ones, ones, ones, keys, values, seen_up_to(0, 1))[0, 0, :2] if native.wait() else torch.ones(2)
    tensor([1., 1.])
    """
    count, heads, size = query.shape
    side = query.stride(0)
    if key.stride() != (side, size, 1) or value.stride() != (side, size, 1) or query.stride() != (side, size, 1):
        query, (key, value) = query.contiguous(), (_beside(part, query) for part in (key, value))
        side = query.stride(0)
    out = torch.empty((count, heads, size), dtype=query.dtype)
    shift = first * key.shape[1] * size * keys.element_size()
    made = Attention(
        count,
        heads,
        key.shape[1],
        size,
        torch.get_num_threads(),
        TYPES.index(query.dtype),
        size**-0.5,
        not rows.slots.shape[0],
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        side,
        keys.data_ptr() + shift,
        values.data_ptr() + shift,
        rows.written.data_ptr(),
        rows.slots.data_ptr(),
        rows.starts.data_ptr(),
        rows.counts.data_ptr(),
        out.data_ptr(),
    )
    library = native.library()
    assert library is not None, "the library is not there"
    if library.specdec_attend(byref(made)):
        raise MemoryError("no memory for the scores of a pass")
    return out


def _beside(part: Tensor, query: Tensor) -> Tensor:
    """The same rows, as far apart as those of the query."""
    made = part.new_empty((part.shape[0], *query.shape[1:]))[:, : part.shape[1]]
    made.copy_(part)
    return made
