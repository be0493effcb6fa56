"""A run as long as its user likes: every row's e-process, watched after each round, and the repetitions of the fixed-size test.

A round draws one batch of every row and ``REPEATS`` repetitions, until there are ``REPETITIONS`` of those. Tasks are spread over processes;
each is a function of names and numbers, and counts add up in any order, so the number of processes changes nothing but the time.
"""

import math
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from specdec_proofs import sampled
from specdec_proofs.chi2 import uniformity
from specdec_proofs.claim import Claim, Figure, one_thread, settle
from specdec_proofs.deep_rows import Row, batch, law
from specdec_proofs.deep_state import State, Track, lengthened
from specdec_proofs.eprocess import LONG, anytime_p, log_e, minimum_detectable, threshold, update
from specdec_proofs.power import ALPHA

__all__ = ["FAMILY", "REPEATS", "REPETITIONS", "Task", "claims", "judged", "repeated", "rounds", "work"]

FAMILY = "deep"
REPETITIONS, REPEATS, EACH = 1000, 20, 100_000  # of the fixed-size test: in all, in a round, and passes of each
PART = 5  # repetitions of one task


class Task(NamedTuple):
    """A batch of a row, or for no row the ``PART`` repetitions from ``number`` on."""

    row: Row | None
    number: int


def work(task: Task) -> Any:
    """What a task finds: counts int64 [cells], or p-values. A function of the task alone; any process may do it.

    >>> int(work(Task(Row("greedy", "softmax at temperature 0"), 3)).sum())
    50000
    """
    if task.row is not None:
        return batch(task.row, task.number)
    return tuple(sampled.repetitions(task.number + PART, EACH, start=task.number))


def rounds(
    state: State,
    more: int,
    processes: int = 1,
    said: Callable[[str], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[State]:
    """Draws ``more`` rounds and yields the state after each; whoever stops listening stops the work.

    Args:
        state: where to go on from, of these processes' own program.
        processes: how many draw; 1 draws in this one.
        said: called with a line after each task.
        stopped: asked after each task; True ends the run there, and the round that was under way is lost.

    Raises:
        ValueError: fewer than one process.

    >>> from specdec_proofs.deep_state import begin
    >>> [after.rounds for after in rounds(begin((Row("greedy", "softmax at temperature 0"),)), 0)]
    []
    """
    if processes < 1:
        raise ValueError(f"processes is {processes}; expected at least 1")
    laws = {track.row.world: law(track.row.world) for track in state.tracks}
    with _spread(processes) as each:
        for _ in range(more):
            started = time.perf_counter()
            left = range(len(state.p_values), min(REPETITIONS, len(state.p_values) + REPEATS), PART)
            tasks = [*(Task(track.row, state.rounds) for track in state.tracks), *(Task(None, first) for first in left)]
            found = []
            for done, result in enumerate(each(tasks), 1):
                found.append(result)
                if said:
                    said(f"round {state.rounds + 1}: {done} of {len(tasks)} batches")
                if stopped():
                    return
            tracks = tuple(_seen(track, counts, laws[track.row.world]) for track, counts in zip(state.tracks, found, strict=False))
            p_values = (*state.p_values, *(p for part in found[len(tracks) :] for p in part))
            spent = state.seconds + time.perf_counter() - started
            state = state._replace(rounds=state.rounds + 1, tracks=tracks, p_values=p_values, seconds=spent)
            yield state


def claims(state: State) -> list[Claim]:
    """What a run shows so far: one claim a row, and two about the repetitions; none before the first round.

    >>> from specdec_proofs.deep_state import begin
    >>> claims(begin((Row("token", "reference chain"),)))
    []
    """
    if not state.rounds:
        return []
    share = state.seconds / (len(state.tracks) + 1)
    tests = len(state.tracks)
    gate = f"< {threshold(ALPHA, tests) / math.log(10):.2f}"
    made = [settle(f"{track.row}: log10 E, largest", gate, lambda track=track: judged(track, tests), FAMILY) for track in state.tracks]  # type: ignore[misc]
    made += [settle(name, gate, measure, FAMILY) for name, gate, measure in repeated(state.p_values)]
    return [claim._replace(seconds=share) for claim in made]


def judged(track: Track, tests: int) -> Figure:
    """The figure of one row: the largest log10 E there was, held against a threshold that counts all rows.

    Args:
        track: a row with its counts.
        tests: how many rows the run has.

    >>> from specdec_proofs.deep_state import begin
    >>> from specdec_proofs.eprocess import Evidence, merge
    >>> judged(begin((Row("token", "reference chain"),)).tracks[0]._replace(evidence=Evidence(merge([0] * 27, [9] * 27), math.inf)), 1)[:2]
    (inf, False)
    """
    p = law(track.row.world)
    n, highest = int(track.evidence.counts.sum()), track.evidence.highest
    limit, df = threshold(ALPHA, tests), int((p > 0).sum()) - 1
    now = float(log_e(track.evidence.counts, p, LONG))
    detail = f"N {n:,}, log10 E now {now / math.log(10):.1f}; "
    if int(track.evidence.counts[p == 0].sum()):
        detail += f"{int(track.evidence.counts[p == 0].sum()):,} sequences that p cannot produce"
    elif df:
        detail += f"E over the threshold at any TV >= {minimum_detectable(df, n, limit, kappas=LONG):.4f} with power .999"
    else:
        detail += "p is one sequence; any other fails at once"
    return Figure(highest / math.log(10), highest < limit, detail, anytime_p(highest))


def repeated(p_values: tuple[float, ...]) -> list[tuple[str, str, Callable[[], Figure]]]:
    """The claims about repetitions of the fixed-size test: none is extreme, and together they are uniform.

    >>> [gate for _, gate, _ in repeated((0.2, 0.7, 0.4))]
    ['>= 1e-06', '<= 1.5550']
    """
    if not p_values:
        return []
    distance, allowed = uniformity(p_values)
    least, count = min(p_values), len(p_values)

    def smallest() -> Figure:
        return Figure(least, least >= ALPHA, f"{count:,} repetitions, N {EACH:,} each, five worlds in turn", min(1.0, count * least))

    def spread() -> Figure:
        return Figure(distance, distance <= allowed, f"Kolmogorov-Smirnov, {count:,} p-values, alpha {ALPHA:g}")

    return [
        ("repetitions of the joint test: smallest p-value", f">= {ALPHA:g}", smallest),
        ("repetitions of the joint test: distance of the p-values from uniform", f"<= {allowed:.4f}", spread),
    ]


def _seen(track: Track, counts: Any, p: Any) -> Track:
    evidence = update(track.evidence, counts, p, LONG)
    now = float(log_e(evidence.counts, p, LONG))
    return Track(track.row, evidence, lengthened(track.path, int(evidence.counts.sum()), now))


@contextmanager
def _spread(processes: int) -> Iterator[Callable[[list[Task]], Iterator[Any]]]:
    """A map over tasks, in order, on one thread a process."""
    if processes == 1:
        with one_thread():
            yield lambda tasks: map(work, tasks)
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,))
    try:
        with _deaf():  # children inherit it: Ctrl-C is for this process, which lets them finish their task
            for _ in range(processes):
                pool.submit(int)
        yield lambda tasks: pool.map(work, tasks)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _deaf() -> Iterator[None]:
    """Ignores Ctrl-C for a moment; only the main thread may, and only it would hear it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
