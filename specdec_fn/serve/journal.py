"""The log behind ``--state FILE``: a submission is on the disk before it is acknowledged, so that a server that is killed can finish what it began.

The file is JSON lines, readable by its owner only, since prompts and answers stand in it: a first line about the file, one for every submission,
one for every end. A torn last line, which a kill leaves, is cut off; a write that fails part-way, as on a full disk, is taken back. What is
unfinished is run again from its prompt: its seed and its settings are in the log, and in invariant mode nothing else decides tokens.
"""

import errno
import json
import os
import re
import secrets
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, NamedTuple

from specdec_fn.batch.lines import append, lock, sync_folder

__all__ = ["Entry", "Journal", "Kept"]

FORMAT = 1
SLACK = 1 << 24  # bytes of lines that nobody needs before the file is written anew
TRIES = 10  # at a file that other servers keep replacing


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
        skipped: torn lines that stood amid whole ones when it was opened, and were left out.

    Raises:
        OSError: it cannot be opened, or not be written anew.
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
        self._spoiled = self._moved = False
        self._file = _opened(path)
        try:
            self.secret, self.unfinished, self.ended, self.skipped = self._renewed()
        except BaseException:
            self._file.close()
            raise

    def submitted(self, entry: Entry) -> None:
        """Logs a submission; it is on the disk when this returns.

        Raises:
            OSError: it could not be written; the log is as it was before, or takes nothing more.
        """
        self._write(_submission(entry), now=True)

    def end(self, kept: Kept) -> None:
        """Logs an end. It may be lost with the power, and the request is then run again, to the same answer.

        Raises:
            OSError: it could not be written; the log is as it was before, or takes nothing more.
        """
        self._write(_end(kept), now=False)

    def close(self) -> None:
        """Closes the file, and lets another server have it."""
        with self._guard:
            if not self._file.closed:
                try:
                    os.fsync(self._file.fileno())
                finally:
                    self._file.close()

    def _write(self, line: bytes, *, now: bool) -> None:
        with self._guard:
            if self._spoiled:
                raise OSError(errno.EIO, "an earlier write failed and could not be taken back", self._path)
            descriptor = self._file.fileno()
            size = os.fstat(descriptor).st_size
            try:
                append(descriptor, line)
                if now:
                    os.fsync(descriptor)
                    self._settle()
            except OSError:
                self._take_back(size)
                raise
            self._spare += len(line)
            if self._spare > SLACK:
                try:
                    self._renewed()
                except OSError:  # the line is on the disk all the same
                    self._spare = 0

    def _take_back(self, size: int) -> None:
        """Cuts off what a failed write left, since the next line would be glued to it."""
        try:
            os.ftruncate(self._file.fileno(), size)
            os.fsync(self._file.fileno())
        except OSError:
            self._spoiled = True

    def _settle(self) -> None:
        """Makes a renaming last; until then a power failure may bring back the old file, without the lines that followed."""
        if self._moved:
            sync_folder(self._path)
            self._moved = False

    def _renewed(self) -> "_Content":
        """Reads the file, and writes it anew without what nobody needs; a kill or a failure leaves the one or the other."""
        content = self._read()
        lines = [_line({"specdec": FORMAT, "model": self._model, "secret": content.secret.hex()})]
        lines += [*map(_end, content.ended), *map(_submission, content.unfinished)]
        name = f"{self._path}.{secrets.token_hex(4)}"
        # Not mkstemp: what is cut off a file that is not opened for appending leaves a hole.
        fresh = os.fdopen(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW, 0o600), "r+b")
        try:
            _lock(fresh, self._path)
            append(fresh.fileno(), b"".join(lines))
            os.fsync(fresh.fileno())
            os.replace(name, self._path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            fresh.close()
            raise
        old, self._file, self._spare, self._moved = self._file, fresh, 0, True
        old.close()
        self._settle()
        return content

    def _read(self) -> "_Content":
        live: dict[str, Entry] = {}
        done: dict[str, Kept] = {}
        secret, skipped = None, 0
        with open(self._file.fileno(), "rb", closefd=False) as lines:
            lines.seek(0)
            for number, raw in enumerate(lines, start=1):
                if not raw.endswith(b"\n"):
                    break  # torn by a kill; what it said was not acknowledged
                try:
                    if number == 1:
                        secret = self._checked(json.loads(raw))
                        continue
                    record, torn = _recorded(raw)
                    skipped += torn
                    if isinstance(record, Entry):
                        live[record.id] = record
                    elif record is not None:
                        live.pop(record.id, None)
                        done[record.id] = record
                except _Foreign as error:
                    raise ValueError(str(error)) from None
                except (ValueError, LookupError, TypeError, RecursionError):
                    raise ValueError(
                        f"{self._path}, line {number} is not of a log of this server; expected one that --state wrote, or a new file"
                    ) from None
        if secret is None and os.fstat(self._file.fileno()).st_size:  # one line without an end: a kill while the file was made leaves none
            raise ValueError(f"{self._path} is not a log of this server; expected one that --state wrote, or a new file")
        return _Content(secret or secrets.token_bytes(32), list(live.values()), list(done.values())[-self._kept :], skipped)

    def _checked(self, line: Any) -> bytes:
        if line["specdec"] != FORMAT:
            raise _Foreign(f"{self._path} has format {line['specdec']!r}; expected {FORMAT}, or a new file")
        if line["model"] != self._model:
            raise _Foreign(f"{self._path} was begun with another model, dtype or mode (invariant or not); expected the same, or a new file")
        return bytes.fromhex(line["secret"])


class _Content(NamedTuple):
    """What a log says."""

    secret: bytes
    unfinished: list[Entry]
    ended: list[Kept]
    skipped: int


class _Foreign(Exception):
    """A file that is a log, but not ours."""


def _opened(path: str) -> IO[bytes]:
    for _ in range(TRIES):
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise ValueError(f"{path} is no regular file; expected one, or a new name")
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "r+b")
        try:
            _lock(file, path)
            if _is_at(file, path):
                os.fchmod(file.fileno(), 0o600)
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # another server replaced it before the lock was ours, which is then on a file that nobody sees
    raise ValueError(f"{path} is in use by another server; expected a file of its own for each")


def _is_at(file: IO[bytes], path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def _lock(file: IO[bytes], path: str) -> None:
    if not lock(file):
        raise ValueError(f"{path} is in use by another server; expected a file of its own for each")


def _recorded(raw: bytes) -> tuple[Entry | Kept | None, bool]:
    """What a line says, and whether a torn one stands in it; then what the whole line says that is glued behind, None where there is none."""
    try:
        line = json.loads(raw)
    except ValueError:
        if not raw.startswith((b"{", b"\0")):  # zeros are room that was set aside and never written
            raise
        return _behind(raw.decode("ascii", "replace").removesuffix("\n")), True
    return _as_record(line), False


def _behind(text: str) -> Entry | Kept | None:
    for start in re.finditer(r'{"(?:submitted|ended)":', text):
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            line, end = json.JSONDecoder().raw_decode(text, start.start())
            if end == len(text):  # what stands inside of a line has brackets behind it
                return _as_record(line)
    return None


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _submission(entry: Entry) -> bytes:
    return _line({"submitted": entry.id, "route": entry.route, "owner": entry.owner.hex(), "created": entry.created, "body": entry.body})


def _end(kept: Kept) -> bytes:
    about = {"ended": kept.id, "owner": kept.owner.hex(), "created": kept.created, "status": kept.status}
    return _line({**about, "answer": kept.answer})


def _as_record(line: Any) -> Entry | Kept:
    return _as_entry(line) if "submitted" in line else _as_kept(line)


def _as_entry(line: Any) -> Entry:
    if line["route"] not in ("completions", "chat") or not isinstance(line["body"], dict):
        raise ValueError
    return Entry(line["submitted"], line["route"], bytes.fromhex(line["owner"]), line["created"], line["body"])


def _as_kept(line: Any) -> Kept:
    if line["status"] not in ("finished", "failed", "cancelled"):
        raise ValueError
    return Kept(line["ended"], bytes.fromhex(line["owner"]), line["created"], line["status"], line["answer"])
