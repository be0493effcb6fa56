"""The roofline of a pass: the time its bytes take, the time its products take, and which of the two binds.

A pass over ``batch`` sequences of ``rows`` rows each reads every weight once, whatever the rows, and the keys and values of every sequence
once, whatever its rows; it multiplies each row by every weight. The true time lies between max(memory, compute), where the two overlap in
full, and their sum. Source: Williams, Waterman, Patterson 2009 (roofline).
"""

import math
from typing import NamedTuple

from specdec_fn.cost.machines import Machine, bits, flops
from specdec_fn.cost.machines import ridge as ridge_of
from specdec_fn.cost.shapes import Shape, key_value_bytes

__all__ = ["Pass", "free_rows", "of_pass", "tokens_per_second"]


class Pass(NamedTuple):
    """One pass by its counts.

    Attributes:
        rows: of all sequences together.
        bytes: read from memory.
        flop: multiplications and additions.
        memory, compute: seconds that the bytes and the products take alone.
    """

    rows: int
    bytes: float
    flop: float
    memory: float
    compute: float

    @property
    def intensity(self) -> float:
        """FLOP for each byte that is read."""
        return self.flop / self.bytes

    @property
    def least(self) -> float:
        """Seconds where reading and multiplying overlap in full."""
        return max(self.memory, self.compute)

    @property
    def most(self) -> float:
        """Seconds where they do not overlap."""
        return self.memory + self.compute

    @property
    def bound(self) -> str:
        """What binds: "memory" or "compute"."""
        return "memory" if self.memory >= self.compute else "compute"


def of_pass(machine: Machine, shape: Shape, *, dtype: str = "float16", batch: int = 1, rows: int = 1, context: int = 0) -> Pass:
    """The counts and times of a pass.

    Args:
        machine: where it runs.
        shape: of the model.
        dtype: of the weights; keys and values are of 32 bits with float32, else of 16.
        batch: sequences.
        rows: of each sequence: K + 1 with K drafted tokens.
        context: tokens of each sequence whose keys and values are read; 0 leaves them out.

    Raises:
        ValueError: an argument out of range, or a dtype that is not known.

    >>> from specdec_fn.cost.shapes import SEVEN_B
    >>> chapter = Machine("chapter", 2e12, (("float16", 312e12),))
    >>> one = of_pass(chapter, SEVEN_B, batch=32, rows=5)
    >>> one.intensity, round(1e3 * one.compute, 3), round(1e3 * one.memory, 3), one.bound
    (160.0, 7.179, 7.0, 'compute')
    """
    for name, value, least in (("batch", batch, 1), ("rows", rows, 1), ("context", context, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}; expected {least} or more")
    read = shape.weights * bits(dtype) / 8 + batch * context * key_value_bytes(shape, 32 if dtype == "float32" else 16)
    attention = 4 * shape.layers * shape.heads * shape.head_dim * context  # queries with keys, and weights with values
    flop = batch * rows * (2 * shape.weights + attention)
    return Pass(batch * rows, read, flop, read / machine.bandwidth, flop / flops(machine, dtype))


def free_rows(machine: Machine, shape: Shape, *, dtype: str = "float16", batch: int = 1, context: int = 0) -> int:
    """Most rows of all sequences together whose products take no longer than the bytes of the pass: where "free" ends.

    Without keys and values this is the ridge in FLOP for a byte, times bytes of a weight, over 2.

    Raises:
        ValueError: as ``of_pass``.

    >>> from specdec_fn.cost.shapes import SEVEN_B
    >>> free_rows(Machine("chapter", 2e12, (("float16", 312e12),)), SEVEN_B)
    156
    """
    one = of_pass(machine, shape, dtype=dtype, batch=batch, context=context)
    return math.floor(ridge_of(machine, dtype) * one.bytes / (one.flop / one.rows) + 1e-9)


def tokens_per_second(one: Pass, batch: int, tokens: float, draft: float = 0.0) -> tuple[float, float]:
    """Tokens a second of all sequences, with no overlap and with full overlap: the bracket in which the truth lies.

    Args:
        one: the pass.
        batch: its sequences.
        tokens: that each emits on average.
        draft: seconds that drafting takes for a pass.

    >>> from specdec_fn.cost.shapes import SEVEN_B
    >>> chapter = Machine("chapter", 2e12, (("float16", 312e12),))
    >>> round(tokens_per_second(of_pass(chapter, SEVEN_B, batch=32), 32, 1.0)[1])
    4571
    """
    return batch * tokens / (one.most + draft), batch * tokens / (one.least + draft)
