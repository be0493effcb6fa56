"""The randomness of a pass, drawn before anything is decided, and the addresses it is drawn at.

Draft noise and the tape are addressed by (request key, role, base, lane): base = tokens committed before the pass, lane = place in the
draft. Base grows by at least one a pass, so no address repeats, and a pass that is replayed after preemption or restore draws the same
numbers. The roles are disjoint, which is what keeps the accept, recovery and draft noise independent of each other.
"""

from typing import NamedTuple

import torch

from specdec_fn.random import Key, fold_in, uniform
from specdec_fn.typing import Float, Tensor

__all__ = ["ACCEPT", "DRAFT", "FINAL", "RACE", "Tape", "address", "tape"]

DRAFT, ACCEPT, FINAL, RACE = range(4)  # roles: who reads the numbers


class Tape(NamedTuple):
    """The uniforms that one pass consumes.

    Attributes:
        accept: float [K] on [0, 1), one for each drafted token.
        final: float scalar on [0, 1), for the recovered or bonus token.
    """

    accept: Float[Tensor, "K"]
    final: Float[Tensor, ""]


def address(key: Key, role: int, base: int | Tensor) -> Key:
    """The key under which the numbers of one role in one pass stand; lane i is its i-th number.

    >>> from specdec_fn.random import key
    >>> uniform(address(key(1), ACCEPT, 12), (3,)).equal(uniform(address(key(1), ACCEPT, 12), (5,))[:3])
    True
    """
    return fold_in(fold_in(key, role), base)


def tape(key: Key, k: int, vocab_size: int, *, position: int | Tensor = 0, dtype: torch.dtype = torch.float64) -> Tape:
    """Draws the tape of a pass.

    Args:
        key: the request's key.
        k: drafted tokens of the pass.
        vocab_size: unused here; the verifiers that race need it.
        position: base of the pass, the number of tokens committed before it.
        dtype: float64 (53-bit uniforms) or float32 (24-bit).

    >>> from specdec_fn.random import key
    >>> tape(key(1), 3, 100, position=12).accept.shape
    torch.Size([3])
    """
    del vocab_size
    return Tape(uniform(address(key, ACCEPT, position), (k,), dtype), uniform(address(key, FINAL, position), (), dtype))
