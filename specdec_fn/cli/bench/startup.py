"""``specdec bench startup``: the first token, and the native build, of new processes with an empty cache folder and with a filled one."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.bench import figures
from specdec_fn.cli.bench.variants import Dtype, Quantize
from specdec_fn.cli.status import Status, wide_console

__all__ = ["CACHE", "startup"]

CACHE = "SPECDEC_CACHE"  # names the folder that the native build is kept in
COLD, WARM = 60.0, 3.0  # seconds from the loaded model, when the build is first asked for, until it is ready
DELAY = 1.5  # first token with an empty folder over one with a filled one: the build runs beside it, and takes a core for a while
LONGEST = 300.0  # seconds of a start


def startup(
    model: o.ModelName = "smollm2-135m",
    dtype: Dtype = "float32",
    quantize: Quantize = "none",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Starts of each kind, in turns.")] = 3,
    json_: o.Json = False,
) -> int:
    """Seconds to the first token and to the native build, cold and warm; exits 1 if the first token waits or the build comes late."""
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.variants import named

    weights = named(dtype, quantize)
    starts: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder, Status("starting") as status:
        filled = Path(folder) / "filled"
        once(model, weights, filled)
        for repeat in range(repeats):
            for kind in ("cold", "warm") if repeat % 2 else ("warm", "cold"):
                status.say(f"{kind} start {repeat + 1} of {repeats}")
                starts[kind].append(once(model, weights, filled if kind == "warm" else Path(folder) / f"empty {repeat}"))
    delays = [cold["first"] / warm["first"] for cold, warm in zip(starts["cold"], starts["warm"], strict=True)]
    held = [figures.at_most("first token, cold / warm", statistics.median(delays), DELAY)]
    built = all(one["ready"] is not None for group in starts.values() for one in group)
    if built:
        for kind, limit in (("cold", COLD), ("warm", WARM)):
            held.append(figures.at_most(f"{kind}: seconds from the loaded model to the build", _waits(starts[kind]), limit))
    line = starts["cold"][-1]["status"]
    if json_:
        print(json.dumps({"weights": weights, "load": load_average(), "starts": starts, "first_ratios": delays, "status": line} | _told(held)))
        return figures.code(held)
    table = Table(title=f"new processes, {weights}, {repeats} starts of each in turns: seconds since the start")
    for column in ("cache folder", "imported", "loaded", "first token", "build ready"):
        table.add_column(column, justify="right")
    for kind, group in starts.items():
        ready = spread([one["ready"] for one in group]) if built else "no build"
        table.add_row(
            "empty" if kind == "cold" else "filled", *(spread([one[name] for one in group]) for name in ("imported", "loaded", "first")), ready
        )
    wide_console().print(table)
    print(f"first token, cold / warm: {spread(delays)}\nthe build says: {line}")
    print("\n".join(figures.lines(held)))
    return figures.code(held)


def _waits(group: list[dict[str, Any]]) -> float:
    return statistics.median(max(0.0, one["ready"] - one["loaded"]) for one in group)


def _told(held: list[figures.Figure]) -> dict[str, Any]:
    return {"figures": figures.as_rows(held)}


def once(model: str, weights: str, folder: Path) -> dict[str, Any]:
    """One start in a process of its own, with a cache folder.

    Raises:
        ValueError: the process failed, with its last line.
    """
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "specdec_fn.cli.bench.startup_once", model, weights, str(time.time())]
    try:
        run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, CACHE: str(folder)}, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(f"a start took more than {LONGEST:g} seconds; expected its first token and its build before") from None
    if run.returncode:
        said = (run.stderr.strip().splitlines() or ["no word"])[-1]
        raise ValueError(f"a start ended with {run.returncode}: {said}")
    return dict(json.loads(run.stdout.splitlines()[-1]))
