"""What a uniform was compared with, to the last bit: helpers of the verifiers' ``bounds``."""

from collections.abc import Callable

import torch

from specdec_fn.speculate import tree
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.verdict import Verdict
from specdec_fn.typing import Bool, Float, Tensor

__all__ = ["threshold", "tried", "where_judged"]


def threshold(passes: Callable[[Float[Tensor, "K"]], Bool[Tensor, "K"]], like: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
    """The least u on [0, 1] that does not pass; 1 where every u below 1 does.

    A rule such as ``u * q < p`` compares a product, which is rounded: ``p / q`` may differ from where it flips in the last bit, this does not. It is
    found by bisection over the representable numbers, whose order is that of their bits.

    Args:
        passes: the rule, elementwise: what passes goes on passing as u falls.
        like: float32 or float64 [K], for the shape and the dtype.

    >>> threshold(lambda u: u * 0.5 < torch.tensor([0.125, 0.75, 0.0]), torch.zeros(3))
    tensor([0.2500, 1.0000, 0.0000])
    """
    bits = torch.int64 if like.dtype == torch.float64 else torch.int32
    low, high = torch.zeros_like(like).view(bits), torch.ones_like(like).view(bits)
    for _ in range(int(high.max()).bit_length() if like.numel() else 0):
        middle = (low + high) // 2
        passed = passes(middle.view(like.dtype)) & (low < high)
        low, high = torch.where(passed, middle + 1, low), torch.where(passed, high, middle)
    return high.view(like.dtype)


def tried(draft: Draft, verdict: Verdict) -> Bool[Tensor, "K"]:
    """The nodes that a walk from the context down has looked at: those under the context or an accepted node, up to the accepted sibling.

    >>> four = Draft(torch.tensor([5, 6, 7, 8]), None, torch.tensor(4), torch.tensor([-1, -1, -1, 1]))
    >>> tried(four, Verdict(torch.tensor([6, 9, -1, -1, -1]), torch.tensor(1), torch.tensor(2), torch.tensor([1, -1, -1, -1])))
    tensor([ True,  True, False,  True])
    """
    parents, k = tree.parents_of(draft), draft.tokens.shape[0]
    lane = torch.arange(k, device=parents.device)
    kept = (lane[:, None] == verdict.path).any(-1)
    on_path = torch.nn.functional.pad(kept, (1, 0), value=True).index_select(0, parents.clamp(-1, k - 1) + 1)
    behind = ((parents[:, None] == parents) & kept & (lane < lane[:, None])).any(-1)  # an earlier sibling was accepted
    return (lane < draft.length) & on_path & ~behind


def where_judged(judged: Bool[Tensor, "K"], bounds: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
    """The bounds of the nodes that were judged, NaN for the others.

    >>> where_judged(torch.tensor([True, False]), torch.tensor([0.25, 0.5]))
    tensor([0.2500,    nan])
    """
    return torch.where(judged, bounds, torch.nan)
