"""``specdec bench http``: tokens a second through HTTP, against the same requests through the engine in the process."""

import json
import statistics
from typing import Annotated

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["http"]

GATE = 0.9


def http(
    model: o.ModelName = "smollm2-135m",
    clients: Annotated[int, typer.Option("--clients", min=1, help="Streaming clients, each with a request of its own.")] = 16,
    length: Annotated[int, typer.Option("--length", min=1, help="Tokens of each prompt.")] = 24,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens of each answer.")] = 64,
    proposer: o.NamedProposer = "none",
    verifier: o.VerifierName = "token",
    k: o.K = 5,
    seed: o.Seed = 0,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds, in turns.")] = 5,
    json_: o.Json = False,
) -> int:
    """Tokens a second of streaming clients over loopback, and of engine.run on the same requests; exits 1 below 0.9 or if a text differs.

    The server, its engine and engine.run are in this process, each with one engine thread; the clients are raw sockets in another.
    """
    import torch
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.serving import Watch, ratios
    from specdec_fn.cli.prompts import read
    from specdec_fn.stages.server import WAYS, rounds

    target, tokenizer = o.load_model(model)
    ids = tokenizer.encode("\n\n".join(one.text for one in read("prose")))
    prompts = [(ids[40 * place % len(ids) :] + ids * (length // len(ids) + 1))[:length] for place in range(clients)]
    how = {"proposer": proposer, "verifier": verifier, "k": k}
    with Watch("rounds") as watch:
        found = rounds(target, tokenizer, prompts, max_tokens=max_tokens, repeats=repeats, seed=seed, progress=watch, **how)
    shares = ratios(found.speeds["HTTP"], found.speeds["in process"])
    passed = found.same and statistics.median(shares) >= GATE
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "clients": clients, "length": length, "max_tokens": max_tokens, **how}
        print(json.dumps(facts | {"tokens_per_second": found.speeds, "shares": shares, "same": found.same, "events": found.events, "passed": passed}))
        return 0 if passed else 1
    title = (
        f"{clients} streaming clients, {max_tokens} tokens each, proposer {proposer}, {torch.get_num_threads()} threads, {repeats} rounds in turns"
    )
    table = Table(title=title)
    for column in ("way", "tokens a second", "milliseconds a round", "of the speed in process"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for way in WAYS:
        ms = [1e3 * clients * max_tokens / speed for speed in found.speeds[way]]
        table.add_row(way, spread(found.speeds[way]), spread(ms), spread(shares) if way == "HTTP" else "")
    wide_console().print(table)
    print(f"every text is the same both ways: {found.same}; events a round: {found.events:.0f}")
    print(f"gate: at least {GATE:g}, by the median: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1
