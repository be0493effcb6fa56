"""``specdec bench rounds``: how fast verify rounds run when there are many of them, as a statistical test needs them."""

import json
import time
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["rounds"]

GATE = 5.0  # seconds for 1e6 rounds of token or block verification, V = 64, K = 4
GATED = ("token", "block")


def rounds(
    verifier: Annotated[list[str] | None, typer.Option("--verifier", help="Which rule; several may be given; else token and block.")] = None,
    count: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of each run.")] = 1_000_000,
    vocab: Annotated[int, typer.Option("--vocab", min=2, help="Vocabulary.")] = 64,
    k: o.K = 4,
    chunk: Annotated[int, typer.Option("--chunk", min=1, help="Rounds of one batched call.")] = 8192,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Chunks at a time, each on one thread.")] = 2,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each, in turns.")] = 3,
    json_: o.Json = False,
) -> int:
    """Seconds for 1e6 verify rounds in float64, tapes drawn from keys; exits 1 if token or block need more than 5 s at V=64, K=4."""
    import statistics

    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.speculate import verifiers

    names = list(dict.fromkeys(verifier or GATED))
    for name in names:
        if name not in verifiers.all:
            raise ValueError(f"--verifier is {name!r}; expected one of {', '.join(verifiers.all)}")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    busy: dict[str, list[float]] = {name: [] for name in names}
    emitted: dict[str, float] = {}
    with Status("rounds") as status:
        for repeat in range(repeats + 1):
            for name in names[:: 1 if repeat % 2 else -1]:
                status.say(f"{name}, run {repeat} of {repeats}")
                wall, own, emitted[name] = _run(verifiers.all[name], count if repeat else min(count, chunk), vocab, k, chunk, threads)
                if repeat:  # the first one warms up
                    seconds[name].append(wall * 1e6 / count)
                    busy[name].append(own * 1e6 / count / threads)
    gated = [name for name in names if name in GATED and (vocab, k) == (64, 4)]
    passed = all(statistics.median(seconds[name]) <= GATE for name in gated)
    if json_:
        facts = {"rounds": count, "vocab_size": vocab, "k": k, "threads": threads, "load": load_average(), "passed": passed}
        print(json.dumps(facts | {"seconds_per_million": seconds, "busy_seconds_per_million": busy, "emitted_per_round": emitted}))
        return 0 if passed else 1
    table = Table(title=f"{count:,} rounds, V = {vocab}, K = {k}, float64, {threads} threads, chunks of {chunk:,}, {repeats} runs in turns")
    for column in ("verifier", "seconds for 1e6 rounds", "of them busy, a thread", "emitted a round"):
        table.add_column(column, justify="left" if column == "verifier" else "right")
    for name in names:
        table.add_row(name, spread(seconds[name]), spread(busy[name]), f"{emitted[name]:.4f}")
    wide_console().print(table)
    if gated:
        print(f"gate: at most {GATE:g} s, by the median: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


def _run(verifier: Any, count: int, vocab: int, k: int, chunk: int, threads: int) -> tuple[float, float, float]:
    """Wall and processor seconds of ``count`` rounds, and tokens emitted a round.

    Each round is a pass of one request at a base of its own; its rows are one of ``chunk`` different sets.
    """
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from specdec_fn import random
    from specdec_fn.sampling import draw
    from specdec_fn.speculate import Draft, batched
    from specdec_fn.speculate.tape import DRAFT, address
    from specdec_proofs.claim import one_thread

    key, chunk = random.key(0), min(chunk, count)
    logits = 1.5 * torch.randn(chunk, 2 * k + 1, vocab, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target, q = (rows.contiguous() for rows in logits.softmax(-1).split([k + 1, k], 1))
    over_lanes = torch.func.vmap(torch.func.vmap(draw))
    tokens = over_lanes(random.uniform(address(key, DRAFT, torch.arange(chunk)), (k,)), q)
    draft = Draft(tokens, q, torch.full((chunk,), k))

    def tape(position: Any) -> Any:
        return verifier.tape(key, k, vocab, position=position)

    def some(at: int) -> int:
        size = min(chunk, count - at)
        verdict = batched(verifier.decide)(
            torch.func.vmap(tape)(torch.arange(at, at + size)), target[:size], Draft(draft.tokens[:size], q[:size], draft.length[:size])
        )
        return int(verdict.emitted.sum())

    start, busy = time.perf_counter(), time.process_time()
    with one_thread():
        pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        try:
            emitted = sum(pool.map(some, range(0, count, chunk)))
        finally:
            pool.shutdown(cancel_futures=True)  # whoever interrupts waits for the chunks under way only
    return time.perf_counter() - start, time.process_time() - busy, emitted / count
