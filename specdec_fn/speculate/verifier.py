"""The one signature of every verifier, and how a single-sequence ``decide`` is lifted over a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch.utils._pytree import tree_map

from specdec_fn.random import Key
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.rows import check_laws, traced
from specdec_fn.speculate.verdict import Verdict
from specdec_fn.typing import Float, Tensor

__all__ = ["Verifier", "batched", "check", "check_draft", "door"]


class Verifier(NamedTuple):
    """A rule that turns a draft into emitted tokens, with two doors: ``verify`` draws the randomness, ``decide`` is the rule itself.

    Attributes:
        name: its key in ``verifiers``.
        lossless: whether the emitted tokens follow the target's law exactly.
        law: one sentence: what law the emitted tokens follow.
        tape: ``tape(key, k, vocab_size, *, position=0, dtype=torch.float64)``, the randomness of a pass.
        decide: ``decide(tape, target_probs: [K + 1, V], draft) -> Verdict``, total, deterministic, vmappable.
        verify: ``verify(key, target_probs, draft, *, position=0) -> Verdict``, validates, draws the tape and decides; see ``door``.
        trees: whether it takes drafts that branch.
        bias: for a rule that is not lossless, ``bias(p: [V], q: [V]) -> [V]``: the exact law of the first token minus p, for a drafted token
            of law q. Half the sum of its absolute values is the total variation. None where there is none.
        bounds: ``bounds(tape, target_probs, draft, verdict) -> [K]``: what the uniform of each node was compared with in coming to this verdict, so
            that u < bound accepts; NaN where the node was not judged. None for a rule that has no such numbers; ``explain`` reads it.
    """

    name: str
    lossless: bool
    law: str
    tape: Callable[..., Any]
    decide: Callable[..., Verdict]
    verify: Callable[..., Verdict]
    trees: bool = False
    bias: Callable[[Tensor, Tensor], Tensor] | None = None
    bounds: Callable[..., Tensor] | None = None


def door(tape: Callable[..., Any], decide: Callable[..., Verdict], *, trees: bool = False) -> Callable[..., Verdict]:
    """Builds the ``verify`` of a rule: validate, draw the tape at the addresses of the pass, decide.

    Args:
        tape, decide: the rule's own, as in ``Verifier``.
        trees: whether drafts may branch.

    Returns:
        ``verify(key, target_probs, draft, *, position=0) -> Verdict``: the request's key; float64 or float32 [K + 1, V]; a draft of K nodes;
        the base of the pass, which is the number of tokens committed before it. It raises what ``check`` raises.

    >>> from specdec_fn.random import key
    >>> from specdec_fn.speculate import verifiers
    >>> draft = Draft(torch.tensor([1]), None, torch.tensor(1))
    >>> verifiers["token"].verify(key(0), torch.tensor([[0.0, 1.0], [1.0, 0.0]]), draft).tokens
    tensor([1, 0])
    """

    def verify(key: Key, target_probs: Float[Tensor, "rows vocab"], draft: Draft, *, position: int | Tensor = 0) -> Verdict:
        _check_address(key, position)
        check(target_probs, draft, chain=not trees)
        drawn = tape(key, draft.tokens.shape[0], target_probs.shape[1], position=position, dtype=target_probs.dtype)
        return decide(drawn, target_probs, draft)

    return verify


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


def check(target_probs: Tensor, draft: Draft, *, chain: bool = False) -> None:
    """Refuses what no verifier can work on; values are looked at only where Python may (not inside vmap or compiled code).

    Args:
        chain: refuse trees too, for the verifiers that know none.

    Raises:
        TypeError: no tensor, or no Draft.
        ValueError: shapes that do not fit, laws in half precision or in two dtypes, rows that are negative, NaN or do not sum to 1, and what
            ``check_draft`` refuses.

    >>> check(torch.eye(3), Draft(torch.tensor([1]), None, torch.tensor(1)))
    Traceback (most recent call last):
    ...
    ValueError: received target_probs [3, 3] and draft.tokens [1]; expected [K + 1, V] and [K]
    """
    if not isinstance(target_probs, Tensor) or not isinstance(draft, Draft) or not isinstance(draft.tokens, Tensor):
        raise TypeError(f"received {target_probs!r:.40} and {draft!r:.40}; expected a tensor of target laws [K + 1, V] and a Draft")
    k = draft.tokens.shape[-1] if draft.tokens.dim() else -1
    if draft.tokens.dim() != 1 or target_probs.dim() != 2 or target_probs.shape[0] != k + 1:
        shapes = f"target_probs {list(target_probs.shape)} and draft.tokens {list(draft.tokens.shape)}"
        raise ValueError(f"received {shapes}; expected [K + 1, V] and [K]")
    if target_probs.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"target_probs has dtype {target_probs.dtype}; expected float32 or float64, since a softmax in fewer bits is another law")
    if not target_probs.shape[1]:
        raise ValueError(f"target_probs has shape {list(target_probs.shape)}; expected a vocabulary of at least one token")
    check_draft(draft, target_probs.shape[1], chain=chain)
    if draft.probs is not None and draft.probs.dtype is not target_probs.dtype:
        raise ValueError(f"draft.probs has dtype {draft.probs.dtype} and target_probs {target_probs.dtype}; expected one dtype")
    if not traced(target_probs, *draft):
        check_laws("target_probs", target_probs[: int(draft.length) + 1])


def check_draft(draft: Draft, vocab_size: int, *, chain: bool = False) -> None:
    """Refuses a draft that no verifier can work on; of its values, those that Python may look at (not inside vmap or compiled code).

    Args:
        chain: refuse trees too.

    Raises:
        TypeError: not a Draft, or one whose fields are no tensors, or ids that are no integers, or laws that are no floats.
        ValueError: shapes that do not fit, ids outside the vocabulary, a length outside [0, K], a parent that comes after its child (or, for
            a chain, that is not the node before), laws that are negative, NaN or do not sum to 1, or that cannot have given their token.

    >>> check_draft(Draft(torch.tensor([1, 7]), None, torch.tensor(2)), 5)
    Traceback (most recent call last):
    ...
    ValueError: draft.tokens[1] is 7; expected an id in [0, 5)
    """
    if not isinstance(draft, Draft):
        raise TypeError(f"the draft is {draft!r:.80}; expected a Draft")
    for name, value in draft._asdict().items():
        if not isinstance(value, Tensor) and (value is not None or name in ("tokens", "length")):
            raise TypeError(f"draft.{name} is {value!r:.80}; expected a tensor")
        if name != "probs" and value is not None and (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool):
            raise TypeError(f"draft.{name} has dtype {value.dtype}; expected integers")
        if name in ("tokens", "parents") and value is not None and value.dtype is not torch.int64:
            raise TypeError(f"draft.{name} has dtype {value.dtype}; expected int64")
    if draft.tokens.dim() != 1 or draft.length.dim() != 0:
        raise ValueError(f"draft.tokens has shape {list(draft.tokens.shape)} and draft.length {list(draft.length.shape)}; expected [K] and []")
    k = draft.tokens.shape[0]
    if draft.probs is not None and draft.probs.shape != (k, vocab_size):
        raise ValueError(f"draft.probs has shape {list(draft.probs.shape)}; expected {[k, vocab_size]} or None")
    if draft.probs is not None and not draft.probs.is_floating_point():
        raise TypeError(f"draft.probs has dtype {draft.probs.dtype}; expected a floating-point dtype")
    if draft.parents is not None and draft.parents.shape != (k,):
        raise ValueError(f"draft.parents has shape {list(draft.parents.shape)}; expected {[k]} or None")
    if traced(*draft):
        return
    length = int(draft.length)
    if not 0 <= length <= k:
        raise ValueError(f"draft.length is {length}; expected 0 to {k}, the number of drafted tokens")
    ids = draft.tokens[:length].tolist()
    for lane, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise ValueError(f"draft.tokens[{lane}] is {token}; expected an id in [0, {vocab_size})")
    for lane, parent in enumerate([] if draft.parents is None else draft.parents[:length].tolist()):
        if not -1 <= parent < lane:
            raise ValueError(f"draft.parents[{lane}] is {parent}; expected an earlier node, or -1 for the context")
        if chain and parent != lane - 1:
            raise ValueError(f"draft.parents[{lane}] is {parent}; expected {lane - 1}, a chain, since this verifier knows no trees")
    if draft.probs is not None:
        check_laws("draft.probs", draft.probs[:length])
        for lane, token in enumerate(ids):
            if draft.probs[lane, token] == 0:
                raise ValueError(f"draft.tokens[{lane}] is {token}, of probability 0 in draft.probs[{lane}]; expected the law that it was drawn from")


def _check_address(key: Key, position: int | Tensor) -> None:
    """Refuses anything but one key and one position; ``vmap`` lifts ``verify`` over more."""
    if not isinstance(key, Key) or key.shape:
        received = f"keys of shape {list(key.shape)}" if isinstance(key, Key) else f"{key!r:.40}"
        raise TypeError(f"the key is {received}; expected one key, the request's, such as key(seed)")
    if isinstance(position, Tensor):
        if position.dim() or position.is_floating_point() or position.dtype is torch.bool:
            raise TypeError(f"position is a tensor of {position.dtype} and shape {list(position.shape)}; expected one integer")
    elif isinstance(position, bool) or not isinstance(position, SupportsIndex):
        raise TypeError(f"position is {position!r:.40}; expected an integer, the number of tokens committed before the pass")
