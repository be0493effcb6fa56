"""What a draft of K tokens brings: tokens of a pass, the speed-up after the draft is paid for, and the K that is best.

Under a constant acceptance a, token i is kept with probability a^i, so a pass emits 1 + a + ... + a^K tokens. Where a differs from text to text
this is a lower bound at the same mean (E[a^i] >= (E a)^i). Source: Leviathan 2023, arXiv 2211.17192.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Best", "best", "mixture", "needed", "speed_up", "tokens_per_pass"]


class Best(NamedTuple):
    """The best K.

    Attributes:
        ks: every K whose gain is within the tie of the largest, smallest first.
        gain: the largest speed-up.
    """

    ks: tuple[int, ...]
    gain: float


def tokens_per_pass(acceptance: float, k: float) -> float:
    """Mean tokens that a pass emits, the bonus or recovered one included: (1 - a^(K+1)) / (1 - a).

    Args:
        acceptance: probability that a drafted token is kept, given that those before it were, in [0, 1].
        k: drafted tokens, 0 or more; ``math.inf`` gives the limit 1 / (1 - a).

    Raises:
        ValueError: an argument out of range.

    >>> round(tokens_per_pass(0.7, 5), 4)
    2.9412
    """
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance is {acceptance}; expected a number in [0, 1]")
    if not k >= 0:
        raise ValueError(f"k is {k}; expected 0 or more drafted tokens")
    return k + 1.0 if acceptance == 1 else (1 - acceptance ** (k + 1)) / (1 - acceptance)


def mixture(acceptances: Sequence[float], k: float) -> float:
    """Mean tokens of a pass where each acceptance of the list holds for an equal share of the text.

    Raises:
        ValueError: no acceptance, or one out of range.

    >>> round(mixture([0.9, 0.5], 4), 3)
    3.016
    """
    if not acceptances:
        raise ValueError("acceptances is empty; expected at least one number in [0, 1]")
    return sum(tokens_per_pass(one, k) for one in acceptances) / len(acceptances)


def speed_up(acceptance: float, k: float, cost: float, row: float = 0.0) -> float:
    """Tokens of a pass over its time in plain passes: (1 - a^(K+1)) / (1 - a) / (1 + (c + r) K).

    Args:
        acceptance, k: as in ``tokens_per_pass``.
        cost: c, time of a drafted token in plain passes.
        row: r, what one more row adds to a pass, in plain passes.

    Raises:
        ValueError: an argument out of range.

    >>> round(speed_up(0.7, 4, 0.05), 4)
    2.3109
    """
    if not (cost >= 0 and row >= 0):
        raise ValueError(f"received cost {cost} and row {row}; expected 0 or more")
    return tokens_per_pass(acceptance, k) / (1 + (cost + row) * k)


def best(acceptance: float, cost: float, row: float = 0.0, *, most: int = 60, tie: float = 1e-5) -> Best:
    """Every K from 0 to ``most`` that is as good as any.

    Args:
        acceptance, cost, row: as in ``speed_up``.
        most: largest K to look at.
        tie: relative difference of gains that counts as none.

    Raises:
        ValueError: an argument out of range.

    >>> best(0.7, 0.05).ks
    (5, 6)
    """
    if most < 0:
        raise ValueError(f"most is {most}; expected 0 or more drafted tokens")
    gains = [speed_up(acceptance, k, cost, row) for k in range(most + 1)]
    top = max(gains)
    return Best(tuple(k for k, gain in enumerate(gains) if gain >= top * (1 - tie)), top)


def needed(gain: float, k: int, cost: float) -> float:
    """The acceptance at which K drafted tokens give a speed-up, by bisection; nan where even an acceptance of 1 does not.

    Args:
        gain: the speed-up wanted.
        k, cost: as in ``speed_up``.

    Raises:
        ValueError: an argument out of range.

    >>> round(needed(1.573, 4, 0.05), 3)
    0.484
    """
    if speed_up(1.0, k, cost) < gain:
        return math.nan
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if speed_up(middle, k, cost) >= gain else (middle, high)
    return high
