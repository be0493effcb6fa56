"""``specdec bench continuous``: requests of ragged lengths, served as places come free, against batches that wait for their longest."""

import json
import statistics
from typing import Annotated

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["continuous"]

GATE, GATED = 1.5, (128, 16, 512)  # times the rectangle, at these requests and lengths
SHORTEST = 16


def continuous(
    model: o.ModelName = "smollm2-135m",
    requests: Annotated[int, typer.Option("--requests", min=1, help="How many come, all at the start.")] = GATED[0],
    batch: Annotated[int, typer.Option("--batch", min=1, help="Most requests that run at once.")] = GATED[1],
    longest: Annotated[
        int, typer.Option("--longest", min=1, help="Lengths are uniform from 16 to this; from 1 where it is no more than 16.")
    ] = GATED[2],
    seed: o.Seed = 0,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds, in each of which the ways take steps in turns.")] = 1,
    json_: o.Json = False,
) -> int:
    """Wanted tokens a second where a place that comes free is filled at once, and where a batch ends together; exits 1 if under 1.5 times as many.

    In the rectangle every request of a batch goes on to the longest of them, and what it was not asked for does not count. In the shrinking batch
    it leaves when it is done, but nobody joins. The engine is the same for all; steps and rows must be those that the lengths alone tell.
    """
    import torch
    from rich.table import Table

    from specdec_fn import random
    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.serving import Watch, conversations, ratios, whole
    from specdec_fn.stages.continuous_batching import WAYS, Shape, served, shapes

    lengths = whole(random.key(seed), requests, SHORTEST if longest > SHORTEST else 1, longest)
    expected, wanted = shapes(lengths, batch), sum(lengths)
    target, tokenizer = o.load_model(model)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    counted: list[dict[str, Shape]] = []
    prompts = conversations(tokenizer, "prose", requests)
    with Watch("serving") as watch:
        for repeat in range(repeats):
            took, found = served(target, prompts, lengths, batch, watch, tokenizer=tokenizer, first=repeat * requests)
            counted.append(found)
            for name in WAYS:
                seconds[name].append(took[name])
    rates = {name: [wanted / one for one in seconds[name]] for name in WAYS}
    times = {name: ratios(rates["continuous"], rates[name]) for name in WAYS[1:]}
    exact = all(found == expected for found in counted)
    gated = (requests, batch, longest) == GATED
    passed = exact and (not gated or statistics.median(times["rectangle"]) >= GATE)
    useful = {name: wanted / shape.rows for name, shape in expected.items()}
    filled = {name: wanted / (shape.steps * batch) for name, shape in expected.items()}
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "requests": requests, "batch": batch, "longest": longest, "seed": seed}
        counts = {
            "wanted": wanted,
            "exact": exact,
            "steps": {name: shape.steps for name, shape in counted[0].items()},
            "useful": useful,
            "filled": filled,
        }
        print(json.dumps(facts | counts | {"seconds": seconds, "tokens_per_second": rates, "ratios": times, "passed": passed}))
        return 0 if passed else 1
    title = f"{requests} requests of {min(lengths)} to {max(lengths)} tokens, {wanted:,} in all, batch {batch}, {torch.get_num_threads()} threads"
    table = Table(title=title)
    for column in ("", "steps", "useful rows", "useful places", "ms a step", "wanted tokens a second", "continuous against it"):
        table.add_column(column, justify="right" if column else "left")
    for name in WAYS:
        shares = (f"{share[name]:.1%}" for share in (useful, filled))
        step_ms = [1e3 * one / expected[name].steps for one in seconds[name]]
        against = spread(times[name]) if name in times else ""
        table.add_row(name, f"{expected[name].steps:,}", *shares, spread(step_ms), spread(rates[name]), against)
    wide_console().print(table)
    print(f"steps and rows of every way as its lengths tell: {exact}")
    if gated:
        print(
            f"gate: at least {GATE:g} times the rectangle, by the median: {'passed' if statistics.median(times['rectangle']) >= GATE else 'FAILED'}"
        )
    return 0 if passed else 1
