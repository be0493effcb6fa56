"""Clients on raw sockets, well behaved or not, for the measurements of the server."""

import asyncio
import json
import socket
from typing import Any, NamedTuple
from urllib.parse import urlsplit

__all__ = ["Got", "asked", "streamed"]


class Got(NamedTuple):
    """What a client got.

    Attributes:
        status: of HTTP; 0 where nothing came.
        text: of its stream so far, or of its whole answer.
        finish_reason: of the one choice; None where it did not come.
        id: of the request.
        body: the raw answer.
    """

    status: int
    text: str
    finish_reason: str | None
    id: str | None
    body: bytes


async def streamed(url: str, path: str, body: Any, *, chunks: int | None = None, pause: float = 0.0, key: str | None = None) -> Got:
    """Streams an answer.

    Args:
        url: of the server.
        path: of the route.
        body: JSON, which should ask for a stream of one choice.
        chunks: how many to read before the client goes away without a word; None for all.
        pause: seconds that a slow reader waits before every few bytes.
        key: of the server, if it needs one.
    """
    place = urlsplit(url)
    one = socket.socket(socket.AF_INET6 if ":" in str(place.hostname) else socket.AF_INET)
    one.setblocking(False)
    if pause:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)  # so that the server notices
    await asyncio.get_running_loop().sock_connect(one, (place.hostname, place.port))
    reader, writer = await asyncio.open_connection(sock=one, limit=2048 if pause else 1 << 16)
    writer.write(_request(place.netloc, path, json.dumps(body).encode(), key))
    await writer.drain()
    raw = b""
    while data := await reader.read(256 if pause else 1 << 16):
        raw += data
        if chunks is not None and raw.count(b"data: ") >= chunks:
            writer.transport.abort()
            break
        if pause:
            await asyncio.sleep(pause)
    writer.close()
    return _got(raw)


async def asked(url: str, method: str, path: str, content: bytes = b"", headers: tuple[tuple[str, str], ...] = ()) -> Got:
    """One request, whatever its body and headers, and its answer."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {place.netloc}", f"Content-Length: {len(content)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    writer.write("\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + content)
    try:
        raw = await reader.read(-1)
    except ConnectionResetError:  # it answered without reading all that we had to say
        raw = b""
    writer.close()
    return _got(raw)


def _request(host: str, path: str, content: bytes, key: str | None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", f"Content-Length: {len(content)}", "Connection: close"]
    lines += [] if key is None else [f"Authorization: Bearer {key}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def _got(raw: bytes) -> Got:
    head, _, body = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = _joined(body)
    status = int(head.split(None, 2)[1]) if head.startswith(b"HTTP/") else 0
    parts, reason, id = [], None, None
    for event in body.split(b"\n\n")[:-1]:  # what follows the last blank line is no whole event
        if not event.startswith(b"data: {"):
            continue
        chunk = json.loads(event[6:])
        id = chunk.get("id", id)
        for choice in chunk.get("choices", ()):
            parts.append(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
            reason = choice.get("finish_reason") or reason
    return Got(status, "".join(parts), reason, id, body)


def _joined(body: bytes) -> bytes:
    """A body without the lengths that HTTP/1.1 puts between its chunks."""
    parts = []
    while body:
        size, found, body = body.partition(b"\r\n")
        if not found or not size:
            break
        length = int(size, 16)
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)
