"""``specdec bench soak``: thousands of random requests through an engine with hardly any pages, each answer held against the same request alone."""

import json
import sys
import time
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o

__all__ = ["Tally", "judge", "soak"]

DISTINCT = 200  # requests that are drawn from; each is also answered alone
PAGE, PAGES, BATCH, CHUNK = 4, 28, 6, 7  # the longest request takes 14 pages: two of them fill the pool
LONGEST_PROMPT, LONGEST_ANSWER, MOST_DRAFTED = 28, 24, 4
PREFIXES = 6  # beginnings that prompts share
CROWD = 40  # requests that wait or run; no more arrive while there are so many
ABORTS, FORKS = 0.05, 0.05  # chances in each step
PATIENCE = 2_000  # steps within which each request must end
MATCHED = (("none", "token"), ("ngram", "token"), ("ngram", "block"), ("ngram", "coupled"), ("ngram_tree", "tree"), ("ngram_tree", "traversal"))
MATCHED_MODEL = ("token", "block", "coupled")  # verifiers that a drafting model is paired with


class Tally(NamedTuple):
    """What came of the requests.

    Attributes:
        submitted, forked, aborted, finished: requests; forks count as submitted.
        wrong: numbers of those whose answer is not the one that the request has alone, or that failed.
        starved: numbers of those that did not end in time.
        longest: steps from arrival to the end, of the one that took the most.
        first: the same to the first token.
        pages: free at the start, and at the end.
        left: requests that are still there at the end.
    """

    submitted: int = 0
    forked: int = 0
    aborted: int = 0
    finished: int = 0
    wrong: tuple[int, ...] = ()
    starved: tuple[int, ...] = ()
    longest: int = 0
    first: int = 0
    pages: tuple[int, int] = (0, 0)
    left: int = 0


def soak(
    requests: Annotated[int, typer.Option("--requests", min=1, help="How many come, forks included.")] = 10_000,
    seed: o.Seed = 0,
    json_: o.Json = False,
) -> int:
    """Random requests with aborts, forks and preemptions on a small model, in invariant mode; exits 1 if one is wrong or starved or a page lost."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    start = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        model, pool, alone = _answers(seed, min(DISTINCT, requests), progress)
        ready = time.perf_counter()
        tally, state = _serve(model, pool, alone, requests, seed, progress)
    faults, counters, seconds = judge(tally), state.counters, time.perf_counter() - ready
    if json_:
        facts = {"seed": seed, "distinct": len(pool), "seconds": seconds, "seconds_alone": ready - start, "passed": not faults, "faults": faults}
        print(json.dumps(facts | tally._asdict() | {"counters": counters._asdict()}))
        return 1 if faults else 0
    print(f"{tally.submitted:,} requests ({tally.forked:,} forks) drawn from {len(pool)}, seed {seed}: {counters.steps:,} steps in {seconds:.0f} s")
    print(f"  {tally.finished:,} finished, {tally.aborted:,} aborted; {counters.preempted:,} preemptions")
    print(f"  {counters.emitted:,} tokens, {counters.accepted:,} of {counters.proposed:,} drafted ones accepted")
    print(f"  {counters.cached:,} of {counters.prompted:,} prompt tokens came from the prefix cache")
    print(f"  longest wait: {tally.first:,} steps to a first token, {tally.longest:,} to an end, of {PATIENCE:,} that are allowed")
    print(f"  pages free: {tally.pages[0]} at the start, {tally.pages[1]} at the end")
    for fault in faults:
        print(f"  FAILED: {fault}")
    print("no request wrong, none starved, no page lost" if not faults else f"{len(faults)} kinds of faults")
    return 1 if faults else 0


def judge(tally: Tally) -> list[str]:
    """What is wrong with a run, one sentence each; nothing if all is well.

    >>> judge(Tally(submitted=3, aborted=1, finished=2, pages=(8, 7)))
    ['8 pages were free at the start, and 7 at the end']
    """
    found = []
    if tally.wrong:
        found.append(f"{len(tally.wrong)} requests have another answer than alone, the first of them {tally.wrong[0]}")
    if tally.starved:
        found.append(f"{len(tally.starved)} requests did not end within {PATIENCE:,} steps, the first of them {tally.starved[0]}")
    if tally.left or tally.finished + tally.aborted != tally.submitted:
        found.append(f"{tally.submitted} requests came, {tally.finished} finished, {tally.aborted} were aborted, and {tally.left} are left")
    if tally.pages[0] != tally.pages[1]:
        found.append(f"{tally.pages[0]} pages were free at the start, and {tally.pages[1]} at the end")
    return found


def _answers(seed: int, distinct: int, progress: Any) -> tuple[Any, list[Any], list[Any]]:
    """The model, the requests to draw from, and what each of them has alone."""
    from specdec_fn import models, random
    from specdec_fn.cli.bench.serving import whole
    from specdec_fn.doors import generate
    from specdec_fn.engine import Request
    from specdec_fn.models import toy
    from specdec_fn.sampling import SamplingParams
    from specdec_fn.speculate import proposers

    key = random.key(seed)
    model = toy.llama(random.fold_in(key, 0), vocab_size=16)
    # The model drafts for itself, with milder controls: long runs are accepted, and some drafts are not.
    drafter = proposers.draft_model.proposer(models.invariant(model), sampling=SamplingParams(0.7))
    pairs: list[tuple[Any, str]] = [*MATCHED, *((drafter, name) for name in MATCHED_MODEL)]
    pool, alone = [], []
    for number in progress.track(range(distinct), description="alone"):
        own = random.fold_in(random.fold_in(key, 2), number)
        size, kept, start, most, pair, k, heat = (
            low + int(u * (high - low + 1))
            for u, (low, high) in zip(
                random.uniform(own, (7,)).tolist(),
                ((1, LONGEST_PROMPT), (0, LONGEST_PROMPT), (0, PREFIXES - 1), (1, LONGEST_ANSWER), (0, len(pairs) - 1), (0, MOST_DRAFTED), (0, 2)),
                strict=True,
            )
        )
        shared = whole(random.fold_in(random.fold_in(key, 3), start), LONGEST_PROMPT, 0, 15)
        prompt = [*shared[: min(kept, size)], *whole(random.fold_in(own, 1), size - min(kept, size), 0, 15)]
        proposer, verifier = pairs[pair]
        sampling = SamplingParams((0.0, 0.3, 1.0)[heat], top_k=(0, 5, 0)[heat])
        request = Request(prompt, most, sampling=sampling, seed=number, k=k, proposer=proposer, verifier=verifier)
        pool.append(request)
        how = {"seed": number, "sampling": sampling, "verifier": verifier, "k": k, "max_tokens": most, "invariant": True}
        alone.append(generate(model, prompt, proposer=None if proposer == "none" else proposer, **how))
    return model, pool, alone


def _serve(model: Any, pool: list[Any], alone: list[Any], requests: int, seed: int, progress: Any) -> tuple[Tally, Any]:
    """Everything that happens to an engine: arrivals, aborts and forks by the keys of each step, and the steps."""
    import dataclasses

    from specdec_fn import engine, random
    from specdec_fn.cli.bench.serving import Watch
    from specdec_fn.engine import Config

    state = engine.init(model, Config(page_size=PAGE, num_pages=PAGES, max_batch=BATCH, prefill_chunk=CHUNK, invariant=True))
    key, tally = random.fold_in(random.key(seed), 4), Tally(pages=(engine.free_pages(state), 0))
    drawn: dict[int, int] = {}  # which of the pool a request is
    came: dict[int, int] = {}  # the step before which it came
    task, turn = progress.add_task("together", total=requests), 0
    lines = Watch("")  # a line now and then where there is no bar
    while tally.submitted < requests or len(state.records):
        arrivals, abort, whom, fork, parent, *rest = random.uniform(random.fold_in(key, turn), (17,)).tolist()
        live = sorted(state.records)
        for place in range(min(int(4 * arrivals), CROWD - len(live), requests - tally.submitted)):
            which, salt, priority, *_ = rest[4 * place :]
            request = dataclasses.replace(pool[int(which * len(pool))], salt=(b"", b"other")[int(2 * salt)], priority=int(3 * priority) - 1)
            state, number = engine.submit(state, request)
            drawn[number], came[number] = int(which * len(pool)), turn
            tally = tally._replace(submitted=tally.submitted + 1)
        if live and fork < FORKS and tally.submitted < requests:
            old = live[int(parent * len(live))]
            state, number = engine.fork(state, old, seed=pool[drawn[old]].seed)  # with the seed it has, it must go on as the other does
            drawn[number], came[number] = drawn[old], turn
            tally = tally._replace(submitted=tally.submitted + 1, forked=tally.forked + 1)
        if live and abort < ABORTS:
            gone = live[int(whom * len(live))]
            state = engine.abort(state, gone)
            tally = tally._replace(aborted=tally.aborted + 1)
            del drawn[gone], came[gone]
        state, events = engine.step(model, state)
        turn += 1
        tally = _noted(tally, events, drawn, came, turn, alone)
        progress.update(task, completed=tally.finished + tally.aborted)
        lines.say(f"{tally.finished + tally.aborted:,} of {requests:,} requests in {turn:,} steps; {len(tally.wrong)} wrong")
        late = [number for number in came if turn - came[number] > PATIENCE]
        if late:  # a run that goes nowhere would never end
            tally = tally._replace(starved=tuple(late))
            break
    return tally._replace(pages=(tally.pages[0], engine.free_pages(state)), left=len(state.records)), state


def _noted(tally: Tally, events: list[Any], drawn: dict[int, int], came: dict[int, int], turn: int, alone: list[Any]) -> Tally:
    """The tally after a step's events; those that ended are struck off."""
    for event in events:
        number, made = event.request_id, event.generation
        if event.tokens and (made is None or len(made.tokens) == len(event.tokens)):
            tally = tally._replace(first=max(tally.first, turn - came[number]))
        if made is None:
            continue
        expected = alone[drawn.pop(number)]
        right = (made.tokens, made.finish_reason, made.logprobs) == (expected.tokens, expected.finish_reason, expected.logprobs)
        waited = turn - came.pop(number)
        wrong = tally.wrong if right else (*tally.wrong, number)
        tally = tally._replace(finished=tally.finished + 1, longest=max(tally.longest, waited), wrong=wrong)
    return tally
