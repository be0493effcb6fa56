"""Mutants are edits of the source that ships, never re-implementations: change the text, run the text.

Each edit names a room and an exact piece of its source, which must occur there once; so an edit that no longer fits fails loudly instead of
testing nothing. The edited rooms are executed under names of their own, and where one imports a function of another, it gets the edited one.
The modules that ship are not touched.
"""

import importlib
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["Edit", "decide", "modules"]

ROOMS = {
    "token": "specdec_fn.speculate.verifiers.token",
    "recover": "specdec_fn.speculate.recover",
}


class Edit(NamedTuple):
    """Replaces ``old`` by ``new`` in the source of a room; ``old`` must occur exactly once."""

    room: str
    old: str
    new: str


def modules(edits: Sequence[Edit], final: str = "token") -> dict[str, types.ModuleType]:
    """Executes the edited source of each room that has edits, and of ``final``, which imports from the others.

    Raises:
        KeyError: an edit names a room that is not in ``ROOMS``.
        ValueError: the text to replace does not occur exactly once.

    >>> edited = modules([Edit("token", "tape.accept * q < p", "tape.accept < p")])
    >>> edited["token"].decide is importlib.import_module(ROOMS["token"]).decide
    False
    """
    rooms = [*dict.fromkeys(edit.room for edit in edits if edit.room != final), final]
    originals = {room: importlib.import_module(ROOMS[room]) for room in rooms}
    edited: dict[str, types.ModuleType] = {}
    for room in rooms:
        text = inspect.getsource(originals[room])
        for edit in edits:
            if edit.room == room:
                text = _replaced(text, edit)
        module = types.ModuleType(f"{ROOMS[room]}<edited>")
        exec(compile(text, f"<edited {ROOMS[room]}>", "exec"), module.__dict__)
        for name, value in list(vars(module).items()):
            for other, replacement in edited.items():
                if inspect.isfunction(value) and value is getattr(originals[other], name, None):
                    setattr(module, name, getattr(replacement, name))
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


def _replaced(text: str, edit: Edit) -> str:
    times = text.count(edit.old)
    if times != 1:
        raise ValueError(f"the text {edit.old!r} occurs {times} times in {ROOMS[edit.room]}; an edit must fit exactly once")
    return text.replace(edit.old, edit.new)
