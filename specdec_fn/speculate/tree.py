"""The shape of a draft that branches: parents as a value, and what attention and positions follow from it.

Node i hangs under node ``parents[i] < i``, or under the context where that is -1; siblings stand in the order they were drawn. A row of the pass
that checks the tree is either the last committed token (row 0) or a node (row i + 1): it sees everything committed, its ancestors and itself,
and its position is that of the last committed token plus its depth. Source: Miao et al. 2023 (SpecInfer, arXiv 2305.09781).
"""

from collections.abc import Sequence

import torch

from specdec_fn.speculate.draft import Draft
from specdec_fn.typing import Bool, Int, Tensor

__all__ = ["ancestors", "depths", "mask", "merge", "parents_of", "positions"]


def parents_of(draft: Draft) -> Int[Tensor, "K"]:
    """The parents of a draft's nodes; those of a chain, where the draft names none.

    >>> parents_of(Draft(torch.tensor([5, 7, 9]), None, torch.tensor(3)))
    tensor([-1,  0,  1])
    """
    if draft.parents is not None:
        return draft.parents
    return torch.arange(draft.tokens.shape[0], device=draft.tokens.device) - 1


def ancestors(parents: Int[Tensor, "K"]) -> Bool[Tensor, "K K"]:
    """Whether node j is node i or stands above it, at [i, j]; vmappable.

    >>> ancestors(torch.tensor([-1, 0, 0])).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """
    k = parents.shape[0]
    own = torch.eye(k, dtype=torch.bool, device=parents.device)
    rows = torch.zeros(1, k, dtype=torch.bool, device=parents.device)  # row 0 is the context's, row i + 1 node i's
    for i in range(k):
        above = rows.index_select(0, parents[i, None].clamp(-1, i - 1) + 1)
        rows = torch.cat([rows, above | own[i]])
    return rows[1:]


def depths(parents: Int[Tensor, "K"]) -> Int[Tensor, "K"]:
    """How many nodes lie between the context and each node, itself included: 1 for those under the context.

    >>> depths(torch.tensor([-1, 0, 0, -1, 1]))
    tensor([1, 2, 2, 1, 3])
    """
    return ancestors(parents).sum(-1)


def mask(parents: Int[Tensor, "K"]) -> Bool[Tensor, "rows rows"]:
    """Which rows of a pass each row may see: True at [row, seen]; everything committed before the pass is seen by all.

    Returns:
        Bool [K + 1, K + 1]; row 0 is the last committed token, row i + 1 is node i.

    >>> mask(torch.tensor([-1, 0, -1])).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [1, 0, 0, 1]], dtype=torch.int32)
    """
    nodes = torch.nn.functional.pad(ancestors(parents), (1, 0, 1, 0))
    first = torch.arange(nodes.shape[0], device=parents.device) == 0
    return nodes | first


def positions(parents: Int[Tensor, "K"], base: int) -> Int[Tensor, "rows"]:
    """The position of each row of a pass over a tree; siblings share one.

    Args:
        base: tokens committed before the pass; the last of them has position ``base - 1``.

    >>> positions(torch.tensor([-1, 0, -1]), 10)
    tensor([ 9, 10, 11, 10])
    """
    return base - 1 + torch.nn.functional.pad(depths(parents), (1, 0))


def merge(chains: Sequence[Sequence[int]], k: int) -> Draft:
    """Merges candidate continuations into one tree of at most ``k`` nodes: what they begin with in common stands there once.

    Nodes are granted depth by depth, and at one depth in the order of the candidates, so that a small ``k`` keeps the beginnings of all.
    The draft is one-hot.

    Raises:
        ValueError: ``k`` is negative.

    >>> tree = merge([[5, 7], [5, 8], [6]], 4)
    >>> tree.tokens.tolist(), tree.parents.tolist()
    ([5, 6, 7, 8], [-1, -1, 0, 0])
    """
    if k < 0:
        raise ValueError(f"k is {k}; expected 0 or more nodes")
    nodes: dict[tuple[int, ...], int] = {}
    for depth in range(1, max(map(len, chains), default=0) + 1):
        for chain in chains:
            head = tuple(chain[:depth])
            if len(head) == depth and head not in nodes and len(nodes) < k:
                nodes[head] = len(nodes)
    tokens = [head[-1] for head in nodes] + [-1] * (k - len(nodes))
    parents = [nodes.get(head[:-1], -1) for head in nodes] + [-1] * (k - len(nodes))
    return Draft(torch.tensor(tokens, dtype=torch.int64), None, torch.tensor(len(nodes)), torch.tensor(parents, dtype=torch.int64))
