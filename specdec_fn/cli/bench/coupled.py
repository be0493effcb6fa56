"""``specdec bench coupled``: what the keyed noise of the race costs beside the target pass that it is for."""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["coupled"]

GATE = 0.2  # of a pass, compiled
GATED, ROWS, DRAWN = "smollm2-135m", 6, 0.05  # of a pass of this model with so many rows, as the engine draws it with the C kernels


def coupled(
    model: o.ModelName = "smollm2-135m",
    k: o.K = 5,
    backend: Annotated[str, typer.Option("--backend", help="Of torch.compile: inductor (needs a C++ compiler) or eager.")] = "inductor",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each, in turns.")] = 15,
    json_: o.Json = False,
) -> int:
    """Noise of K + 1 rows and of one, as a share of a pass of as many rows; exits 1 if a share is too large or integers differ."""
    import statistics

    import torch
    from rich.table import Table

    from specdec_fn import random
    from specdec_fn.cli.bench import figures
    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import in_turns, load_average, target_pass
    from specdec_fn.cli.bench.variants import load_variant
    from specdec_fn.speculate import race, tape
    from specdec_kernels import native

    target, _ = load_variant(model, "float32")
    vocab, key = target.config.vocab_size, random.key(0)

    def address(count: int) -> Any:
        """Keys of the positions: a few words, which are folded outside the compiled part and counted in its time."""
        return random.key_data(random.fold_in(random.fold_in(key, tape.RACE), torch.arange(128, 128 + count)))

    def numbers(words: Any) -> Any:
        return race.exponential(random.bits(random.Key(words), (vocab,), width=64))

    def integers(words: Any) -> Any:
        return random.bits(random.Key(words), (vocab,), width=64)

    compiled = torch.compile(numbers, backend=backend, fullgraph=True, dynamic=False)

    def addressed(count: int) -> Any:
        return compiled(address(count))

    seconds: dict[int, float] = {}
    found: list[dict[str, Any]] = []
    with Status("compiling") as status:
        for count in dict.fromkeys((k + 1, 1)):
            start = time.perf_counter()
            addressed(count)
            seconds[count] = time.perf_counter() - start
        words = address(k + 1)
        same_integers = torch.equal(torch.compile(integers, backend=backend, fullgraph=True, dynamic=False)(words), integers(words))
        drawn = race.tape(key, k, vocab, position=128).noise
        same_noise = torch.equal(compiled(words), drawn)
        for count in seconds:
            status.say(f"noise of {count} rows")
            jobs: dict[str, Callable[[], Any]] = {
                "pass": target_pass(target, count),
                "eager": partial(race.tape, key, count - 1, vocab, position=128),
                "compiled": partial(addressed, count),
            }
            times = in_turns(jobs, repeats)
            shares = {name: [own / whole for own, whole in zip(times[name], times["pass"], strict=True)] for name in ("eager", "compiled")}
            found.append({"rows": count, "compile_seconds": seconds[count], "ms": times, "shares": shares})
    passed = same_integers and all(statistics.median(one["shares"]["compiled"]) <= GATE for one in found)
    taken = [statistics.median(one["shares"]["eager"]) for one in found if one["rows"] == ROWS and model == GATED and native.ready()]
    held = [figures.at_most(f"noise of {ROWS} rows as the engine draws it, share of a pass", share, DRAWN) for share in taken]
    code = figures.code(held) if passed else 1
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "backend": backend, "vocab_size": vocab, "passed": passed}
        print(json.dumps(facts | {"same_integers": same_integers, "same_noise": same_noise, "rows": found, "figures": figures.as_rows(held)}))
        return code
    table = Table(title=f"noise of the race, vocabulary {vocab}, {torch.get_num_threads()} threads, {repeats} runs in turns")
    for column in ("rows", "noise", "milliseconds", "share of a pass, %", "compiled in, s"):
        table.add_column(column, justify="left" if column == "noise" else "right")
    for one in found:
        table.add_row(str(one["rows"]), "(the pass)", spread(one["ms"]["pass"]), "", "")
        for name, share in one["shares"].items():
            built = f"{one['compile_seconds']:.1f}" if name == "compiled" else ""
            table.add_row(str(one["rows"]), name, spread(one["ms"][name]), spread([100 * part for part in share]), built)
    wide_console().print(table)
    print(f"compiled by {backend}: integers equal eager's: {same_integers}; noise equal to the bit: {same_noise}")
    print(f"gate: compiled at most {GATE:.0%} of a pass, by the median: {'passed' if passed else 'FAILED'}")
    print("\n".join([*figures.lines(held), native.status()]))
    return code
