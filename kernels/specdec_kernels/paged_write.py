"""Rows of keys and values into their places in a pool of pages, and whole pages onto others.

A slot is one place for a key and a value: slot = page * page_size + offset, counted over the whole pool. The pools are donated: they are written
in place and handed back.
"""

import torch
from torch import Tensor

from specdec_kernels.dispatch import chosen

__all__ = ["copy_pages", "paged_write", "readable"]


def paged_write(
    key_pages: Tensor, value_pages: Tensor, key: Tensor, value: Tensor, slots: Tensor, *, impl: str = "auto", trusted: bool = False
) -> tuple[Tensor, Tensor]:
    """Puts each row in its slot, in place. DONATES ``key_pages`` and ``value_pages``.

    Args:
        key_pages: [N, page, HK, D], any dtype, contiguous.
        value_pages: the same for values.
        key: [T, HK, D], the dtype of the pool.
        value: the same for values.
        slots: int32 or int64[T], in [0, N * page), none twice; a row whose slot is -1 is left out.
        impl: "auto", "torch" or "triton".
        trusted: the caller's word that the values of ``slots`` are right: to look at them waits for a GPU. Nobody looks while a graph is traced
            or captured.

    Returns:
        The two pools that were given.

    Raises:
        ValueError: a slot that is not there or stands twice; shapes, dtypes or devices that do not match; a pool that is not contiguous; an impl
            that cannot run.

    >>> pools = torch.zeros(2, 2, 1, 1), torch.zeros(2, 2, 1, 1)
    >>> rows = torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    >>> paged_write(*pools, rows, rows, torch.tensor([2, -1, 0]))[0].flatten()
    tensor([3., 0., 1., 0.])
    """
    way = chosen(impl, key_pages, value_pages, key, value, slots)
    _check_pools(key_pages, value_pages)
    shape = [slots.shape[0] if slots.ndim else 0, *key_pages.shape[2:]]
    for name, rows in (("key", key), ("value", value)):
        if list(rows.shape) != shape:
            raise ValueError(f"{name} is {list(rows.shape)}; expected {shape}, a row for each slot")
        if rows.dtype is not key_pages.dtype:
            raise ValueError(f"{name} is {rows.dtype}; expected {key_pages.dtype} as in the pool")
    _check_numbers("slots", slots)
    places = key_pages.shape[0] * key_pages.shape[1]
    if not trusted and readable(slots):
        used = slots[slots != -1]
        if bool(((slots < -1) | (slots >= places)).any()):
            raise ValueError(f"slots are from {int(slots.min())} to {int(slots.max())}; expected -1 or one of the {places} places of the pool")
        if used.unique().numel() != used.numel():
            raise ValueError("slots has a slot twice; expected each once, or -1")
    if not key.numel() or not key_pages.numel():
        return key_pages, value_pages
    if way == "triton":
        from specdec_kernels.paged_write_triton import paged_write_triton

        paged_write_triton(key_pages, value_pages, key, value, slots)
        return key_pages, value_pages

    # Every shape is fixed, so a row that is left out writes too: the first row that is not, to that one's slot, once more; or, where all are left
    # out, what slot 0 holds to slot 0. Whichever of several equal writes comes last, the pool is the same.
    kept = slots != -1
    first = kept.to(torch.int64).argmax(0, keepdim=True)  # as an axis: to index by a scalar would look at it
    some = kept.any()
    target = torch.where(kept, slots, torch.where(some, slots.index_select(0, first), 0)).to(torch.int64)
    for pool, rows in ((key_pages, key), (value_pages, value)):
        if pool.dtype.itemsize == 1:  # torch moves no numbers of 8 bits that are fractions
            pool, rows = pool.view(torch.uint8), rows.view(torch.uint8)
        flat = pool.view(-1, *pool.shape[2:])
        again = torch.where(some, rows.index_select(0, first), flat[:1])
        flat.index_copy_(0, target, torch.where(kept[:, None, None], rows, again))
    return key_pages, value_pages


def copy_pages(
    key_pages: Tensor, value_pages: Tensor, sources: Tensor, targets: Tensor, *, layers: int, impl: str = "auto", trusted: bool = False
) -> tuple[Tensor, Tensor]:
    """Copies pages onto other pages in every layer, in place. DONATES ``key_pages`` and ``value_pages``.

    Args:
        key_pages: [N, page, HK, D], any dtype, contiguous; page p of layer l is row l * (N / layers) + p.
        value_pages: the same for values.
        sources: int32 or int64[C], pages to read, in [0, N / layers).
        targets: as many pages to write; none twice, and none that is read.
        layers: of the model.
        impl: "auto", "torch" or "triton".
        trusted: the caller's word that the values of ``sources`` and ``targets`` are right.

    Returns:
        The two pools that were given.

    Raises:
        ValueError: a page that is not there, a target twice or among the sources, layers that do not divide N; shapes, dtypes or devices that do
            not match; a pool that is not contiguous; an impl that cannot run.

    >>> pools = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1, 1), torch.zeros(4, 1, 1, 1)
    >>> copy_pages(*pools, torch.tensor([0]), torch.tensor([1]), layers=2)[0].flatten()
    tensor([1., 1., 3., 3.])
    """
    way = chosen(impl, key_pages, value_pages, sources, targets)
    _check_pools(key_pages, value_pages)
    if type(layers) is not int or layers < 1 or key_pages.shape[0] % layers:
        raise ValueError(f"layers is {layers!r}; expected at least 1, a divisor of the {key_pages.shape[0]} pages of the pool")
    for name, numbers in (("sources", sources), ("targets", targets)):
        _check_numbers(name, numbers)
    if sources.shape != targets.shape:
        raise ValueError(f"targets is {list(targets.shape)}; expected {list(sources.shape)}, one for each source")
    pages = key_pages.shape[0] // layers
    if not trusted and readable(sources, targets):
        for name, numbers in (("sources", sources), ("targets", targets)):
            if bool(((numbers < 0) | (numbers >= pages)).any()):
                raise ValueError(f"{name} are from {int(numbers.min())} to {int(numbers.max())}; expected some of the {pages} pages of a layer")
        if targets.unique().numel() != targets.numel():
            raise ValueError("targets has a page twice; expected each once")
        if bool(torch.isin(targets, sources).any()):
            raise ValueError("targets has a page that sources has too; expected pages that nobody reads")
    if not sources.numel() or not key_pages.numel():
        return key_pages, value_pages
    if way == "triton":
        from specdec_kernels.paged_write_triton import copy_pages_triton

        copy_pages_triton(key_pages, value_pages, sources, targets, layers)
        return key_pages, value_pages
    for pool in (key_pages, value_pages):
        layered = pool.view(layers, pages, *pool.shape[1:])
        layered = layered.view(torch.uint8) if pool.dtype.itemsize == 1 else layered
        layered.index_copy_(1, targets.to(torch.int64), layered.index_select(1, sources.to(torch.int64)))
    return key_pages, value_pages


def readable(*tensors: Tensor) -> bool:
    """Whether the values of tensors can be looked at: not while a graph is traced or captured, and not where a tensor has no values.

    >>> readable(torch.zeros(3)), readable(torch.zeros(3, device="meta"))
    (True, False)
    """
    if torch.compiler.is_compiling():
        return False
    from torch._subclasses.fake_tensor import FakeTensor

    if any(isinstance(tensor, FakeTensor) or tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors):
        return False
    return not (any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing())


def _check_pools(key_pages: Tensor, value_pages: Tensor) -> None:
    if key_pages.ndim != 4 or key_pages.shape != value_pages.shape:
        shapes = f"{list(key_pages.shape)} and {list(value_pages.shape)}"
        raise ValueError(f"key_pages and value_pages are {shapes}; expected [pages, page size, heads, head size] twice")
    if key_pages.dtype is not value_pages.dtype:
        raise ValueError(f"key_pages is {key_pages.dtype} and value_pages is {value_pages.dtype}; expected one dtype")
    if key_pages.dtype.is_complex:
        raise ValueError(f"key_pages is {key_pages.dtype}; expected numbers of 8 to 64 bits")
    for name, pool in (("key_pages", key_pages), ("value_pages", value_pages)):
        if not pool.is_contiguous():
            raise ValueError(f"{name} has strides {list(pool.stride())}; expected a contiguous pool")


def _check_numbers(name: str, numbers: Tensor) -> None:
    if numbers.ndim != 1 or numbers.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} is {numbers.dtype} of shape {list(numbers.shape)}; expected one row of int32 or int64")
