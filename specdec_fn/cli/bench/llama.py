"""llama-cpp-python as a decoder of the same weights: our side of the worker, which may run in another environment."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer

from specdec_fn.cli.bench.turns import Decode, Decoded

__all__ = ["Llama", "Python", "missing"]

Python = Annotated[str | None, typer.Option("--llama-python", help="The Python that has llama-cpp-python, where it is not this one.")]
WORKER = Path(__file__).with_name("llama_worker.py")


def missing(python: str | None) -> str | None:
    """One line that says why llama-cpp-python cannot be compared with, or None where it is there.

    Raises:
        ValueError: a Python was named that does not run, or does not have it.
    """
    if python is None:
        here = importlib.util.find_spec("llama_cpp") is not None
        return None if here else "llama-cpp-python is not installed: left out (name a Python that has it with --llama-python)"
    try:
        found = subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"--llama-python is {python!r}, which does not run ({error}); expected a Python that has llama-cpp-python") from None
    if found.returncode:
        said = (found.stderr.strip().splitlines() or ["no word"])[-1]
        raise ValueError(f"--llama-python is {python!r}, which cannot import llama_cpp ({said}); expected a Python that has it")
    return None


class Llama:
    """A worker with one file loaded; closed at the end of a ``with``."""

    def __init__(self, python: str | None, path: Path, *, threads: int, context: int, lookup: int | None = None) -> None:
        """Starts it.

        Raises:
            ValueError: the worker does not run, or the library refuses the file.
        """
        self._worker = subprocess.Popen([python or sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = str(self._ask({"do": "load", "path": str(path), "threads": threads, "context": context, "lookup": lookup})["version"])

    def __enter__(self) -> "Llama":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the worker."""
        if self._worker.stdin is not None and self._worker.stdout is not None:
            self._worker.stdin.close()
            self._worker.stdout.close()
        try:
            self._worker.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._worker.kill()
            self._worker.wait()

    def decoder(self, ids: list[int], count: int) -> Decode:
        """Greedy decoding of ``count`` tokens; the worker times it, without the prefill."""

        def decode() -> Decoded:
            answer = self._ask({"do": "decode", "ids": ids, "count": count})
            return Decoded(answer["tokens"], answer["ms"])

        return decode

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        try:
            self._worker.stdin.write(json.dumps(request) + "\n")
            self._worker.stdin.flush()
            line = self._worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"error": "the worker ended without an answer"}
        if "error" in answer:
            self.close()
            raise ValueError(f"llama-cpp-python failed to {request['do']}: {answer['error']}")
        return dict(answer)
