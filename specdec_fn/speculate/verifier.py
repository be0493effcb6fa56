"""The one signature of every verifier, and how a single-sequence ``decide`` is lifted over a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.verdict import Verdict
from specdec_fn.typing import Float, Tensor

__all__ = ["Verifier", "batched", "check"]


class Verifier(NamedTuple):
    """A rule that turns a draft into emitted tokens, with two doors: ``verify`` draws the randomness, ``decide`` is the rule itself.

    Attributes:
        name: its key in ``verifiers``.
        lossless: whether the emitted tokens follow the target's law exactly.
        law: one sentence: what law the emitted tokens follow.
        tape: ``tape(key, k, vocab_size, *, position=0, dtype=torch.float64)``, the randomness of a pass.
        decide: ``decide(tape, target_probs: [K + 1, V], draft) -> Verdict``, total, deterministic, vmappable.
        verify: ``verify(key, target_probs, draft, *, position=0) -> Verdict``, validates, draws the tape and decides.
    """

    name: str
    lossless: bool
    law: str
    tape: Callable[..., Any]
    decide: Callable[..., Verdict]
    verify: Callable[..., Verdict]


def batched(decide: Callable[..., Verdict]) -> Callable[..., Verdict]:
    """Lifts a single-sequence ``decide`` over a leading batch axis of every tensor; fields that are None stay None.

    >>> from specdec_fn.speculate import Draft, Tape, verifiers
    >>> laws = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
    >>> draft = Draft(torch.tensor([[0], [0]]), None, torch.tensor([1, 1]))
    >>> batched(verifiers["token"].decide)(Tape(torch.zeros(2, 1), torch.zeros(2)), laws, draft).tokens
    tensor([[ 0,  1],
            [ 1, -1]])
    """

    def lifted(tape: Any, target_probs: Float[Tensor, "batch rows vocab"], draft: Draft) -> Verdict:
        axes = tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, (tape, target_probs, draft))
        return torch.func.vmap(decide, in_dims=axes)(tape, target_probs, draft)

    return lifted


def check(target_probs: Tensor, draft: Draft) -> None:
    """Refuses what no verifier can work on; values are looked at only where Python may (not inside vmap or compiled code).

    Raises:
        ValueError: shapes that do not fit, ids outside the vocabulary, a length outside [0, K], a parent that comes after its child, rows
            that are negative, NaN or do not sum to 1.

    >>> check(torch.eye(3), Draft(torch.tensor([1]), None, torch.tensor(1)))
    Traceback (most recent call last):
    ...
    ValueError: received target_probs [3, 3] and draft.tokens [1]; expected [K + 1, V] and [K]
    """
    k = draft.tokens.shape[-1] if draft.tokens.dim() else -1
    if draft.tokens.dim() != 1 or target_probs.dim() != 2 or target_probs.shape[0] != k + 1:
        shapes = f"target_probs {list(target_probs.shape)} and draft.tokens {list(draft.tokens.shape)}"
        raise ValueError(f"received {shapes}; expected [K + 1, V] and [K]")
    if not target_probs.is_floating_point():
        raise ValueError(f"target_probs has dtype {target_probs.dtype}; expected a floating-point dtype")
    vocab = target_probs.shape[1]
    if draft.probs is not None and draft.probs.shape != (k, vocab):
        raise ValueError(f"draft.probs has shape {list(draft.probs.shape)}; expected {[k, vocab]} or None")
    if torch.compiler.is_compiling() or any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in (target_probs, *draft) if t is not None):
        return
    length = int(draft.length)
    if not 0 <= length <= k:
        raise ValueError(f"draft.length is {length}; expected 0 to {k}, the number of drafted tokens")
    ids = draft.tokens[:length].tolist()
    for lane, token in enumerate(ids):
        if not 0 <= token < vocab:
            raise ValueError(f"draft.tokens[{lane}] is {token}; expected an id in [0, {vocab})")
    for lane, parent in enumerate([] if draft.parents is None else draft.parents[:length].tolist()):
        if not -1 <= parent < lane:
            raise ValueError(f"draft.parents[{lane}] is {parent}; expected an earlier node, or -1 for the context")
    _check_rows("target_probs", target_probs[: length + 1])
    if draft.probs is not None:
        _check_rows("draft.probs", draft.probs[:length])


def _check_rows(name: str, rows: Tensor) -> None:
    tolerance = 1e-6 if rows.dtype is torch.float64 else 1e-5 if rows.dtype is torch.float32 else 1e-2
    totals = rows.sum(-1, dtype=torch.float64)
    wrong = ~((rows >= 0).all(-1) & ((totals - 1).abs() <= tolerance))
    if wrong.any():
        row = int(wrong.int().argmax())
        least = float(rows[row].min())
        raise ValueError(f"{name}[{row}] sums to {float(totals[row])} with least entry {least}; expected a law: entries of 0 or more that sum to 1")
