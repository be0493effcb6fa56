"""The questions of Spec-Bench: a folder with ``questions.jsonl``, and the file that keeps what was measured of each."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Kept", "Question", "limited", "read"]

FILE = "questions.jsonl"


class Question(NamedTuple):
    """One question.

    Attributes:
        number: its id in the set.
        category: the task it stands for.
        turns: the user's messages; the first is what is measured.
    """

    number: int
    category: str
    turns: tuple[str, ...]


def read(folder: str | Path) -> list[Question]:
    """Reads ``questions.jsonl`` of a folder: one object a line with ``question_id``, ``category`` and ``turns``.

    Raises:
        ValueError: no such file; a line that is no such object, with its number; an id that is there twice; no question at all.
    """
    path = Path(folder) / FILE
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ValueError(f"{str(path)!r} cannot be read ({said}); expected a folder with {FILE}") from None
    questions = [_question(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not questions:
        raise ValueError(f"{str(path)!r} has no question; expected one JSON object a line")
    seen: set[int] = set()
    for one in questions:
        if one.number in seen:
            raise ValueError(f"{path} has the question_id {one.number} twice; expected each once")
        seen.add(one.number)
    return questions


def limited(questions: Sequence[Question], most: int | None) -> list[Question]:
    """At most so many of each category, in their order.

    >>> few = limited([Question(1, "a", ("x",)), Question(2, "a", ("y",)), Question(3, "b", ("z",))], 1)
    >>> [one.number for one in few]
    [1, 3]
    """
    if most is None:
        return list(questions)
    counts: dict[str, int] = {}
    kept = []
    for one in questions:
        counts[one.category] = counts.get(one.category, 0) + 1
        if counts[one.category] <= most:
            kept.append(one)
    return kept


def _question(line: str, place: str) -> Question:
    expected = "an object with question_id, category and turns"
    try:
        item: Any = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{place} is not JSON ({getattr(error, 'msg', error)}); expected {expected}") from None
    if not isinstance(item, Mapping):
        raise ValueError(f"{place} is a {type(item).__name__}; expected {expected}")
    number, category, turns = item.get("question_id"), item.get("category"), item.get("turns")
    if type(number) is not int or not isinstance(category, str):
        raise ValueError(f"{place} has question_id {number!r:.40} and category {category!r:.40}; expected {expected}")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{place} has turns {turns!r:.40}; expected a list of at least one text")
    return Question(number, category, tuple(turns))


class Kept:
    """Records of questions, one JSON object a line behind a line of settings; written as they come, so that a run can go on later.

    A last line that was cut off when a run was killed is dropped.

    Attributes:
        records: what is known of each question.
        note: what the run was begun with and goes on with, such as a measured curve.
    """

    def __init__(self, path: str | Path | None, settings: Mapping[str, Any], note: Callable[[], Mapping[str, Any]]) -> None:
        """Opens the file, or makes it; None keeps records in memory alone.

        Args:
            path: of the file.
            settings: those of the file must be the same.
            note: makes the note of a new file.

        Raises:
            ValueError: a file of other settings, or one that is no such file. OSError: one that cannot be written.
        """
        self.records: dict[int, dict[str, Any]] = {}
        self._path = None if path is None else Path(path)
        told = json.loads(json.dumps(settings))
        if self._path is None or not self._path.is_file() or not self._path.stat().st_size:
            if self._path is not None:
                open(self._path, "a", encoding="utf-8").close()  # what cannot be written is refused before anything is measured
            self.note = json.loads(json.dumps(note()))
            if self._path is not None:
                self._path.write_text(json.dumps({"settings": told, "note": self.note}) + "\n", "utf-8")
            return
        whole = self._path.read_text("utf-8")
        lines = whole.splitlines()
        if not whole.endswith("\n"):
            lines.pop()
            self._path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        begun, self.note = _first(lines, self._path)
        for name in {**begun, **told}:
            if begun.get(name) != told.get(name):
                raise ValueError(
                    f"{self._path} was begun with {name} {begun.get(name)!r:.60}; this run has {told.get(name)!r:.60}: expected the same"
                )
        self.records = _records(lines[1:], self._path)

    def __contains__(self, number: int) -> bool:
        return number in self.records

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records.values())

    def add(self, record: Mapping[str, Any]) -> None:
        """Appends the record of a question."""
        line = json.dumps(record)
        self.records[record["question_id"]] = json.loads(line)  # as a later run would read it
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")


def _first(lines: list[str], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and note of the first line."""
    try:
        first = json.loads(lines[0])
        found = first["settings"], first["note"]
    except (IndexError, KeyError, TypeError, json.JSONDecodeError, RecursionError):
        found = None, None
    if not isinstance(found[0], dict) or not isinstance(found[1], dict):
        raise ValueError(f"{path} is no file of an earlier run; expected one, or a new name")
    return found


def _records(lines: list[str], path: Path) -> dict[int, dict[str, Any]]:
    """The other lines, by question."""
    found = {}
    for place, line in enumerate(lines, start=2):
        try:
            record = json.loads(line)
            found[int(record["question_id"])] = dict(record)
        except (KeyError, TypeError, ValueError, RecursionError):
            raise ValueError(
                f"{path}, line {place} is no record of a question; expected a file of an earlier run as it was left, or a new name"
            ) from None
    return found
