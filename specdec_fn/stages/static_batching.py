"""Stage 4, static batching: a pass reads every weight once, whoever shares it."""

import statistics
from collections.abc import Sequence
from typing import Any

from specdec_fn.engine import Request
from specdec_fn.sampling import SamplingParams
from specdec_fn.stages import serving
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread

__all__ = ["stage"]

BATCHES = (1, 4, 16)


def _run(setup: Setup, progress: Progress) -> Result:
    rounds, tokens = setup.pick(3, 2), setup.room(setup.pick(24, 12), spare=16)
    rates: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    for _ in range(rounds):
        for batch, seconds in _round(setup, tokens, progress).items():
            rates[batch].append(batch * (tokens - 1) / seconds)
    most = BATCHES[-1]
    gains = ratios(rates[most], rates[1])
    step_ms = {batch: statistics.median(1e3 * batch / rate for rate in rates[batch]) for batch in BATCHES}
    return Result(
        statistics.median(gains),
        spread(gains),
        tuple((f"step of {batch}", step_ms[batch]) for batch in (1, most)),
        Plot("requests in a pass", "tokens a second", (Line("engine", BATCHES, tuple(map(statistics.median, rates.values()))),)),
        ("batch", "milliseconds a step", "tokens a second", "times one request"),
        tuple((str(batch), f"{step_ms[batch]:.2f}", spread(rates[batch], 1), spread(ratios(rates[batch], rates[1]))) for batch in BATCHES),
    )


def _round(setup: Setup, tokens: int, progress: Progress) -> dict[int, float]:
    """Seconds of each batch, from the first token of each request to its last, in turns."""
    ways: dict[str, Any] = {}
    for batch in BATCHES:
        service = _service(setup, [setup.ids(12, 31 * place) for place in range(batch)], tokens)
        next(service)  # the prompts
        ways[str(batch)] = serving.shares(service, batch)
    took = serving.abreast(ways, progress)
    return {batch: took[str(batch)] for batch in BATCHES}


def _service(setup: Setup, prompts: Sequence[Sequence[int]], tokens: int) -> serving.Service:
    plain: dict[str, Any] = {"sampling": SamplingParams(), "ignore_eos": True, "proposer": "none"}
    requests = [Request(list(ids), tokens, seed=place, **plain) for place, ids in enumerate(prompts)]
    return serving.Service(setup.model, serving.engine_for(setup.model, requests), [requests])


stage = Stage(
    "static batching",
    "tokens a second at batch 16 / batch 1",
    Gate(3.0, least=True),
    "Sixteen requests read the same weights in one pass; until arithmetic is what takes the time, their tokens come almost free.",
    _run,
)
