"""Rows that ought to be laws: refusing those that are none, and dividing by sums that may be 0."""

import torch

from specdec_fn.typing import Bool, Float, Int, Tensor

__all__ = ["check_floats", "check_ids", "check_laws", "divide", "normalised", "traced"]


def divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0, with gradients that are never NaN.

    >>> divide(torch.tensor([1.0, 1.0]), torch.tensor([4.0, 0.0]))
    tensor([0.2500, 0.0000])
    """
    return torch.where(b != 0, a, 0) / torch.where(b != 0, b, 1)


def normalised(weights: Float[Tensor, "*#batch vocab"], fallback: Float[Tensor, "*#batch vocab"]) -> Float[Tensor, "*#batch vocab"]:
    """The law proportional to the weights, which are not negative; ``fallback`` where all are 0.

    >>> normalised(torch.tensor([1.0, 3.0]), torch.zeros(2)), normalised(torch.zeros(2), torch.tensor([0.0, 1.0]))
    (tensor([0.2500, 0.7500]), tensor([0., 1.]))
    """
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, divide(weights, total), fallback)


def traced(*tensors: Tensor | None) -> bool:
    """Whether some tensor stands for values that Python may not look at: inside ``vmap``, ``grad`` or compiled code.

    >>> traced(torch.zeros(1), None)
    False
    """
    return torch.compiler.is_compiling() or any(t is not None and torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)


def check_floats(**laws: Tensor | None) -> None:
    """Refuses laws whose dtype is none of floating point.

    Raises:
        TypeError: it is not.

    >>> check_floats(p=torch.tensor([0, 1]), q=None)
    Traceback (most recent call last):
    ...
    TypeError: p has dtype torch.int64; expected a floating-point dtype
    """
    for name, law in laws.items():
        if law is not None and not law.is_floating_point():
            raise TypeError(f"{name} has dtype {law.dtype}; expected a floating-point dtype")


def check_laws(name: str, rows: Float[Tensor, "*batch vocab"] | None, read: Bool[Tensor, "*batch"] | None = None) -> None:
    """Refuses rows that are no laws, where Python may look at them.

    Args:
        read: the rows that count, all if None; the others may hold anything.

    Raises:
        ValueError: a row is negative somewhere, holds NaN, or does not sum to 1 within 1e-6 (or sqrt(V) eps / 2, if larger: what
            rounding leaves of a softmax over a large vocabulary in a narrow dtype). It names the first.

    >>> check_laws("q", torch.tensor([[0.5, 0.5], [0.5, 0.25]]))
    Traceback (most recent call last):
    ...
    ValueError: q[1] sums to 0.75 with least entry 0.25; expected a law: entries of 0 or more that sum to 1
    """
    if rows is None or traced(rows, read):
        return
    totals = rows.detach().sum(-1, dtype=torch.float64)
    # float32 softmax sums to 1 within 6e-6 at V = 151,936 (measured), though each entry is as right as it can be
    tolerance = max(1e-6, rows.shape[-1] ** 0.5 * torch.finfo(rows.dtype).eps / 2)
    wrong = ~((rows >= 0).all(-1) & ((totals - 1).abs() <= tolerance))
    wrong = wrong if read is None else wrong & read
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        where = name + (str(list(place)) if place else "")
        least = float(rows.detach()[place].min())
        raise ValueError(f"{where} sums to {float(totals[place])} with least entry {least}; expected a law: entries of 0 or more that sum to 1")


def check_ids(name: str, ids: Int[Tensor, "*batch"], vocab: int, least: int = 0) -> None:
    """Refuses ids outside [least, vocab), where Python may look at them.

    Raises:
        TypeError: ids that are no integers.
        ValueError: one is outside.

    >>> check_ids("tokens", torch.tensor([1, 7]), 5)
    Traceback (most recent call last):
    ...
    ValueError: tokens[1] is 7; expected an id in [0, 5)
    """
    if ids.is_floating_point() or ids.dtype is torch.bool:
        raise TypeError(f"{name} has dtype {ids.dtype}; expected integers")
    wrong = (ids < least) | (ids >= vocab)
    if not traced(ids) and wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(f"{name}{list(place)} is {int(ids[place])}; expected an id in [{least}, {vocab})")
