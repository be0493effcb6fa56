"""Compiles every kernel in every configuration ahead of time, without a GPU: ``python -m specdec_kernels.ahead``.

This is a door of the kernels' own source root: a command, with the effects of one (processes, files, the environment, what it prints). Nothing
imports it. What is compiled is what the launchers launch: the variants of every module whose name ends in ``_triton``, for sm_80, sm_90, sm_100
and gfx942. It says what each takes, and ``--check`` holds that to the table in ``kernels/compiled.json`` (see ``ahead_table``).

Kernels are compiled in child processes that do not interpret them, with a cache of their own, so that nothing compiled earlier is taken for new; a
crash of a compiler is a sentence about one variant. Exit codes: 0 all is well, 1 a fault is named, 2 a question that cannot be answered.
"""

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from specdec_kernels.ahead_measure import TARGETS, collected, measured
from specdec_kernels.ahead_table import Row, judged, parsed, shown, text

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 180  # seconds for one variant: a kernel that takes an assembler so long has gone wrong


class _Job(NamedTuple):
    place: int
    room: str
    name: str
    target: str


class _Done(NamedTuple):
    rows: list[Row]
    said: list[str]
    seconds: dict[str, float]  # of a processor, by room


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    >>> main(["--write", "--only", "threefry"])
    2
    """
    options = _options(arguments)
    if options.child:
        return _serve(options.package)
    if options.write and options.only:
        return _refuse("--write with --only would leave the other rows out of the table; expected one of the two")
    if find_spec("triton") is None:
        return _refuse("triton is not installed; pip install triton (3.7 or 3.8)")
    triton = _version()
    try:
        kept = parsed(options.table.read_text("utf-8")) if options.check else None
    except FileNotFoundError:
        return _refuse(f"there is no table at {options.table}; expected one (--write makes it)")
    except ValueError as error:
        return _refuse(f"{options.table}: {error}")
    done = _compiled(options.package, [word.lower() for word in options.only], options.jobs)
    another = kept is not None and kept[0] != triton
    if kept is not None and another:
        print(f"triton is {triton}, and the table was made with {kept[0]}: only spills and limits are judged", file=sys.stderr)
    whole = not options.only and not done.said
    said = done.said + judged(done.rows, None if kept is None or another else kept[1], whole=whole)
    if options.json:
        print(json.dumps({"triton": triton, "rows": [row._asdict() for row in done.rows], "faults": said}))
    else:
        print(shown(done.rows))
    for sentence in said:
        print(sentence, file=sys.stderr)
    spent = sorted(done.seconds.items(), key=lambda item: -item[1])
    print("seconds of a processor: " + ", ".join(f"{room} {seconds:.0f}" for room, seconds in spent), file=sys.stderr)
    print(f"{len(done.rows)} compiled with triton {triton}, {len(said)} faults", file=sys.stderr)
    if options.write and said:
        return _refuse("nothing is written: a table holds only what compiles and does not spill", 1)
    if options.write:
        options.table.write_text(text(triton, done.rows), "utf-8")
    return 1 if said else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m specdec_kernels.ahead", description="Compile every kernel ahead of time, without a GPU.")
    parser.add_argument("--check", action="store_true", help="fail on what differs from the table")
    parser.add_argument("--write", action="store_true", help="make the table new")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="only variants in whose room, name and target every word occurs")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), metavar="N", help="compile so many at a time")
    parser.add_argument("--table", type=Path, default=ROOT / "compiled.json", metavar="FILE", help="the table; default kernels/compiled.json")
    parser.add_argument("--package", default="specdec_kernels", help="the package whose kernels are compiled")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; expected 1 or more")
    return options


def _refuse(sentence: str, code: int = 2) -> int:
    print(sentence, file=sys.stderr)
    return code


def _version() -> str:
    """The installed version, without importing it: this process may interpret kernels."""
    try:
        return version("triton")
    except PackageNotFoundError:  # a source tree, or a build of another name
        import triton  # type: ignore[import-untyped]

        return str(triton.__version__)


def _compiled(package: str, words: list[str], jobs: int) -> _Done:
    """Every variant on every target, from as many children as asked for."""
    done = _Done([], [], {})
    with tempfile.TemporaryDirectory(prefix="ahead-") as folder:
        first = _Child(package, Path(folder), 0)
        listed = first.answer()
        if listed is None:
            first.end()
            return _Done([], [f"the kernels of {package} could not be listed: {first.last_words()}"], {})
        done.said.extend(listed["said"])
        waiting: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        wanted = [_Job(place, room, name, target) for place, (room, name) in enumerate(listed["variants"]) for target in TARGETS]
        wanted = [job for job in wanted if all(word in f"{job.room} {job.name} {job.target}".lower() for word in words)]
        for job in wanted:
            waiting.put(job)
        if words and not wanted:
            done.said.append(f"no variant has {' and '.join(map(repr, words))} in its room, name or target; expected one at least")
        jobs = max(1, min(jobs, len(wanted)))
        threads = [
            threading.Thread(target=_work, args=(package, Path(folder), number, first if number == 0 else None, waiting, done, len(wanted)))
            for number in range(jobs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return _Done(sorted(done.rows), sorted(done.said), done.seconds)


def _work(package: str, folder: Path, number: int, child: "_Child | None", waiting: "queue.SimpleQueue[_Job]", done: _Done, total: int) -> None:
    """Hands jobs to one child until none waits; a child that ends is followed by another."""
    try:
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            if child is None:
                child = _Child(package, folder, number)
                child.answer()
            answer = child.ask(job)
            label = f"{job.name} ({job.room}) on {job.target}"
            if answer is None:
                child.end()
                done.said.append(f"{label} does not compile: the compiler's process ended: {child.last_words()}")
                child = None
            else:
                done.seconds[job.room] = done.seconds.get(job.room, 0.0) + answer["seconds"]
            if answer is not None and "row" in answer:
                done.rows.append(Row(**answer["row"]))
            elif answer is not None:
                done.said.append(f"{label} does not compile: {answer['fault']}")
            count = len(done.rows) + len(done.said)
            if count % 20 == 0:
                print(f"{count} of {total}", file=sys.stderr, flush=True)
    finally:
        if child is not None:
            child.end()


class _Child:
    """A process that compiles what it is asked for, a line in and a line out."""

    def __init__(self, package: str, folder: Path, number: int) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON_", "MLIR_", "LLVM_IR_"))}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**kept, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(folder / f"cache-{number}"), "OMP_NUM_THREADS": "1"}
        self.words = folder / f"words-{number}"
        command = [sys.executable, "-m", "specdec_kernels.ahead", "--child", "--package", package]
        with self.words.open("w") as words:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True)

    def ask(self, job: _Job) -> dict[str, Any] | None:
        """The answer about one variant, or None where the process ended over it."""
        assert self.process.stdin is not None
        try:
            print(job.place, job.target, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return None
        return self.answer()

    def answer(self) -> dict[str, Any] | None:
        """The next answer, or None where the process ended, or took too long and was ended."""
        assert self.process.stdout is not None
        timer = threading.Timer(LIMIT, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        return json.loads(line) if line.endswith("\n") else None

    def end(self) -> None:
        """Lets it end, and waits for that."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.process.wait()

    def last_words(self) -> str:
        lines = [line.strip() for line in self.words.read_text("utf-8", "replace").splitlines() if line.strip()]
        return f"exit code {self.process.returncode}{f', {lines[-1]}' if lines else ''}"


def _serve(package: str) -> int:
    """The child's side: what there is to compile, then an answer to each line."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed goes with the errors
    variants, said = collected(package)
    print(json.dumps({"variants": [(room, variant.name) for room, variant in variants], "said": said}), file=answers)
    for line in sys.stdin:
        place, target = line.split()
        room, variant = variants[int(place)]
        before = _processor()
        try:
            answer: dict[str, Any] = {"row": measured(room, variant, target)._asdict()}
        except Exception as error:  # any fault of any compiler is a sentence about this variant
            answer = {"fault": _words(error)}
        print(json.dumps({**answer, "seconds": _processor() - before}), file=answers)
    return 0


def _words(error: BaseException) -> str:
    """The last line of an error; triton wraps what is wrong in a function in an error of every function that calls it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^|")]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no words'}"


def _processor() -> float:
    """Seconds that a processor has spent on this process and the assemblers it started."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    sys.exit(main())
