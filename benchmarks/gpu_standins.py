"""Stand-ins for two small packages, so that torch and triton are all that a machine needs.

What this script runs of ``specdec_fn`` names types of ``jaxtyping`` in annotations, and imports rooms that keep their state in ``rpds``; it calls
neither. Where they are installed they are used.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

__all__ = ["provide"]

NAMES = ("jaxtyping", "rpds")


class _Module(ModuleType):
    """A module that has every name, each a type that takes any arguments in brackets and cannot be made."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def made(*_: Any, **__: Any) -> Any:
            raise RuntimeError(f"{self.__name__}.{name} is a stand-in; install {self.__name__}")

        return type(name, (), {"__class_getitem__": classmethod(lambda cls, _: Any), "__new__": made})


def provide() -> None:
    """Puts a stand-in in the place of each package that is not installed."""
    for name in NAMES:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = _Module(name, "A stand-in.")
