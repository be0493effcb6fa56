"""Stage 14, the detokenizer: a token's text costs the same at any length, and the pieces are the text of all ids at once."""

import statistics
import time

from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread
from specdec_fn.text import detokenizer

__all__ = ["stage"]

BLOCK = 250  # tokens that are timed together


def _run(setup: Setup, progress: Progress) -> Result:
    ids = setup.ids(setup.pick(32, 16) * BLOCK)
    runs: list[list[float]] = []
    whole = ""
    for repeat in range(setup.pick(7, 5) + 1):
        progress.say(f"{len(ids):,} tokens, one at a time")
        state, pieces, times = detokenizer.init(setup.tokenizer), list[str](), []
        for start in range(0, len(ids), BLOCK):
            before = time.perf_counter()
            for one in ids[start : start + BLOCK]:
                state, text = detokenizer.feed(state, [one])
                pieces.append(text)
            times.append(1e6 * (time.perf_counter() - before) / BLOCK)
        whole = "".join((*pieces, detokenizer.finish(state)))
        if repeat:  # the first run warms up
            runs.append(times)
    quarter = max(1, len(runs[0]) // 4)
    early, late = ([statistics.median(times[part]) for times in runs] for part in (slice(quarter), slice(-quarter, None)))
    growth = ratios(late, early)
    middle = tuple(statistics.median(times[block] for times in runs) for block in range(len(runs[0])))
    return Result(
        statistics.median(growth),
        spread(growth),
        (("1,000 early tokens", statistics.median(early)), ("1,000 late tokens", statistics.median(late))),
        Plot("tokens before", "microseconds a token", (Line("detokenizer", tuple(BLOCK * block for block in range(len(middle))), middle),)),
        ("tokens", "microseconds a token"),
        ((f"the first {quarter * BLOCK:,}", spread(early)), (f"the last {quarter * BLOCK:,} of {len(ids):,}", spread(late))),
        (("the pieces are what decoding all ids at once gives", whole == setup.tokenizer.decode(ids)),),
    )


stage = Stage(
    "detokenizer",
    "cost of a late token / cost of an early one",
    Gate(1.5),
    "To decode everything again for every token is quadratic. What is kept between tokens is bounded, and no piece is ever taken back.",
    _run,
)
