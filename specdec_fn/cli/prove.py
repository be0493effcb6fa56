"""``specdec prove``: the claims of exactness, each with its figure and its gate."""

import datetime
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

if TYPE_CHECKING:
    from specdec_proofs.claims import Claim
    from specdec_proofs.deep_state import State

__all__ = ["prove"]

QUIET = 30.0  # seconds between two lines of progress where stderr is no terminal
ROUNDS = 50  # of a long run, unless told otherwise: what a thousand repetitions take

Quick = Annotated[bool, typer.Option("--quick", help="Exact laws of all rules, every mutant, samples of fixed size; a minute or two.")]
Deep = Annotated[bool, typer.Option("--deep", help="After all claims, gather evidence for as long as you like; Ctrl-C keeps what there is.")]
Hours = Annotated[float | None, typer.Option("--hours", help="With --deep: begin no further round after this many hours of rounds.")]
Rounds = Annotated[int | None, typer.Option("--rounds", help=f"With --deep: how many more rounds; {ROUNDS} unless --hours is given.")]
StateFile = Annotated[Path | None, typer.Option("--state", help="With --deep: a file to resume from, if it exists, and to keep the run in.")]
Processes = Annotated[int | None, typer.Option("--processes", help="With --deep: how many processes draw; one for each core unless given.")]
Details = Annotated[bool, typer.Option("--details", help="Also say what each claim was measured on, and how long it took.")]
Html = Annotated[Path | None, typer.Option("--html", help="Also write a report with plots to this file.")]


def prove(
    quick: Quick = False,
    deep: Deep = False,
    hours: Hours = None,
    rounds: Rounds = None,
    state: StateFile = None,
    processes: Processes = None,
    html: Html = None,
    details: Details = False,
    json_: o.Json = False,
) -> int:
    """Compute the law of the code that ships and compare it with the target's; exits 1 if a claim fails."""

    _check(quick, deep, hours, rounds, state, processes, html)
    from specdec_proofs import claims, deep_rows, report, sampled
    from specdec_proofs.deep import claims as evidence
    from specdec_proofs.deep import rounds as rounds_of

    level = claims.QUICK if quick else claims.DEEP if deep else claims.DEFAULT
    started, interrupted = time.monotonic(), False
    found: list[Claim] = []
    run = _resumed(state) if deep else None
    exhibits: list[Any] = []
    with _Watch("proving") as watch:
        try:
            total, settled = claims.count(level), run.claims if run else ()
            say = lambda name: watch.say(f"{len(found)} of {total} claims checked; {name}")  # noqa: E731
            for claim in claims.run(level, say, settled):
                found.append(claim)
                run = _noted(run, found, state)
            if run is not None:
                end = None if hours is None else run.seconds + hours * 3600
                count = rounds or (ROUNDS if hours is None else sys.maxsize)
                with _listening() as asked_to_stop:
                    for after in rounds_of(run, count, processes or _cores(), watch.say, asked_to_stop):
                        run = after
                        _keep(run, state)
                        if end is not None and run.seconds >= end:
                            break
                if asked_to_stop():
                    raise KeyboardInterrupt
                room = claims.Room("one sequence", claims.DEEP, _one_sequence, "One sequence a seed, whatever is drafted: the embedded model")
                for claim in claims.of_room(room, lambda name: watch.say(f"on the embedded model, hours in all: {name}"), settled):
                    found.append(claim)
                    run = _noted(run, found, state)
            exhibits = _exhibits(run, watch.say) if html is not None else []
        except KeyboardInterrupt:
            interrupted = True
            print(f"specdec: interrupted after {len(found)} claims; this is what was found until then", file=sys.stderr)
    found += evidence(run) if run is not None else []
    if html is not None:
        _write(html, found, exhibits, level, time.monotonic() - started, not interrupted)
    if json_:
        print(json.dumps(report.as_json(found)))
    else:
        console = wide_console()
        console.print(report.table(found, details=details))
        for line in report.lines(found):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        seeds = f"seed {sampled.SEED} of the samples of fixed size" + ("" if quick else f", {deep_rows.SEED} of the sequential ones")
        console.print(seeds + ("" if details else "; --details says what each was measured on"), highlight=False)
    if interrupted:
        return 130
    return 0 if all(claim.passed for claim in found) else 1


class _Watch:
    """What is being done, on stderr: a spinner with a line and the time on a terminal, a line now and then elsewhere."""

    def __init__(self, line: str) -> None:
        self._line, self._shown = line, time.monotonic()
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> "_Watch":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(self._line)
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, line: str) -> None:
        """Shows another line, or prints it if the last was long ago."""
        if self._progress is not None:
            self._progress.update(self._task, description=line)
        elif time.monotonic() - self._shown >= QUIET:
            self._shown = time.monotonic()
            print(line, file=sys.stderr, flush=True)


def _check(quick: bool, deep: bool, hours: float | None, rounds: int | None, state: Path | None, processes: int | None, html: Path | None) -> None:
    """Refuses what cannot be, before anything runs."""
    if quick and deep:
        raise ValueError("--quick together with --deep; expected one of the two")
    for name, value in (("--hours", hours), ("--rounds", rounds), ("--state", state), ("--processes", processes)):
        if value is not None and not deep:
            raise ValueError(f"{name} without --deep; expected both, since only the long run takes it")
    if hours is not None and rounds is not None:
        raise ValueError("--hours together with --rounds; expected one of the two")
    if hours is not None and not 0 < hours < float("inf"):
        raise ValueError(f"--hours is {hours}; expected a number above 0")
    for name, number in (("--rounds", rounds), ("--processes", processes)):
        if number is not None and number < 1:
            raise ValueError(f"{name} is {number}; expected at least 1")
    if html is not None:
        from specdec_proofs import plots

        if not plots.available():
            raise ValueError("--html draws with matplotlib, which is not installed; pip install -c constraints/pins.txt -e '.[plots]' brings it")
    for name, path in (("--html", html), ("--state", state)):
        if path is not None:
            _writable(name, path)


def _writable(name: str, path: Path) -> None:
    """Refuses a path that cannot be written, and leaves it as it was."""
    there = path.exists()
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise ValueError(f"{name} {str(path)!r} cannot be written: {error.strerror}") from None
    if not there:
        path.unlink()


def _resumed(path: Path | None) -> "State":
    """The state that a file holds, or one that has drawn nothing."""
    from specdec_proofs import deep_rows, deep_state

    rows, program = deep_rows.rows(), deep_state.fingerprint()
    if path is not None and path.exists():
        return deep_state.load(path, rows, program)
    return deep_state.begin(rows, program)


@contextmanager
def _listening() -> Iterator[Callable[[], bool]]:
    """Notes the first Ctrl-C instead of raising it where it falls, which may be inside the pool's own locks; the second is raised."""
    heard = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: heard
        return
    before = signal.getsignal(signal.SIGINT)

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, hear)
    try:
        yield lambda: heard
    finally:
        signal.signal(signal.SIGINT, before)


def _noted(run: "State | None", found: "list[Claim]", path: Path | None) -> "State | None":
    """The run with the claims settled so far, kept in its file."""
    if run is None:
        return None
    noted = run._replace(claims=tuple(found))
    _keep(noted, path)
    return noted


def _keep(run: "State", path: Path | None) -> None:
    if path is not None:
        from specdec_proofs import deep_state

        deep_state.save(run, path)


def _one_sequence() -> Any:
    """The claims about the embedded model and the prompts of the measurements."""
    from specdec_fn.cli.prompts import read
    from specdec_fn.load import load
    from specdec_proofs import one_sequence

    loaded = functools.cache(lambda: load("smollm2-135m"))

    def prompts() -> list[list[int]]:
        return [loaded()[1].chat([{"role": "user", "content": prompt.text}]) for prompt in (*read("quoting"), *read("prose"))]

    return one_sequence.claims(lambda: loaded()[0], prompts, 128)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _exhibits(run: "State | None", say: Callable[[str], None]) -> list[Any]:
    from specdec_proofs import report_html

    return report_html.gather(run, say)


def _write(path: Path, found: "list[Claim]", exhibits: list[Any], level: str, seconds: float, complete: bool) -> None:
    from specdec_proofs import report_html

    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    path.write_text(report_html.page(found, report_html.facts(level, when, seconds, complete), exhibits), encoding="utf-8")
