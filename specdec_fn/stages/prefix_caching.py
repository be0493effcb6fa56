"""Stage 9, prefix caching: a request whose prompt begins as an earlier one's takes over the pages of that beginning."""

import statistics
import time
from typing import Any

from specdec_fn import engine, random
from specdec_fn.engine import Request
from specdec_fn.stages import serving
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread

__all__ = ["PAGE", "WAYS", "first_tokens", "stage"]

WAYS = ("cold", "warm")
PAGE = 16


def first_tokens(
    model: Any, length: int, suffix: int, chunk: int, seed: int, repeats: int, progress: Progress
) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    """Milliseconds to the first token with a shared prefix cached and, under a salt of its own, not; and the prompt tokens that the cache had.

    Args:
        model: the target.
        length: tokens that the prompts share.
        suffix: tokens of each prompt after those, other ones every time.
        chunk: most prompt rows of a step.
        seed: of all ids.
        repeats: requests of each kind, in turns.
        progress: is told which one is next.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.stages.stage import Mute
    >>> first_tokens(toy.llama(random.key(0)), 40, 4, 16, 0, 2, Mute())[1]
    {'cold': [0, 0], 'warm': [32, 32]}
    """
    vocab, key = model.config.vocab_size, random.key(seed)
    shared = serving.whole(random.fold_in(key, 0), length, 0, vocab - 1)

    def request(number: int, salt: bytes) -> Request:
        own = serving.whole(random.fold_in(key, number), suffix, 0, vocab - 1)
        return Request([*shared, *own], 1, seed=number, ignore_eos=True, salt=salt)

    # Two cold requests may come between two warm ones; what they leave in the cache must not push the shared prefix out of it.
    state = serving.engine_for(model, [request(1, b"")] * 4, page_size=PAGE, prefill_chunk=chunk)
    ms: dict[str, list[float]] = {name: [] for name in WAYS}
    cached: dict[str, list[int]] = {name: [] for name in WAYS}
    for repeat in range(repeats + 1):
        for name in WAYS[:: 1 if repeat % 2 else -1]:
            progress.say(f"{name}, {repeat} of {repeats}")
            state, _ = engine.submit(state, request(2 * repeat + WAYS.index(name) + 1, b"" if name == "warm" else f"cold {repeat}".encode()))
            before = state.counters.cached
            start = time.perf_counter()
            while len(state.records):
                state, _ = engine.step(model, state)
            took = 1e3 * (time.perf_counter() - start)
            if repeat:  # the first round warms up, and the first warm request fills the cache
                ms[name].append(took)
                cached[name].append(state.counters.cached - before)
    return ms, cached


def _run(setup: Setup, progress: Progress) -> Result:
    suffix = 16
    lengths = sorted({setup.room(length, spare=suffix + 1) for length in setup.pick((128, 512), (64, 256))})
    found = {length: first_tokens(setup.model, length, suffix, 256, setup.seed, setup.pick(5, 3), progress) for length in lengths}
    last = lengths[-1]
    shares = ratios(found[last][0]["warm"], found[last][0]["cold"])
    exact = all(set(cached["cold"]) == {0} and set(cached["warm"]) == {length // PAGE * PAGE} for length, (_, cached) in found.items())
    middle = {name: [statistics.median(found[length][0][name]) for length in lengths] for name in WAYS}
    return Result(
        statistics.median(shares),
        spread(shares, 3),
        tuple((f"first token, {name}", middle[name][-1]) for name in WAYS),
        Plot("tokens shared", "milliseconds to the first token", tuple(Line(name, tuple(lengths), tuple(middle[name])) for name in WAYS)),
        ("tokens shared", "cold, ms", "warm, ms", "of the cold time"),
        tuple((str(length), spread(ms["cold"]), spread(ms["warm"]), spread(ratios(ms["warm"], ms["cold"]), 3)) for length, (ms, _) in found.items()),
        (("the cache held every full page of the prefix, and nothing under another salt", exact),),
    )


stage = Stage(
    "prefix caching",
    "time to first token, shared prefix / cold",
    Gate(0.25),
    "Pages are found by a hash of what stands before them, so a prompt that is known costs only what is new in it.",
    _run,
)
