"""Attention for a pass whose rows branch: a tree of drafted tokens checked in one forward, each row seeing its own line of ancestors.

``attend(seen)`` and ``attend_invariant(seen)`` build ``attend`` values for one pass from its mask, as ``dense.attend`` is the one for a chain. The
rows lie in the cache in the order of the pass; ``keep`` then moves those on the accepted path together and commits them.
"""

import dataclasses

import torch
import torch.nn.functional as F

from specdec_fn.kv import dense
from specdec_fn.kv.dense import Attend, DenseCache
from specdec_fn.pytree import donates
from specdec_fn.typing import Bool, Float, Int, Tensor
from specdec_kernels import row_attention

__all__ = ["attend", "attend_invariant", "keep"]


def attend(seen: Bool[Tensor, "tokens tokens"]) -> Attend:
    """Builds the attention of a pass over a tree: row t sees all committed slots, and the rows of the pass that ``seen[t]`` marks.

    Args:
        seen: True at [t, s] where row t sees row s; the diagonal is True.

    Returns:
        an ``attend`` value that writes the rows past the committed slots in place, and so DONATES ``kv``.

    >>> from types import SimpleNamespace
    >>> cache = dense.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, dtype=torch.float32)
    >>> siblings = torch.tensor([[True, False, False], [True, True, False], [True, False, True]])
    >>> values = torch.tensor([1.0, 3.0, 5.0])[:, None, None]
    >>> attend(siblings)(cache, 0, torch.ones(3, 1, 1), torch.ones(3, 1, 1), values)[0].flatten()
    tensor([1., 2., 3.])
    """

    lines = tuple(row.nonzero().squeeze(1) for row in seen)

    @donates("kv")
    def branching(
        kv: DenseCache,
        layer: int,
        query: Float[Tensor, "tokens heads head_dim"],
        key: Float[Tensor, "tokens kv_heads head_dim"],
        value: Float[Tensor, "tokens kv_heads head_dim"],
    ) -> tuple[Float[Tensor, "tokens heads head_dim"], DenseCache]:
        if row_attention.fits(query, key, kv.keys[layer]):
            return _by_rows(kv, layer, query, key, value, lines)
        end = kv.length + key.shape[0]
        kv = dense.write(kv, layer, key, value)
        if not kv.mask:
            hidden = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill_(~seen, float("-inf"))
            kv = dataclasses.replace(kv, mask=(F.pad(hidden, (kv.length, 0)),))
        return dense.over(kv, layer, query, end, kv.mask[0]), kv

    return branching


def attend_invariant(seen: Bool[Tensor, "tokens tokens"]) -> Attend:
    """Builds the attention that gives each row of a tree the bits it would have in plain decoding along its own line.

    On a CPU that is the C library, over exactly the slots of a row's line. Elsewhere, for every row the rows of its line are laid behind the
    committed slots, in order, and the row attends to exactly those: the call that ``dense.attend_invariant`` makes for a row of that position.
    Afterwards the cache holds the rows in the order of the pass.

    >>> from types import SimpleNamespace
    >>> cache = dense.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, dtype=torch.float32)
    >>> siblings = torch.tensor([[True, False, False], [True, True, False], [True, False, True]])
    >>> values = torch.tensor([1.0, 3.0, 5.0])[:, None, None]
    >>> attend_invariant(siblings)(cache, 0, torch.ones(3, 1, 1), torch.ones(3, 1, 1), values)[0].flatten()
    tensor([1., 2., 3.])
    """
    lines = tuple(row.nonzero().squeeze(1) for row in seen)

    @donates("kv")
    def branching(
        kv: DenseCache,
        layer: int,
        query: Float[Tensor, "tokens heads head_dim"],
        key: Float[Tensor, "tokens kv_heads head_dim"],
        value: Float[Tensor, "tokens kv_heads head_dim"],
    ) -> tuple[Float[Tensor, "tokens heads head_dim"], DenseCache]:
        if row_attention.fits(query, key, kv.keys[layer], wait=True):
            return _by_rows(kv, layer, query, key, value, lines)
        out = []
        for row, line in zip(query.split(1), lines, strict=True):
            kv = dense.write(kv, layer, key[line], value[line])
            out.append(dense.over(kv, layer, row, kv.length + line.shape[0]))
        return torch.cat(out), dense.write(kv, layer, key, value)

    return branching


def _by_rows(kv: DenseCache, layer: int, query: Tensor, key: Tensor, value: Tensor, lines: tuple[Tensor, ...]) -> tuple[Tensor, DenseCache]:
    """Both, in the C library: a row sees the committed slots and those of its line."""
    assert kv.length + key.shape[0] <= kv.capacity, f"{key.shape[0]} rows at {kv.length} of {kv.capacity} slots"
    if len(kv.mask) != 4:
        before, counts = torch.arange(kv.length), torch.tensor([kv.length + line.shape[0] for line in lines])
        slots = torch.cat([part for line in lines for part in (before, kv.length + line)])
        written = torch.arange(kv.length, kv.length + key.shape[0])
        kv = dataclasses.replace(kv, mask=(written, slots, counts.cumsum(0) - counts, counts))
    return row_attention.attend(query, key, value, kv.keys[layer], kv.values[layer], row_attention.Seen(*kv.mask)), kv


@donates("kv")
def keep(kv: DenseCache, rows: Int[Tensor, "kept"]) -> DenseCache:
    """Commits some rows of the last pass, in order, and forgets the others: they move together in place. DONATES ``kv``.

    Args:
        rows: places in the pass, growing; 0 is its first row.

    >>> from types import SimpleNamespace
    >>> cache = dense.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, dtype=torch.float32)
    >>> rows = torch.tensor([1.0, 3.0, 5.0])[:, None, None]
    >>> _, cache = dense.attend(cache, 0, rows, rows, rows)
    >>> cache = keep(cache, torch.tensor([0, 2]))
    >>> cache.length, cache.keys[0][:2].flatten()
    (2, tensor([1., 5.]))
    """
    count = rows.shape[0]
    if not rows.equal(torch.arange(count, device=rows.device)):
        for cached in (*kv.keys, *kv.values):
            cached[kv.length : kv.length + count] = cached[kv.length + rows]
    return dense.advance(kv, count)
