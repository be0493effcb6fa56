"""``specdec bench quoting`` and ``prose``: n-gram speculation against the same engine's plain decoding."""

import json
import statistics
import sys
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["prose", "quoting"]

Repeats = Annotated[int, typer.Option("--repeats", min=1, help="Times each prompt is decoded each way, in turns.")]
Prompts = Annotated[str | None, typer.Option("--prompts", help="Another file: one JSON object a line, with name and text.")]


def quoting(
    model: o.ModelName = "smollm2-135m",
    proposer: o.NamedProposer = "ngram",
    k: o.K = 10,
    temperature: o.Temperature = 0.0,
    max_tokens: o.MaxTokens = 160,
    repeats: Repeats = 3,
    prompts: Prompts = None,
    json_: o.Json = False,
) -> int:
    """Prompts that copy, edit or complete a given text: tokens a pass, and the speed-up over plain decoding."""
    return _speedup(prompts or "quoting", model, proposer, k, temperature, max_tokens, repeats, json_)


def prose(
    model: o.ModelName = "smollm2-135m",
    proposer: o.NamedProposer = "ngram",
    k: o.K = 10,
    temperature: o.Temperature = 1.0,
    max_tokens: o.MaxTokens = 160,
    repeats: Repeats = 3,
    prompts: Prompts = None,
    json_: o.Json = False,
) -> int:
    """Prompts whose answers quote nothing: what speculation costs where it cannot pay."""
    return _speedup(prompts or "prose", model, proposer, k, temperature, max_tokens, repeats, json_)


def _speedup(file: str, model: str, proposer: str, k: int, temperature: float, max_tokens: int, repeats: int, as_json: bool) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from specdec_fn.cli.bench.paired import paired
    from specdec_fn.cli.prompts import read
    from specdec_fn.sampling import SamplingParams

    chosen = read(file)
    sampling = SamplingParams(temperature=temperature)
    target, tokenizer = o.load_model(model)
    rows = []
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        for prompt in progress.track(chosen, description=f"{file}, K = {k}"):
            ids = tokenizer.chat([{"role": "user", "content": prompt.text}])
            settings = {"tokenizer": tokenizer, "sampling": sampling, "max_tokens": max_tokens, "repeats": repeats}
            rows.append(paired(prompt.name, target, ids, speculation={"proposer": proposer, "k": k}, **settings))
    total = _whole_set(rows)
    if as_json:
        print(json.dumps({"prompts": file, "k": k, "temperature": temperature, "set": total, "rows": [_row(row) for row in rows]}))
    else:
        wide_console().print(_table(f"{file}: {proposer}, K = {k}, temperature {temperature:g}, {repeats} repeats in turns", rows, total))
    return 0


def _row(row: Any) -> dict[str, Any]:
    stats = row.speculative.stats
    return {
        "name": row.name,
        "tokens": stats.emitted,
        "finish_reason": row.speculative.finish_reason,
        "tokens_per_pass": stats.tokens_per_pass,
        "acceptance_rate": stats.acceptance_rate,
        "plain_ms": row.plain_ms,
        "speculative_ms": row.speculative_ms,
        "ratios": row.ratios,
    }


def _whole_set(rows: list[Any]) -> dict[str, float]:
    """Over all prompts: tokens a pass by totals, the ratio of total times, and the median of the paired ratios."""
    emitted, passes = (sum(getattr(row.speculative.stats, name) for row in rows) for name in ("emitted", "passes"))
    plain = sum(statistics.median(row.plain_ms) * len(row.plain.tokens) for row in rows) / sum(len(row.plain.tokens) for row in rows)
    fast = sum(statistics.median(row.speculative_ms) * len(row.speculative.tokens) for row in rows) / emitted
    return {
        "tokens_per_pass": emitted / passes,
        "plain_ms": plain,
        "speculative_ms": fast,
        "ratio": plain / fast,
        "median_ratio": statistics.median(statistics.median(row.ratios) for row in rows),
    }


def _table(title: str, rows: list[Any], total: dict[str, float]) -> Any:
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread

    table = Table(title=title)
    table.add_column("prompt")
    for name in ("tokens", "end", "tokens a pass", "accepted", "plain ms", "speculative ms", "times plain"):
        table.add_column(name, justify="right")
    for row in rows:
        stats = row.speculative.stats
        medians = (f"{statistics.median(times):.1f}" for times in (row.plain_ms, row.speculative_ms))
        cells = (str(stats.emitted), row.speculative.finish_reason, f"{stats.tokens_per_pass:.2f}", f"{stats.acceptance_rate:.0%}")
        table.add_row(row.name, *cells, *medians, spread(row.ratios))
    table.add_section()
    ratio = f"{total['ratio']:.2f}, paired median {total['median_ratio']:.3f}"
    table.add_row("whole set", "", "", f"{total['tokens_per_pass']:.2f}", "", f"{total['plain_ms']:.1f}", f"{total['speculative_ms']:.1f}", ratio)
    return table
