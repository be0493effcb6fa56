"""What a check says of two results: the error, what is allowed, and whether it passed."""

from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["STEP", "Outcome", "close", "equal", "normal", "short"]

# One unit in the last place of a number just above 1, half of which is what rounding once costs.
STEP = MappingProxyType({torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7})
NAN = float("nan")


class Outcome(NamedTuple):
    """One check: the largest error, what was allowed there, and whether every number was within what it was allowed."""

    name: str
    error: float
    allowed: float
    passed: bool


def close(name: str, got: Tensor, want: Tensor, allowed: Tensor) -> Outcome:
    """Compares with a tolerance for every number; NaN is never close."""
    got, want, allowed = (tensor.double().flatten() for tensor in (got, want, allowed.expand_as(want)))
    if got.shape != want.shape or not got.numel():
        return Outcome(name, NAN, NAN, got.shape == want.shape)
    error = (got - want).abs()
    share = torch.where(error.isnan(), torch.inf, torch.where(error == 0, 0.0, error / allowed))  # where nothing is allowed, none is the whole
    worst = share.argmax()
    return Outcome(name, error[worst].item(), allowed[worst].item(), bool(share[worst] <= 1))


def equal(name: str, got: Tensor, want: Tensor) -> Outcome:
    """Compares bit for bit, where NaN equals NaN."""
    same = torch.equal(got.nan_to_num(), want.nan_to_num()) and torch.equal(got.isnan(), want.isnan())
    return Outcome(name, 0.0 if same else NAN, 0.0, same)


def normal(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """Random normal numbers, rounded to a dtype."""
    return torch.randn(shape, generator=generator, device=generator.device).to(dtype)


def short(dtype: torch.dtype) -> str:
    """The dtype's name without its package."""
    return str(dtype).removeprefix("torch.")
