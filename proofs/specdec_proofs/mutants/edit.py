"""Mutants are edits of the source that ships, never re-implementations: change the text, run the text.

Each edit names a room and an exact piece of its source, which must occur there once; so an edit that no longer fits fails loudly instead of
testing nothing. The edited rooms are executed under names of their own, and every room between an edited one and the verifier is executed
anew too, so that whoever imports a function of an edited room gets the edited one. The modules that ship are not touched.
"""

import importlib
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["Edit", "decide", "modules", "tape"]

ROOMS = types.MappingProxyType(
    {
        "draw": "specdec_fn.sampling.draw",
        **{name: f"specdec_fn.speculate.{name}" for name in ("follow", "race", "recover", "tape")},
        **{
            name: f"specdec_fn.speculate.verifiers.{name}"
            for name in ("token", "block", "coupled", "multi_draft", "k_seq", "tree", "traversal", "lossy")
        },
    }
)


class Edit(NamedTuple):
    """Replaces ``old`` by ``new`` in the source of a room; ``old`` must occur exactly once."""

    room: str
    old: str
    new: str


def modules(edits: Sequence[Edit], final: str = "token") -> dict[str, types.ModuleType]:
    """Executes the edited source of each room that has edits, of ``final``, and of the rooms through which ``final`` imports an edited one.

    Raises:
        KeyError: an edit names a room that is not in ``ROOMS``.
        ValueError: the text to replace does not occur exactly once.

    >>> edited = modules([Edit("token", "tape.accept * q < p", "tape.accept < p")])
    >>> edited["token"].decide is importlib.import_module(ROOMS["token"]).decide
    False
    """
    changed = {final, *(edit.room for edit in edits)}
    edited: dict[str, types.ModuleType] = {}
    for room, imports in _order([*dict.fromkeys(edit.room for edit in edits), final]).items():
        if room not in changed and not imports & edited.keys():
            continue
        original = importlib.import_module(ROOMS[room])
        text = inspect.getsource(original)
        for edit in edits:
            if edit.room == room:
                text = _replaced(text, edit)
        module = types.ModuleType(f"{ROOMS[room]}<edited>")
        exec(compile(text, f"<edited {ROOMS[room]}>", "exec"), module.__dict__)
        for name, value in list(vars(module).items()):
            for other in imports & edited.keys():
                if inspect.isfunction(value) and value.__module__ == ROOMS[other]:
                    setattr(module, name, getattr(edited[other], value.__name__))
        edited[room] = module
    return edited


def decide(edits: Sequence[Edit], final: str = "token") -> Callable[..., Any]:
    """The ``decide`` of the edited room ``final``; raises as ``modules`` does.

    >>> import torch
    >>> from specdec_fn.speculate import Draft, Tape
    >>> rule = decide([Edit("token", "tape.accept * q < p", "q <= p")])
    >>> p, q = torch.tensor([[0.4, 0.6], [0.5, 0.5]]), torch.tensor([[0.5, 0.5]])
    >>> rule(Tape(torch.zeros(1), torch.tensor(0.1)), p, Draft(torch.tensor([0]), q, torch.tensor(1))).accepted
    tensor(0)
    """
    return modules(edits, final)[final].decide


def tape(edits: Sequence[Edit], final: str = "token") -> Callable[..., Any]:
    """The function that draws the tape of the edited room ``final``; raises as ``modules`` does.

    >>> from specdec_fn.random import key
    >>> shifted = tape([Edit("tape", "address(key, FINAL, position), ()", "address(key, FINAL, position + 1), ()")])
    >>> own = importlib.import_module(ROOMS["tape"]).tape
    >>> bool(shifted(key(0), 2, 5, position=3).final == own(key(0), 2, 5, position=4).final)
    True
    """
    own: types.ModuleType = modules(edits, final)[final]
    drawn: Callable[..., Any] = own.verifier.tape
    return getattr(own, drawn.__name__, drawn)  # the edited one, where the verifier imports its tape


def _order(wanted: Sequence[str]) -> dict[str, set[str]]:
    """The rooms that the wanted ones import, and they themselves, each after those it imports, with what it imports."""
    names = {path: room for room, path in ROOMS.items()}
    found: dict[str, set[str]] = {}

    def visit(room: str) -> None:
        if room not in found:
            values = vars(importlib.import_module(ROOMS[room])).values()
            imports = {names[value.__module__] for value in values if inspect.isfunction(value) and value.__module__ in names} - {room}
            for other in sorted(imports):
                visit(other)
            found[room] = imports

    for room in wanted:
        visit(room)
    return found


def _replaced(text: str, edit: Edit) -> str:
    times = text.count(edit.old)
    if times != 1:
        raise ValueError(f"the text {edit.old!r} occurs {times} times in {ROOMS[edit.room]}; an edit must fit exactly once")
    return text.replace(edit.old, edit.new)
