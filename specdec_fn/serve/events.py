"""Server-sent events, as OpenAI's clients read them: a line ``data:``, an empty line, and ``[DONE]`` at the end."""

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["DONE", "event"]

DONE = b"data: [DONE]\n\n"
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def event(payload: Mapping[str, Any] | str) -> bytes:
    r"""One event.

    Args:
        payload: an object, written as compact JSON on one line; or text, of which every line is one of the event.

    Raises:
        ValueError: a number that JSON does not have.

    >>> event({"text": "a\nb"})
    b'data: {"text":"a\\nb"}\n\n'
    """
    if not isinstance(payload, str):
        return b"data: " + _encode(payload).encode("utf-8", "replace") + b"\n\n"
    lines = payload.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return b"".join(b"data: " + line.encode("utf-8", "replace") + b"\n" for line in lines) + b"\n"
