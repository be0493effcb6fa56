"""Stage 11, chunked prefill: a long prompt is computed in parts, between which the running requests get their tokens."""

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from specdec_fn import engine, random
from specdec_fn.engine import Request
from specdec_fn.stages import serving
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread

__all__ = ["SETTLED", "Arrival", "arrival", "stage"]

SETTLED = 4  # steps of the running requests before the prompt arrives


class Arrival(NamedTuple):
    """What the running requests saw while the prompt was computed.

    Attributes:
        gap_ms: the longest time between two tokens of a running request.
        first_ms: from the arrival of the prompt to its first token.
        steps: passes in that time.
    """

    gap_ms: float
    first_ms: float
    steps: int


def arrival(target: Any, prompts: Sequence[Sequence[int]], length: int, chunk: int, seed: int, progress: Progress) -> Arrival:
    """Lets a long prompt arrive while some requests decode, and measures what they and it see.

    Args:
        target: the model.
        prompts: ids of the requests that run.
        length: tokens of the prompt that arrives; they are drawn.
        chunk: most prompt rows of a step.
        seed: of the prompt that arrives.
        progress: is told the longest gap so far.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.stages.stage import Mute
    >>> arrival(toy.llama(random.key(0)), [[1, 2]], 50, 20, 0, Mute()).steps
    3
    """
    running = len(prompts)
    plain: dict[str, Any] = {"ignore_eos": True, "proposer": "none"}
    most = sum(-(-len(ids) // chunk) + 1 for ids in prompts) + SETTLED + -(-length // chunk)  # none ends while the prompt is computed
    asked = [Request(list(ids), most, seed=place, **plain) for place, ids in enumerate(prompts)]
    long = Request(serving.whole(random.key(seed), length, 0, target.config.vocab_size - 1), 1, seed=running, **plain)
    state = serving.engine_for(target, [*asked, long], prefill_chunk=chunk)
    for request in asked:
        state, _ = engine.submit(state, request)
    served: set[int] = set()
    while len(served) < running:
        state, events = engine.step(target, state)
        served |= {event.request_id for event in events}
    for _ in range(SETTLED):
        state, _ = engine.step(target, state)
    state, number = engine.submit(state, long)
    before = state.counters.steps
    start = time.perf_counter()
    last, gap = dict.fromkeys(served, start), 0.0
    while number in state.records:
        state, events = engine.step(target, state)
        now = time.perf_counter()
        for event in events:
            if event.request_id != number:
                gap, last[event.request_id] = max(gap, now - last[event.request_id]), now
        progress.say(f"chunks of {chunk}: {state.counters.steps - before} steps, longest gap {1e3 * gap:.0f} ms")
    return Arrival(1e3 * gap, 1e3 * (time.perf_counter() - start), state.counters.steps - before)


def _run(setup: Setup, progress: Progress) -> Result:
    length = setup.room(setup.pick(1024, 512), spare=2)
    sizes = sorted({min(size, length) for size in (64, 256, length)})
    prompts = [setup.ids(8, 31 * place) for place in range(4)]
    arrival(setup.model, prompts, min(length, 2 * sizes[0]), sizes[0], setup.seed, progress)  # warms up
    found: dict[int, list[Arrival]] = {size: [] for size in sizes}
    for repeat in range(setup.pick(3, 1)):
        for size in sizes[:: -1 if repeat % 2 else 1]:
            found[size].append(arrival(setup.model, prompts, length, size, setup.seed, progress))
    gaps = {size: [one.gap_ms for one in found[size]] for size in sizes}
    shares = ratios(gaps[sizes[0]], gaps[length])
    exact = all(one.steps == -(-length // size) for size in sizes for one in found[size])
    middle = tuple(statistics.median(gaps[size]) for size in sizes)
    return Result(
        statistics.median(shares),
        spread(shares, 3),
        ((f"gap, chunks of {sizes[0]}", middle[0]), ("gap, in one", middle[-1])),
        Plot(
            "prompt rows of a step", "longest gap, milliseconds", (Line(f"{len(prompts)} running requests", tuple(sizes), middle),), None, True, True
        ),
        ("prompt rows of a step", "steps", "longest gap, ms", "of the gap in one", "first token of the prompt, ms"),
        tuple(
            (
                f"{size:,}",
                str(found[size][0].steps),
                spread(gaps[size], 1),
                spread(ratios(gaps[size], gaps[length]), 3),
                spread([one.first_ms for one in found[size]], 1),
            )
            for size in sizes
        ),
        (("steps are as many as length and chunk tell", exact),),
    )


stage = Stage(
    "chunked prefill",
    "worst gap between tokens of running requests while a long prompt arrives / unchunked",
    Gate(0.5),
    "A prompt in one pass holds up everybody who decodes. In chunks it takes a little longer itself, and nobody waits for more than a chunk.",
    _run,
)
