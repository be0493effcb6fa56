"""``specdec bench selfdraft``: the target's own weights in few bits as its draft, on prose, beside plain decoding of either."""

import json
import statistics
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.bench import figures
from specdec_fn.cli.bench.turns import Contest, Decode, speedups, together
from specdec_fn.cli.status import wide_console

__all__ = ["GRIDS", "SENTENCE", "selfdraft"]

GATED = "smollm2-135m"  # the figure is of this model, on our own prompts
OVER_PLAIN = 1.4
PLAIN, DRAFTED, SMALL = "plain", "self-draft", "the draft alone"
SENTENCE = "Since the weights began as 4-bit, a 4-bit draft on the file's own grid is the target."
GRIDS: Mapping[str, str] = MappingProxyType(
    {
        "int4": "4 bits, groups of 64 with an offset, embedding and head 8 bits by channel (not the grid of the file's own Q4_1, of groups of 32)",
        "q4_0": "4 bits, groups of 32, symmetric (not the grid of the file's own Q4_1, which has a minimum in each group)",
        "q4_1": "4 bits, groups of 32 with a minimum each: the file's own grid",
        "q8_0": "8 bits, groups of 32, symmetric",
        "int8": "8 bits, one scale a weight row, symmetric",
    }
)


class Found(NamedTuple):
    """One target at one temperature.

    Attributes:
        weights, temperature: of the target.
        names: of the prompts.
        contests: of each prompt.
    """

    weights: str
    temperature: float
    names: list[str]
    contests: list[Contest]

    def median_ms(self, name: str) -> float:
        """Of the prompts' medians."""
        return statistics.median(statistics.median(one.ms[name]) for one in self.contests)


def selfdraft(
    model: o.ModelName = GATED,
    weights: Annotated[str, typer.Option("--weights", help="Precisions of the target, of float32, bfloat16.")] = "float32,bfloat16",
    kind: Annotated[str, typer.Option("--kind", help="Of the draft's weights: int4, q4_0, q4_1, q8_0, int8.")] = "int4",
    temperatures: Annotated[str, typer.Option("--temperatures", help="Of the requests, as 0,1.")] = "0,1",
    k: o.K = 4,
    max_tokens: o.MaxTokens = 96,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Times each prompt is decoded each way, in turns.")] = 3,
    prompts: Annotated[str | None, typer.Option("--prompts", help="Another file: one JSON object a line, with name and text.")] = None,
    json_: o.Json = False,
) -> int:
    """Speed-up of the quantised self-draft over plain decoding of the same target; exits 1 if a figure is missed."""
    import torch

    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.variants import listed, named
    from specdec_fn.cli.prompts import read

    if kind not in GRIDS:
        raise ValueError(f"--kind is {kind!r}; expected one of {', '.join(GRIDS)}")
    names, heats = [named(name) for name in listed("--weights", weights)], _temperatures(temperatures)
    chosen = read(prompts or "prose")
    found = [one for name in names for one in _measured(model, name, kind, heats, chosen, k, max_tokens, repeats)]
    held = []
    if model == GATED and prompts is None:
        label = "{0.weights}, temperature {0.temperature:g}: self-draft times as fast as plain decoding"
        held = [figures.at_least(label.format(one), statistics.median(speedups(one.contests, PLAIN, DRAFTED)), OVER_PLAIN) for one in found]
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "kind": kind, "grid": GRIDS[kind], "sentence": SENTENCE, "k": k}
        print(json.dumps(facts | {"targets": [_told(one) for one in found], "figures": figures.as_rows(held)}))
    else:
        wide_console().print(_table(f"self-draft in {kind}, K = {k}, {torch.get_num_threads()} threads, {repeats} runs in turns", found))
        print(f"the draft's grid: {GRIDS[kind]}\n{SENTENCE}")
        print("\n".join(figures.lines(held)))
    return figures.code(held)


def _temperatures(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--temperatures is {text!r}; expected numbers such as 0,1") from None


def _measured(
    model: str, weights: str, kind: str, temperatures: list[float], chosen: list[Any], k: int, max_tokens: int, repeats: int
) -> list[Found]:
    from specdec_fn.cli.bench.serving import Watch
    from specdec_fn.cli.bench.turns import contest, ours
    from specdec_fn.cli.bench.variants import load_variant
    from specdec_fn.sampling import SamplingParams
    from specdec_fn.speculate.proposers import quantized

    target, tokenizer = load_variant(model, weights)
    found = []
    for temperature in temperatures:
        sampling = SamplingParams(temperature)
        drafts = quantized.proposer(target, kind, sampling=sampling)
        assert drafts.drafter is not None
        one = Found(weights, temperature, [prompt.name for prompt in chosen], [])
        with Watch("self-draft") as status:
            for number, prompt in enumerate(chosen, start=1):
                status.say(f"{weights}, temperature {temperature:g}: prompt {number} of {len(chosen)}")
                ids = tokenizer.chat([{"role": "user", "content": prompt.text}])
                settings: dict[str, Any] = {"tokenizer": tokenizer, "sampling": sampling, "max_tokens": max_tokens, "ignore_eos": True}
                decoders: dict[str, Decode] = {
                    PLAIN: ours(target, ids, **settings),
                    DRAFTED: ours(target, ids, proposer=drafts, k=k, **settings),
                    SMALL: ours(drafts.drafter.model, ids, **settings),
                }
                one.contests.append(contest(decoders, repeats, warm=number == 1))
        found.append(one)
    return found


def _told(one: Found) -> dict[str, Any]:
    from specdec_fn.cli.bench.intervals import interval

    stats, over_plain = together(one.contests, DRAFTED), speedups(one.contests, PLAIN, DRAFTED)
    return {
        "weights": one.weights,
        "temperature": one.temperature,
        "ms": {name: one.median_ms(name) for name in (PLAIN, DRAFTED, SMALL)},
        "over_plain": statistics.median(over_plain),
        "interval": interval(over_plain),
        "draft_alone_over_plain": statistics.median(speedups(one.contests, PLAIN, SMALL)),
        "tokens_per_pass": stats.tokens_per_pass,
        "acceptance_rate": stats.acceptance_rate,
        "rows": [
            {"name": name, "ms": contest.ms, "ratios": contest.ratios(PLAIN, DRAFTED), "same_tokens": contest.same(PLAIN, DRAFTED)}
            for name, contest in zip(one.names, one.contests, strict=True)
        ],
    }


def _table(title: str, found: list[Found]) -> Any:
    from rich.table import Table

    from specdec_fn.cli.bench.intervals import interval

    table = Table(title=title)
    for column in (
        "target",
        "T",
        "plain, ms",
        "self-draft, ms",
        "times plain (95 %)",
        "accepted",
        "tokens a pass",
        "the draft alone, ms",
        "times plain",
    ):
        table.add_column(column, justify="right")
    for one in found:
        stats, over_plain = together(one.contests, DRAFTED), speedups(one.contests, PLAIN, DRAFTED)
        low, high = interval(over_plain)
        table.add_row(
            one.weights,
            f"{one.temperature:g}",
            f"{one.median_ms(PLAIN):.1f}",
            f"{one.median_ms(DRAFTED):.1f}",
            f"{statistics.median(over_plain):.2f} ({low:.2f} to {high:.2f})",
            f"{stats.acceptance_rate:.1%}",
            f"{stats.tokens_per_pass:.2f}",
            f"{one.median_ms(SMALL):.1f}",
            f"{statistics.median(speedups(one.contests, PLAIN, SMALL)):.2f}",
        )
    return table
