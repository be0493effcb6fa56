"""Stage 20, speculation and batching: both fill the same rows of a pass, and both are free only up to the ridge."""

import statistics

from specdec_fn.stages import machine
from specdec_fn.stages.passes import target_pass
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread

__all__ = ["stage"]

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
FREE = 1.25  # times a pass of one row: up to here another row is called free
CONTEXT = 128


def _run(setup: Setup, progress: Progress) -> Result:
    from specdec_fn.cost import roofline, shapes

    context = setup.room(CONTEXT, spare=ROWS[-1] + 1)
    progress.say(f"passes of {ROWS[0]} to {ROWS[-1]} rows")
    jobs = {rows: target_pass(setup.model, rows, context=context) for rows in ROWS}
    shape = shapes.of(setup.model.config)
    found, times = machine.beside(4 * shape.weights, jobs, setup.pick(9, 4))
    ridge = roofline.free_rows(machine.middle(found), shape, dtype="float32", context=context)
    cost = {rows: statistics.median(ratios(times[rows], times[1])) for rows in ROWS}
    free = ROWS[0]
    for rows in ROWS[1:]:
        if cost[rows] > FREE:
            break
        free = rows
    middle = {rows: statistics.median(times[rows]) for rows in ROWS}
    return Result(
        free / max(1, ridge),
        f"{free} of {ridge} rows; 5 rows cost {cost[5]:.2f}",
        (("pass of one row", middle[1]), ("pass of 5 rows", middle[5])),
        Plot(
            "rows of a pass: requests times (K + 1)",
            "times a pass of one row",
            (Line("measured", ROWS, tuple(cost.values())), Line("roofline", ROWS, tuple(max(1.0, rows / max(1, ridge)) for rows in ROWS))),
            (FREE, "free below this"),
            log_x=True,
        ),
        ("rows", "milliseconds", "times one row", "as requests times K + 1"),
        tuple(
            (
                str(rows),
                spread(times[rows]),
                spread(ratios(times[rows], times[1])),
                ", ".join(f"{b} x {rows // b}" for b in (1, 2, 4, 8) if rows % b == 0),
            )
            for rows in ROWS
        ),
    )


stage = Stage(
    "speculation x batching",
    f"rows that cost at most {FREE:g} of one row / rows up to the predicted ridge",
    Gate(0.2, least=True),
    "Five requests and four drafted tokens of one request are the same five rows. What batching has taken, speculation finds no longer free.",
    _run,
)
