"""Where keys and values live, and the attention that reads them there.

The names here are loaded on first use: ``pages``, ``table`` and ``prefix``, which only count, then need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_fn.kv import dense
    from specdec_fn.kv.dense import DenseCache

__all__ = ["DenseCache", "dense"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    dense = import_module(f"{__name__}.dense")
    return dense if name == "dense" else dense.DenseCache
