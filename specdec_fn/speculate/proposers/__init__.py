"""The proposers, one room each, and the names of those that need no argument.

``draft_model`` is loaded on first use, since it alone brings in models and caches.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from specdec_fn.speculate.proposer import Proposer
from specdec_fn.speculate.proposers import ngram, ngram_tree, paying, scripted

if TYPE_CHECKING:
    from specdec_fn.speculate.proposers import draft_model

__all__ = ["draft_model", "named", "names", "ngram", "ngram_tree", "paying", "scripted"]

_FACTORIES: Mapping[str, Callable[[], Proposer]] = MappingProxyType(
    {"ngram": lambda: paying.proposer(ngram.proposer()), "ngram_tree": ngram_tree.proposer}
)
names: tuple[str, ...] = tuple(_FACTORIES)


def __getattr__(name: str) -> Any:
    if name != "draft_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def named(proposer: Proposer | str) -> Proposer:
    """The proposer of a name, or the proposer itself.

    By name a proposer comes with ``paying``: it rests where its drafts do not pay. ``ngram.proposer()`` itself always drafts.

    Raises:
        ValueError: an unknown name, or something that is neither a name nor a Proposer.

    >>> named("ngram").name
    'ngram'
    """
    if isinstance(proposer, Proposer):
        return proposer
    if isinstance(proposer, str) and proposer in _FACTORIES:
        return _FACTORIES[proposer]()
    raise ValueError(f"proposer is {proposer!r}; expected a Proposer or one of the names {', '.join(names)}")
