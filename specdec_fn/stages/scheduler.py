"""Stage 10, the scheduler: it decides in a fraction of a pass what a thousand requests do next, and lets none of them wait for ever."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from specdec_fn import random
from specdec_fn.schedule import Done, Limits, commit, init, remove, schedule, submit
from specdec_fn.stages import serving
from specdec_fn.stages.passes import in_turns, target_pass
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, spread

__all__ = ["TRAFFIC", "Traffic", "longest_wait", "stage", "timed"]

T = TypeVar("T")
MANY = 10**9  # rows of a pass: no limit
SIZES = (10, 100, 1_000)  # requests that run


class Traffic(NamedTuple):
    """What the requests are like.

    Attributes:
        name: of the row in a table.
        finishing: share of the running requests that a pass finishes; others come in from those that wait.
        spare: pages that nobody holds at the start, as a share of those that are held.
    """

    name: str
    finishing: float
    spare: float


TRAFFIC = (Traffic("all decode", 0.0, 10.0), Traffic("1 in 100 finishes, others come in", 0.01, 10.0), Traffic("pages are lacking", 0.0, 0.005))


def timed(traffic: Traffic, running: int, waiting: int, k: int, page_size: int, passes: int) -> dict[str, Any]:
    """Processor times of each part on a state that goes on from pass to pass; what an old state took is given back outside the clock.

    Args:
        traffic: what the requests are like.
        running, waiting: requests.
        k: drafted rows of each.
        page_size: slots of a page.
        passes: that are timed.

    Returns:
        ``schedule_ms``, ``commit_ms``, ``submit_us``, ``abort_us``: lists; ``admitted``, ``preempted``: counts.

    >>> found = timed(TRAFFIC[0], 5, 3, 2, 16, 4)
    >>> len(found["schedule_ms"]), len(found["submit_us"]), found["preempted"]
    (4, 3, 0)
    """
    chances = iter(random.uniform(random.key(0), (passes, running + 1, k + 1)).flatten().tolist())
    prompts = random.uniform(random.key(1), (running + waiting, 64)).mul(50_000).int().tolist()
    tokens = 256  # of each running request
    held = running * (-(-(tokens + k) // page_size))
    most = int(held * (1 + traffic.spare)) + 64
    state = init(Limits(page_size, most, running if traffic.spare > 1 else running + 1))
    limit = min(most * page_size, 1_000_000)
    for id in range(running):
        state = submit(state, id=id, tokens=prompts[id] * (tokens // 64), limit=limit, k=k)
    state, plan = schedule(state, MANY)
    state = commit(state, [Done(lane, 0, (1,)) for lane in plan.lanes])
    times: dict[str, list[float]] = {"submit_us": [], "schedule_ms": [], "commit_ms": [], "abort_us": []}
    for id in range(running, running + waiting):
        state = _clocked(times["submit_us"], 1e6, submit, state, id=id, tokens=prompts[id], limit=limit, k=k)
    admitted = preempted = 0
    for _ in range(passes):
        before = state
        state, plan = _clocked(times["schedule_ms"], 1e3, schedule, before, MANY)
        admitted, preempted = admitted + len(plan.admitted), preempted + len(plan.preempted)
        done = []
        for lane in plan.lanes:
            kept = 0
            while kept < lane.k and next(chances) < 0.7:
                kept += 1
            done.append(Done(lane, kept, tuple(range(kept + 1)), next(chances) < traffic.finishing))
        planned = state
        state = _clocked(times["commit_ms"], 1e3, commit, planned, done)
        del before, planned, plan, done
    for id in range(running, running + waiting, max(1, waiting // 100)):
        state = _clocked(times["abort_us"], 1e6, remove, state, id)
    return {**times, "admitted": admitted, "preempted": preempted}


def _clocked(times: list[float], scale: float, call: Callable[..., T], *args: Any, **options: Any) -> T:
    """Notes the processor time of a call, which other programs on the machine do not lengthen as they do the time on the wall."""
    start = time.thread_time()
    value = call(*args, **options)
    times.append(scale * (time.thread_time() - start))
    return value


def longest_wait(requests: int, places: int, num_pages: int, seed: int) -> tuple[int, int, int]:
    """Serves requests of ragged lengths in few places and pages, a new one after every pass, and counts passes.

    Args:
        requests: how many come.
        places: most that run at once.
        num_pages: of 16 slots, fewer than they want together: some are preempted.
        seed: of prompts and lengths.

    Returns:
        requests that ended, the most passes between a request's coming and its end, and the passes that all of them need together. No request
        waits longer than the last number unless it starves.

    >>> ended, longest, work = longest_wait(8, 2, 12, 0)
    >>> ended, longest <= work
    (8, True)
    """
    lengths = serving.whole(random.key(seed), 2 * requests, 1, 60)
    state = init(Limits(16, num_pages, places, prefix_cache=False))
    came: dict[int, int] = {}
    left = dict(enumerate(lengths[:requests]))
    longest = passes = ended = 0
    while len(came) < requests or left:
        if len(came) < requests:
            id = len(came)
            state = submit(state, id=id, tokens=range(lengths[requests + id]), limit=lengths[requests + id] + lengths[id], k=0)
            came[id] = passes
        state, plan = schedule(state, MANY)
        done = []
        for lane in plan.lanes:
            left[lane.id] -= 1
            done.append(Done(lane, 0, (1,), left[lane.id] == 0))
            if not left[lane.id]:
                del left[lane.id]
                ended, longest = ended + 1, max(longest, passes + 1 - came[lane.id])
        state = commit(state, done)
        passes += 1
        if passes > sum(lengths[:requests]) + requests:  # more than one after another would take: somebody starves
            break
    return ended, longest, sum(lengths[:requests])


def _run(setup: Setup, progress: Progress) -> Result:
    sizes, passes = SIZES, setup.pick(40, 15)
    found = {}
    for size in sizes:
        progress.say(f"{size:,} requests that all decode")
        found[size] = timed(TRAFFIC[0], size, size, 4, 16, passes)["schedule_ms"]
    others = {}
    for traffic in TRAFFIC[1:]:
        progress.say(f"{sizes[-1]:,} requests, {traffic.name}")
        others[traffic.name] = timed(traffic, sizes[-1], sizes[-1], 4, 16, passes)["schedule_ms"]
    progress.say("a pass of the model")
    whole = statistics.median(in_turns({"pass": target_pass(setup.model, 1)}, setup.pick(9, 5))["pass"])
    progress.say("requests in a pool that is too small for them")
    requests = setup.pick(200, 80)
    ended, longest, work = longest_wait(requests, 8, 40, setup.seed)
    middle = [statistics.median(found[size]) for size in sizes]
    rows = [(f"{size:,}", TRAFFIC[0].name, spread(found[size], 3), f"{one / whole:.3f}") for size, one in zip(sizes, middle, strict=True)]
    rows += [(f"{sizes[-1]:,}", name, spread(times, 3), f"{statistics.median(times) / whole:.3f}") for name, times in others.items()]
    rows.append((str(requests), f"{ended} ended in 8 places and 40 pages", "", f"the longest was there for {longest} of {work} passes"))
    return Result(
        middle[-1] / whole,
        f"{middle[-1] / whole:.3f} of a pass",
        ((f"decision at {sizes[-1]:,}", middle[-1]), ("pass of one row", whole)),
        Plot("requests that run", "milliseconds of a decision", (Line("schedule", sizes, tuple(middle)),), (whole, "a pass of one row"), True, True),
        ("requests", "traffic", "milliseconds of a decision", "of a pass of one row"),
        tuple(rows),
        (("every request ends, in fewer passes than all need one after another", ended == requests and longest <= work),),
    )


stage = Stage(
    "scheduler",
    "decision time at 1,000 requests / a pass of one row",
    Gate(0.2),
    "What the next pass computes is decided before every pass, so the decision must be small beside the smallest pass, and fair.",
    _run,
)
