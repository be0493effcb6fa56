"""``specdec bench chunks``: how long running requests wait for their next token while a long prompt arrives, with its prefill cut up and whole."""

import json
import statistics
from typing import Annotated

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["chunks"]

GATE, GATED = 0.1, (8_000, 256)  # of the longest gap unchunked, at this prompt and chunk


def chunks(
    model: o.ModelName = "smollm2-135m",
    length: Annotated[int, typer.Option("--length", min=1, help="Tokens of the prompt that arrives.")] = GATED[0],
    running: Annotated[int, typer.Option("--running", min=1, help="Requests that decode meanwhile.")] = 8,
    chunk: Annotated[
        list[int] | None, typer.Option("--chunk", min=1, help="Prompt rows of a step; several may be given; else 256, 128 and 64.")
    ] = None,
    seed: o.Seed = 0,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each, in turns.")] = 1,
    json_: o.Json = False,
) -> int:
    """Longest gap between tokens of running requests while a long prompt arrives; exits 1 if chunks of 256 leave over 0.1 of the gap unchunked."""
    import torch
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.serving import Watch, conversations, ratios
    from specdec_fn.stages.chunked_prefill import Arrival, arrival

    target, tokenizer = o.load_model(model)
    sizes = [size for size in dict.fromkeys(chunk or (256, 128, 64)) if size < length]
    if not sizes:
        raise ValueError(f"--length is {length}; expected more than a chunk of {min(chunk or (64,))}")
    found: dict[int, list[Arrival]] = {size: [] for size in (*sizes, length)}
    prompts = conversations(tokenizer, "prose", running)
    with Watch("a long prompt") as watch:
        arrival(target, prompts, min(length, 2 * sizes[0]), sizes[0], seed, watch)  # warms up
        for repeat in range(repeats):
            for size in list(found)[:: -1 if repeat % 2 else 1]:
                found[size].append(arrival(target, prompts, length, size, seed, watch))
    gaps, firsts = ({size: [one[field] for one in found[size]] for size in found} for field in (0, 1))
    shares = {size: ratios(gaps[size], gaps[length]) for size in sizes}
    exact = all(one.steps == -(-length // size) for size in found for one in found[size])
    gated = length == GATED[0] and GATED[1] in sizes
    short = not gated or statistics.median(shares[GATED[1]]) <= GATE
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "length": length, "running": running, "seed": seed}
        ways = [
            {"chunk": size, "steps": found[size][0].steps, "gap_ms": gaps[size], "first_ms": firsts[size], "shares": shares.get(size)}
            for size in found
        ]
        print(json.dumps(facts | {"exact": exact, "passed": exact and short, "ways": ways}))
        return 0 if exact and short else 1
    table = Table(
        title=f"{running} requests decode, a prompt of {length:,} tokens arrives, {torch.get_num_threads()} threads, {repeats} runs in turns"
    )
    for column in ("prompt rows a step", "steps", "longest gap, ms", "of the gap unchunked", "first token of the prompt, ms"):
        table.add_column(column, justify="right")
    for size in found:
        share = "" if size == length else f"{statistics.median(shares[size]):.3f} ({min(shares[size]):.3f} to {max(shares[size]):.3f})"
        table.add_row(f"{size:,}", f"{found[size][0].steps:,}", spread(gaps[size]), share, spread(firsts[size]))
    wide_console().print(table)
    print(f"steps as length and chunk tell: {exact}")
    if gated:
        print(f"gate: with chunks of {GATED[1]} at most {GATE:g} of the gap unchunked, by the median: {'passed' if short else 'FAILED'}")
    return 0 if exact and short else 1
