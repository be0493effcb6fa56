"""``specdec bench paged``: what reading keys and values out of pages costs a decode step, and how far the attention is from a dense cache's."""

import json
import random
import statistics
from collections.abc import Callable
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["paged"]

ERROR = 1e-5  # of an attention output, float32
GATES = MappingProxyType({256: 1.1, 2048: 1.3})  # context of one sequence -> times the dense step, on scattered pages of 16 slots
RUN, SCATTERED = "one run", "scattered"
CHUNK = 256


class Compared(NamedTuple):
    """One layout of the pages against the dense caches.

    Attributes:
        sequences: in the pass, one row each.
        context: slots of each before the pass.
        pages: where the pages lie.
        dense_ms, paged_ms: milliseconds of each pass.
        ratios: of the pairs.
        error: largest difference of an attention output in any layer.
        limit: on the median of the ratios, if there is one.
    """

    sequences: int
    context: int
    pages: str
    dense_ms: list[float]
    paged_ms: list[float]
    ratios: list[float]
    error: float
    limit: float | None

    @property
    def passed(self) -> bool:
        """The error is small, and the time within the limit."""
        return self.error <= ERROR and (self.limit is None or statistics.median(self.ratios) <= self.limit)


class _Step(NamedTuple):
    """A decode step: the same rows, positions and keys in every layout."""

    ids: Any
    positions: Any
    caches: tuple[Any, ...]


def paged(
    model: o.ModelName = "smollm2-135m",
    contexts: Annotated[str, typer.Option("--contexts", help="Slots before the step, as 256,2048.")] = "256,2048",
    page_size: Annotated[int, typer.Option("--page-size", min=1, help="Slots of a page.")] = 16,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences of the last comparison, at the first context.")] = 8,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each step, in turns.")] = 25,
    seed: o.Seed = 0,
    json_: o.Json = False,
) -> int:
    """Time of a decode step over pages over that of a dense cache; exits 1 past 1.1 at 256 slots, 1.3 at 2,048 (page 16), or an error over 1e-5."""
    import torch
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average

    target, tokenizer = o.load_model(model)
    sizes = _sizes(contexts, target.config.context)
    before, found = load_average(), []
    with Status("paged attention") as status, torch.inference_mode():
        for count, context in [*((1, size) for size in sizes), (batch, sizes[0])]:
            status.say(f"{count} x {context} slots")
            found += _compare(target, _step(target, tokenizer, count, context), page_size, repeats, random.Random(seed))
    code = 0 if all(one.passed for one in found) else 1
    load = [before, load_average()]
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load, "page_size": page_size, "passed": code == 0}
        print(json.dumps(facts | {"passes": [one._asdict() for one in found]}))
        return code
    table = Table(
        title=f"a decode step, pages of {page_size}, {torch.get_num_threads()} threads, {repeats} runs in turns, load {load[0]} to {load[1]}"
    )
    for column in ("sequences", "slots", "pages", "dense, ms", "paged, ms", "times as long", "at most", "largest difference", ""):
        table.add_column(column, justify="right")
    for one in found:
        times = [spread(values) for values in (one.dense_ms, one.paged_ms, one.ratios)]
        numbers = (str(one.sequences), str(one.context), one.pages, *times, str(one.limit or ""), f"{one.error:.1e}")
        table.add_row(*numbers, "" if one.passed else "FAILED")
    wide_console().print(table)
    return code


def _sizes(text: str, longest: int) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or max(sizes) >= longest:
        raise ValueError(f"--contexts is {text!r}; expected numbers of slots below the model's context of {longest}, such as 256,2048")
    return sizes


def _step(target: Any, tokenizer: Any, count: int, context: int) -> _Step:
    """One row of each of some sequences, after the keys of real text."""
    import torch

    from specdec_fn.cli.prompts import read
    from specdec_fn.kv import dense

    text = tokenizer.encode("\n\n".join(prompt.text for name in ("prose", "quoting") for prompt in read(name)))
    caches, last = [], []
    for sequence in range(count):
        first = 31 * sequence % len(text)
        ids = torch.tensor((text[first:] + text * (context // len(text) + 1))[: context + 1])
        cache = dense.init(target.config, context + 1, dtype=target.params.embedding.dtype)
        for start in range(0, context, CHUNK):
            positions = torch.arange(start, min(start + CHUNK, context))
            _, cache = target.apply(target.params, ids[positions], positions, cache, dense.attend)
            cache = dense.advance(cache, len(positions))
        caches.append(cache)
        last.append(ids[context:])
    return _Step(torch.cat(last), torch.full((count,), context), tuple(caches))


def _compare(target: Any, step: _Step, page_size: int, repeats: int, draw: random.Random) -> list[Compared]:
    from specdec_fn.cli.bench.passes import in_turns

    count, context = len(step.caches), step.caches[0].length
    needed = count * -(-(context + 1) // page_size)
    # Twice as many pages as are needed: those between are other sequences', as in a pool in use.
    laid = {RUN: list(range(needed)), SCATTERED: draw.sample(range(2 * needed), needed)}
    pools = {name: _pool(target.config, step.caches, page_size, pages, 2 * needed) for name, pages in laid.items()}
    errors = {name: _error(target, step, *pool) for name, pool in pools.items()}
    jobs = {"dense": _job(target, step, lambda: _beside, step.caches)} | {name: _job(target, step, *pool) for name, pool in pools.items()}
    times = in_turns(jobs, repeats)
    limit = GATES.get(context) if (count, page_size) == (1, 16) else None
    found = []
    for name in laid:
        ratios = [slow / fast for slow, fast in zip(times[name], times["dense"], strict=True)]
        limited = limit if name == SCATTERED else None
        found.append(Compared(count, context, name, times["dense"], times[name], ratios, errors[name], limited))
    return found


def _pool(config: Any, caches: tuple[Any, ...], page_size: int, pages: list[int], size: int) -> tuple[Callable[[], Any], Any]:
    """What builds the attention of a step, as an engine does for each of its passes, and the pool with the keys and values of the caches."""
    import torch

    from specdec_fn.kv import store
    from specdec_fn.kv.paged import Span, attend

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


def _job(target: Any, step: _Step, build: Callable[[], Any], kv: Any) -> Callable[[], Any]:
    """A function that runs the step; each call writes the same rows to the same slots."""

    def run() -> None:
        nonlocal kv
        _, kv = target.apply(target.params, step.ids, step.positions, kv, build())

    return run


def _beside(kv: tuple[Any, ...], layer: int, query: Any, key: Any, value: Any) -> tuple[Any, tuple[Any, ...]]:
    """Dense attention for one row of each of some sequences: every row and its own cache."""
    import torch

    from specdec_fn.kv import dense

    if len(kv) == 1:
        out, cache = dense.attend(kv[0], layer, query, key, value)
        return out, (cache,)
    rows = zip(*(part.split(1) for part in (query, key, value)), strict=True)
    done = [dense.attend(cache, layer, *own) for cache, own in zip(kv, rows, strict=True)]
    return torch.cat([out for out, _ in done]), tuple(cache for _, cache in done)


def _error(target: Any, step: _Step, build: Callable[[], Any], pool: Any) -> float:
    """The largest difference of an attention output, over all layers: both ways get the queries, keys and values of the dense pass."""
    worst, other = 0.0, build()

    def both(kv: Any, layer: int, *rows: Any) -> tuple[Any, Any]:
        nonlocal worst
        expected, one = _beside(kv[0], layer, *rows)
        found, two = other(kv[1], layer, *rows)
        worst = max(worst, float((found - expected).abs().max()))
        return expected, (one, two)

    target.apply(target.params, step.ids, step.positions, (step.caches, pool), both)
    return worst
