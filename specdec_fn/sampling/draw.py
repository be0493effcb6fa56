"""Drawing a token: the inverse of the cumulative distribution."""

import torch

from specdec_fn.typing import Float, Int, Tensor

__all__ = ["draw"]


def draw(u: Float[Tensor, ""], probs: Float[Tensor, "vocab"]) -> Int[Tensor, ""]:
    """Draws the token at height ``u`` of the cumulative distribution: the first index whose cumulative sum exceeds ``u`` times the last one.

    ``probs`` need not sum to 1: weights, such as an unnormalised residual, are drawn in proportion. A token of probability 0 is never drawn,
    whatever ``u`` in [0, 1]; ``u`` = 1, which no uniform should be, draws the last token that has mass. The result grows with ``u``.
    Computes in the dtype of its arguments; with n-bit uniforms each token's probability is then right to ``2**-n`` plus the rounding of the
    sums, so hand it float64 where the vocabulary is large.

    Args:
        u: a uniform number in [0, 1), dtype of ``probs``.
        probs: nonnegative weights.

    Returns:
        int64; -1, no token, if the weights sum to 0 or to nothing finite.

    Raises:
        TypeError: arguments that are not floating tensors of one dtype.
        ValueError: shapes other than ``[]`` and ``[vocab]``; lift it with ``torch.func.vmap`` for more.

    >>> draw(torch.tensor(0.5), torch.tensor([0.2, 0.0, 0.6]))
    tensor(2)
    >>> draw(torch.tensor(0.5), torch.zeros(3))
    tensor(-1)
    """
    if not (isinstance(u, torch.Tensor) and isinstance(probs, torch.Tensor) and probs.is_floating_point() and u.dtype == probs.dtype):
        kinds = [str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__ for value in (u, probs)]
        raise TypeError(f"draw takes u and probs as floating tensors of one dtype, received {kinds[0]} and {kinds[1]}")
    if u.dim() != 0 or probs.dim() != 1 or probs.shape[0] == 0:
        raise ValueError(f"draw takes u of shape [] and probs of shape [vocab], received {list(u.shape)} and {list(probs.shape)}")
    sums = probs.cumsum(0)
    total = sums[-1]
    # Just under the total at most: the sum then exceeds it first at a token that has mass, even if u * total rounds up to the total.
    height = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    token = torch.searchsorted(sums, height, right=True)
    return torch.where((total > 0) & torch.isfinite(total), token, -1)
