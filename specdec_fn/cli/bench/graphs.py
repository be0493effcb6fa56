"""``specdec bench graphs``: an engine whose steps are captured against the same engine without."""

import json
import statistics
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["graphs"]

WAYS = ("eager", "captured")


def graphs(
    model: o.ModelName = "smollm2-135m",
    batches: Annotated[list[int] | None, typer.Option("--batch", min=1, help="Requests that share a pass; may be repeated; else 1 and 16.")] = None,
    proposer: o.ProposerName = "none",
    k: o.K = 5,
    temperature: o.Temperature = 1.0,
    max_tokens: o.MaxTokens = 96,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds, in each of which the ways take steps in turns.")] = 3,
    json_: o.Json = False,
) -> int:
    """Milliseconds of a decoding step with captured steps and without, and whether the tokens are the same.

    On a CPU what follows the model is compiled: laws, decisions and log-probabilities. On a GPU the whole step is a CUDA graph.
    """
    import torch
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.serving import Watch, ratios

    target, tokenizer = o.load_model(model)
    rows = []
    with Watch("graphs") as watch:
        for batch in batches or (1, 16):
            rounds = [_round(target, tokenizer, batch, proposer, k, temperature, max_tokens, seed, watch) for seed in range(repeats)]
            step_ms = {way: [1e3 * one["seconds"][way] / one["steps"][way] for one in rounds] for way in WAYS}
            same = sum(one["same"] for one in rounds)
            shares = ratios(step_ms["captured"], step_ms["eager"])
            first = [one["compiled"] for one in rounds]
            rows.append({"batch": batch, "ms": step_ms, "ratios": shares, "same": same, "of": batch * repeats, "capture_seconds": first})
    if json_:
        print(json.dumps({"threads": torch.get_num_threads(), "load": load_average(), "proposer": proposer, "k": k, "rows": rows}))
        return 0
    how = f"{proposer}, K = {k}, temperature {temperature:g}, {torch.get_num_threads()} threads, {repeats} rounds"
    table = Table(title=f"a decoding step of {model}: {how}")
    for column in ("batch", "eager, ms", "captured, ms", "captured / eager", "same ids", "capture, s"):
        table.add_column(column, justify="right")
    for row in rows:
        eager, quick = (spread(row["ms"][way]) for way in WAYS)
        took = f"{statistics.median(row['capture_seconds']):.1f}"
        table.add_row(str(row["batch"]), eager, quick, spread(row["ratios"]), f"{row['same']} of {row['of']}", took)
    wide_console().print(table)
    return 0


def _round(
    target: Any, tokenizer: Any, batch: int, proposer: str, k: int, temperature: float, max_tokens: int, seed: int, watch: Any
) -> dict[str, Any]:
    """Both ways on the same requests from the first step after their prompts on."""
    import time

    from specdec_fn.cli.bench.serving import Service, abreast, conversations, engine_for, shares
    from specdec_fn.engine import Request
    from specdec_fn.engine.graphs import Bucket, graphs
    from specdec_fn.kv.table import pages_for
    from specdec_fn.sampling import SamplingParams

    how: dict[str, Any] = {"sampling": SamplingParams(temperature), "proposer": proposer, "k": k, "ignore_eos": True}
    prompts = conversations(tokenizer, "prose", batch)
    requests = [Request(ids, max_tokens, seed=seed * batch + place, **how) for place, ids in enumerate(prompts)]
    pages = pages_for(max(map(len, prompts)) + max_tokens, page_size=16)
    services = {}
    for way in WAYS:
        state = engine_for(target, requests, tokenizer, prefix_cache=False)
        start = time.perf_counter()
        rows = range(1, 2 if proposer == "none" else k + 2)
        buckets = [Bucket(batch, count, pages, cuts=False) for count in rows] if way == "captured" else []
        made = graphs(target, state, buckets)
        took = time.perf_counter() - start
        services[way] = Service(target, state, [requests], graphs=made)
        next(services[way])  # prompts
    before = {way: service.state.counters.steps for way, service in services.items()}
    seconds = abreast({way: shares(service, batch * max_tokens) for way, service in services.items()}, watch)
    steps = {way: service.state.counters.steps - before[way] for way, service in services.items()}
    ended = [[service.ended[number].tokens for number in range(batch)] for service in services.values()]
    same = sum(one == other for one, other in zip(*ended, strict=True))
    return {"seconds": seconds, "steps": steps, "same": same, "compiled": took}
