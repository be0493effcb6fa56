"""What a verifier hands back: the tokens that are emitted, and which drafted nodes they kept."""

from typing import NamedTuple

import torch

from specdec_fn.speculate.draft import Draft
from specdec_fn.typing import Bool, Int, Tensor

__all__ = ["Verdict", "of_chain", "of_path"]


class Verdict(NamedTuple):
    """The outcome of one pass over one sequence.

    Attributes:
        tokens: int64 [K + 1], the accepted tokens, then the recovered or bonus token, then -1. A final token of -1 among the first
            ``emitted`` says that the row which had to decide was no law at all (all zeros).
        accepted: int64 scalar, how many drafted tokens were kept.
        emitted: int64 scalar, ``accepted + 1``.
        path: int64 [K], the accepted nodes in order, then -1: the cache rows to keep.
    """

    tokens: Int[Tensor, "rows"]
    accepted: Int[Tensor, ""]
    emitted: Int[Tensor, ""]
    path: Int[Tensor, "K"]


def of_chain(draft: Draft, accepted: Int[Tensor, ""], final: Int[Tensor, ""]) -> Verdict:
    """The verdict that keeps the first ``accepted`` nodes of a chain and adds ``final``.

    >>> from specdec_fn.speculate.draft import chain
    >>> of_chain(chain([5, 7, 9], 3), torch.tensor(1), torch.tensor(4))
    Verdict(tokens=tensor([ 5,  4, -1, -1]), accepted=tensor(1), emitted=tensor(2), path=tensor([ 0, -1, -1]))
    """
    k = draft.tokens.shape[0]
    lane = torch.arange(k + 1, device=draft.tokens.device)
    drafted = torch.nn.functional.pad(draft.tokens, (0, 1), value=-1)
    tokens = torch.where(lane < accepted, drafted, torch.where(lane == accepted, final, -1))
    path = torch.where(lane[:k] < accepted, lane[:k], -1)
    return Verdict(tokens, accepted, accepted + 1, path)


def of_path(draft: Draft, kept: Bool[Tensor, "K"], final: Int[Tensor, ""]) -> Verdict:
    """The verdict that keeps the marked nodes of a tree, which must be one path from the context down, and adds ``final``.

    >>> tree = Draft(torch.tensor([5, 6, 7]), None, torch.tensor(3), torch.tensor([-1, -1, 1]))
    >>> of_path(tree, torch.tensor([False, True, True]), torch.tensor(4))
    Verdict(tokens=tensor([ 6,  7,  4, -1]), accepted=tensor(2), emitted=tensor(3), path=tensor([ 1,  2, -1]))
    """
    k = draft.tokens.shape[0]
    lane = torch.arange(k + 1, device=draft.tokens.device)
    accepted = kept.sum()
    place = torch.where(kept, kept.cumsum(0) - 1, k)  # a parent comes before its child, so the path is in order
    empty = torch.full_like(lane, -1)
    drafted = empty.scatter(0, place, draft.tokens)
    tokens = torch.where(lane < accepted, drafted, torch.where(lane == accepted, final, -1))
    path = torch.where(lane < accepted, empty.scatter(0, place, lane[:k]), -1)[:k]
    return Verdict(tokens, accepted, accepted + 1, path)
