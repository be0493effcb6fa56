"""A request's constraint along a draft: what it allows at every row of a pass."""

from typing import Any

import torch

from specdec_fn.engine.request import Constraint
from specdec_fn.speculate import Draft, tree
from specdec_fn.typing import Bool, Tensor

__all__ = ["advanced", "allowed"]


def allowed(constraint: Constraint, state: Any, draft: Draft, vocab_size: int) -> Bool[Tensor, "rows vocab"]:
    """The masks of a pass: row 0 after the committed tokens, row i + 1 after node i.

    Behind a node that the constraint forbids everything is allowed: no token can be emitted there, since the node cannot be accepted.

    Raises:
        ValueError: the constraint's mask is no Bool [V].

    >>> even_first = Constraint(0, lambda count: torch.tensor([count % 2 == 0, True]), lambda count, token: count + 1)
    >>> allowed(even_first, 0, Draft(torch.tensor([1]), None, torch.tensor(1)), 2)
    tensor([[ True,  True],
            [False,  True]])
    """
    states: list[tuple[Any] | None] = [(state,)]
    rows = [_mask(constraint, state, vocab_size)]
    for token, parent in zip(draft.tokens.tolist(), tree.parents_of(draft).tolist(), strict=True):
        before = states[parent + 1]
        after = (constraint.advance(before[0], token),) if before is not None and bool(rows[parent + 1][token]) else None
        states.append(after)
        rows.append(torch.ones(vocab_size, dtype=torch.bool) if after is None else _mask(constraint, after[0], vocab_size))
    return torch.stack(rows)


def advanced(constraint: Constraint, state: Any, tokens: list[int]) -> Any:
    """The constraint's state after some tokens.

    >>> advanced(Constraint(0, lambda count: None, lambda count, token: count + token), 0, [2, 3])
    5
    """
    for token in tokens:
        state = constraint.advance(state, token)
    return state


def _mask(constraint: Constraint, state: Any, vocab_size: int) -> Tensor:
    mask = constraint.mask(state)
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool or mask.shape != (vocab_size,):
        received = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else f"{mask!r:.80}"
        raise ValueError(f"the constraint's mask is {received}; expected bool [{vocab_size}]")
    return mask
