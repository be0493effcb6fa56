"""How a loop attends: one ``attend`` value for chains, and one made for each pass over a tree."""

from collections.abc import Callable
from typing import NamedTuple

from specdec_fn.kv import branching, dense
from specdec_fn.models.model import Attend
from specdec_fn.speculate import Draft, tree
from specdec_fn.typing import Tensor

__all__ = ["CAUSAL", "INVARIANT", "Attention", "of_draft"]


class Attention(NamedTuple):
    """The two attentions of a loop.

    Attributes:
        chain: for rows each of which follows the one before.
        tree: from the mask of a pass, Bool [rows, rows], to its ``attend``.
    """

    chain: Attend
    tree: Callable[[Tensor], Attend]


CAUSAL = Attention(dense.attend, branching.attend)
INVARIANT = Attention(dense.attend_invariant, branching.attend_invariant)


def of_draft(attention: Attention, draft: Draft) -> Attend:
    """The attention of a pass over a draft.

    >>> import torch
    >>> of_draft(CAUSAL, Draft(torch.tensor([1]), None, torch.tensor(1))) is dense.attend
    True
    """
    return attention.chain if draft.parents is None else attention.tree(tree.mask(draft.parents))
