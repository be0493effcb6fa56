"""``specdec ladder``: the twenty stages in order, each with the number that must move, its gate, and how it ended."""

import datetime
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

if TYPE_CHECKING:
    from specdec_fn.stages.settle import Outcome
    from specdec_fn.stages.stage import Setup

__all__ = ["ladder"]

STAGES = 20
SAME = ("model", "quick", "seed")  # what a record must share with the run that goes on from it

Only = Annotated[str | None, typer.Option("--only", help="Only these stages, as 1,2,7.")]
From = Annotated[int | None, typer.Option("--from", help="Begin with this stage.")]
Quick = Annotated[bool, typer.Option("--quick", help="Shorter contexts and fewer repetitions, for the same gates.")]
Html = Annotated[Path | None, typer.Option("--html", help="Also write one page with a plot for each stage to this file.")]
Resume = Annotated[Path | None, typer.Option("--resume", help="A file to go on from, if it exists, and to keep what is found in.")]


def ladder(
    only: Only = None,
    from_: From = None,
    quick: Quick = False,
    model: o.ModelName = "smollm2-135m",
    seed: o.Seed = 0,
    html: Html = None,
    resume: Resume = None,
    json_: o.Json = False,
) -> int:
    """Measure the twenty stages of an engine on this machine; exits 1 if a gate failed."""
    wanted = _wanted(only, from_)
    _check(html, resume)
    facts: dict[str, Any] = {"model": model, "quick": quick, "seed": seed}
    found = _resumed(resume, facts)
    started, interrupted = time.monotonic(), False
    try:
        for one in _run(wanted, found, facts):
            found[one.number] = one
            _keep(resume, found, facts)
    except KeyboardInterrupt:
        interrupted = True
        print(f"specdec: interrupted after {len(found)} stages; this is what was found until then", file=sys.stderr)
    shown = [found[number] for number in sorted(found) if number in wanted]
    facts |= {"seconds": round(time.monotonic() - started, 1), "complete": not interrupted}
    if html is not None:
        from specdec_fn.cli.ladder_page import page

        when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        html.write_text(page(shown, {**facts, "when": when}), encoding="utf-8")
    if json_:
        from specdec_fn.stages import record

        print(json.dumps(record.to_json(shown, facts), allow_nan=False))
    else:
        _print(shown, facts)
    return 130 if interrupted else int(any(one.status == "failed" for one in shown))


def _run(wanted: Sequence[int], found: dict[int, "Outcome"], facts: dict[str, Any]) -> "Iterator[Outcome]":
    """The stages that are wanted and not found yet, one after another."""
    missing = [number for number in wanted if number not in found]
    if not missing:
        return
    from specdec_fn.stages.order import stages
    from specdec_fn.stages.settle import settle

    setup = _setup(facts)
    watch = _Watch("the first stage")
    with watch:
        for place, number in enumerate(missing):
            stage = stages()[number - 1]
            watch.begin(f"{place + 1} of {len(missing)}: stage {number}, {stage.name}")
            one = settle(number, stage, setup, watch)
            watch.end(f"stage {number}, {stage.name}: {one.status}, {one.seconds:.1f} s")
            yield one


class _Watch(Status):
    """The stage and what it does on a terminal; elsewhere a line when a stage ends."""

    def begin(self, line: str) -> None:
        """Names the stage."""
        self._stage = line
        super().say(line)

    def say(self, line: str) -> None:
        """Says what the stage does."""
        super().say(f"{self._stage}: {line}")

    def end(self, line: str) -> None:
        """Says how the stage ended."""
        if not sys.stderr.isatty():
            print(line, file=sys.stderr, flush=True)


def _setup(facts: dict[str, Any]) -> "Setup":
    import torch

    from specdec_fn.cli.prompts import read
    from specdec_fn.stages.passes import load_average
    from specdec_fn.stages.stage import Setup

    target, tokenizer = o.load_model(facts["model"])
    facts |= {"threads": torch.get_num_threads(), "load": load_average()}
    files = [read(name) for name in ("prose", "quoting")]
    prose, quoting = (tuple(tuple(tokenizer.chat([{"role": "user", "content": one.text}])) for one in prompts) for prompts in files)
    text = "\n\n".join(one.text for prompts in files for one in prompts)
    return Setup(target, tokenizer, prose, quoting, text, facts["quick"], facts["seed"])


def _print(shown: "Sequence[Outcome]", facts: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from specdec_fn.stages.record import counts

    machine = f", {facts['threads']} threads, load {facts['load']}" if "threads" in facts else ""
    table = Table(title=f"the ladder on {facts['model']}{', quick' if facts['quick'] else ''}, seed {facts['seed']}{machine}")
    for column in ("", "stage", "figure", "gate", "milliseconds", ""):
        table.add_column(column, justify="left" if column else "right")
    styles = {"passed": "green", "failed": "red"}
    for one in shown:
        figure = one.result.shown if one.result else ""
        ms = "; ".join(f"{name}: {_digits(value)}" for name, value in one.result.milliseconds) if one.result else ""
        ended = one.status.upper() if one.status == "failed" else one.status
        cells = (str(one.number), one.name, figure, one.gate, ms, ended)
        table.add_row(*(Text(cell, style=styles.get(one.status, "") if place == 5 else "") for place, cell in enumerate(cells)))
    console = wide_console()
    console.print(table)
    for one in shown:
        if one.reason:
            console.print(f"{one.number}, {one.name}: {one.status}: {one.reason}", highlight=False, markup=False, soft_wrap=True)
    numbers = counts(shown)
    words = (
        f"{numbers['passed']} passed",
        f"{numbers['failed']} failed",
        f"{numbers['not built yet']} not built yet",
        f"{numbers['needs a GPU']} need a GPU",
    )
    console.print(f"{', '.join(words)}; {facts['seconds']:.0f} s", highlight=False)


def _digits(ms: float) -> str:
    return f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"


def _wanted(only: str | None, start: int | None) -> list[int]:
    """The numbers of the stages to run, in order."""
    if only is not None and start is not None:
        raise ValueError("--only together with --from; expected one of the two")
    if start is not None and not 1 <= start <= STAGES:
        raise ValueError(f"--from is {start}; expected a stage from 1 to {STAGES}")
    if only is None:
        return list(range(start or 1, STAGES + 1))
    try:
        numbers = sorted({int(part) for part in only.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers[-1] > STAGES:
        raise ValueError(f"--only is {only!r}; expected stages from 1 to {STAGES}, such as 1,2,7")
    return numbers


def _check(html: Path | None, resume: Path | None) -> None:
    """Refuses files that cannot be written, and a page that cannot be drawn, before anything runs."""
    if html is not None:
        from specdec_proofs import plots

        if not plots.available():
            raise ValueError("--html draws with matplotlib, which is not installed; pip install -c constraints/pins.txt -e '.[plots]' brings it")
    for name, path in (("--html", html), ("--resume", resume)):
        if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{name} {str(path)!r} cannot be written; expected a file in a folder that is there and may be written to")
        if path is not None and path.is_dir():
            raise ValueError(f"{name} {str(path)!r} is a folder; expected a file")


def _resumed(path: Path | None, facts: dict[str, Any]) -> "dict[int, Outcome]":
    """What a file holds, or nothing where it is not there yet."""
    if path is None or not path.exists():
        return {}
    from specdec_fn.stages import record

    try:
        written = json.loads(path.read_text("utf-8"))
        outcomes = record.from_json(written)
    except (ValueError, RecursionError):
        raise ValueError(f"--resume {str(path)!r} is not a record; expected a file that --resume has written, or --json printed") from None
    for name in SAME:
        if written.get(name) != facts[name]:
            raise ValueError(f"--resume {str(path)!r} was measured with {name} {written.get(name)!r}; expected {facts[name]!r}, as now")
    facts |= {name: written[name] for name in ("threads", "load") if name in written}
    return {one.number: one for one in outcomes}


def _keep(path: Path | None, found: "dict[int, Outcome]", facts: dict[str, Any]) -> None:
    """Writes the record beside its place and moves it there, so that an interruption leaves the last one whole."""
    if path is None:
        return
    from specdec_fn.stages import record

    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(record.to_json([found[number] for number in sorted(found)], facts), allow_nan=False), encoding="utf-8")
    beside.replace(path)
