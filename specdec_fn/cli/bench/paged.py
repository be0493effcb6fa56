"""``specdec bench paged``: what reading keys and values out of pages costs a decode step, and how far the attention is from a dense cache's."""

import json
import random
import statistics
from types import MappingProxyType
from typing import Annotated, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["paged"]

ERROR = 1e-5  # of an attention output, float32
GATES = MappingProxyType({256: 1.1, 2048: 1.3})  # context of one sequence -> times the dense step, on scattered pages of 16 slots


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
    from specdec_fn.cli.prompts import read
    from specdec_fn.stages.paged_attention import SCATTERED, compare, step
    from specdec_fn.stages.stage import ratios

    target, tokenizer = o.load_model(model)
    sizes = _sizes(contexts, target.config.context)
    text = tokenizer.encode("\n\n".join(prompt.text for name in ("prose", "quoting") for prompt in read(name)))
    before, found = load_average(), list[Compared]()
    with Status("paged attention") as status, torch.inference_mode():
        for count, context in [*((1, size) for size in sizes), (batch, sizes[0])]:
            status.say(f"{count} x {context} slots")
            for pair in compare(target, step(target, text, count, context), page_size, repeats, random.Random(seed)):
                limited = pair.pages == SCATTERED and (count, page_size) == (1, 16)
                quotients = ratios(pair.paged_ms, pair.dense_ms)
                limit = GATES.get(context) if limited else None
                found.append(Compared(count, context, pair.pages, pair.dense_ms, pair.paged_ms, quotients, pair.error, limit))
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
