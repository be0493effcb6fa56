"""Stage 12, graphs: a step whose shapes are known beforehand is captured once, and costs the host no more than running it eagerly."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from specdec_fn.engine import Request
from specdec_fn.engine.graphs import Bucket
from specdec_fn.engine.graphs import graphs as captured
from specdec_fn.kv.table import pages_for
from specdec_fn.sampling import SamplingParams
from specdec_fn.stages import serving
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread

__all__ = ["WAYS", "both", "stage"]

WAYS = ("eager", "captured")
BATCH = 4


def both(
    target: Any, prompts: Sequence[Sequence[int]], how: dict[str, Any], max_tokens: int, seed: int, progress: Progress, tokenizer: Any = None
) -> dict[str, Any]:
    """Both ways on the same requests, from the first step after their prompts on.

    Args:
        target: the model.
        prompts: ids of each request.
        how: sampling, proposer and k of the requests.
        max_tokens: of each.
        seed: of the round.
        progress: is told how far both are.
        tokenizer: of the engines, if they have one.

    Returns:
        ``seconds`` and ``steps`` of each way, ``graphed`` steps, ``same``: requests with the same ids both ways, ``compiled``: seconds.

    >>> import inspect
    >>> list(inspect.signature(both).parameters)[:3]
    ['target', 'prompts', 'how']
    """
    batch = len(prompts)
    requests = [Request(list(ids), max_tokens, seed=seed * batch + place, ignore_eos=True, **how) for place, ids in enumerate(prompts)]
    pages = pages_for(max(map(len, prompts)) + max_tokens, page_size=16)
    services, took = {}, 0.0
    for way in WAYS:
        state = serving.engine_for(target, requests, tokenizer, prefix_cache=False)
        start = time.perf_counter()
        rows = range(1, 2 if how["proposer"] == "none" else how["k"] + 2)
        progress.say(f"{way}: {len(rows)} buckets")
        made = captured(target, state, [Bucket(batch, count, pages, cuts=False) for count in rows] if way == "captured" else [])
        took = time.perf_counter() - start
        services[way] = serving.Service(target, state, [requests], graphs=made)
        next(services[way])  # prompts
    before = {way: service.state.counters for way, service in services.items()}
    seconds = serving.abreast({way: serving.shares(service, batch * max_tokens) for way, service in services.items()}, progress)
    after = {way: service.state.counters for way, service in services.items()}
    steps = {way: after[way].steps - before[way].steps for way in WAYS}
    graphed = after["captured"].captured - before["captured"].captured
    ended = [[service.ended[number].tokens for number in range(batch)] for service in services.values()]
    same = sum(one == other for one, other in zip(*ended, strict=True))
    return {"seconds": seconds, "steps": steps, "graphed": graphed, "same": same, "compiled": took}


def _run(setup: Setup, progress: Progress) -> Result:
    prompts = [setup.ids(12, 31 * place) for place in range(BATCH)]
    tokens = setup.room(setup.pick(48, 24), spare=16)
    how = {"sampling": SamplingParams(), "proposer": "none", "k": 0}
    rounds = [both(setup.model, prompts, how, tokens, setup.seed + number, progress) for number in range(setup.pick(2, 1))]
    step_ms = {way: [1e3 * one["seconds"][way] / one["steps"][way] for one in rounds] for way in WAYS}
    shares = ratios(step_ms["captured"], step_ms["eager"])
    middle = {way: statistics.median(step_ms[way]) for way in WAYS}
    return Result(
        statistics.median(shares),
        spread(shares, 3),
        tuple((f"step, {way}", middle[way]) for way in WAYS),
        Plot("", "milliseconds of a step", (Line(f"{BATCH} requests", (0.0, 1.0), tuple(middle.values()), points=True),), names=WAYS),
        ("way", "steps", "milliseconds a step", "seconds to capture", "requests with the same ids"),
        (
            ("eager", str(rounds[0]["steps"]["eager"]), spread(step_ms["eager"]), "", ""),
            (
                "captured",
                str(rounds[0]["steps"]["captured"]),
                spread(step_ms["captured"]),
                spread([one["compiled"] for one in rounds], 1),
                f"{sum(one['same'] for one in rounds)} of {BATCH * len(rounds)}",
            ),
        ),
        (("every step was a captured one", all(one["graphed"] == one["steps"]["captured"] for one in rounds)),),
    )


stage = Stage(
    "graphs",
    "time of a captured step / eager",
    Gate(1.1),
    "On a GPU a graph saves a thousand launches a step. On a CPU the compiled part is what follows the model, and there is little to save.",
    _run,
)
