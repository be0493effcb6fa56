"""``specdec bench batching``: many requests in a pass against one, and one in the engine against ``generate``."""

import json
import statistics
import time
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["batching"]

GATE, GATED_BATCH = 4.5, 16  # times the tokens a second of one request alone


def batching(
    model: o.ModelName = "smollm2-135m",
    batch: Annotated[int, typer.Option("--batch", min=2, help="Requests that share a pass.")] = GATED_BATCH,
    temperature: o.Temperature = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Tokens of each request.")] = 64,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds, in which every way takes a step in turns.")] = 5,
    json_: o.Json = False,
) -> int:
    """Tokens a second of plain decoding: a batch, one request in the engine, and ``generate``; exits 1 if 16 requests give less than 4.5 times one."""
    import torch
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average

    target, tokenizer = o.load_model(model)
    rates: dict[str, list[float]] = {"generate": [], "engine, 1": [], f"engine, {batch}": []}
    step_ms: dict[str, list[float]] = {name: [] for name in rates}
    with Status("batches") as status:
        for repeat in range(repeats + 1):
            status.say(f"round {repeat} of {repeats}")
            seconds = _round(target, tokenizer, repeat, batch, temperature, max_tokens)
            if repeat:  # the first round warms up
                for name, own, rows in zip(rates, seconds, (1, 1, batch), strict=True):
                    rates[name].append(rows * (max_tokens - 1) / own)
                    step_ms[name].append(1e3 * own / (max_tokens - 1))
    alone, one, many = rates.values()
    ratios = {f"{batch} against 1": _over(many, one), "1 against generate": _over(one, alone)}
    passed = batch != GATED_BATCH or statistics.median(ratios[f"{batch} against 1"]) >= GATE
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "batch": batch, "max_tokens": max_tokens, "passed": passed}
        print(json.dumps(facts | {"tokens_per_second": rates, "step_ms": step_ms, "ratios": ratios}))
        return 0 if passed else 1
    table = Table(
        title=f"plain decoding, {max_tokens} tokens a request, {torch.get_num_threads()} threads, {repeats} rounds, a step of each in turns"
    )
    for column in ("", "milliseconds a step", "tokens a second"):
        table.add_column(column, justify="right" if column else "left")
    for name in rates:
        table.add_row(name, spread(step_ms[name]), spread(rates[name]))
    wide_console().print(table)
    for name, values in ratios.items():
        print(f"{name}: {spread(values)} times the tokens a second")
    if batch == GATED_BATCH:
        print(f"gate: at least {GATE:g} times, by the median: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


def _round(target: Any, tokenizer: Any, seed: int, batch: int, temperature: float, max_tokens: int) -> tuple[float, float, float]:
    """Seconds of ``generate``, of the engine with one request and of the engine with a batch, from the first token of each to its last."""
    from specdec_fn.cli.bench.serving import conversations, opened, timed
    from specdec_fn.doors import stream
    from specdec_fn.engine import Request
    from specdec_fn.sampling import SamplingParams

    sampling = SamplingParams(temperature)
    prompts = conversations(tokenizer, "prose", batch)
    requests = [
        Request(ids, max_tokens, sampling=sampling, seed=seed * batch + place, ignore_eos=True, proposer="none") for place, ids in enumerate(prompts)
    ]
    own = seed % batch
    pieces = stream(target, prompts[own], tokenizer=tokenizer, seed=seed * batch + own, sampling=sampling, max_tokens=max_tokens, ignore_eos=True)
    alone, together = opened(target, requests[own : own + 1], tokenizer), opened(target, requests, tokenizer)
    next(pieces)
    alone, _, _ = timed(target, alone)
    together, _, _ = timed(target, together)
    seconds = [0.0, 0.0, 0.0]
    for _ in range(max_tokens - 1):
        start = time.perf_counter()
        next(pieces)
        seconds[0] += time.perf_counter() - start
        alone, _, spent = timed(target, alone)
        seconds[1] += spent
        together, _, spent = timed(target, together)
        seconds[2] += spent
    assert not len(alone.records) and not len(together.records), "every step emits one token of each request"
    return seconds[0], seconds[1], seconds[2]


def _over(fast: list[float], slow: list[float]) -> list[float]:
    return [a / b for a, b in zip(fast, slow, strict=True)]
