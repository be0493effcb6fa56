"""The rule of transformers' assisted generation, ``transformers.generation.utils._speculative_sampling``, and seven faults put into its text."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from specdec_proofs.suspects.suspect import Round, Suspect, SuspectError

__all__ = ["NAME", "WHAT", "adapt", "load", "mutant_sources"]

NAME = "transformers"
WHAT = "transformers.generation.utils._speculative_sampling"
MODULE, FUNCTION = "transformers.generation.utils", "_speculative_sampling"

# name of the fault, the text it replaces (which must occur once), the text it puts there
FAULTS = (
    ("ratio upside down", "probability_ratio = p_i / q_i", "probability_ratio = q_i / p_i"),
    ("accept with probability p", "r_i <= probability_ratio", "r_i <= p_i"),
    ("always accept", "r_i <= probability_ratio", "r_i <= 1"),
    ("goes on after a rejection", ".cumsum(dim=-1) < 1)", " < 1)"),
    ("residual abs(p - q), not clamped", "torch.clamp((p_n_plus_1 - q_n_plus_1), min=0)", "(p_n_plus_1 - q_n_plus_1).abs()"),
    ("recovered token drawn from p", "(p_n_plus_1 - q_n_plus_1)", "p_n_plus_1"),
    ("bonus from the row before", "else:\n        p_prime = p_n_plus_1", "else:\n        p_prime = p[:, n_matches - 1, :]"),
)


def load(checkout: str | None = None) -> Suspect:
    """The function that is installed; SuspectError where there is none.

    >>> load().name
    'transformers'
    """
    module, function = _installed()
    origin = f"transformers {importlib.import_module('transformers').__version__}, {FUNCTION}"
    return Suspect(NAME, origin, adapt(function), mutants=lambda: _mutants(module, function, origin))


def adapt(function: Callable[..., Any]) -> Round:
    """The function as a round: it takes logits with a batch axis and gives tokens and how many matched.

    >>> take = adapt(lambda candidate_input_ids, candidate_logits, candidate_length, new_logits: (candidate_input_ids[:, :1], 0))
    >>> take(torch.eye(2), torch.eye(2)[:1], torch.tensor([1]))
    tensor([[1]])
    """
    older = {"is_done_candidate": False} if "is_done_candidate" in inspect.signature(function).parameters else {}

    def rounds(p: torch.Tensor, q: torch.Tensor | None, tokens: torch.Tensor) -> Any:
        if q is None:
            raise SuspectError("needs the draft's laws; received none")
        return function(tokens[None], q.log()[None], len(tokens), p.log()[None], **older)[0]

    return rounds


def mutant_sources(text: str) -> tuple[tuple[str, str], ...]:
    """Seven texts of the function, each with one fault, by the fault's name.

    Raises:
        SuspectError: a piece of text to replace does not occur exactly once, as in another version of the function.

    >>> mutant_sources("def f(): pass")
    Traceback (most recent call last):
    ...
    specdec_proofs.suspects.suspect.SuspectError: the fault 'ratio upside down' does not fit ... its text occurs 0 times, expected once
    """
    made = []
    for name, old, new in FAULTS:
        if (times := text.count(old)) != 1:
            raise SuspectError(f"the fault {name!r} does not fit this version of {WHAT}: its text occurs {times} times, expected once")
        made.append((name, text.replace(old, new)))
    return tuple(made)


def _mutants(module: Any, function: Callable[..., Any], origin: str) -> tuple[Suspect, ...]:
    suspects = []
    for name, text in mutant_sources(inspect.getsource(function)):
        names = dict(vars(module))  # a copy: what is installed stays as it is
        exec(compile(text, f"<{WHAT}, {name}>", "exec"), names)
        suspects.append(Suspect(name, f"{origin}, edited", adapt(names[FUNCTION])))
    return tuple(suspects)


def _installed() -> tuple[Any, Callable[..., Any]]:
    try:
        module = importlib.import_module(MODULE)
    except ImportError as error:
        raise SuspectError(f"transformers is not installed ({error}); expected the package transformers, 4.42 or newer") from error
    function = getattr(module, FUNCTION, None)
    if function is None:
        raise SuspectError(f"the transformers that is installed has no {WHAT}; expected version 4.42 or newer")
    return module, function
