"""The body of a request: bytes to a JSON object, within the limits."""

import asyncio
import json
from typing import Any

from starlette.requests import Request

from specdec_fn.serve.refusal import Refusal

__all__ = ["parsed", "received"]


async def received(request: Request, *, most: int, seconds: float) -> bytes:
    """Reads a body.

    Args:
        most: bytes that it may have.
        seconds: that it may take to come.

    Raises:
        ClientDisconnect: nobody is there any more.
        Refusal: 415 for what says it is no JSON, 413 for too much, 408 for too slow.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(f"the content type is {kind!r:.80}; expected application/json", status=415)
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    closing = {"connection": "close"}  # the rest of it is not read
                    raise Refusal(f"the body has more than {most} bytes; expected at most that", status=413, code="body_too_large", headers=closing)
                parts.append(part)
    except TimeoutError:
        raise Refusal(f"the body did not come within {seconds:g} seconds", status=408, headers={"connection": "close"}) from None
    return b"".join(parts)


def parsed(body: bytes) -> dict[str, Any]:
    """The JSON object that a body holds.

    Raises:
        Refusal: it holds none.

    >>> parsed(b'{"n": 1}')
    {'n': 1}
    >>> parsed(b"[]")
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: the body is []; expected a JSON object
    """
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise Refusal(f"the body is not UTF-8 (byte {error.start}); expected a JSON object in UTF-8") from None
    except RecursionError:
        raise Refusal("the body is nested too deeply; expected a JSON object of a few levels") from None
    except ValueError as error:
        raise Refusal(f"the body is not JSON ({getattr(error, 'msg', None) or error}); expected a JSON object") from None
    if not isinstance(value, dict):
        raise Refusal(f"the body is {json.dumps(value):.40}; expected a JSON object")
    return value


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names stand once: of two values one would be silently lost."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen = set[str]()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice!r:.80} stands twice")
    return made
