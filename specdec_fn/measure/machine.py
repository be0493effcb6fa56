"""How fast this machine is: bytes that it streams from memory and products that it does, in about a second.

Bandwidth is that of reading as many bytes as the model's weights, in the fastest of several ways, since a reader that is slow says nothing about
the memory. Products are large square matrices. Both use the threads that torch is set to.
"""

import statistics
import time
from collections.abc import Callable

import torch

from specdec_fn.cost.machines import Machine

__all__ = ["bandwidth", "compute", "machine"]

SIDE = 1024  # of the matrices: large enough to be bound by products, 2 GFLOP
MOST = 1 << 30  # bytes to read at most


def machine(size: float, *, dtypes: tuple[str, ...] = ("float32", "bfloat16"), repetitions: int = 5, device: str = "cpu") -> Machine:
    """This machine, measured.

    Args:
        size: bytes of the weights whose reading it is for; no more than 1 GiB is read.
        dtypes: which are multiplied.
        repetitions: of each measurement; medians are taken.
        device: where.

    >>> found = machine(1e6, dtypes=("float32",), repetitions=1)
    >>> found.name, found.bandwidth > 0, [name for name, _ in found.compute]
    ('this', True, ['float32'])
    """
    return Machine("this", bandwidth(size, repetitions, device), tuple((name, compute(name, repetitions, device)) for name in dtypes))


def bandwidth(size: float, repetitions: int = 5, device: str = "cpu") -> float:
    """Bytes a second of streaming ``size`` bytes, which are larger than the caches or are read as they lie in them.

    >>> bandwidth(1e6, 1) > 0
    True
    """
    numbers = max(int(min(size, MOST)) // 4 // 1024, 1) * 1024
    line = torch.ones(numbers, device=device)
    whole, grid, vector = line.view(torch.int32), line.view(-1, 1024), torch.ones(1024, device=device)
    ways: tuple[Callable[[], torch.Tensor], ...] = (lambda: whole.amax(), lambda: torch.dot(line, line), lambda: grid @ vector, lambda: line.sum())
    return 4 * numbers / min(_median(way, repetitions) for way in ways)


def compute(dtype: str, repetitions: int = 5, device: str = "cpu") -> float:
    """FLOP a second of a product of square matrices.

    Args:
        dtype: a floating dtype of torch, by name.

    >>> compute("float32", 1) > 0
    True
    """
    kind = getattr(torch, dtype)
    left, right = (torch.ones(SIDE, SIDE, device=device).to(kind) for _ in range(2))
    return 2 * SIDE**3 / _median(lambda: left @ right, repetitions)


def _median(job: Callable[[], torch.Tensor], repetitions: int) -> float:
    times = []
    for repetition in range(repetitions + 1):
        start = time.perf_counter()
        job().flatten()[:1].cpu()  # waits for a device
        if repetition:
            times.append(time.perf_counter() - start)
    return max(statistics.median(times), 1e-9)
