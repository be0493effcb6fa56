"""``specdec bench batching``: many requests in a pass against one, and one in the engine against ``generate``."""

import json
import statistics
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["batching"]

GATE, GATED = 4.5, 16  # times the tokens a second of one request alone, at this batch
WAYS = ("generate", "engine, alone", "engine, batch")


def batching(
    model: o.ModelName = "smollm2-135m",
    batch: Annotated[int, typer.Option("--batch", min=2, help="Requests that share a pass.")] = GATED,
    temperature: o.Temperature = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Tokens of each request.")] = 64,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds, in each of which the ways take steps in turns.")] = 5,
    json_: o.Json = False,
) -> int:
    """Tokens a second of plain decoding: a batch, one request in the engine, and generate; exits 1 if a batch of 16 gives less than 4.5 times one."""
    import torch
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.serving import Watch, ratios

    target, tokenizer = o.load_model(model)
    step_ms: dict[str, list[float]] = {name: [] for name in WAYS}
    with Watch("batches") as watch:
        for repeat in range(repeats + 1):
            seconds = _round(target, tokenizer, repeat, batch, temperature, max_tokens if repeat else 2, watch)
            if repeat:  # the first round warms up
                for name in WAYS:
                    step_ms[name].append(1e3 * seconds[name] / (max_tokens - 1))
    rates = {name: [1e3 * (batch if name == WAYS[2] else 1) / ms for ms in step_ms[name]] for name in WAYS}
    times = {"batch against alone": ratios(rates[WAYS[2]], rates[WAYS[1]]), "alone against generate": ratios(rates[WAYS[1]], rates[WAYS[0]])}
    passed = batch != GATED or statistics.median(times["batch against alone"]) >= GATE
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "batch": batch, "max_tokens": max_tokens, "passed": passed}
        print(json.dumps(facts | {"step_ms": step_ms, "tokens_per_second": rates, "ratios": times}))
        return 0 if passed else 1
    table = Table(title=f"plain decoding, batch {batch}, {max_tokens} tokens a request, {torch.get_num_threads()} threads, {repeats} rounds")
    for column in ("", "milliseconds a step", "tokens a second"):
        table.add_column(column, justify="right" if column else "left")
    for name in WAYS:
        table.add_row(name, spread(step_ms[name]), spread(rates[name]))
    wide_console().print(table)
    for name, values in times.items():
        print(f"{name}: {spread(values)} times the tokens a second")
    if batch == GATED:
        print(f"gate: the batch at least {GATE:g} times, by the median: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


def _round(target: Any, tokenizer: Any, seed: int, batch: int, temperature: float, max_tokens: int, watch: Status) -> dict[str, float]:
    """Seconds of each way from the first token of each request to its last; one request of the batch is also the one that is alone."""
    from specdec_fn.cli.bench.serving import Service, abreast, conversations, engine_for, shares
    from specdec_fn.doors import stream
    from specdec_fn.engine import Request
    from specdec_fn.sampling import SamplingParams

    prompts, sampling, one = conversations(tokenizer, "prose", batch), SamplingParams(temperature), seed % batch
    plain: dict[str, Any] = {"max_tokens": max_tokens, "sampling": sampling, "ignore_eos": True}
    requests = [Request(ids, seed=seed * batch + place, proposer="none", **plain) for place, ids in enumerate(prompts)]
    pieces = stream(target, prompts[one], seed=seed * batch + one, tokenizer=tokenizer, **plain)
    groups = (requests[one : one + 1], requests)
    services = [Service(target, engine_for(target, group, tokenizer), [group]) for group in groups]
    next(pieces)
    for service in services:
        next(service)
    lengths = range(2, max_tokens + 1)
    alone = (length for length, _ in zip(lengths, pieces, strict=True))
    rows = (shares(service, len(group)) for service, group in zip(services, groups, strict=True))
    return abreast(dict(zip(WAYS, (alone, *rows), strict=True)), watch)
