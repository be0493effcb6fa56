"""The log behind ``--state FILE``: a submission is on the disk before it is acknowledged, so that a server that is killed can finish what it began.

The file is JSON lines, readable by its owner only, since prompts and answers stand in it: a first line about the file, one for every submission,
one for every end. A torn last line, which a kill leaves, is cut off. What is unfinished is run again from its prompt: its seed and its settings
are in the log, and in invariant mode nothing else decides tokens.
"""

import json
import os
import secrets
import stat
import threading
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

__all__ = ["Entry", "Journal", "Kept"]

FORMAT = 1
SLACK = 1 << 24  # bytes of lines that nobody needs before the file is written anew


class Entry(NamedTuple):
    """A submission as it was logged.

    Attributes:
        id: the request's.
        route: "completions" or "chat".
        owner: whose it is.
        created: seconds since 1970.
        body: what the client sent, with everything settled that it left open.
    """

    id: str
    route: str
    owner: bytes
    created: int
    body: dict[str, Any]


class Kept(NamedTuple):
    """An end as it was logged.

    Attributes:
        id, owner, created: the request's.
        status: "finished", "failed" or "cancelled".
        answer: the body of the answer, or of the error.
    """

    id: str
    owner: bytes
    created: int
    status: str
    answer: dict[str, Any] | None


class Journal:
    """A log that was opened, and is this process's alone until it is closed.

    Args:
        path: the file; made where it is not there.
        model: a fingerprint of the model; a log belongs to one.
        kept: ended requests whose answers are kept when the file is written anew.

    Attributes:
        secret: random bytes that stay with the file, for what must be the same after a restart.
        unfinished: what an earlier server left, in the order of submission.
        ended: what it had finished, in the order of the ends.

    Raises:
        OSError: it cannot be opened.
        ValueError: no regular file, no log, another model's, or in use by another server. It is then as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     journal = Journal(f"{folder}/state", "a model")
    ...     journal.submitted(Entry("a", "chat", b"", 0, {"seed": 3}))
    ...     journal.close()
    ...     again = Journal(f"{folder}/state", "a model")
    ...     again.close()
    >>> again.unfinished
    [Entry(id='a', route='chat', owner=b'', created=0, body={'seed': 3})]
    """

    def __init__(self, path: str, model: str, *, kept: int = 1000) -> None:
        self._path, self._model, self._kept = path, model, kept
        self._guard = threading.Lock()
        self._spare = 0
        self._file = _opened(path)
        try:
            self.secret, self.unfinished, self.ended = self._renewed()
        except BaseException:
            self._file.close()
            raise

    def submitted(self, entry: Entry) -> None:
        """Logs a submission; it is on the disk when this returns.

        Raises:
            OSError: it could not be written.
        """
        self._write(_submission(entry), now=True)

    def end(self, kept: Kept) -> None:
        """Logs an end. It may be lost with the power, and the request is then run again, to the same answer.

        Raises:
            OSError: it could not be written.
        """
        self._write(_end(kept), now=False)

    def close(self) -> None:
        """Closes the file, and lets another server have it."""
        with self._guard:
            if not self._file.closed:
                os.fsync(self._file.fileno())
                self._file.close()

    def _write(self, line: bytes, *, now: bool) -> None:
        with self._guard:
            _append(self._file.fileno(), line)
            self._spare += len(line)
            if now:
                os.fsync(self._file.fileno())
            if self._spare > SLACK:
                self._renewed()

    def _renewed(self) -> tuple[bytes, list[Entry], list[Kept]]:
        """Reads the file, and writes it anew without what nobody needs; a kill leaves the one or the other."""
        secret, unfinished, ended = self._read()
        lines = [_line({"specdec": FORMAT, "model": self._model, "secret": secret.hex()})]
        lines += [*map(_end, ended), *map(_submission, unfinished)]
        name = f"{self._path}.new"
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        fresh = os.fdopen(descriptor, "r+b")
        _lock(fresh, self._path)
        _append(descriptor, b"".join(lines))
        os.fsync(descriptor)
        os.replace(name, self._path)
        _sync_folder(self._path)
        self._file.close()
        self._file, self._spare = fresh, 0
        return secret, unfinished, ended

    def _read(self) -> tuple[bytes, list[Entry], list[Kept]]:
        self._file.seek(0)
        live: dict[str, Entry] = {}
        done: dict[str, Kept] = {}
        secret = None
        for number, raw in enumerate(self._file, start=1):
            if not raw.endswith(b"\n"):
                break  # torn by a kill; what it said was not acknowledged
            try:
                line = json.loads(raw)
                if number == 1:
                    secret = self._checked(line)
                elif "submitted" in line:
                    live[line["submitted"]] = _as_entry(line)
                else:
                    live.pop(line["ended"], None)
                    done[line["ended"]] = _as_kept(line)
            except _Foreign as error:
                raise ValueError(str(error)) from None
            except (ValueError, LookupError, TypeError, RecursionError):
                raise ValueError(
                    f"{self._path}, line {number} is not of a log of this server; expected one that --state wrote, or a new file"
                ) from None
        if secret is None and self._file.seek(0, os.SEEK_END):  # one line without an end: a kill while the file was made leaves none
            raise ValueError(f"{self._path} is not a log of this server; expected one that --state wrote, or a new file")
        return secret or secrets.token_bytes(32), list(live.values()), list(done.values())[-self._kept :]

    def _checked(self, line: Any) -> bytes:
        if line["specdec"] != FORMAT:
            raise _Foreign(f"{self._path} has format {line['specdec']!r}; expected {FORMAT}, or a new file")
        if line["model"] != self._model:
            raise _Foreign(f"{self._path} was begun with another model, or other settings of it; expected the same, or a new file")
        return bytes.fromhex(line["secret"])


class _Foreign(Exception):
    """A file that is a log, but not ours."""


def _opened(path: str) -> IO[bytes]:
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise ValueError(f"{path} is no regular file; expected one, or a new name")
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "r+b")
    try:
        _lock(file, path)
        os.fchmod(file.fileno(), 0o600)
    except BaseException:
        file.close()
        raise
    return file


def _lock(file: IO[bytes], path: str) -> None:
    try:
        import fcntl
    except ImportError:  # a system without advisory locks
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{path} is in use by another server; expected a file of its own for each") from None


def _append(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync_folder(path: str) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # a system whose folders cannot be opened
        return
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _submission(entry: Entry) -> bytes:
    return _line({"submitted": entry.id, "route": entry.route, "owner": entry.owner.hex(), "created": entry.created, "body": entry.body})


def _end(kept: Kept) -> bytes:
    about = {"ended": kept.id, "owner": kept.owner.hex(), "created": kept.created, "status": kept.status}
    return _line({**about, "answer": kept.answer})


def _as_entry(line: Any) -> Entry:
    if line["route"] not in ("completions", "chat") or not isinstance(line["body"], dict):
        raise ValueError
    return Entry(line["submitted"], line["route"], bytes.fromhex(line["owner"]), line["created"], line["body"])


def _as_kept(line: Any) -> Kept:
    if line["status"] not in ("finished", "failed", "cancelled"):
        raise ValueError
    return Kept(line["ended"], bytes.fromhex(line["owner"]), line["created"], line["status"], line["answer"])
