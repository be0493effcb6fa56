"""The residual law, which repairs a rejection."""

import torch

from specdec_fn.typing import Float, Tensor

__all__ = ["residual", "without"]


def residual(p: Float[Tensor, "vocab"], q: Float[Tensor, "vocab"]) -> Float[Tensor, "vocab"]:
    """The law of the token that replaces a rejected one: ``max(p - q, 0)``, normalised; ``p`` itself where that is 0 everywhere.

    A rejection has probability ``sum(max(q - p, 0)) = sum(max(p - q, 0))``, so a zero residual is met only through rounding; falling back
    on ``p`` then costs no more total variation than the rounding did. Computed in the dtype of the arguments.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).

    >>> residual(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25]))
    tensor([1., 0., 0.])
    """
    return _normalise(torch.clamp(p - q, min=0), p)


def without(p: Float[Tensor, "vocab"], token: Tensor) -> Float[Tensor, "vocab"]:
    """``residual(p, one-hot on token)``: p with one token removed, normalised; p itself where nothing is left.

    >>> without(torch.tensor([0.5, 0.25, 0.25]), torch.tensor(0))
    tensor([0.0000, 0.5000, 0.5000])
    """
    return _normalise(p.scatter(-1, token[..., None], 0), p)


def _normalise(weights: Tensor, fallback: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1), fallback)
