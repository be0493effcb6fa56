"""A target pass of a few rows over a cache that holds something, to hold other costs against; and how busy the machine is meanwhile."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from specdec_fn.kv import dense

__all__ = ["CONTEXT", "in_turns", "load_average", "target_pass"]

CONTEXT = 128  # committed tokens before the pass


def target_pass(model: Any, rows: int, attend: dense.Attend = dense.attend, context: int = CONTEXT) -> Callable[[], torch.Tensor]:
    """A function that runs one pass of ``rows`` rows after some context and gives its logits; each call runs the same pass.

    Args:
        model: the target.
        rows: of the pass, at least 1.
        attend: how it attends.
        context: tokens before the pass; fewer where the model's context is short.

    Raises:
        ValueError: the rows leave no context.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> target_pass(toy.llama(key(0)), 3)().shape
    torch.Size([3, 32])
    """
    context = min(context, model.config.context - rows)
    if context < 1:
        raise ValueError(f"a pass of {rows} rows leaves no context of the model's {model.config.context} tokens; expected fewer rows")
    tokens = torch.arange(context + rows) * 101 % model.config.vocab_size
    cache = dense.init(model.config, context + rows, dtype=model.params.norm.dtype)
    with torch.inference_mode():
        _, cache = model.apply(model.params, tokens[:context], torch.arange(context), cache, attend)
    cache = dense.advance(cache, context)
    positions = torch.arange(context, context + rows)

    def run() -> torch.Tensor:
        with torch.inference_mode():
            logits, _ = model.apply(model.params, tokens[context:], positions, cache, attend)
        return logits

    return run


def in_turns(jobs: Mapping[Any, Callable[[], Any]], repeats: int) -> dict[Any, list[float]]:
    """Milliseconds of each job in each of ``repeats`` rounds, after one round that warms up; the order is turned round each time.

    >>> found = in_turns({"a": lambda: None, "b": lambda: None}, 3)
    >>> [(name, len(times)) for name, times in found.items()]
    [('a', 3), ('b', 3)]
    """
    times: dict[Any, list[float]] = {name: [] for name in jobs}
    for repeat in range(repeats + 1):
        for name, job in list(jobs.items())[:: 1 if repeat % 2 else -1]:
            start = time.perf_counter()
            job()
            if repeat:
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def load_average() -> float | None:
    """Processes that wanted to run in the last minute, of which this is one; None where the system does not say.

    >>> load_average() is None or load_average() >= 0
    True
    """
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
