"""``specdec bench scheduling``: what a decision costs with a thousand requests running and ten thousand waiting."""

import json
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["GATE", "scheduling"]

GATE = 1.0  # most milliseconds of a decision, the median of many, at the default sizes
SIZES = (1000, 10_000, 4, 16)


def scheduling(
    running: Annotated[int, typer.Option("--running", min=1, help="Requests that run.")] = SIZES[0],
    waiting: Annotated[int, typer.Option("--waiting", min=0, help="Requests that wait.")] = SIZES[1],
    k: Annotated[int, typer.Option("--k", min=0, help="Drafted rows of each request.")] = SIZES[2],
    page_size: Annotated[int, typer.Option("--page-size", min=1, help="Slots of a page.")] = SIZES[3],
    passes: Annotated[int, typer.Option("--passes", min=1, help="Passes that are timed, each on the state that the one before left.")] = 60,
    json_: o.Json = False,
) -> int:
    """Time of schedule, commit, submit and abort; exits 1 if the median decision takes more than 1 ms at the default sizes."""
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.stages.scheduler import TRAFFIC, timed

    found: list[dict[str, Any]] = []
    with Status("scheduling") as status:
        for traffic in TRAFFIC:
            status.say(traffic.name)
            found.append({"traffic": traffic.name, **timed(traffic, running, waiting, k, page_size, passes)})
    gated = (running, waiting, k, page_size) == SIZES
    code = 1 if gated and sorted(found[0]["schedule_ms"])[passes // 2] > GATE else 0
    if json_:
        print(json.dumps({"running": running, "waiting": waiting, "k": k, "page_size": page_size, "load": load_average(), "rows": found}))
        return code
    table = Table(title=f"{running} running, {waiting} waiting, k {k}, pages of {page_size}: processor time, median (least to most)")
    columns = ("schedule_ms", "commit_ms", "submit_us", "abort_us")
    for column in ("traffic", "schedule, ms", "commit, ms", "submit, µs", "abort, µs", "admitted", "preempted"):
        table.add_column(column, justify="right")
    for row in found:
        table.add_row(row["traffic"], *(spread(row[name]) for name in columns), str(row["admitted"]), str(row["preempted"]))
    console = wide_console()
    console.print(table)
    console.print(f"load {load_average()}; gate on the first row: {GATE} ms" + (", FAILED" if code else "" if gated else ", not at these sizes"))
    return code
