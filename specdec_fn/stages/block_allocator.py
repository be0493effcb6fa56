"""Stage 6, the block allocator: a sequence takes pages as it grows, not its longest possible length at once."""

import itertools
import statistics
import time
from typing import Any

from specdec_fn import random
from specdec_fn.kv import pages as pools
from specdec_fn.kv import table
from specdec_fn.stages import serving
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread

__all__ = ["LONGEST", "RUN", "fitted", "microseconds", "stage", "used"]

RUN = 16  # pages of one alloc and one release
RUNS = 31  # allocs before the releases; half of their pages were held before, the others are virgin
LONGEST = 399  # slots; lengths are uniform from 1, so the mean is 200
PAGE, RESERVED = 16, 2_048


def used(num_pages: int, held: int) -> Any:
    """A pool with as many pages held, a few given back from all over those, and the rest virgin.

    >>> pools.free_count(used(1_000, 500))
    748
    """
    back = RUN * RUNS // 2
    pool, ids = pools.alloc(pools.init(num_pages), held)
    assert ids is not None
    return pools.release(pool, ids[:: held // back][:back])


def microseconds(pool: Any) -> float:
    """Median time of an alloc and of a release of 16 pages, added; the pool is a value and stays as it is, so every call does the same.

    >>> microseconds(used(2_000, 500)) > 0
    True
    """
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


def fitted(num_pages: int, page_size: int, seed: int) -> tuple[int, int]:
    """Sequences that fit before the first that does not, and the slots that they fill; lengths are uniform from 1 to 399.

    >>> count, slots = fitted(100, 16, 0)
    >>> count > 3, slots <= 1600
    (True, True)
    """
    key, pool, sequences, slots = random.key(seed), pools.init(num_pages), 0, 0
    while True:
        for length in serving.whole(random.fold_in(key, sequences), 1024, 1, LONGEST):
            room = table.reserve(pool, table.Table(), length, page_size=page_size)
            if room is None:
                return sequences, slots
            pool, sequences, slots = room[0], sequences + 1, slots + length


def _run(setup: Setup, progress: Progress) -> Result:
    counts = (1_024, 4_096, 16_384) if setup.quick else (1_024, 4_096, 16_384, 65_536)
    found = []
    for count in counts:
        progress.say(f"sequences into {count:,} pages")
        paged, slots = fitted(count, PAGE, setup.seed)
        found.append((paged, count * PAGE // RESERVED, slots / (count * PAGE)))
    sizes = (1_000, 10_000, 100_000)
    filled = {size: used(size, 500) for size in sizes}
    progress.say("taking pages and giving them back")
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for repeat in range(setup.pick(15, 7)):
        for size in sizes[:: 1 if repeat % 2 else -1]:
            times[size].append(microseconds(filled[size]))
    growth = statistics.median(ratios(times[sizes[-1]], times[sizes[0]]))
    paged, whole, share = found[-1]
    rows = [
        (f"{count:,} pages", f"{a:,} sequences", f"{b:,} with {RESERVED:,} slots each", f"{c:.1%} of the slots hold a token")
        for count, (a, b, c) in zip(counts, found, strict=True)
    ]
    rows += [
        (
            f"{size:,} pages",
            "alloc and release of 16 pages",
            spread(times[size]) + " µs",
            spread(ratios(times[size], times[sizes[0]])) + " times the smallest pool's",
        )
        for size in sizes
    ]
    return Result(
        paged / whole,
        f"{paged / whole:.2f}",
        (("alloc and release of 16 pages", statistics.median(times[sizes[0]]) / 1e3),),
        Plot(
            "pages of the pool",
            "sequences that fit",
            (Line("by pages", counts, tuple(one[0] for one in found)), Line("with the maximum reserved", counts, tuple(one[1] for one in found))),
            log_x=True,
            log_y=True,
        ),
        ("pool", "", "", ""),
        tuple(rows),
        (
            ("every page but the last of a sequence is full", share > 1 - PAGE / 2 / (LONGEST / 2) - 0.02),
            ("a pool 100 times as large is not twice as slow", growth <= 2),
        ),
    )


stage = Stage(
    "block allocator",
    "sequences that fit / with the maximum reserved",
    Gate(8.0, least=True),
    "Sequences have 200 tokens in the mean and may have 2,048. Pages of 16 slots waste half a page each; a reservation wastes nine tenths of all.",
    _run,
)
