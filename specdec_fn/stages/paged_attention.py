"""Stage 7, paged attention in torch: keys and values that lie scattered in pages cost hardly more than in one row."""

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from specdec_fn.kv import dense, store
from specdec_fn.kv.paged import Span, attend
from specdec_fn.stages.passes import in_turns
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread

__all__ = ["ERROR", "RUN", "SCATTERED", "Compared", "Step", "compare", "stage", "step"]

ERROR = 1e-5  # of an attention output, float32
RUN, SCATTERED = "one run", "scattered"
CHUNK = 256
PAGE = 16


class Step(NamedTuple):
    """A decode step: the same rows, positions and keys in every layout.

    Attributes:
        ids, positions: int64 [sequences].
        caches: dense, one for each sequence.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    caches: tuple[Any, ...]


class Compared(NamedTuple):
    """One layout of the pages against the dense caches.

    Attributes:
        pages: where the pages lie.
        dense_ms, paged_ms: milliseconds of each pass.
        error: largest difference of an attention output in any layer.
    """

    pages: str
    dense_ms: list[float]
    paged_ms: list[float]
    error: float


def step(target: Any, text: Sequence[int], count: int, context: int) -> Step:
    """One row of each of some sequences, after the keys of real text.

    Args:
        target: the model.
        text: ids; each sequence begins at another place in them.
        count: sequences.
        context: slots of each before the row.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> step(toy.llama(key(0)), [1, 2, 3], 2, 8).positions
    tensor([8, 8])
    """
    caches, last, text = [], [], list(text)
    for sequence in range(count):
        first = 31 * sequence % len(text)
        ids = torch.tensor((text[first:] + text * (context // len(text) + 1))[: context + 1])
        cache = dense.init(target.config, context + 1, dtype=target.params.norm.dtype)
        for start in range(0, context, CHUNK):
            positions = torch.arange(start, min(start + CHUNK, context))
            _, cache = target.apply(target.params, ids[positions], positions, cache, dense.attend)
            cache = dense.advance(cache, len(positions))
        caches.append(cache)
        last.append(ids[context:])
    return Step(torch.cat(last), torch.full((count,), context), tuple(caches))


def compare(target: Any, one: Step, page_size: int, repeats: int, draw: random.Random) -> list[Compared]:
    """The step over dense caches and over pages that lie in one run and scattered, timed in turns, with the largest difference of an output.

    Args:
        target: the model.
        one: the step.
        page_size: slots of a page.
        repeats: runs of each.
        draw: places the pages.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> model = toy.llama(key(0))
    >>> [found.error < 1e-6 for found in compare(model, step(model, [1, 2, 3], 2, 8), 4, 1, random.Random(0))]
    [True, True]
    """
    count, context = len(one.caches), one.caches[0].length
    needed = count * -(-(context + 1) // page_size)
    # Twice as many pages as are needed: those between are other sequences', as in a pool in use.
    laid = {RUN: list(range(needed)), SCATTERED: draw.sample(range(2 * needed), needed)}
    pools = {name: _pool(target.config, one.caches, page_size, pages, 2 * needed) for name, pages in laid.items()}
    errors = {name: _error(target, one, *pool) for name, pool in pools.items()}
    jobs = {"dense": _job(target, one, lambda: _beside, one.caches)} | {name: _job(target, one, *pool) for name, pool in pools.items()}
    with torch.inference_mode():
        times = in_turns(jobs, repeats)
    return [Compared(name, times["dense"], times[name], errors[name]) for name in laid]


def _pool(config: Any, caches: tuple[Any, ...], page_size: int, pages: list[int], size: int) -> tuple[Callable[[], Any], Any]:
    """What builds the attention of a step, as an engine does for each of its passes, and the pool with the keys and values of the caches."""
    length = caches[0].length
    each = len(pages) // len(caches)
    pool = store.init(config, size, page_size, dtype=caches[0].keys[0].dtype)
    spans = []
    for index, cache in enumerate(caches):
        own = pages[index * each : (index + 1) * each]
        slots = [own[position // page_size] * page_size + position % page_size for position in range(length + 1)]
        for layer, (keys, values) in enumerate(zip(cache.keys, cache.values, strict=True)):
            pool = store.write(pool, layer, keys[:length], values[:length], torch.tensor(slots[:length]))
        spans.append(Span(slots, 1))
    return lambda: attend(spans, share=config.heads // config.kv_heads, dtype=pool.keys.dtype), pool


def _job(target: Any, one: Step, build: Callable[[], Any], kv: Any) -> Callable[[], Any]:
    """A function that runs the step; each call writes the same rows to the same slots."""

    def run() -> None:
        nonlocal kv
        _, kv = target.apply(target.params, one.ids, one.positions, kv, build())

    return run


def _beside(kv: tuple[Any, ...], layer: int, query: Any, key: Any, value: Any) -> tuple[Any, tuple[Any, ...]]:
    """Dense attention for one row of each of some sequences: every row and its own cache."""
    if len(kv) == 1:
        out, cache = dense.attend(kv[0], layer, query, key, value)
        return out, (cache,)
    rows = zip(*(part.split(1) for part in (query, key, value)), strict=True)
    done = [dense.attend(cache, layer, *own) for cache, own in zip(kv, rows, strict=True)]
    return torch.cat([out for out, _ in done]), tuple(cache for _, cache in done)


@torch.inference_mode()
def _error(target: Any, one: Step, build: Callable[[], Any], pool: Any) -> float:
    """The largest difference of an attention output, over all layers: both ways get the queries, keys and values of the dense pass."""
    worst, other = 0.0, build()

    def both(kv: Any, layer: int, *rows: Any) -> tuple[Any, Any]:
        nonlocal worst
        expected, first = _beside(kv[0], layer, *rows)
        found, second = other(kv[1], layer, *rows)
        worst = max(worst, float((found - expected).abs().max()))
        return expected, (first, second)

    target.apply(target.params, one.ids, one.positions, (one.caches, pool), both)
    return worst


def _run(setup: Setup, progress: Progress) -> Result:
    contexts = sorted({setup.room(context, spare=1) for context in setup.pick((256, 768), (128, 256))})
    found = {}
    for context in contexts:
        progress.say(f"a row after {context} slots in pages of {PAGE}")
        with torch.inference_mode():
            made = step(setup.model, setup.ids(1024), 1, context)
            found[context] = compare(setup.model, made, PAGE, setup.pick(15, 9), random.Random(setup.seed))
    everything = [(context, one) for context, several in found.items() for one in several]
    [gated] = [one for one in found[contexts[-1]] if one.pages == SCATTERED]
    times = ratios(gated.paged_ms, gated.dense_ms)
    worst = max(one.error for _, one in everything)
    scattered = [one for _, one in everything if one.pages == SCATTERED]
    lines = tuple(
        Line(label, tuple(contexts), tuple(statistics.median(getattr(one, part)) for one in scattered))
        for label, part in (("dense cache", "dense_ms"), ("scattered pages", "paged_ms"))
    )
    return Result(
        statistics.median(times),
        f"{spread(times)}, error {worst:.1e}",
        (("dense", statistics.median(gated.dense_ms)), ("paged", statistics.median(gated.paged_ms))),
        Plot("slots before the row", "milliseconds of a step", lines),
        ("slots", "pages lie", "dense, ms", "paged, ms", "times as long", "largest difference"),
        tuple(
            (str(context), one.pages, spread(one.dense_ms), spread(one.paged_ms), spread(ratios(one.paged_ms, one.dense_ms)), f"{one.error:.1e}")
            for context, one in everything
        ),
        ((f"no attention output differs by more than {ERROR:g}", worst <= ERROR),),
    )


stage = Stage(
    "paged attention, torch",
    "time of a step over scattered pages / dense",
    Gate(1.3),
    "Pages let sequences share memory and grow. What that costs is the gathering of keys and values that lie apart.",
    _run,
)
