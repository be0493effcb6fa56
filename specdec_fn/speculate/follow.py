"""Keeping what the target chose anyway: the rule of verifiers whose token at every row is fixed before the draft is looked at."""

import torch

from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.verdict import Verdict, of_chain, of_path
from specdec_fn.typing import Int, Tensor

__all__ = ["follow"]


def follow(choices: Int[Tensor, "rows"], draft: Draft) -> Verdict:
    """Emits the chosen tokens from the context down, for as long as the draft holds them, and the first that it does not hold.

    Args:
        choices: int64 [K + 1], what is emitted after the context (row 0) and after each node (row i + 1); -1 is no token and ends the pass.
        draft: a chain or a tree of K nodes; its laws are not read. Where siblings hold one token, the first is kept.

    >>> tree = Draft(torch.tensor([5, 6, 7]), None, torch.tensor(3), torch.tensor([-1, -1, 1]))
    >>> follow(torch.tensor([6, 0, 7, 4]), tree).tokens
    tensor([ 6,  7,  4, -1])
    """
    k = draft.tokens.shape[0]
    drafted = torch.arange(k, device=draft.tokens.device) < draft.length
    if draft.parents is None:
        accepted = (drafted & (draft.tokens == choices[:k]) & (choices[:k] >= 0)).cumprod(0).sum()
        return of_chain(draft, accepted, choices.index_select(0, accepted[None]).squeeze(0))
    node, final, kept = torch.full_like(draft.length, -1), choices[0], []
    for i in range(k):
        kept.append(drafted[i] & (draft.parents[i] == node) & (draft.tokens[i] == final) & (final >= 0))
        node, final = torch.where(kept[i], i, node), torch.where(kept[i], choices[i + 1], final)
    return of_path(draft, torch.stack(kept), final) if kept else of_chain(draft, draft.length, final)
