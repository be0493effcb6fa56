"""The keys and values of all sequences in one pool of pages: where they lie, and how rows are written, copied and moved there.

A slot is one place for a key and a value, in every layer alike: slot = page * page_size + offset. Which slots are whose, and in what order,
is said elsewhere (a table of pages for each sequence); the pool itself knows no sequence, no length and no reference.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch

from specdec_fn.kv.dense import Sizes
from specdec_fn.pytree import alive, donates, state
from specdec_fn.typing import Float, Int, Tensor

__all__ = ["Store", "clone", "copy_pages", "init", "move", "write", "write_pure"]


@state(static=("layers", "pages", "page_size"))
class Store:
    """The pool; a pytree.

    Attributes:
        keys: [layers * pages, page_size, kv_heads, head_dim]; page p of layer l is row l * pages + p.
        values: the same for values.
        layers: of the model.
        pages: for each layer.
        page_size: slots of a page.
        scratch: room where a pass lays keys and values together; what it holds means nothing between two calls. A pass that asked for fresh
            memory in every layer would have it taken back and zeroed by the system each time, at the price of the attention itself.
    """

    keys: Tensor
    values: Tensor
    layers: int
    pages: int
    page_size: int
    scratch: tuple[Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values together, without the scratch."""
        return self.keys.nbytes + self.values.nbytes


def init(sizes: Sizes, pages: int, page_size: int, *, dtype: torch.dtype, device: torch.device | str = "cpu") -> Store:
    """Makes a pool of zeros.

    Args:
        sizes: layers, kv_heads and head_dim (a model's configuration has them).
        pages: for each layer.
        page_size: slots of a page.
        dtype: of keys and values; the model's.

    Raises:
        ValueError: pages or page_size is below 1, or there is not so much memory.

    >>> from types import SimpleNamespace
    >>> store = init(SimpleNamespace(layers=2, kv_heads=1, head_dim=4), 3, 8, dtype=torch.float32)
    >>> store.keys.shape, store.nbytes
    (torch.Size([6, 8, 1, 4]), 1536)
    """
    for name, count in (("pages", pages), ("page_size", page_size)):
        if count < 1:
            raise ValueError(f"{name} is {count}; expected at least 1")

    # A tensor born in inference mode cannot be written outside it, and a pool outlives the block that made it.
    with torch.inference_mode(False):
        shape = (sizes.layers * pages, page_size, sizes.kv_heads, sizes.head_dim)
        try:
            keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        except (RuntimeError, TypeError) as error:
            size = 2 * math.prod(shape) * dtype.itemsize
            raise ValueError(f"{pages} pages of {page_size} slots take {size:,} bytes, which are not to be had; expected fewer pages") from error
        return Store(keys, values, sizes.layers, pages, page_size)


def rows(pool: Float[Tensor, "all_pages page_size kv_heads head_dim"], layer: int, pages: int) -> Float[Tensor, "slots kv_heads head_dim"]:
    """Views one layer of the keys or of the values as rows, one a slot; nothing is copied.

    Args:
        pool: ``keys`` or ``values`` of a store.
        pages: of each layer.

    >>> rows(torch.arange(8.0).reshape(4, 2, 1, 1), 1, 2).flatten()
    tensor([4., 5., 6., 7.])
    """
    _, page_size, kv_heads, head_dim = pool.shape
    width, slots = kv_heads * head_dim, pages * page_size
    # One operator where narrowing and flattening are two: a pass does this several times a layer.
    return pool.as_strided((slots, kv_heads, head_dim), (width, head_dim, 1), pool.storage_offset() + layer * slots * width)


@donates("store")
def write(
    store: Store,
    layer: int,
    key: Float[Tensor, "tokens kv_heads head_dim"],
    value: Float[Tensor, "tokens kv_heads head_dim"],
    slots: Int[Tensor, "tokens"],
    *,
    whole: bool = False,
) -> Store:
    """Puts each row in its slot of a layer, in place. DONATES ``store``.

    Args:
        slots: page * page_size + offset; a row whose slot is -1 is left out. No other slot stands twice.
        whole: the caller's word that no slot is -1, so that nobody has to look.

    >>> from types import SimpleNamespace
    >>> store = init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 2, 2, dtype=torch.float32)
    >>> rows = torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    >>> write(store, 0, rows, rows, torch.tensor([2, -1, 0])).keys.flatten()
    tensor([3., 0., 1., 0.])
    """
    if not whole:
        key, value, slots = _kept(key, value, slots)
    rows(store.keys, layer, store.pages).index_copy_(0, slots, key)
    rows(store.values, layer, store.pages).index_copy_(0, slots, value)
    return store


def write_pure(
    store: Store,
    layer: int,
    key: Float[Tensor, "tokens kv_heads head_dim"],
    value: Float[Tensor, "tokens kv_heads head_dim"],
    slots: Int[Tensor, "tokens"],
) -> Store:
    """States what ``write`` means without touching ``store``: new tensors.

    >>> from types import SimpleNamespace
    >>> store = init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 2, 2, dtype=torch.float32)
    >>> new = write_pure(store, 0, torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.tensor([2]))
    >>> store.keys.flatten(), new.keys.flatten()
    (tensor([0., 0., 0., 0.]), tensor([0., 0., 1., 0.]))
    """
    key, value, slots = _kept(key, value, slots)
    places = slots + layer * store.pages * store.page_size
    keys, values = (old.flatten(0, 1).index_copy(0, places, new).view(old.shape) for old, new in ((store.keys, key), (store.values, value)))
    return dataclasses.replace(store, keys=keys, values=values)


@donates("store")
def copy_pages(store: Store, old: Sequence[int], new: Sequence[int]) -> Store:
    """Copies pages onto other pages, in all layers, in place: what a shared page needs before one holder writes to it. DONATES ``store``.

    Args:
        old: pages to read; all are read before any is written.
        new: as many pages to write, none twice.

    >>> from types import SimpleNamespace
    >>> store = init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 3, 1, dtype=torch.float32)
    >>> store.keys.view(-1).copy_(torch.tensor([1.0, 2.0, 3.0]))
    tensor([1., 2., 3.])
    >>> copy_pages(store, [0, 1], [1, 2]).keys.flatten()
    tensor([1., 1., 2.])
    """
    for pool in (store.keys, store.values):
        _copy(_layered(pool, store), old, new)
    return store


@donates("store")
def move(store: Store, source_slots: Sequence[int], target_slots: Sequence[int]) -> Store:
    """Copies slots onto other slots, in all layers, in place: the accepted rows of a tree move together. DONATES ``store``.

    Args:
        source_slots: slots to read; all are read before any is written.
        target_slots: as many slots to write, none twice.

    >>> from types import SimpleNamespace
    >>> store = init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 1, 4, dtype=torch.float32)
    >>> store.keys.view(-1).copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor([1., 2., 3., 4.])
    >>> move(store, [1, 3], [0, 1]).keys.flatten()
    tensor([2., 4., 3., 4.])
    """
    for pool in (store.keys, store.values):
        _copy(_layered(pool, store).flatten(1, 2), source_slots, target_slots)
    return store


def clone(store: Store) -> Store:
    """Gives a store with the same contents in memory of its own, for a past to return to.

    Raises:
        DonatedError: the store was given away, where donation is enforced.

    >>> from types import SimpleNamespace
    >>> store = init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 1, 2, dtype=torch.float32)
    >>> clone(store).keys.data_ptr() == store.keys.data_ptr()
    False
    """
    alive(store, "the store")
    with torch.inference_mode(False):
        return dataclasses.replace(store, keys=store.keys.clone(), values=store.values.clone(), scratch=())


def _kept(key: Tensor, value: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows whose slot is not -1."""
    kept = slots != -1
    return (key, value, slots) if bool(kept.all()) else (key[kept], value[kept], slots[kept])


def _layered(pool: Tensor, store: Store) -> Tensor:
    """The keys or the values as [layers, pages, page_size, kv_heads, head_dim]."""
    return pool.unflatten(0, (store.layers, store.pages))


def _copy(layered: Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copies along the second axis, which is pages or slots; negative places would count from the end and are refused."""
    places = layered.shape[1]
    assert len(sources) == len(targets), f"{len(sources)} places to read and {len(targets)} to write"
    assert all(0 <= place < places for place in (*sources, *targets)), f"places {[*sources, *targets]} are not all among the {places} of a layer"
    if list(sources) != list(targets):
        read, written = (torch.tensor(list(some), dtype=torch.int64, device=layered.device) for some in (sources, targets))
        layered.index_copy_(1, written, layered.index_select(1, read))
