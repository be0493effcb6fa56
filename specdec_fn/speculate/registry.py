"""Finding verifiers and proposers by name."""

import types
from collections.abc import Iterator, Mapping

from specdec_fn.speculate.verifier import Verifier

__all__ = ["Registry"]


class Registry(types.ModuleType, Mapping[str, Verifier]):
    """A package that is also the read-only mapping of the verifiers in it.

    ``specdec_fn.speculate.verifiers`` is the folder of rooms and, by contract, the mapping from a name to its verifier. Python lets a module
    take a class of its own, so both are the same object: ``verifiers["token"]`` and ``verifiers.token.decide``.
    """

    all: Mapping[str, Verifier]
    __eq__ = types.ModuleType.__eq__  # a module is itself and nothing else, and tools keep modules in sets
    __hash__ = types.ModuleType.__hash__

    def __getitem__(self, name: str) -> Verifier:
        try:
            return self.all[name]
        except KeyError:
            raise KeyError(f"no verifier is called {name!r}; the known ones are {', '.join(self.all)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)
