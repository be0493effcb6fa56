"""``specdec bench prefix``: the time to a request's first token where others began the same way, against the time where nobody did."""

import json
import statistics
from typing import Annotated

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["prefix"]

GATE, GATED = 0.1, 1024  # of the cold time, at this prefix


def prefix(
    model: o.ModelName = "smollm2-135m",
    length: Annotated[int, typer.Option("--length", min=16, help="Tokens that the prompts share.")] = GATED,
    suffix: Annotated[int, typer.Option("--suffix", min=1, help="Tokens of each prompt after those, other ones every time.")] = 16,
    chunk: Annotated[int, typer.Option("--chunk", min=1, help="Most prompt rows of a step.")] = 256,
    seed: o.Seed = 0,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Requests of each kind, in turns.")] = 7,
    json_: o.Json = False,
) -> int:
    """Time to first token with the prefix cached and, under a salt of its own, not; exits 1 if the first passes 0.1 of the second.

    It also exits 1 if the cache holds other tokens of a prompt than it must: all full pages of the prefix for a warm one, none for a cold one.
    """
    import torch
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.serving import Watch, ratios
    from specdec_fn.stages.prefix_caching import PAGE, WAYS, first_tokens

    target, _ = o.load_model(model)
    with Watch("first tokens") as watch:
        ms, cached = first_tokens(target, length, suffix, chunk, seed, repeats, watch)
    shares = ratios(ms["warm"], ms["cold"])
    held = {"cold": 0, "warm": length // PAGE * PAGE}
    exact = all(set(cached[name]) == {held[name]} for name in WAYS)
    passed = exact and (length != GATED or statistics.median(shares) <= GATE)
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "length": length, "suffix": suffix, "chunk": chunk, "seed": seed}
        print(json.dumps(facts | {"ms": ms, "cached": cached, "shares": shares, "exact": exact, "passed": passed}))
        return 0 if passed else 1
    table = Table(title=f"time to first token, {length} shared tokens and {suffix} more, {torch.get_num_threads()} threads, {repeats} runs in turns")
    for column in ("prefix", "milliseconds", "of the cold time", "tokens from the cache"):
        table.add_column(column, justify="left" if column == "prefix" else "right")
    for name in WAYS:
        share = f"{statistics.median(shares):.3f} ({min(shares):.3f} to {max(shares):.3f})" if name == "warm" else ""
        table.add_row(name, spread(ms[name]), share, ", ".join(map(str, sorted(set(cached[name])))))
    wide_console().print(table)
    print(f"the cache had what it must have: {exact}")
    if length == GATED:
        print(f"gate: at most {GATE:g} of the cold time, by the median: {'passed' if statistics.median(shares) <= GATE else 'FAILED'}")
    return 0 if passed else 1
