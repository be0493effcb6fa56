"""State as values: ``@state`` makes frozen pytrees, ``@donates`` marks the functions that consume an argument.

Everything below the effects floor takes state in and gives state out. Metadata is small and always pure. The large tensors (the KV cache)
are *donated*: a function marked ``@donates("cache")`` may reuse the storage of ``cache``, and its caller gives the old value up, as with
``jax.jit(donate_argnums=...)``. Inside ``checking()`` the promise is enforced: the old value's storage is freed, so any later use raises.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, dataclass_transform

import torch
from torch.utils import _pytree as torch_pytree

__all__ = ["DonatedError", "alive", "checking", "donates", "enforced", "state"]

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_checking: ContextVar[bool] = ContextVar("specdec_fn_checking", default=False)


class DonatedError(RuntimeError):
    """A value was used after it had been given to a function that consumes it."""


@dataclass_transform(frozen_default=True)
def state(*, static: tuple[str, ...] = ()) -> Callable[[C], C]:
    """Makes a class a frozen dataclass that ``torch.func`` and ``torch.utils._pytree`` see through.

    Args:
        static: names of fields that are configuration rather than data (sizes, names, functions). They are kept out of the leaves, so that
            ``vmap`` and ``tree_map`` do not touch them; they must be hashable and comparable.

    Raises:
        ValueError: a static name is not a field of the class.

    >>> @state(static=("size",))
    ... class Box:
    ...     content: torch.Tensor
    ...     size: int
    >>> torch_pytree.tree_map(lambda x: x + 1, Box(torch.zeros(2), 2))
    Box(content=tensor([1., 1.]), size=2)
    """

    def register(cls: C) -> C:
        made: Any = dataclasses.dataclass(frozen=True)(cls)
        names = tuple(field.name for field in dataclasses.fields(made))
        unknown = sorted(set(static) - set(names))
        if unknown:
            raise ValueError(f"static names {unknown} are not fields of {cls.__name__}, whose fields are {list(names)}")
        leaves = tuple(name for name in names if name not in static)

        def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
            return [getattr(value, name) for name in leaves], tuple(getattr(value, name) for name in static)

        def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            children, context = flatten(value)
            return [(torch_pytree.GetAttrKey(name), child) for name, child in zip(leaves, children, strict=True)], context

        def unflatten(children: Any, context: tuple[Any, ...]) -> Any:
            return made(**dict(zip(leaves, children, strict=True)), **dict(zip(static, context, strict=True)))

        torch_pytree.register_pytree_node(made, flatten, unflatten, flatten_with_keys_fn=flatten_with_keys)
        return made

    return register


@contextmanager
def checking() -> Iterator[None]:
    """Enforces donation inside the block: a donated value that is used again raises.

    Each donating call works on a copy and frees the storage of what it was given, so it costs memory traffic; results are the same.

    >>> @donates("pool")
    ... def put(pool, value):
    ...     return pool.fill_(value)
    >>> with checking():
    ...     old = torch.zeros(2)
    ...     new = put(old, 7)
    ...     put(old, 8)
    Traceback (most recent call last):
    ...
    specdec_fn.pytree.DonatedError: put: argument 'pool' was given away by an earlier call; use the value that call returned
    """
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)


def enforced() -> bool:
    """Whether donation is enforced here: inside ``checking()``.

    >>> with checking():
    ...     enforced()
    True
    """
    return _checking.get()


def alive(value: Any, name: str) -> None:
    """Refuses a value whose tensors were given away, which may not even be read.

    Raises:
        DonatedError: a tensor of it has no storage any more.

    >>> alive((torch.zeros(2),), "pool")
    """
    if any(_freed(leaf) for leaf in torch_pytree.tree_leaves(value)):
        raise DonatedError(f"{name} was given away by an earlier call; use the value that call returned")


def donates(*names: str) -> Callable[[F], F]:
    """Marks a function that may reuse the storage of the named arguments; callers must use the returned value instead.

    The names are kept as ``function.donated``, which the purity test reads. Outside ``checking()`` a call costs nothing extra.

    Raises:
        ValueError: a name is not a parameter of the function.

    >>> donates("pool")(lambda pool: pool).donated
    ('pool',)
    """

    def mark(function: F) -> F:
        signature = inspect.signature(function)
        for name in names:
            if name not in signature.parameters:
                raise ValueError(f"{function.__name__} has no parameter {name!r}; its parameters are {list(signature.parameters)}")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _checking.get():
                return function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            given = {name: bound.arguments[name] for name in names if name in bound.arguments}
            old = [leaf for value in given.values() for leaf in torch_pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
            for name, value in given.items():
                alive(value, f"{function.__name__}: argument {name!r}")
                bound.arguments[name] = torch_pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value)
            result = function(*bound.args, **bound.kwargs)
            for leaf in old:
                leaf.untyped_storage().resize_(0)
            return result

        call.donated = names  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return mark


def _freed(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.numel() > 0 and leaf.untyped_storage().size() == 0
