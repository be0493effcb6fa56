"""The two-level draw, as functions that kernels call: block sums in float64, then cumulative sums within the block that the height falls in.

    height = min(u * total, the float64 below total);    block = first whose cumulative sum exceeds it;    token = first in the block that does

The law is ``specdec_fn.sampling.draw``: the inverse of the cumulative distribution, scaled by the last sum, so that weights need not sum to 1. A
parallel sum associates in another order than the sum of a block, or than the sum up to the token before, so the last digits may disagree: a block
or token without mass is passed over whatever the sums say, and where no sum exceeds the height the last one that has mass is taken. Each token's
probability is right to the rounding of float64 sums; in float32 the total variation is 9e-4 at V = 151,936.

Words are raw 64-bit words in int64, all of whose bits are random.
"""

from typing import no_type_check

import triton
import triton.language as tl

from specdec_kernels.variant import Variant

__all__ = ["variants"]


@triton.jit
@no_type_check
def uniform(word):
    """The uniform number of a word: its top 53 bits, times 2**-53."""
    return ((word >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
@no_type_check
def pick_block(sums, u, N: tl.constexpr):
    """The block that ``u`` falls in, from the float64 sums [N] of the blocks' weights.

    Returns the block, the height that is left within it, and whether there is a draw at all: the total is positive and finite.
    """
    lanes = tl.arange(0, N)
    running = tl.cumsum(sums, 0)
    total = tl.sum(tl.where(lanes == N - 1, running, 0.0), 0)
    drawn = (total > 0) & (total < float("inf"))
    level = _height(u, tl.where(drawn, total, 1.0))
    block = _crossing(running, sums, level, N)
    return block, level - tl.sum(tl.where(lanes == block - 1, running, 0.0), 0), drawn


@triton.jit
@no_type_check
def pick_lane(weights, level, N: tl.constexpr):
    """The lane of a block at a height within it, from the block's float64 weights [N]."""
    return _crossing(tl.cumsum(weights, 0), weights, level, N)


@triton.jit
@no_type_check
def _height(u, total):
    scaled = u * total
    below = (total.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)  # the next float64 below, as total > 0
    return tl.where(scaled < below, scaled, below)


@triton.jit
@no_type_check
def _crossing(running, weights, level, N: tl.constexpr):
    """The first lane with mass whose running sum exceeds ``level``, the last lane with mass if none does, 0 if none has any."""
    lanes = tl.arange(0, N)
    first = tl.min(tl.where((weights > 0) & (running > level), lanes, N), 0)
    last = tl.max(tl.where(weights > 0, lanes, 0), 0)
    return tl.minimum(first, last)


def variants() -> tuple[Variant, ...]:
    """Nothing is launched from this room: its functions are called by the kernels that draw.

    >>> variants()
    ()
    """
    return ()
