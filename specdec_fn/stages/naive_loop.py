"""Stage 1, the naive loop: every token costs a forward over all before it, so its cost grows with its place."""

import statistics

from specdec_fn import random
from specdec_fn.engine import generate
from specdec_fn.engine.law import law
from specdec_fn.sampling import SamplingParams
from specdec_fn.stages.passes import in_turns
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread

__all__ = ["stage"]


def _run(setup: Setup, progress: Progress) -> Result:
    longest = setup.room(setup.pick(384, 256), spare=1)
    places = sorted({max(1, longest // 24), longest // 6 + 1, longest // 2 + 1, longest})
    rule = law(SamplingParams(temperature=0.0))
    prompts = {place: setup.ids(place) for place in places}
    jobs = {place: lambda ids=ids: list(generate.naive(setup.model, random.key(setup.seed), rule, ids, 1)) for place, ids in prompts.items()}
    progress.say(f"a token after {', '.join(map(str, places))} others, each from a cold start")
    times = in_turns(jobs, setup.pick(5, 3))
    first, last = places[0], places[-1]
    growth = ratios(times[last], times[first])
    middle = {place: statistics.median(times[place]) for place in places}
    return Result(
        statistics.median(growth),
        spread(growth),
        ((f"token after {first}", middle[first]), (f"token after {last}", middle[last])),
        Plot("tokens before", "milliseconds", (Line("naive loop", tuple(places), tuple(middle.values())),)),
        ("tokens before", "milliseconds", "times the first"),
        tuple((str(place), spread(times[place]), spread(ratios(times[place], times[first]))) for place in places),
    )


stage = Stage(
    "naive loop",
    "cost of a late token / cost of an early one",
    Gate(1.5, least=True),
    "Without a cache every token is computed from all tokens before it again. This is the loop that everything below is measured against.",
    _run,
)
