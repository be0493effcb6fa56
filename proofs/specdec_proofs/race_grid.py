"""The race, enumerated: every point of a coarse grid of its noise, against winners found with integers alone.

A race has one number a token, so the boxes of ``cells`` are no help: its boundaries are not parallel to the axes. Instead each of the V uniforms
of a row runs over (k + 1/2) / 2**B, and with E = -log(1 - u) the code must name the winner of each of the 2**(B V) points. Whether a beats b is
decided exactly: with p proportional to integers w and n = 2**(B + 1) (1 - u), an integer,

    E_a / p_a < E_b / p_b   iff   (1 - u_a)**w_b > (1 - u_b)**w_a   iff   n_a**w_b M**w_a > n_b**w_a M**w_b,    M = 2**(B + 1)

and the lowest id wins ties. Winners that are right at every point of it are those of the race, and have its law; that the keyed noise is
exponential is another claim.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specdec_fn.speculate import Draft, Race, batched
from specdec_proofs.worlds import Law, Prefix, World, prefixes

__all__ = ["chain_faults", "expected_race_law", "grid", "race_law", "winners"]

BITS = 4
LARGEST = 10_000  # integer weights are exponents
Integers = NDArray[np.int64]


def grid(vocab: int, bits: int = BITS) -> Integers:
    """Every point of the grid of one row of noise: int64 [2**(bits vocab), vocab], k of each uniform (k + 1/2) 2**-bits.

    >>> grid(2, 1).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return np.indices((1 << bits,) * vocab).reshape(vocab, -1).T


def winners(p: Law, points: Integers, bits: int = BITS) -> Integers:
    """The winner of the race at each point, exact: int64 [n], -1 everywhere where no p is positive.

    Args:
        p: fractions, not all of whose entries need be positive, over one denominator of at most 10,000.
        points: int64 [n, V] as from ``grid``.

    Raises:
        ValueError: a larger denominator, or a number of columns that is not that of the law.

    >>> from fractions import Fraction
    >>> winners((Fraction(1, 2), Fraction(1, 2)), grid(2, 1), 1).tolist()
    [0, 0, 1, 0]
    """
    if points.shape[1] != len(p):
        raise ValueError(f"the points have {points.shape[1]} coordinates; expected {len(p)}, one for each token")
    whole = math.lcm(*(share.denominator for share in p))
    if whole > LARGEST:
        raise ValueError(f"the law has denominator {whole}; expected at most {LARGEST}, since it becomes an exponent")
    weights, top = [int(share * whole) for share in p], 2 << bits
    left = [top - 2 * k - 1 for k in range(1 << bits)]  # 2**(bits + 1) (1 - u)
    best = np.full(len(points), -1)
    for b, w_b in enumerate(weights):
        if not w_b:
            continue
        for a in (-1, *range(b)):
            holds = best == a
            if a < 0:
                best = np.where(holds, b, best)
            elif weights[a]:
                w_a = weights[a]
                beats = np.array([[n_b**w_a * top**w_b > n_a**w_b * top**w_a for n_b in left] for n_a in left])
                best = np.where(holds & beats[points[:, a], points[:, b]], b, best)
    return best


def expected_race_law(p: Law, bits: int = BITS) -> tuple[int, ...]:
    """How many points of the grid each token wins, by integers alone.

    >>> from fractions import Fraction
    >>> expected_race_law((Fraction(1, 2), Fraction(1, 2)), 1), sum(expected_race_law((Fraction(1, 4), Fraction(1, 2), Fraction(1, 4))))
    ((3, 1), 4096)
    """
    return _counts(winners(p, grid(len(p), bits), bits), len(p))


def race_law(decide: Callable[..., Any], p: Law, *, drafted: Prefix = (), bits: int = BITS, dtype: torch.dtype = torch.float64) -> tuple[int, ...]:
    """How many points of the grid give each token as the first one that ``decide`` emits.

    Args:
        decide: the single-sequence function of a verifier whose tape is a ``Race``.
        p: law of the first row, and of the others.
        drafted: a chain, which must not matter.

    Raises:
        ValueError: something that is no id is emitted.

    >>> from specdec_fn.speculate import verifiers
    >>> from specdec_proofs.worlds import normalised
    >>> race_law(verifiers["coupled"].decide, normalised([1, 0, 2])) == expected_race_law(normalised([1, 0, 2]))
    True
    """
    points = grid(len(p), bits)
    first = _verdicts(decide, [p] * (len(drafted) + 1), drafted, [points] * (len(drafted) + 1), bits, dtype).tokens[:, 0].numpy()
    if first.min() < 0 or first.max() >= len(p):
        raise ValueError(f"decide emitted {sorted(set(first.tolist()))} first; expected ids in [0, {len(p)})")
    return _counts(first, len(p))


def chain_faults(decide: Callable[..., Any], world: World, *, bits: int = BITS, dtype: torch.dtype = torch.float64) -> tuple[int, int]:
    """How many verdicts are not the winners of their rows up to the first that was not drafted, and how many there were.

    For every chain of ``world.k`` tokens, every row runs over the whole grid at once, each in an order of its own.

    >>> from specdec_fn.speculate import verifiers
    >>> from specdec_proofs.worlds import toy
    >>> chain_faults(verifiers["coupled"].decide, toy(1))
    (0, 12288)
    """
    points = grid(world.vocab, bits)
    orders = [points[np.random.default_rng(row).permutation(len(points))] for row in range(world.k + 1)]
    faults = total = 0
    for drafted in prefixes(world, world.k):
        laws = [world.target(drafted[:i]) for i in range(world.k + 1)]
        wanted = np.full((len(points), world.k + 1), -1)
        going = np.ones(len(points), bool)
        for i, (law, order) in enumerate(zip(laws, orders, strict=True)):
            won = winners(law, order, bits)
            wanted[going, i] = won[going]
            going &= won == drafted[i] if i < world.k else False
        verdict = _verdicts(decide, laws, drafted, orders, bits, dtype)
        count = (wanted >= 0).sum(1)
        wrong = (verdict.tokens.numpy() != wanted).any(1) | (verdict.emitted.numpy() != count) | (verdict.accepted.numpy() != count - 1)
        faults, total = faults + int(wrong.sum()), total + len(points)
    return faults, total


def _verdicts(decide: Callable[..., Any], laws: Sequence[Law], drafted: Prefix, points: Sequence[Integers], bits: int, dtype: torch.dtype) -> Any:
    """``decide`` at n points of noise, a grid a row: rows [K + 1, V] as floats, one-hot drafts."""
    n, rows = len(points[0]), torch.tensor([[float(share) for share in law] for law in laws], dtype=torch.float64).to(dtype)
    u = (torch.from_numpy(np.stack(points, 1)).to(torch.float64) + 0.5) * 2.0**-bits
    draft = Draft(torch.tensor(drafted, dtype=torch.int64).expand(n, -1), None, torch.full((n,), len(drafted)))
    return batched(decide)(Race(-torch.log1p(-u).to(dtype)), rows.expand(n, -1, -1), draft)


def _counts(ids: Integers, vocab: int) -> tuple[int, ...]:
    return tuple(np.bincount(ids, minlength=vocab).tolist())
