"""What a proposer hands over: the drafted tokens, the law they were drawn from, and how they hang together."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_fn.typing import Float, Int, Tensor

__all__ = ["Draft", "chain", "first"]


class Draft(NamedTuple):
    """K drafted tokens of one sequence; nodes at or past ``length`` are padding, whatever they hold.

    Attributes:
        tokens: int64 [K], the drafted ids.
        probs: float [K, V] or None. Row i is the law that token i was drawn from, after all of the drafter's own processors, at node i's
            parent before any sibling was removed. None declares the one-hot law on the token itself, which is lossless for any proposer
            whose randomness is independent of the verifier's.
        length: int64 scalar in [0, K].
        parents: int64 [K] or None. Node i hangs under node ``parents[i] < i``, or under the context where it is -1; siblings stand in the
            order they were drawn. None means a chain.

    >>> Draft(torch.tensor([5, 7, -1]), None, torch.tensor(2)).length
    tensor(2)
    """

    tokens: Int[Tensor, "K"]
    probs: Float[Tensor, "K vocab"] | None
    length: Int[Tensor, ""]
    parents: Int[Tensor, "K"] | None = None


def chain(ids: Sequence[int], k: int, probs: Float[Tensor, "drafted vocab"] | None = None) -> Draft:
    """Makes a chain of ``ids``, padded with -1 to ``k`` nodes; ids beyond ``k`` are dropped.

    Args:
        probs: the laws the ids were drawn from, one row each, or None for one-hot.

    >>> chain([5, 7], 3).tokens
    tensor([ 5,  7, -1])
    """
    kept = list(ids[:k])
    tokens = torch.tensor(kept + [-1] * (k - len(kept)), dtype=torch.int64)
    if probs is not None:
        assert probs.shape[0] == len(ids), "one law for each drafted id"
        probs = torch.cat([probs[:k], probs.new_zeros(k - len(kept), probs.shape[1])])
    return Draft(tokens, probs, torch.tensor(len(kept)))


def first(draft: Draft, count: int) -> Draft:
    """The first ``count`` nodes of a draft and nothing of the padding after them, so that a pass has exactly ``count + 1`` rows.

    Stopping a draft early by a rule that looks only at the tokens already drafted is lossless.

    >>> first(chain([5, 7, 9], 5), 2).tokens
    tensor([5, 7])
    """
    probs = None if draft.probs is None else draft.probs[:count].clone()
    parents = None if draft.parents is None else draft.parents[:count].clone()
    return Draft(draft.tokens[:count].clone(), probs, draft.length.clamp(max=count), parents)
