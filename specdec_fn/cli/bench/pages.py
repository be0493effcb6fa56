"""``specdec bench pages``: what pages cost to take and give back as the pool grows, and how many sequences fit that take only what they need."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["pages"]

GATE = 8.0  # sequences that fit, over those with the maximum reserved, at a mean of 200 slots
SIZES = (1_000, 10_000, 100_000, 1_000_000)


def pages(
    num_pages: Annotated[int, typer.Option("--num-pages", min=1, help="Pages of the pool that sequences are fitted into.")] = 65_536,
    page_size: Annotated[int, typer.Option("--page-size", min=1, help="Slots of a page.")] = 16,
    reserved: Annotated[int, typer.Option("--reserved", min=1, help="Slots that a sequence takes where its maximum is reserved.")] = 2_048,
    seed: o.Seed = 0,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each size, in turns.")] = 25,
    json_: o.Json = False,
) -> int:
    """Time to take and give back 16 pages in pools of many sizes; sequences of mean length 200 that fit, exits 1 if under 8 times as many."""
    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.kv.table import pages_for
    from specdec_fn.stages.block_allocator import LONGEST, RUN, fitted, microseconds, used

    whole = num_pages // pages_for(reserved, page_size=page_size)
    if not whole:
        raise ValueError(f"--reserved is {reserved}; expected at most {num_pages * page_size}, the slots of the pool")
    with Status("filling pools") as status:
        # Half used: the map of held pages grows with the pool. Equally used: nothing but the size differs.
        uses = {"half used": lambda size: size // 2, "500 pages used": lambda size: SIZES[0] // 2}
        pools = {(use, size): used(size, held(size)) for use, held in uses.items() for size in SIZES}
        times: dict[tuple[str, int], list[float]] = {name: [] for name in pools}
        for repeat in range(repeats + 1):
            status.say(f"taking and giving back, run {repeat} of {repeats}")
            for name in list(pools)[:: 1 if repeat % 2 else -1]:
                took = microseconds(pools[name])
                if repeat:  # the first one warms up
                    times[name].append(took)
        status.say("fitting sequences")
        paged, slots = fitted(num_pages, page_size, seed)
    ratios = {(use, size): [one / base for one, base in zip(times[use, size], times[use, SIZES[0]], strict=True)] for use, size in times}
    ratio, filled = paged / whole, slots / (num_pages * page_size)
    passed = ratio >= GATE
    if json_:
        cost = [{"use": use, "num_pages": size, "microseconds": times[use, size], "ratios": ratios[use, size]} for use, size in times]
        fit = {"num_pages": num_pages, "page_size": page_size, "reserved": reserved, "seed": seed, "longest": LONGEST}
        print(json.dumps({"load": load_average(), "passed": passed, "cost": cost, "fit": fit | {"paged": paged, "whole": whole, "filled": filled}}))
        return 0 if passed else 1
    rows = [(use, f"{size:,}", spread(times[use, size]), spread(ratios[use, size])) for use, size in times]
    _print_table(f"alloc and release of {RUN} pages, {repeats} runs in turns", rows)
    print(f"pool of {num_pages:,} pages of {page_size} slots, lengths uniform from 1 to {LONGEST}, seed {seed}")
    print(f"fit: {paged:,} sequences paged, {100 * filled:.1f} % of the slots filled; {whole:,} with {reserved:,} slots reserved for each")
    print(f"gate: at least {GATE:g} times as many: {ratio:.2f}, {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


def _print_table(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    from rich.table import Table

    table = Table(title=title)
    for column in ("pool", "pages of the pool", "microseconds", "times the smallest pool's"):
        table.add_column(column, justify="left" if column == "pool" else "right")
    for row in rows:
        table.add_row(*row)
    wide_console().print(table)
