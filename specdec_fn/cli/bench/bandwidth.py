"""The byte bound of a pass: the time to read as many bytes as its weights have, with the same threads, in the best of several ways."""

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

__all__ = ["best", "readers"]

WIDTH = 4096  # numbers of a row, where a way multiplies rows


def readers(size: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Functions that each read ``size`` bytes of one buffer once (rounded up to whole rows), by the way they do it.

    Every way adds up or multiplies 32-bit numbers with torch's own operators and threads, and writes next to nothing.

    >>> {name: float(read()) for name, read in readers(1).items()}
    {'sum': 4096.0, 'norm': 64.0, 'dot': 4096.0, 'product': 4096.0}
    """
    rows = max(1, -(-size // (4 * WIDTH)))
    numbers = torch.ones(rows * WIDTH)
    matrix, vector = numbers.view(rows, WIDTH), torch.ones(WIDTH)
    return {
        "sum": numbers.sum,
        "norm": lambda: torch.linalg.vector_norm(numbers),
        "dot": lambda: torch.dot(numbers, numbers),
        "product": lambda: torch.mv(matrix, vector)[0],
    }


def best(times: Mapping[str, Sequence[float]]) -> str:
    """The way with the least median.

    >>> best({"sum": [3.0, 9.0, 3.1], "dot": [4.0, 4.0, 4.0]})
    'sum'
    """
    return min(times, key=lambda name: statistics.median(times[name]))
