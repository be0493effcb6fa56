"""Where to look in a large vocabulary: a few ids that are sure to hold every token that a truncation can keep.

Truncation is defined, and tested, as sorting a whole row. At 49,152 tokens a float64 sort costs about 8 ms a row, many times the rest of the
sampler, for the sake of the few tokens on top. The two functions here find, in a few sweeps, a superset of what the sort would keep; the
definition then runs on that superset and gives the same set. The number of ids depends on the data, which ``vmap`` cannot express, so they
are operators with batching rules of their own. Nothing differentiable passes through them: they return ids.
"""

from typing import Any

import torch

from specdec_fn.typing import Float, Int, Tensor

__all__ = ["at_least_kth", "shortest_prefix"]

BLOCK = 64


def at_least_kth(scores: Float[Tensor, "*rows vocab"], k: int) -> Int[Tensor, "*rows n"]:
    """Finds the ids, ascending, of all tokens that score at least as much as the k-th best, and of some more.

    The k-th largest of the maxima of blocks bounds the k-th largest score from below, since k blocks reach it, and only the blocks that reach
    it need a closer look.

    Args:
        scores: float32 or float64; tokens of -inf are left out.
        k: from 1 to vocab.

    Returns:
        int64, padded with -1; n is the longest list among the rows, at least 1. A row with a NaN gives a list without meaning.

    >>> at_least_kth(torch.tensor([0.0, 3.0, 2.0, 2.0]), 2)
    tensor([1, 2, 3])
    """
    ids: Tensor = _at_least_kth(scores, k)
    return ids


def shortest_prefix(
    order: Float[Tensor, "*rows vocab"], mass: Float[Tensor, "*rows vocab"], goal: float, *, descending: bool
) -> Int[Tensor, "*rows n"]:
    """Finds ids, ascending, that hold the shortest prefix of the tokens sorted by ``order`` whose mass reaches ``goal``, and some more.

    Sums the mass over buckets of equal leading bits of ``order`` (for numbers that are not negative, bits sort as values do; four buckets to
    an octave) and takes the buckets up to the one that reaches the goal.

    Args:
        order: float32 or float64, not negative, no NaN.
        mass: weights; tokens of mass 0 are left out.
        goal: the mass to reach, over 0; more than what the caller's own sum is to reach, by more than the rounding of float64 sums.
        descending: whether the largest in order come first.

    Returns:
        int64, padded with -1; n is the longest list among the rows, at least 1.

    >>> probs = torch.tensor([0.1, 0.5, 0.0, 0.4])
    >>> shortest_prefix(probs, probs, 0.7, descending=True)
    tensor([1, 3])
    """
    ids: Tensor = _shortest_prefix(order, mass, goal, descending)
    return ids


@torch.library.custom_op("specdec_fn::at_least_kth", mutates_args=())
def _at_least_kth(scores: torch.Tensor, k: int) -> torch.Tensor:
    vocab = scores.shape[-1]
    rows = scores.reshape(-1, vocab).contiguous()
    block = max(1, min(BLOCK, vocab // (4 * k)))  # so that there are at least k blocks, and most hold none of the k
    if vocab % block:
        rows = torch.nn.functional.pad(rows, (0, -vocab % block), value=-torch.inf)
    blocks = rows.view(rows.shape[0], -1, block)
    tops = blocks.amax(-1)
    bound = tops.topk(k).values[:, -1:]
    near = _places(tops >= bound)
    inside = blocks.gather(1, near.clamp(min=0)[:, :, None].expand(-1, -1, block))
    hit = (inside >= bound[:, :, None]) & (inside > -torch.inf) & (near >= 0)[:, :, None]
    ids = (near[:, :, None] * block + torch.arange(block, device=scores.device)).flatten(1)
    found = _places(hit.flatten(1))
    return torch.where(found >= 0, ids.gather(1, found.clamp(min=0)), -1).view(*scores.shape[:-1], -1)


@torch.library.custom_op("specdec_fn::shortest_prefix", mutates_args=())
def _shortest_prefix(order: torch.Tensor, mass: torch.Tensor, goal: float, descending: bool) -> torch.Tensor:
    integer, dropped, buckets = {torch.float64: (torch.int64, 50, 1 << 13), torch.float32: (torch.int32, 21, 1 << 10)}[order.dtype]
    rows = mass.reshape(-1, mass.shape[-1])
    bucket = (order.reshape(rows.shape).contiguous().view(integer) >> dropped).long()
    if descending:
        bucket = bucket.neg_().add_(buckets - 1)
    sums = torch.zeros(rows.shape[0], buckets, dtype=torch.float64, device=rows.device).scatter_add_(1, bucket, rows.double())
    last = (sums.cumsum(-1) < goal).sum(-1, keepdim=True)
    return _places((bucket <= last) & (rows > 0)).view(*order.shape[:-1], -1)


def _places(chosen: torch.Tensor) -> torch.Tensor:
    """The places of True in each row, ascending, padded with -1 to the longest row."""
    row, place = chosen.nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=chosen.shape[0])
    places = torch.full((chosen.shape[0], max(1, int(counts.max()))), -1, dtype=torch.int64, device=chosen.device)
    places[row, torch.arange(row.shape[0], device=chosen.device) - (counts.cumsum(0) - counts)[row]] = place
    return places


@_at_least_kth.register_vmap
def _(info: Any, in_dims: Any, scores: Tensor, k: int) -> tuple[Tensor, int]:
    return _at_least_kth(scores.movedim(in_dims[0], 0), k), 0


@_shortest_prefix.register_vmap
def _(info: Any, in_dims: Any, order: Tensor, mass: Tensor, goal: float, descending: bool) -> tuple[Tensor, int]:
    def batched(x: Tensor, dim: int | None) -> Tensor:
        return x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)

    return _shortest_prefix(batched(order, in_dims[0]), batched(mass, in_dims[1]), goal, descending), 0
