"""Stage 5, continuous batching: a place that comes free is filled at once, so no request waits for the longest of its batch."""

import heapq
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from specdec_fn import random
from specdec_fn.engine import Request
from specdec_fn.stages import serving
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, spread

__all__ = ["WAYS", "Shape", "served", "shapes", "stage"]

WAYS = ("continuous", "shrinking", "rectangle")


class Shape(NamedTuple):
    """What a way of serving amounts to, by arithmetic.

    Attributes:
        steps: passes until all have ended.
        rows: rows that give a token, over all steps; prompts come on top and are the same each way.
    """

    steps: int
    rows: int


def shapes(lengths: Sequence[int], places: int) -> dict[str, Shape]:
    """Steps and rows of every way, from the lengths alone: a request of n tokens holds a place for n steps.

    >>> shapes([1, 3, 2], 2)
    {'continuous': Shape(steps=3, rows=6), 'shrinking': Shape(steps=5, rows=6), 'rectangle': Shape(steps=5, rows=8)}
    """
    ends = [0] * places
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    batches = [lengths[start : start + places] for start in range(0, len(lengths), places)]
    together = sum(map(max, batches))
    return {
        "continuous": Shape(max(ends), sum(lengths)),
        "shrinking": Shape(together, sum(lengths)),
        "rectangle": Shape(together, sum(max(part) * len(part) for part in batches)),
    }


def served(
    model: Any,
    prompts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    batch: int,
    progress: Progress,
    *,
    tokenizer: Any = None,
    first: int = 0,
    ways: Sequence[str] = WAYS,
) -> tuple[dict[str, float], dict[str, Shape]]:
    """Serves requests of these lengths in each way, in turns, and gives the seconds of each and the steps and rows that its engine counted.

    Args:
        model: the target.
        prompts, lengths: of each request: its ids, and the tokens it wants.
        batch: places.
        progress: is told how far each way has come.
        tokenizer: of the engine, if it has one.
        first: seed of the first request; the others follow.
        ways: which of ``WAYS``.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.stages.stage import Mute
    >>> served(toy.llama(random.key(0)), [[1], [2], [3]], [1, 3, 2], 2, Mute())[1] == shapes([1, 3, 2], 2)
    True
    """
    plain: dict[str, Any] = {"ignore_eos": True, "proposer": "none"}
    asked = [Request(list(ids), n, seed=first + i, **plain) for i, (ids, n) in enumerate(zip(prompts, lengths, strict=True))]
    batches = [asked[start : start + batch] for start in range(0, len(asked), batch)]
    grown = [[Request(one.prompt, max(part.max_tokens for part in group), seed=one.seed, **plain) for one in group] for group in batches]
    groups = {"continuous": [asked], "shrinking": batches, "rectangle": grown}
    # Room for the longest of everything in every place: no way is held up by rows or pages, and a prompt is computed in the pass that lets it in.
    largest = max((Request(one.prompt, max(lengths), **plain) for one in asked), key=lambda one: len(one.prompt))
    services = {}
    for name in ways:
        state = serving.engine_for(model, [largest] * batch, tokenizer, prefix_cache=False)
        services[name] = serving.Service(model, state, groups[name])
    totals = {name: sum(one.max_tokens for group in groups[name] for one in group) for name in ways}
    took = serving.abreast({name: serving.shares(service, totals[name]) for name, service in services.items()}, progress)
    return took, {name: Shape(service.state.counters.steps, service.tokens) for name, service in services.items()}


def _run(setup: Setup, progress: Progress) -> Result:
    count, batch, longest = setup.pick(32, 12), setup.pick(8, 4), setup.room(setup.pick(48, 24), spare=16)
    lengths = serving.whole(random.key(setup.seed), count, 1, longest)
    expected, wanted = shapes(lengths, batch), sum(lengths)
    ways = ("continuous", "rectangle")
    gains, step_ms, exact = [], {name: list[float]() for name in ways}, True
    for round_ in range(setup.pick(2, 1)):
        took, found = served(setup.model, [setup.ids(8, 31 * i) for i in range(count)], lengths, batch, progress, first=round_ * count, ways=ways)
        gains.append(took["rectangle"] / took["continuous"])
        exact &= all(found[name] == expected[name] for name in ways)
        for name in ways:
            step_ms[name].append(1e3 * took[name] / expected[name].steps)
    medians = {name: statistics.median(step_ms[name]) for name in ways}
    rates = {name: 1e3 * wanted / (medians[name] * expected[name].steps) for name in ways}
    return Result(
        statistics.median(gains),
        spread(gains),
        tuple((f"step, {name}", medians[name]) for name in ways),
        Plot("", "wanted tokens a second", (Line("measured", (0.0, 1.0), tuple(rates.values()), points=True),), names=ways),
        ("way", "steps", "rows that give a token", "of them wanted", "milliseconds a step", "wanted tokens a second"),
        tuple(
            (
                name,
                f"{expected[name].steps:,}",
                f"{expected[name].rows:,}",
                f"{wanted / expected[name].rows:.0%}",
                spread(step_ms[name]),
                f"{rates[name]:.1f}",
            )
            for name in ways
        ),
        (("steps and rows of both ways are those that the lengths tell", exact),),
    )


stage = Stage(
    "continuous batching",
    "wanted tokens a second on ragged lengths / in rectangles",
    Gate(1.2, least=True),
    "In a rectangle every request goes on to the longest of its batch. Here it leaves when it is done, and the next takes its place.",
    _run,
)
