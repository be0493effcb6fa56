"""The prompts of the measurements, in two committed files: quoting.jsonl and prose.jsonl."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Prompt", "read"]


class Prompt(NamedTuple):
    """A named request to a chat model.

    Attributes:
        name: what tables call it.
        text: the user's message.
    """

    name: str
    text: str


def read(path: str | Path) -> list[Prompt]:
    """Reads one JSON object a line, each with ``name`` and ``text`` (or ``question_id`` and ``turns``); a bare name means a file beside this one.

    Raises:
        ValueError: a file that cannot be read, or a line that is no such object, with its number.
    """
    file = Path(__file__).with_name(f"{path}.jsonl") if str(path) in ("quoting", "prose") else Path(path)
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read ({error.strerror}); expected a file of prompts, one JSON object a line") from None
    return [_prompt(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _prompt(line: str, place: str) -> Prompt:
    try:
        item: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place} is not JSON ({error.msg}); expected an object with name and text") from None
    if isinstance(item, Mapping) and isinstance(item.get("text"), str):
        return Prompt(str(item.get("name", place)), item["text"])
    if isinstance(item, Mapping) and isinstance(item.get("turns"), list) and item["turns"] and isinstance(item["turns"][0], str):
        return Prompt(f"{item.get('category', '')} {item.get('question_id', place)}".strip(), item["turns"][0])
    raise ValueError(f"{place} has neither text nor turns; expected an object with name and text")
