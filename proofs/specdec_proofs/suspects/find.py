"""From a name on the command line to a suspect: one of ours, one of another engine, or ``module:function``."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from specdec_fn.speculate import verifiers
from specdec_fn.speculate.tape import tape as shipped_tape
from specdec_proofs.suspects import flashinfer_chain, gpt_fast, sglang_chain, transformers_chain, vllm_chain
from specdec_proofs.suspects.suspect import Suspect, SuspectError, as_round

__all__ = ["Named", "find", "imported", "installed", "named"]


class Named(NamedTuple):
    """A suspect that is known by name: what it is, and how it is loaded (SuspectError says what is missing)."""

    name: str
    what: str
    load: Callable[[str | None], Suspect]
    package: str | None


def named() -> tuple[Named, ...]:
    """Samplers of other engines that have an adapter here.

    >>> [one.name for one in named()]
    ['transformers', 'gpt-fast', 'vllm', 'sglang', 'flashinfer']
    """
    rooms = (transformers_chain, gpt_fast, vllm_chain, sglang_chain, flashinfer_chain)
    return tuple(Named(room.NAME, room.WHAT, room.load, None if room is gpt_fast else room.MODULE.split(".")[0]) for room in rooms)


def installed(one: Named) -> str:
    """Whether a named suspect is there: its version, or what is missing; nothing is imported.

    >>> [installed(one) for one in named() if one.name == "gpt-fast"]
    ['needs --checkout FOLDER']
    """
    if one.package is None:
        return "needs --checkout FOLDER"
    if importlib.util.find_spec(one.package) is None:
        return "not installed"
    for distribution in (one.package, f"{one.package}-python"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "installed"


def find(name: str, checkout: str | None = None) -> Suspect:
    """The suspect of a name.

    Args:
        name: ``module:function``, a verifier of ``specdec_fn.speculate.verifiers``, or a name of ``named()``.
        checkout: a folder of the foreign project, for those that are not installed as packages.

    Raises:
        SuspectError: it is unknown, not installed, cannot be imported or has another signature.

    >>> find("token").origin
    'specdec_fn.speculate.verifiers'
    >>> find("tokn")
    Traceback (most recent call last):
    ...
    specdec_proofs.suspects.suspect.SuspectError: no suspect is called 'tokn'; expected module:function or one of ...
    """
    if ":" in name:
        return _callable(name, imported(name))
    for one in named():
        if one.name == name:
            return one.load(checkout)
    if name in verifiers.all:
        verifier = verifiers.all[name]
        return Suspect(
            name,
            "specdec_fn.speculate.verifiers",
            as_round(verifier.decide),
            decide=verifier.decide,
            tape=verifier.tape,
            boxes=name != "coupled",
            greedy=name == "greedy",
        )
    known = ", ".join([*(one.name for one in named()), *verifiers.all])
    raise SuspectError(f"no suspect is called {name!r}; expected module:function or one of {known}")


def imported(name: str) -> Any:
    """What ``module:attribute`` names; the module may lie in the working directory.

    Raises:
        SuspectError: the module or the attribute is not there, or importing it failed.

    >>> imported("math:sqrt")(4.0)
    2.0
    """
    place, _, attribute = name.partition(":")
    try:
        with _working_directory():
            module = importlib.import_module(place) if place else None
    except (Exception, SystemExit) as error:
        raise SuspectError(f"{place!r} cannot be imported: {type(error).__name__}: {' '.join(str(error).split())}") from error
    found = module
    for part in attribute.split("."):
        if found is None or not hasattr(found, part):
            raise SuspectError(f"{name!r} names nothing: {place!r} has no {attribute!r}; expected module:function")
        found = getattr(found, part)
    return found


def _callable(name: str, found: Any) -> Suspect:
    decide = getattr(found, "decide", None)
    if callable(decide):  # a Verifier is audited by its rule
        return Suspect(name, "module:verifier", as_round(decide), decide=decide, tape=getattr(found, "tape", shipped_tape))
    if not callable(found):
        raise SuspectError(f"{name} is {found!r:.60}; expected a callable")
    wanted = "(tape, target_probs, draft), or (target_probs, draft_probs, tokens)"
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError) as error:
        raise SuspectError(f"the signature of {name} cannot be read: {error}; expected {wanted}") from error
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [one for one in positional if one.default is one.empty]
    keywords = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    spread = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if len(needed) > 3 or keywords or (len(positional) < 3 and not spread):
        raise SuspectError(f"{name} takes ({', '.join(one.name for one in parameters)}); expected {wanted}")
    if positional and positional[0].name == "tape":
        return Suspect(name, "module:function, a verifier", as_round(found), decide=found)
    return Suspect(name, "module:function, a round", found)


@contextmanager
def _working_directory() -> Iterator[None]:
    here = str(Path.cwd())
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
