"""The keys and values of one sequence in one piece: written in place, read up to the row's own slot.

Attention here is an ``attend`` value for a model's pass. The pass writes its rows past the committed ones and does not commit them:
``advance`` keeps those that were accepted, the others are written over by the next pass. That is the whole of a rollback.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F

from specdec_fn.pytree import donates, enforced, state
from specdec_fn.typing import Float, Tensor
from specdec_kernels import native, row_attention

__all__ = [
    "Attend",
    "DenseCache",
    "advance",
    "attend",
    "attend_invariant",
    "attend_pure",
    "grow",
    "init",
    "over",
    "truncate",
    "write",
]

Attend = Callable[..., tuple[Tensor, Any]]
FEW = 16  # rows up to which the C library attends; more are a call of torch's


@runtime_checkable
class Sizes(Protocol):
    """Anything with these sizes, for example a model's configuration."""

    @property
    def layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


@state(static=("length", "capacity"))
class DenseCache:
    """The cache of one sequence; a pytree.

    Attributes:
        keys: for each layer [capacity, kv_heads, head_dim]; slot i belongs to position i. Layers are separate tensors, so that each starts
            at the same alignment, on which the last bits of a sum may depend.
        values: the same for values.
        mask: what the rows of the pass under way see, which its first layer works out: one additive mask [rows, slots], or the tensors of a
            ``Seen``; () between passes.
        length: committed slots; what lies past them is not part of the state.
        capacity: slots.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: tuple[Tensor, ...]
    length: int
    capacity: int


def init(sizes: Sizes, capacity: int, *, dtype: torch.dtype, device: torch.device | str = "cpu") -> DenseCache:
    """Makes an empty cache.

    Args:
        sizes: layers, kv_heads and head_dim (a model's configuration has them).
        capacity: slots; ``grow`` gives more.
        dtype: of keys and values; the model's.

    Raises:
        ValueError: capacity is below 1.

    >>> from types import SimpleNamespace
    >>> cache = init(SimpleNamespace(layers=2, kv_heads=1, head_dim=4), 8, dtype=torch.float32)
    >>> len(cache.keys), cache.keys[0].shape, cache.length
    (2, torch.Size([8, 1, 4]), 0)
    """
    if capacity < 1:
        raise ValueError(f"a cache needs a capacity of at least 1 slot, received {capacity}")

    # A tensor born in inference mode cannot be written outside it, and a cache outlives the block that made it.
    with torch.inference_mode(False):

        def blank() -> tuple[Tensor, ...]:
            return tuple(torch.zeros((capacity, sizes.kv_heads, sizes.head_dim), dtype=dtype, device=device) for _ in range(sizes.layers))

        return DenseCache(blank(), blank(), (), 0, capacity)


def advance(cache: DenseCache, n: int) -> DenseCache:
    """Commits the first n of the rows that the last pass wrote.

    >>> from types import SimpleNamespace
    >>> advance(init(SimpleNamespace(layers=0, kv_heads=0, head_dim=0), 8, dtype=torch.float32), 3).length
    3
    """
    assert 0 <= n <= cache.capacity - cache.length, f"cannot commit {n} rows at {cache.length} of {cache.capacity} slots"
    return dataclasses.replace(cache, mask=(), length=cache.length + n)


def truncate(cache: DenseCache, length: int) -> DenseCache:
    """Goes back to the first ``length`` slots.

    >>> from types import SimpleNamespace
    >>> cache = advance(init(SimpleNamespace(layers=0, kv_heads=0, head_dim=0), 8, dtype=torch.float32), 3)
    >>> truncate(cache, 1).length
    1
    """
    assert 0 <= length <= cache.length, f"cannot truncate {cache.length} slots to {length}"
    return dataclasses.replace(cache, mask=(), length=length)


def grow(cache: DenseCache, capacity: int) -> DenseCache:
    """Copies the committed slots into a larger cache; the old one stays as it is.

    >>> from types import SimpleNamespace
    >>> grow(init(SimpleNamespace(layers=1, kv_heads=1, head_dim=2), 2, dtype=torch.float32), 4).keys[0].shape
    torch.Size([4, 1, 2])
    """
    assert capacity >= cache.length, f"{cache.length} committed slots do not fit into {capacity}"

    def copied(old: Tensor) -> Tensor:
        new = old.new_zeros((capacity, *old.shape[1:]))
        new[: cache.length] = old[: cache.length]
        return new

    with torch.inference_mode(False):
        return DenseCache(tuple(map(copied, cache.keys)), tuple(map(copied, cache.values)), (), cache.length, capacity)


@donates("kv")
def attend(
    kv: DenseCache,
    layer: int,
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens kv_heads head_dim"],
    value: Float[Tensor, "tokens kv_heads head_dim"],
) -> tuple[Float[Tensor, "tokens heads head_dim"], DenseCache]:
    """Writes the new rows at slots length, length + 1, ... in place, and lets row t see slots 0 to length + t. DONATES ``kv``.

    Softmax(q k / sqrt(D)) v; query head h reads key-value head h // (H / HK). Slots past a row's own are not read or have weight 0.

    >>> from types import SimpleNamespace
    >>> cache = init(SimpleNamespace(layers=1, kv_heads=1, head_dim=2), 4, dtype=torch.float32)
    >>> out, cache = attend(cache, 0, torch.ones(2, 2, 2), torch.ones(2, 1, 2), torch.tensor([[[1.0, 3.0]], [[3.0, 5.0]]]))
    >>> out[:, 0], advance(cache, 2).length
    (tensor([[1., 3.],
            [2., 4.]]), 2)
    """
    rows, end = key.shape[0], kv.length + key.shape[0]
    if rows <= FEW and row_attention.fits(query, key, kv.keys[layer]):
        return _attend_few(kv, layer, query, key, value)
    kv = write(kv, layer, key, value)
    keys, values = _slots(kv.keys[layer], end), _slots(kv.values[layer], end)
    if rows == 1:
        # The query heads that share a key head are its rows: no key is read twice.
        folded = query.reshape(1, key.shape[1], -1, query.shape[2])
        return F.scaled_dot_product_attention(folded, keys, values).reshape(query.shape), kv
    turned = query.transpose(0, 1).unsqueeze(0)
    if kv.length == 0:
        out = F.scaled_dot_product_attention(turned, keys, values, is_causal=True, enable_gqa=True)
    else:
        if len(kv.mask) != 1 or kv.mask[0].shape != (rows, end):
            kv = dataclasses.replace(kv, mask=(_mask(rows, end, query),))
        out = F.scaled_dot_product_attention(turned, keys, values, attn_mask=kv.mask[0], enable_gqa=True)
    return out.squeeze(0).transpose(0, 1), kv


@donates("kv")
def attend_invariant(
    kv: DenseCache,
    layer: int,
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens kv_heads head_dim"],
    value: Float[Tensor, "tokens kv_heads head_dim"],
) -> tuple[Float[Tensor, "tokens heads head_dim"], DenseCache]:
    """Does what ``attend`` does, a query row at a time, so that no bit of a row depends on the rows beside it. DONATES ``kv``.

    On a CPU that is the C library, whose sums run over a row's slots in one order. Elsewhere row t is one call over exactly the slots 0 to
    length + t, on shapes that its position alone decides: the same call that plain decoding makes for that position. Capacity, chunks and later
    slots have no part in it.

    >>> from types import SimpleNamespace
    >>> cache = init(SimpleNamespace(layers=1, kv_heads=1, head_dim=2), 4, dtype=torch.float32)
    >>> attend_invariant(cache, 0, torch.ones(2, 2, 2), torch.ones(2, 1, 2), torch.tensor([[[1.0, 3.0]], [[3.0, 5.0]]]))[0][:, 0]
    tensor([[1., 3.],
            [2., 4.]])
    """
    if row_attention.fits(query, key, kv.keys[layer], wait=True):
        return _attend_few(kv, layer, query, key, value)
    kv = write(kv, layer, key, value)
    return torch.cat([over(kv, layer, row, end) for end, row in enumerate(query.split(1), kv.length + 1)]), kv


def _planned(kv: DenseCache, rows: int, dtype: torch.dtype, invariant: bool) -> row_attention.Plan | None:
    """What a whole pass does to a cache, for a model that makes it in one call."""
    if (rows > FEW and not invariant) or enforced() or not native.ready() or kv.length + rows > kv.capacity:
        return None
    return row_attention.planned(kv.keys, kv.values, dtype, row_attention.seen_up_to(kv.length, rows))


attend.planned = _planned  # type: ignore[attr-defined]
attend_invariant.planned = _planned  # type: ignore[attr-defined]


def over(
    kv: DenseCache, layer: int, query: Float[Tensor, "tokens heads head_dim"], end: int, mask: Float[Tensor, "tokens end"] | None = None
) -> Float[Tensor, "tokens heads head_dim"]:
    """Attends over exactly the first ``end`` slots, in a call whose shapes depend on ``end`` and the number of rows alone.

    Args:
        mask: added to the scores; with one row it may be left out, and the query heads that share a key head are then the rows of the call.

    >>> from types import SimpleNamespace
    >>> cache = init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, dtype=torch.float32)
    >>> cache = write(cache, 0, torch.ones(2, 1, 1), torch.tensor([1.0, 3.0])[:, None, None])
    >>> over(cache, 0, torch.ones(1, 1, 1), 2).item()
    2.0
    """
    keys, values = _slots(kv.keys[layer], end), _slots(kv.values[layer], end)
    if mask is None:
        assert query.shape[0] == 1, "rows that share a call need a mask"
        folded = query.clone(memory_format=torch.contiguous_format).view(1, keys.shape[1], -1, keys.shape[3])
        return F.scaled_dot_product_attention(folded, keys, values).reshape(query.shape)
    out = F.scaled_dot_product_attention(query.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=mask, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1)


def attend_pure(
    kv: DenseCache,
    layer: int,
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens kv_heads head_dim"],
    value: Float[Tensor, "tokens kv_heads head_dim"],
) -> tuple[Float[Tensor, "tokens heads head_dim"], DenseCache]:
    """States what ``attend`` means without touching ``kv``: new tensors, and attention written out.

    >>> from types import SimpleNamespace
    >>> cache = init(SimpleNamespace(layers=1, kv_heads=1, head_dim=2), 4, dtype=torch.float32)
    >>> out, new = attend_pure(cache, 0, torch.ones(1, 2, 2), torch.ones(1, 1, 2), torch.ones(1, 1, 2))
    >>> cache.keys[0][0], new.keys[0][0]
    (tensor([[0., 0.]]), tensor([[1., 1.]]))
    """
    rows, end = key.shape[0], kv.length + key.shape[0]
    assert end <= kv.capacity, f"{rows} rows at {kv.length} of {kv.capacity} slots"
    slots = torch.arange(kv.length, end, device=key.device)
    keys, values = (old[layer].index_copy(0, slots, new) for old, new in ((kv.keys, key), (kv.values, value)))
    seen = torch.arange(end, device=key.device) <= slots.unsqueeze(1)
    heads = query.unflatten(1, (key.shape[1], -1))
    scores = torch.einsum("tkgd,skd->kgts", heads, keys[:end]) / query.shape[2] ** 0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    out = torch.einsum("kgts,skd->tkgd", weights, values[:end]).flatten(1, 2)
    all_keys, all_values = ((*old[:layer], new, *old[layer + 1 :]) for old, new in ((kv.keys, keys), (kv.values, values)))
    return out, dataclasses.replace(kv, keys=all_keys, values=all_values)


@donates("kv")
def write(kv: DenseCache, layer: int, key: Float[Tensor, "tokens kv_heads head_dim"], value: Float[Tensor, "tokens kv_heads head_dim"]) -> DenseCache:
    """Puts rows in the slots after the committed ones, in place, and commits nothing. DONATES ``kv``.

    >>> from types import SimpleNamespace
    >>> cache = init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, dtype=torch.float32)
    >>> cache = write(cache, 0, torch.ones(3, 1, 1), torch.ones(3, 1, 1))
    >>> cache.keys[0].flatten(), cache.length
    (tensor([1., 1., 1., 0.]), 0)
    """
    end = kv.length + key.shape[0]
    assert end <= kv.capacity, f"{key.shape[0]} rows at {kv.length} of {kv.capacity} slots"
    kv.keys[layer][kv.length : end] = key
    kv.values[layer][kv.length : end] = value
    return kv


def _attend_few(kv: DenseCache, layer: int, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, DenseCache]:
    """Both, in the C library."""
    assert kv.length + key.shape[0] <= kv.capacity, f"{key.shape[0]} rows at {kv.length} of {kv.capacity} slots"
    if len(kv.mask) != 4 or kv.mask[0].shape[0] != key.shape[0]:
        kv = dataclasses.replace(kv, mask=tuple(row_attention.seen_up_to(kv.length, key.shape[0])))
    return row_attention.attend(query, key, value, kv.keys[layer], kv.values[layer], row_attention.Seen(*kv.mask)), kv


def _slots(cached: Tensor, end: int) -> Tensor:
    """The first slots as [1, kv_heads, slots, head_dim], in one operator: a pass calls this twice a layer, and there the call is the cost."""
    _, kv_heads, head_dim = cached.shape
    return cached.as_strided((1, kv_heads, end, head_dim), (0, head_dim, kv_heads * head_dim, 1))


def _mask(rows: int, end: int, like: Tensor) -> Tensor:
    """0 where row t may see slot s, minus infinity past its own slot end - rows + t."""
    return torch.full((rows, end), float("-inf"), dtype=like.dtype, device=like.device).triu_(end - rows + 1)
