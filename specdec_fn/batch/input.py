"""The input of an offline batch: JSON lines that are all looked at before anything runs, and then read again one by one."""

import hashlib
import json
import math
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

__all__ = ["Line", "Prompts", "prompts"]


class Line(NamedTuple):
    """One prompt of an input file.

    Attributes:
        number: the line's in the file, from 0.
        id: what the file calls it; the number where it says nothing.
        fields: the rest of what the line says, without what is null.
    """

    number: int
    id: str | int | float
    fields: Mapping[str, Any]


class Prompts:
    """A file of prompts that was read once and found in order. Iterating reads it again, a line at a time, so that memory holds no prompts.

    Attributes:
        lines: of the file.
        count: lines that hold a prompt; the others are blank.
        digest: of the file's bytes.
    """

    def __init__(self, name: str, file: IO[bytes], check: Callable[[Line], Any]) -> None:
        self._name, self._file = name, file
        self._marks = array("Q")  # of each line, so that a change is noticed before its result is written
        self.count = 0
        whole, numbers = hashlib.blake2b(digest_size=16), dict[str | int | float, int]()
        for index, raw in self._read():
            whole.update(raw)
            self._marks.append(_mark(raw))
            try:
                line = _parsed(raw, index)
                if line is None:
                    continue
                if numbers.setdefault(line.id, index) != index:
                    raise ValueError(f"the id is {line.id!r}, as in line {numbers[line.id] + 1}; expected one of its own")
                check(line)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}, line {index + 1}: {error}") from None
            self.count += 1
        self.lines, self.digest = len(self._marks), whole.hexdigest()

    def __iter__(self) -> Iterator[Line]:
        coming = self._read()
        for mark in self._marks:  # lines that are added meanwhile are not of this run
            index, raw = next(coming, (-1, b""))
            if _mark(raw) != mark:
                raise ValueError(f"{self._name} has changed since it was first read; expected a file that stays as it is")
            line = _parsed(raw, index)
            if line is not None:
                yield line

    def _read(self) -> Iterator[tuple[int, bytes]]:
        self._file.seek(0)
        return enumerate(self._file)


@contextmanager
def prompts(path: str, check: Callable[[Line], Any]) -> Iterator[Prompts]:
    """Opens a file of prompts, one JSON object a line, and reads it through.

    Args:
        path: the file; - is standard input. What can be read only once is kept in a temporary file.
        check: looks at every line; a TypeError or ValueError of it refuses the file, with the line's number.

    Raises:
        OSError: it cannot be read.
        ValueError: a line that is no JSON object, repeats an id, or that ``check`` refuses.

    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b'{"prompt": "Hello"}\\n\\n{"id": "b", "prompt": [5]}\\n')
    ...     file.flush()
    ...     with prompts(file.name, check=lambda line: None) as found:
    ...         print(found.count, [line.id for line in found])
    2 [0, 'b']
    """
    name = "standard input" if path == "-" else path
    with open(sys.stdin.fileno() if path == "-" else path, "rb", closefd=path != "-") as source:
        if path != "-" and source.seekable():
            yield Prompts(name, source, check)
            return
        with tempfile.TemporaryFile() as kept:
            while block := source.read(1 << 20):
                kept.write(block)
            yield Prompts(name, kept, check)


def _mark(raw: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def _parsed(raw: bytes, index: int) -> Line | None:
    """What a line says; None where it is blank."""
    try:
        text = raw.decode("utf-8-sig" if index == 0 else "utf-8")
        if not text.strip():
            return None
        value = json.loads(text, parse_constant=_no_number)
    except UnicodeDecodeError:
        raise ValueError("this is not UTF-8 text; expected a JSON object with a prompt or messages") from None
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", error)
        raise ValueError(f"this is not JSON ({why}); expected an object with a prompt or messages") from None
    if not isinstance(value, dict):
        raise ValueError(f"this is {text.strip()[:40]!r}; expected a JSON object with a prompt or messages")
    fields = {name: item for name, item in value.items() if item is not None}
    name = fields.pop("id", index)
    if isinstance(name, bool) or not isinstance(name, str | int | float) or (isinstance(name, float) and not math.isfinite(name)):
        raise TypeError(f"the id is {name!r}; expected a string or a number")
    return Line(index, name, fields)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")
