"""Values as JSON, with tensors kept aside: numbers, texts, bytes, collections, persistent maps, and the named tuples and states of this package.

Nothing is ever run to read a value: a class is looked up by name among the rooms of this package, and only named tuples and dataclasses are made.
"""

import base64
import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from rpds import HashTrieMap, List, Queue

from specdec_fn.typing import Tensor

__all__ = ["decoded", "encoded"]

PACKAGE = "specdec_fn"
PLAIN = (("tuple", tuple), ("list", list), ("set", frozenset), ("chain", List), ("queue", Queue))


def encoded(value: Any, tensors: Sequence[Tensor] = ()) -> tuple[Any, tuple[Tensor, ...]]:
    """A JSON value that ``decoded`` turns back into an equal one, and the tensors that it names by their places. Equal values give equal ones.

    Args:
        value: anything made of the kinds above.
        tensors: of values encoded before; they keep their places.

    Returns:
        The JSON value, and the tensors with those of the value behind them.

    Raises:
        TypeError: something else, such as a function.

    >>> import torch
    >>> encoded((1, b"a", float("inf"), torch.eye(1)))
    ({'tuple': [1, {'bytes': 'YQ=='}, {'float': 'inf'}, {'tensor': 0}]}, (tensor([[1.]]),))
    """
    found = list(tensors)
    return _encoded(value, found), tuple(found)


def _encoded(value: Any, tensors: list[Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, HashTrieMap | Mapping):
        kind = "map" if isinstance(value, HashTrieMap) else "dict"
        pairs = sorted(value.items(), key=_by_key) if kind == "map" else value.items()  # a persistent map has an order of chance
        return {kind: [[_encoded(key, tensors), _encoded(item, tensors)] for key, item in pairs]}
    if hasattr(value, "_fields") or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return _named(value, tensors)
    for kind, collection in PLAIN:
        if type(value) is collection:
            return {kind: [_encoded(item, tensors) for item in (sorted(value, key=repr) if collection is frozenset else value)]}
    raise TypeError(f"a {type(value).__name__} ({value!r:.60}) cannot be written down")


def decoded(value: Any, tensors: Sequence[Tensor]) -> Any:
    """The value that ``encoded`` was given.

    Args:
        value: JSON.
        tensors: those that it names.

    Raises:
        ValueError: no such JSON, or a class that this package does not have.

    >>> decoded({"tuple": [1, {"bytes": "YQ=="}, {"float": "inf"}]}, [])
    (1, b'a', inf)
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError(f"{value!r:.60} is no encoded value")
    ((kind, inside),) = value.items()
    if kind == "float":
        return float(inside)
    if kind == "bytes":
        return base64.b64decode(inside)
    if kind == "tensor":
        return tensors[inside]
    if kind in ("map", "dict"):
        pairs = {decoded(key, tensors): decoded(item, tensors) for key, item in inside}
        return HashTrieMap(pairs) if kind == "map" else pairs
    for name, collection in PLAIN:
        if kind == name:
            return collection([decoded(item, tensors) for item in inside])
    return _class(kind)(**{name: decoded(item, tensors) for name, item in inside.items()})


def _by_key(pair: tuple[Any, Any]) -> str:
    return repr(pair[0])


def _named(value: Any, tensors: list[Tensor]) -> Any:
    made = type(value)
    if made.__module__.split(".")[0] != PACKAGE or "<" in made.__qualname__:
        raise TypeError(f"a {made.__module__}.{made.__qualname__} cannot be written down; expected named tuples of {PACKAGE} or plain tuples")
    names = value._fields if hasattr(value, "_fields") else [field.name for field in dataclasses.fields(value)]
    return {f"{made.__module__}:{made.__qualname__}": {name: _encoded(getattr(value, name), tensors) for name in names}}


def _class(name: str) -> Any:
    module, _, qualname = name.partition(":")
    if module.split(".")[0] != PACKAGE:
        raise ValueError(f"{name!r} is no class of {PACKAGE}")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or not (hasattr(found, "_fields") or dataclasses.is_dataclass(found)):
        raise ValueError(f"{name!r} is neither a named tuple nor a state")
    return found
