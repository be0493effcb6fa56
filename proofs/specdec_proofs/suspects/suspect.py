"""One form for every sampler: a round takes target rows, draft rows and drafted tokens, draws for itself, and gives the ids it emits."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from specdec_fn.speculate import Draft, Tape
from specdec_fn.speculate.tape import tape as shipped_tape
from specdec_proofs.interception import MoreNumbersError, UnreachableError

__all__ = ["Round", "Suspect", "SuspectError", "as_round", "emitted"]

Round = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], Any]  # (p [K + 1, V], q [K, V] or None, tokens [K]) -> ids


class SuspectError(ValueError):
    """A suspect that cannot be audited: not there, not callable so, or not giving what a sampler gives."""


class Suspect(NamedTuple):
    """A sampler under audit.

    Attributes:
        name: what it is called in the report.
        origin: where it comes from, with its version where it has one.
        round: it as a round that draws from torch's global generator.
        decide: the verifier it is, where it is one of our signature, ``decide(tape, target_probs, draft) -> Verdict``.
        tape: ``tape(key, k, vocab_size, *, position, dtype)``, the randomness of ``decide``.
        boxes: whether the numbers of the tape are compared one at a time; a race is not.
        greedy: whether its law is the likeliest token, so that it is judged at temperature 0.
        mutants: name, and the same sampler with one fault put into its source text.
    """

    name: str
    origin: str
    round: Round
    decide: Callable[..., Any] | None = None
    tape: Callable[..., Any] = shipped_tape
    boxes: bool = True
    greedy: bool = False
    mutants: Callable[[], tuple["Suspect", ...]] | None = None


def as_round(decide: Callable[..., Any]) -> Round:
    """A verifier as a round: its tape of uniforms is drawn from torch's global generator.

    >>> from specdec_fn.speculate import verifiers
    >>> one = as_round(verifiers["token"].decide)
    >>> one(torch.eye(2), torch.tensor([[0.0, 1.0]]), torch.tensor([1])).tolist()  # q drafts 1, p wants 0
    [0]
    """

    def rounds(p: torch.Tensor, q: torch.Tensor | None, tokens: torch.Tensor) -> Any:
        k = len(tokens)
        tape = Tape(torch.rand(k, dtype=p.dtype), torch.rand((), dtype=p.dtype))
        return of_verdict(decide(tape, p, Draft(tokens, q, torch.tensor(k))), k)

    return rounds


def of_verdict(verdict: Any, k: int) -> torch.Tensor:
    """The emitted ids of a verdict; SuspectError where it is not of the form of one.

    >>> from specdec_fn.speculate.draft import chain
    >>> from specdec_fn.speculate.verdict import of_chain
    >>> of_verdict(of_chain(chain([5, 7], 2), torch.tensor(1), torch.tensor(4)), 2)
    tensor([5, 4])
    """
    try:
        tokens, accepted, count = verdict.tokens, int(verdict.accepted), int(verdict.emitted)
        shape = list(tokens.shape)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise SuspectError(f"returned {verdict!r:.80}; expected a Verdict(tokens, accepted, emitted, path)") from None
    if shape != [k + 1]:
        raise SuspectError(f"returned a verdict with tokens of shape {shape}; expected {[k + 1]}")
    if not 0 <= accepted <= k or count != accepted + 1:
        raise SuspectError(f"returned a verdict with {accepted} accepted and {count} emitted; expected 0 to {k}, and one more")
    if bool((tokens[count:] != -1).any()):
        raise SuspectError(f"returned a verdict with tokens {tokens.tolist()} of which {count} are emitted; expected -1 after them")
    return tokens[:count]


def emitted(suspect: Suspect, p: torch.Tensor, q: torch.Tensor | None, tokens: torch.Tensor) -> tuple[int, ...]:
    """Runs one round and checks what it gives.

    Raises:
        SuspectError: the round raised, or gave no token, more than K + 1, ids outside the vocabulary, or no ids at all.

    >>> bad = Suspect("bad", "here", lambda p, q, tokens: [9])
    >>> emitted(bad, torch.eye(2), torch.eye(2)[:1], torch.tensor([0]))
    Traceback (most recent call last):
    ...
    specdec_proofs.suspects.suspect.SuspectError: bad emitted id 9; expected ids in [0, 2)
    """
    try:
        given = suspect.round(p, q, tokens)
    except SuspectError as error:
        raise SuspectError(f"{suspect.name} {error}") from error
    except (MoreNumbersError, UnreachableError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise SuspectError(f"{suspect.name} raised {type(error).__name__}: {said:.160} (drafted tokens {tokens.tolist()})") from error
    ids = _ids(suspect.name, given)
    if not 1 <= len(ids) <= len(tokens) + 1:
        raise SuspectError(f"{suspect.name} emitted {len(ids)} tokens, {list(ids)}; expected 1 to {len(tokens) + 1}, one more than were drafted")
    for token in ids:
        if not 0 <= token < p.shape[1]:
            raise SuspectError(f"{suspect.name} emitted id {token}; expected ids in [0, {p.shape[1]})" + (", without padding" if token == -1 else ""))
    return ids


def _ids(name: str, given: Any) -> tuple[int, ...]:
    listed = given.flatten().tolist() if isinstance(given, torch.Tensor) else given
    if hasattr(listed, "tolist"):
        listed = listed.tolist()
    if not isinstance(listed, Sequence) or isinstance(listed, (str, bytes)):
        raise SuspectError(f"{name} returned {given!r:.80}; expected the emitted ids, a list or a tensor of integers")
    ids = [int(one) if isinstance(one, torch.Tensor) and one.numel() == 1 and not one.is_floating_point() else one for one in listed]
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, int):
            raise SuspectError(f"{name} returned {given!r:.80}; expected the emitted ids, a list or a tensor of integers")
    return tuple(ids)
