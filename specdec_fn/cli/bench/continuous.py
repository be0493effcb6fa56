"""``specdec bench continuous``: requests of ragged lengths, served as places come free, against batches that wait for their longest."""

import heapq
import json
import statistics
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["Shape", "continuous", "shapes"]

GATE, GATED = 1.5, (128, 16, 512)  # times the rectangle, at these requests and lengths
SHORTEST = 16
WAYS = ("continuous", "shrinking", "rectangle")


class Shape(NamedTuple):
    """What a way of serving amounts to, by arithmetic.

    Attributes:
        steps: passes until all have ended.
        rows: rows that give a token, over all steps; prompts come on top and are the same each way.
    """

    steps: int
    rows: int


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
    from specdec_fn.cli.bench.serving import Watch, ratios, whole

    lengths = whole(random.key(seed), requests, SHORTEST if longest > SHORTEST else 1, longest)
    expected, wanted = shapes(lengths, batch), sum(lengths)
    target, tokenizer = o.load_model(model)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    counted: list[dict[str, Shape]] = []
    with Watch("serving") as watch:
        for repeat in range(repeats):
            took, found = _round(target, tokenizer, lengths, batch, repeat, watch)
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


def shapes(lengths: Sequence[int], places: int) -> dict[str, Shape]:
    """Steps and rows of every way, from the lengths alone: a request of n tokens holds a place for n steps.

    >>> shapes([1, 3, 2], 2)
    {'continuous': Shape(steps=3, rows=6), 'shrinking': Shape(steps=5, rows=6), 'rectangle': Shape(steps=5, rows=8)}
    """
    ends = [0] * places
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    batches = [lengths[start : start + places] for start in range(0, len(lengths), places)]
    together = sum(map(max, batches))
    return {
        "continuous": Shape(max(ends), sum(lengths)),
        "shrinking": Shape(together, sum(lengths)),
        "rectangle": Shape(together, sum(max(part) * len(part) for part in batches)),
    }


def _round(target: Any, tokenizer: Any, lengths: list[int], batch: int, round_: int, watch: Any) -> tuple[dict[str, float], dict[str, Shape]]:
    """Seconds of each way, and the steps and rows that the engine counted."""
    from specdec_fn.cli.bench.serving import Service, abreast, conversations, engine_for, shares
    from specdec_fn.engine import Request

    prompts = conversations(tokenizer, "prose", len(lengths))
    plain: dict[str, Any] = {"ignore_eos": True, "proposer": "none"}
    asked = [Request(ids, n, seed=round_ * len(lengths) + i, **plain) for i, (ids, n) in enumerate(zip(prompts, lengths, strict=True))]
    batches = [asked[start : start + batch] for start in range(0, len(asked), batch)]
    grown = [[Request(one.prompt, max(part.max_tokens for part in group), seed=one.seed, **plain) for one in group] for group in batches]
    groups = {"continuous": [asked], "shrinking": batches, "rectangle": grown}
    # Room for the longest of everything in every place: no way is held up by rows or pages, and a prompt is computed in the pass that lets it in.
    largest = Request(max(prompts, key=len), max(lengths), **plain)
    services = {}
    for name, own in groups.items():
        state = engine_for(target, [largest] * batch, tokenizer, prefix_cache=False)
        services[name] = Service(target, state, own)
    totals = {name: sum(one.max_tokens for group in own for one in group) for name, own in groups.items()}
    took = abreast({name: shares(service, totals[name]) for name, service in services.items()}, watch)
    return took, {name: Shape(service.state.counters.steps, service.tokens) for name, service in services.items()}
