"""Stage 2, the cache of keys and values: a token costs one row, wherever it stands."""

import statistics
from collections.abc import Iterator
from functools import partial

from specdec_fn import random
from specdec_fn.engine import generate
from specdec_fn.engine.law import law
from specdec_fn.sampling import SamplingParams
from specdec_fn.stages.passes import in_turns
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread

__all__ = ["stage"]

SAME = 6  # tokens that both loops must agree on


def _run(setup: Setup, progress: Progress) -> Result:
    repeats = setup.pick(15, 9)
    longest = setup.room(setup.pick(384, 256), spare=repeats + 2)
    places = sorted({max(1, longest // 24), longest // 6 + 1, longest // 2 + 1, longest})
    rule, key = law(SamplingParams(temperature=0.0)), random.key(setup.seed)
    loops: dict[int, Iterator[int]] = {}
    for place in places:
        progress.say(f"a prompt of {place} tokens")
        loops[place] = generate.cached(setup.model, key, rule, setup.ids(place), repeats + 2)
        next(loops[place])  # the prompt
    progress.say(f"a token after {', '.join(map(str, places))} others")
    times = in_turns({place: partial(next, loop) for place, loop in loops.items()}, repeats)
    first, last = places[0], places[-1]
    growth = ratios(times[last], times[first])
    middle = {place: statistics.median(times[place]) for place in places}
    prompt = setup.ids(min(24, setup.room(24, spare=SAME)))
    naive, cached = (list(loop(setup.model, key, rule, prompt, SAME)) for loop in (generate.naive, generate.cached))
    return Result(
        statistics.median(growth),
        spread(growth),
        ((f"token after {first}", middle[first]), (f"token after {last}", middle[last])),
        Plot("tokens before", "milliseconds", (Line("cached loop", tuple(places), tuple(middle.values())),)),
        ("tokens before", "milliseconds", "times the first"),
        tuple((str(place), spread(times[place]), spread(ratios(times[place], times[first]))) for place in places),
        ((f"the first {SAME} tokens are those of the naive loop", naive == cached),),
    )


stage = Stage(
    "KV cache",
    "cost of a late token / cost of an early one",
    Gate(1.3),
    "Keys and values of the past are kept, so a token is one row of a pass; only attention still grows, and it is small beside the weights.",
    _run,
)
