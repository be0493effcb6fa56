"""``specdec bench pages``: what pages cost to take and give back as the pool grows, and how many sequences fit that take only what they need."""

import itertools
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["pages"]

GATE = 8.0  # sequences that fit, over those with the maximum reserved, at a mean of 200 slots
RUN = 16  # pages of one alloc and one release
RUNS = 31  # allocs before the releases; half of their pages were held before, the others are virgin
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LONGEST = 399  # slots; lengths are uniform from 1, so the mean is 200


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

    whole = num_pages // pages_for(reserved, page_size=page_size)
    if not whole:
        raise ValueError(f"--reserved is {reserved}; expected at most {num_pages * page_size}, the slots of the pool")
    with Status("filling pools") as status:
        # Half used: the map of held pages grows with the pool. Equally used: nothing but the size differs.
        uses = {"half used": lambda size: size // 2, "500 pages used": lambda size: SIZES[0] // 2}
        pools = {(use, size): _used(size, held(size)) for use, held in uses.items() for size in SIZES}
        times: dict[tuple[str, int], list[float]] = {name: [] for name in pools}
        for repeat in range(repeats + 1):
            status.say(f"taking and giving back, run {repeat} of {repeats}")
            for name in list(pools)[:: 1 if repeat % 2 else -1]:
                took = _microseconds(pools[name])
                if repeat:  # the first one warms up
                    times[name].append(took)
        status.say("fitting sequences")
        paged, slots = _fitted(num_pages, page_size, seed)
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


def _used(num_pages: int, held: int) -> Any:
    """A pool with as many pages held, a few given back from all over those, and the rest virgin."""
    from specdec_fn.kv import pages as pools

    back = RUN * RUNS // 2
    pool, ids = pools.alloc(pools.init(num_pages), held)
    assert ids is not None
    return pools.release(pool, ids[:: held // back][:back])


def _microseconds(pool: Any) -> float:
    """Median time of an alloc and of a release, added; the pool is a value and stays as it is, so every call does the same."""
    import statistics
    import time

    from specdec_fn.kv import pages as pools

    runs: list[tuple[int, ...]] = []
    marks = [time.perf_counter()]
    for _ in range(RUNS):
        pool, ids = pools.alloc(pool, RUN)
        assert ids is not None
        runs.append(ids)
        marks.append(time.perf_counter())
    for ids in runs:
        pool = pools.release(pool, ids)
        marks.append(time.perf_counter())
    steps = [1e6 * (after - before) for before, after in itertools.pairwise(marks)]
    return statistics.median(steps[:RUNS]) + statistics.median(steps[RUNS:])


def _fitted(num_pages: int, page_size: int, seed: int) -> tuple[int, int]:
    """Sequences that fit before the first that does not, and the slots that they fill."""
    import torch

    from specdec_fn import random
    from specdec_fn.kv import pages as pools
    from specdec_fn.kv import table

    key, pool, sequences, slots = random.key(seed), pools.init(num_pages), 0, 0
    while True:
        drawn = random.uniform(random.fold_in(key, sequences), (1024,))
        for length in (1 + (drawn * LONGEST).to(torch.int64)).tolist():
            room = table.reserve(pool, table.Table(), length, page_size=page_size)
            if room is None:
                return sequences, slots
            pool, sequences, slots = room[0], sequences + 1, slots + length
