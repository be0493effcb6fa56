"""``specdec bench graphs``: an engine whose steps are captured against the same engine without."""

import json
import statistics
from typing import Annotated

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["graphs"]


def graphs(
    model: o.ModelName = "smollm2-135m",
    batches: Annotated[list[int] | None, typer.Option("--batch", min=1, help="Requests that share a pass; may be repeated; else 1 and 16.")] = None,
    proposer: o.NamedProposer = "none",
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
    from specdec_fn.cli.bench.serving import Watch, conversations, ratios
    from specdec_fn.sampling import SamplingParams
    from specdec_fn.stages.graphs import WAYS, both

    target, tokenizer = o.load_model(model)
    rows = []
    with Watch("graphs") as watch:
        for batch in batches or (1, 16):
            prompts = conversations(tokenizer, "prose", batch)
            asked = {"sampling": SamplingParams(temperature), "proposer": proposer, "k": k}
            rounds = [both(target, prompts, asked, max_tokens, seed, watch, tokenizer) for seed in range(repeats)]
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
