"""Stage 3, the roofline: what a pass could take on this machine by its bytes and its products, and what it does take."""

import statistics

from specdec_fn.stages import machine
from specdec_fn.stages.passes import target_pass
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread

__all__ = ["stage"]

ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 128


def _run(setup: Setup, progress: Progress) -> Result:
    from specdec_fn.cost import roofline, shapes

    config = setup.model.config
    context = setup.room(CONTEXT, spare=ROWS[-1] + 1)
    progress.say(f"passes of {ROWS[0]} to {ROWS[-1]} rows, reading and multiplying in turns with them")
    passes = {rows: target_pass(setup.model, rows, context=context) for rows in ROWS}
    shape = shapes.of(config)
    found, times = machine.beside(4 * shape.weights, passes, setup.pick(9, 4))
    this = machine.middle(found)
    bounds = {rows: roofline.of_pass(this, shape, dtype="float32", rows=rows, context=context) for rows in ROWS}
    free = roofline.free_rows(this, shape, dtype="float32", context=context)
    middle = {rows: statistics.median(times[rows]) for rows in ROWS}
    least = [1e3 * roofline.of_pass(one, shape, dtype="float32", context=context).least for one in found]
    of_bound = ratios(times[1], least)
    rows = tuple(
        (str(n), spread(times[n]), f"{1e3 * bounds[n].least:.2f} to {1e3 * bounds[n].most:.2f}", bounds[n].bound, spread(ratios(times[n], times[1])))
        for n in ROWS
    )
    rates = f"{this.bandwidth / 1e9:.1f} GB/s, {this.compute[0][1] / 1e9:.0f} GFLOP/s"
    return Result(
        statistics.median(of_bound),
        f"{spread(of_bound)}, ridge at {free} rows",
        (("pass of one row", middle[1]), ("its bytes alone", statistics.median(least))),
        Plot(
            "rows of a pass",
            "milliseconds",
            (
                Line("measured", ROWS, tuple(middle.values())),
                Line("bytes or products, whichever is longer", ROWS, tuple(1e3 * bounds[n].least for n in ROWS)),
                Line("one after the other", ROWS, tuple(1e3 * bounds[n].most for n in ROWS)),
            ),
            None,
            True,
            True,
        ),
        ("rows", "measured, ms", "predicted, ms", "bound by", "times one row"),
        (*rows, ("ridge", f"{free} rows", rates, "", "")),
        ((f"the ridge lies between 1 and {ROWS[-1]} rows", 1 < free < ROWS[-1]),),
    )


stage = Stage(
    "roofline",
    "measured pass of one row / what its bytes take; the ridge, in rows",
    Gate(1.6),
    "A pass of one row can be no faster than its weights are read. Up to the ridge more rows hide behind the reading.",
    _run,
)
