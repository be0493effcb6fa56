"""Torch's random functions, answered from a list of integers: a sampler that draws for itself becomes a function of few numbers.

Inside ``Injected`` every call of ``torch.rand``, ``rand_like``, ``Tensor.uniform_``, ``multinomial``, ``bernoulli``, ``randint``,
``exponential_`` and ``randn`` takes its numbers from the list, one integer k in [0, 2**bits) for each number, in the order of the calls:

    uniform     k 2**-B, B = 24 in float32 and 53 in float64, the grid of ``torch.rand``, 0 included
    multinomial inverse CDF of the row at k 2**-B: the law a perfect multinomial has; a weight of 0 is never drawn
    exponential, normal   the quantile at (k + 1/2) 2**-B

With ``loose``, races are answered at random and their numbers do not count: then single points can be looked at, but no law.
What cannot be answered so raises ``UnreachableError``: functions that are not listed, and several exponential or normal numbers at once, since
the winner of a race between them does not change along the axes of the grid, which is what ``cells`` needs.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy import special
from torch.overrides import TorchFunctionMode

__all__ = ["Injected", "MoreNumbersError", "UnreachableError", "global_states", "seeded"]

GRID: Mapping[torch.dtype, int] = MappingProxyType({torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8})
BEYOND = frozenset(
    {
        "randperm",
        "normal",
        "log_normal_",
        "cauchy_",
        "geometric_",
        "random_",
        "poisson",
        "binomial",
        "dropout",
        "dropout_",
        "alpha_dropout",
        "rrelu",
        "rrelu_",
    }
)


class UnreachableError(Exception):
    """Randomness that cannot be replaced by numbers of a list; the message says which."""


class MoreNumbersError(Exception):
    """More numbers were asked for than the list holds."""


class Injected(TorchFunctionMode):
    """Answers torch's random functions from ``numbers`` while it is entered.

    ``asked`` counts the numbers that were taken, ``bits`` is the finest grid that was asked for.

    >>> with Injected([1 << 23, 0], 24) as tape:
    ...     torch.rand(1), torch.multinomial(torch.tensor([0.0, 1.0, 1.0]), 1), tape.asked
    (tensor([0.5000]), tensor([1]), 2)
    """

    def __init__(self, numbers: Sequence[int], bits: int, loose: random.Random | None = None) -> None:
        super().__init__()
        self.asked, self.bits, self.loose = 0, 0, loose
        self._numbers, self._held = numbers, bits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answers one call of a torch function."""
        name = getattr(func, "__name__", "")
        if name in REPLACED:
            return REPLACED[name](self, *args, **(kwargs or {}))
        if name in BEYOND:
            raise UnreachableError(f"it draws with torch's {name}, which takes no uniform numbers one at a time")
        return func(*args, **(kwargs or {}))

    def take(self, count: int, dtype: torch.dtype) -> tuple[list[int], int]:
        """The next ``count`` integers, on the grid of ``dtype``, and the bits of that grid."""
        bits = min(GRID.get(dtype, 53), self._held) if self._held else GRID.get(dtype, 53)
        self.bits = max(self.bits, GRID.get(dtype, 53))
        at, self.asked = self.asked, self.asked + count
        if self.asked > len(self._numbers):
            raise MoreNumbersError(f"{self.asked} numbers were asked for; {len(self._numbers)} are given")
        return [int(k) >> (self._held - bits) for k in self._numbers[at : self.asked]], bits

    def fill(self, tensor: torch.Tensor, map_: Callable[[float], float], *, middle: bool = False) -> torch.Tensor:
        """Fills a tensor in place with ``map_`` of uniforms, which are in the middle of their grid cells if asked."""
        numbers, bits = self.take(tensor.numel(), tensor.dtype)
        values = [map_((k + 0.5 * middle) * 2.0**-bits) for k in numbers]
        return tensor.copy_(torch.tensor(values, dtype=torch.float64).reshape(tensor.shape))

    def race(self, tensor: torch.Tensor, quantile: Callable[[float], float], what: str) -> torch.Tensor:
        """Fills a tensor with numbers of another law than the uniform one: one from the list, or several at random where that is allowed."""
        if tensor.numel() == 1:
            return self.fill(tensor, quantile, middle=True)
        if self.loose is None:
            raise UnreachableError(f"it draws {tensor.numel()} {what} numbers at once, a race, whose winner does not split along single numbers")
        values = [quantile(self.loose.uniform(1e-9, 1 - 1e-9)) for _ in range(tensor.numel())]
        return tensor.copy_(torch.tensor(values, dtype=torch.float64).reshape(tensor.shape))


def _plain(u: float) -> float:
    return u


def _rand(tape: Injected, *size: Any, generator: Any = None, out: Any = None, **kwargs: Any) -> torch.Tensor:
    return tape.fill(torch.empty(*size, **kwargs) if out is None else out, _plain)


def _rand_like(tape: Injected, like: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return tape.fill(torch.empty_like(like, **_without_generator(kwargs)), _plain)


def _uniform_(tape: Injected, tensor: torch.Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None, **named: float) -> torch.Tensor:
    low, high = named.get("from", low), named.get("to", high)
    return tape.fill(tensor, lambda u: low + (high - low) * u)


def _exponential_(tape: Injected, tensor: torch.Tensor, lambd: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    return tape.race(tensor, lambda u: -math.log1p(-u) / lambd, "exponential")


def _normal_(tape: Injected, tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    return tape.race(tensor, lambda u: mean + std * float(special.ndtri(u)), "normal")


def _randn(tape: Injected, *size: Any, generator: Any = None, **kwargs: Any) -> torch.Tensor:
    return _normal_(tape, torch.empty(*size, **kwargs))


def _randn_like(tape: Injected, like: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return _normal_(tape, torch.empty_like(like, **_without_generator(kwargs)))


def _bernoulli(tape: Injected, p: torch.Tensor, *, generator: Any = None, out: Any = None) -> torch.Tensor:
    drawn = (tape.fill(torch.empty_like(p), _plain) < p).to(p.dtype)
    return drawn if out is None else out.copy_(drawn)


def _bernoulli_(tape: Injected, tensor: torch.Tensor, p: Any = 0.5, *, generator: Any = None) -> torch.Tensor:
    uniforms = tape.fill(torch.empty(tensor.shape, dtype=torch.float64), _plain)
    return tensor.copy_(uniforms < p)


def _randint(tape: Injected, *args: Any, generator: Any = None, **kwargs: Any) -> torch.Tensor:
    low, high, size = args if len(args) == 3 else (0, *args) if len(args) == 2 else (kwargs.pop("low", 0), kwargs.pop("high"), kwargs.pop("size"))
    tensor = torch.empty(size, dtype=torch.float64)
    numbers, bits = tape.take(tensor.numel(), torch.float32)
    whole = torch.tensor([low + (k * (high - low) >> bits) for k in numbers], dtype=torch.int64).reshape(tensor.shape)
    return whole.to(kwargs.get("dtype") or torch.int64)


def _multinomial(
    tape: Injected, weights: torch.Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None, out: Any = None
) -> torch.Tensor:
    rows = weights.detach().to(torch.float64).reshape(-1, weights.shape[-1])
    if not bool(rows.isfinite().all()) or bool((rows < 0).any()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    drawn = []
    for row in rows.tolist():
        for _ in range(num_samples):
            if sum(row) <= 0:
                raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
            (k,), bits = tape.take(1, weights.dtype)
            drawn.append(_inverse(row, k * 2.0**-bits))
            if not replacement:
                row[drawn[-1]] = 0.0
    found = torch.tensor(drawn, dtype=torch.int64).reshape(*weights.shape[:-1], num_samples)
    return found if out is None else out.copy_(found)


def _inverse(row: list[float], u: float) -> int:
    wanted, reached, last = u * sum(row), 0.0, 0
    for token, weight in enumerate(row):
        if weight > 0:
            reached, last = reached + weight, token
            if reached > wanted:
                return token
    return last


def _without_generator(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "generator"}


REPLACED: Mapping[str, Callable[..., torch.Tensor]] = MappingProxyType(
    {
        "rand": _rand,
        "rand_like": _rand_like,
        "uniform_": _uniform_,
        "exponential_": _exponential_,
        "normal_": _normal_,
        "randn": _randn,
        "randn_like": _randn_like,
        "bernoulli": _bernoulli,
        "bernoulli_": _bernoulli_,
        "randint": _randint,
        "multinomial": _multinomial,
    }
)


def global_states() -> tuple[bytes, Any, bytes]:
    """The states of the generators that a sampler may draw from without being handed one: torch's, Python's and NumPy's.

    >>> before = global_states()
    >>> with seeded(0):
    ...     inside = global_states()
    >>> before == global_states(), before == inside
    (True, False)
    """
    words = np.random.get_state()  # noqa: NPY002 (looked at, not drawn from)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), repr((words[1].tobytes(), words[2:])).encode()  # type: ignore[union-attr,index]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Sets the three global generators to a seed, and puts them back as they were; a GPU's, where one is in use, keeps the seed.

    >>> with seeded(7):
    ...     a = torch.rand(2)
    >>> with seeded(7):
    ...     torch.equal(a, torch.rand(2))
    True
    """
    tensors, python, words = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    torch.default_generator.manual_seed(seed)  # that of the CPU alone, and fast
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (a foreign sampler may use it)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    try:
        yield
    finally:
        torch.set_rng_state(tensors)
        random.setstate(python)
        np.random.set_state(words)  # noqa: NPY002
