"""The output of an offline batch, which is its log as well.

A result is one line, appended by one write, so that a process killed at any moment leaves whole lines and at most a torn last one, which the
next run cuts off; what has a line is not computed again. Beside the output stands ``OUT.run.json`` with the settings that decide the results, a
digest of the input among them. It is a file of its own so that every line of the output is a result. An output is continued only where it agrees.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from specdec_fn.batch.lines import append, lock, sync_folder

__all__ = ["Results", "results"]

FORMAT = 1
SYNC = 5.0  # seconds of results that a power cut may cost; a killed process costs none


class Results:
    """Where results go, and which were there already.

    Attributes:
        skipped: results that an earlier run left.
        failed_before: those of them that have an error.
        done: results written by this one, without an error.
        failed: with one.
    """

    def __init__(self, put: Callable[[bytes], None], lines: int) -> None:
        self._put = put
        self._there = bytearray(lines)
        self.skipped = self.failed_before = self.done = self.failed = 0

    def has(self, index: int) -> bool:
        """Whether a line of the input has its result."""
        return bool(self._there[index])

    def write(self, result: Mapping[str, Any]) -> None:
        """Appends a result, which has an "index" and none before; it is out of this process when this returns."""
        self._put(json.dumps(result, allow_nan=False).encode() + b"\n")
        self._there[result["index"]] = True
        self.failed += "error" in result
        self.done += "error" not in result

    def _found(self, raw: bytes) -> None:
        """Counts a line that an earlier run left."""
        result = json.loads(raw)
        index = result["index"]
        if type(index) is not int or index < 0 or self._there[index] or "finish_reason" not in result:
            raise ValueError
        self._there[index] = True
        self.skipped += 1
        self.failed_before += "error" in result


@contextmanager
def results(path: str, settings: Mapping[str, Any], lines: int) -> Iterator[Results]:
    """Opens an output: a new one, or one of the same settings to go on with; no other run can have it meanwhile.

    Args:
        path: the file; - is standard output, where nothing is found and nothing kept.
        settings: JSON values: whatever decides the results.
        lines: of the input.

    Raises:
        OSError: it cannot be written.
        ValueError: it belongs to other settings or to nobody known, or another process writes it. It is then as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for place in (1, 2):
    ...         with results(f"{folder}/out.jsonl", {"seed": 0}, lines=3) as kept:
    ...             kept.write({"index": place, "finish_reason": "stop"})
    ...             print([kept.has(index) for index in range(3)])
    [False, True, False]
    [False, True, True]
    """
    if path == "-":
        yield Results(_print, lines)
        return
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} is no regular file; expected one, a new name, or - for standard output")
    with open(path, "a+b") as file:
        if not lock(file):
            raise ValueError(f"{path} is being written by another process; expected an output that no other run has")
        found = Results(_Log(file.fileno()), lines)
        _resume(file, path, json.loads(json.dumps({"format": FORMAT, **settings})), found)
        try:
            yield found
        finally:
            os.fsync(file.fileno())


def _resume(file: IO[bytes], path: str, settings: dict[str, Any], found: Results) -> None:
    """Makes sure that the output is this run's, takes stock of it, and cuts off a torn last line."""
    about = f"{path}.run.json"
    before = _before(about)
    if file.seek(0, os.SEEK_END) == 0:
        if before != settings:
            _note(about, settings)
        return
    if before is None:
        raise ValueError(f"{path} is there, without a whole {about} beside it; expected a new file, or the output of the run to continue")
    for name in {**settings, **before}:
        old, new = before.get(name), settings.get(name)
        if old != new:
            what = f"other {name}" if name in ("input", "model") else f"{name} {json.dumps(old)}, received {json.dumps(new)}"
            raise ValueError(f"{path} belongs to a run with {what}; expected the input and the settings that it was begun with, or another output")
    file.seek(0)
    whole = 0
    for number, raw in enumerate(file, start=1):
        if not raw.endswith(b"\n"):
            break
        try:
            found._found(raw)
        except (ValueError, LookupError, TypeError, RecursionError):
            raise ValueError(f"{path}, line {number} is not a result of this run, or one that is there twice; expected whole results") from None
        whole += len(raw)
    file.truncate(whole)


def _before(about: str) -> dict[str, Any] | None:
    """The settings that an output was begun with; None where there are none, or no whole ones."""
    try:
        value = json.loads(Path(about).read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _note(about: str, settings: dict[str, Any]) -> None:
    """Writes the settings down, for good before the first result: a torn file beside an empty output is nobody's loss."""
    with open(about, "wb") as file:
        append(file.fileno(), json.dumps(settings, indent=2).encode() + b"\n")
        os.fsync(file.fileno())
    sync_folder(about)


class _Log:
    """Appends, and now and then waits first until what is there is on the disk: who is interrupted while waiting has not written yet."""

    def __init__(self, file: int) -> None:
        self._file, self._synced = file, time.monotonic()

    def __call__(self, data: bytes) -> None:
        if time.monotonic() - self._synced >= SYNC:
            os.fsync(self._file)
            self._synced = time.monotonic()
        append(self._file, data)


def _print(data: bytes) -> None:
    sys.stdout.write(data.decode())
    sys.stdout.flush()
