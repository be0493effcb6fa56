"""The race: exponential noise for every token of the vocabulary, fixed by the request's key and the absolute position alone.

    E_x ~ Exp(1) at (request key, RACE, position), token x its x-th number;    winner = argmin E_x / p(x)  ~  p

Whoever holds the key and the position draws the same winner from the same law: the drafter, the verifier, and any later pass. That is why
``coupled`` has no base and no lane in its address. E = -log(1 - u) with u = (k + 1/2) 2**-64 from 64 random bits, which keeps its relative
precision near 0: a token 40 nats below the likeliest still wins as often as it should. Source: Daliri, Musco, Suresh 2024 (arXiv 2408.07978);
Maddison et al. 2014 (arXiv 1411.0030) for the race.
"""

from typing import NamedTuple

import torch

from specdec_fn.random import Key, fold_in
from specdec_fn.speculate.tape import RACE
from specdec_fn.typing import Float, Int, Tensor
from specdec_kernels.race_uniform import race_uniform

__all__ = ["Race", "exponential", "noise", "tape", "winner"]

HALF = 1 << 32


class Race(NamedTuple):
    """The noise that one pass of ``coupled`` consumes.

    Attributes:
        noise: float [K + 1, V], exponential numbers; row i belongs to position + i, and in a tree a node of depth d uses row d.
    """

    noise: Float[Tensor, "rows vocab"]


def noise(key: Key, position: int | Int[Tensor, "..."], vocab_size: int, dtype: torch.dtype = torch.float64) -> Float[Tensor, "... vocab"]:
    """The exponential noise of a position, one number a token.

    Args:
        key: the request's key.
        position: absolute position of the token that is raced for (prompt and output count), or a tensor of them.
        dtype: of the result; the numbers are made in float64.

    Raises:
        ValueError: a position outside [0, 2**32).

    >>> from specdec_fn.random import key
    >>> rows = noise(key(1), torch.arange(4, 6), 1000)
    >>> rows.shape, rows[1].equal(noise(key(1), 5, 1000)), bool((rows > 0).all())
    (torch.Size([2, 1000]), True, True)
    """
    words = fold_in(fold_in(key, RACE), position).words
    return race_uniform(words, vocab_size, negative=True).log1p_().neg_().to(dtype)  # ``exponential`` of 64 bits


def exponential(words: Int[Tensor, "..."], dtype: torch.dtype = torch.float64) -> Float[Tensor, "..."]:
    """The exponential numbers of 64-bit words: -log(1 - u) with u = (k + 1/2) 2**-64, which grows with the word k.

    Args:
        words: int64, all 64 bits of each in use (two's complement).
        dtype: of the result; the numbers are made in float64.

    Returns:
        Positive numbers; infinity where u rounds to 1, which has probability 2**-54.

    >>> exponential(torch.tensor([0, 2**62, -1]))  # the words 0, 2**62 and 2**64 - 1
    tensor([2.7105e-20, 2.8768e-01,        inf], dtype=torch.float64)
    """
    high, low = ((words >> 32) & (HALF - 1)).to(torch.float64), (words & (HALF - 1)).to(torch.float64)
    # In place, on numbers that nobody else holds: u = high 2**-32 + (low + 1/2) 2**-64, then -log1p(-u).
    uniform = high.mul_(2.0**-32).add_(low.add_(0.5).mul_(2.0**-64))
    return uniform.neg_().log1p_().neg_().to(dtype)


def tape(key: Key, k: int, vocab_size: int, *, position: int | Tensor = 0, dtype: torch.dtype = torch.float64) -> Race:
    """Draws the noise of a pass: K + 1 positions from its base on.

    Args:
        key: the request's key.
        k: drafted tokens of the pass.
        vocab_size: numbers a row.
        position: base of the pass, the number of tokens committed before it.
        dtype: float64 or float32.

    >>> from specdec_fn.random import key
    >>> tape(key(1), 3, 5, position=7).noise[2].equal(tape(key(1), 0, 5, position=9).noise[0])
    True
    """
    lanes = torch.arange(k + 1, device=key.words.device)
    return Race(noise(key, position + lanes, vocab_size, dtype))


def winner(noise: Float[Tensor, "vocab"], probs: Float[Tensor, "vocab"]) -> Int[Tensor, ""]:
    """The token that wins a race: argmin E / p over the tokens with p > 0, the lowest id among equals.

    The law of the winner is ``probs``, normalised. Total: noise of 0 or infinity gives no NaN, and a token of probability 0 never wins.

    Returns:
        int64; -1, no token, where no probability is positive.

    >>> winner(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.2, 0.7, 0.1]))
    tensor(1)
    >>> winner(torch.tensor([0.0, 0.5]), torch.tensor([0.0, 1.0])), winner(torch.tensor([0.0, 0.5]), torch.zeros(2))
    (tensor(1), tensor(-1))
    """
    speed, first = torch.where(probs > 0, probs / noise, -1).max(-1)
    return torch.where(speed >= 0, first, -1)
