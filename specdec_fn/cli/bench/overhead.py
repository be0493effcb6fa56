"""``specdec bench overhead``: the share of a pass that is not the target model."""

import json
from typing import Annotated

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["overhead"]

PROMPT = "Write a story about a lighthouse keeper who finds a letter in a bottle."


def overhead(
    model: o.ModelName = "smollm2-135m",
    k: o.K = 5,
    max_tokens: o.MaxTokens = 96,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each setting, in turns.")] = 5,
    json_: o.Json = False,
) -> int:
    """Laws, decision, drafting, log-probabilities and text of a pass of K + 1 rows, as a share of the whole pass."""
    from rich.table import Table

    from specdec_fn.cli.bench.paired import decode_seconds, spread
    from specdec_fn.doors import generate
    from specdec_fn.sampling import SamplingParams

    target, tokenizer = o.load_model(model)
    ids = tokenizer.chat([{"role": "user", "content": PROMPT}])
    settings = {
        "temperature 1": SamplingParams(),
        "temperature 0.8, top-k 50, top-p 0.95, min-p 0.05": SamplingParams(0.8, 50, 0.95, 0.05),
        "temperature 1, top-p 0.9 alone": SamplingParams(top_p=0.9),
        "temperature 0": SamplingParams(0.0),
    }
    shares: dict[str, list[float]] = {name: [] for name in settings}
    outside_ms: dict[str, list[float]] = {name: [] for name in settings}
    for repeat in range(repeats + 1):
        for name, sampling in settings.items():
            made = generate(
                target,
                ids,
                tokenizer=tokenizer,
                sampling=sampling,
                seed=repeat,
                k=k,
                max_tokens=max_tokens,
                ignore_eos=True,
                draft_fn=lambda context: [context[-1]] * k,
            )
            if repeat:  # the first round warms up
                whole = decode_seconds(made)
                outside = whole - made.stats.seconds["forward"]
                shares[name].append(outside / whole)
                outside_ms[name].append(1e3 * outside / made.stats.passes)
    if json_:
        print(json.dumps({"rows": k + 1, "shares": shares, "outside_ms": outside_ms}))
        return 0
    table = Table(title=f"outside the target model, {k + 1} rows a pass, vocabulary {target.config.vocab_size}, {repeats} runs in turns")
    for column in ("controls", "share of a pass, %", "milliseconds a pass"):
        table.add_column(column, justify="left" if column == "controls" else "right")
    for name in settings:
        table.add_row(name, spread([100 * share for share in shares[name]]), spread(outside_ms[name]))
    wide_console().print(table)
    return 0
