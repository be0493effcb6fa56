"""Streaming clients on raw sockets, all in one process: a script of the standard library alone, so that what is timed is the server.

Reads a line of JSON from standard input for every round, ``{"host", "port", "path", "bodies": [...]}``, and writes one for it: seconds from the
first connection to the last event, and what each client got. Ends with its input.
"""

import json
import selectors
import socket
import sys
import time
from typing import Any

__all__ = ["answered", "round_of"]


def round_of(host: str, port: int, path: str, bodies: list[Any]) -> dict[str, Any]:
    """Sends every body at once, each over a connection of its own, and reads until all streams have ended.

    Returns:
        "seconds"; and "answers", the bytes that each client received.

    >>> import threading
    >>> with socket.create_server(("localhost", 0)) as server:
    ...     def serve() -> None:
    ...         one, _ = server.accept()
    ...         with one:
    ...             one.sendall(b"seen " + one.recv(4096)[:4])
    ...     threading.Thread(target=serve).start()
    ...     round_of("localhost", server.getsockname()[1], "/", [{}])["answers"]
    [b'seen POST']
    """
    requests = [_request(host, port, path, body) for body in bodies]
    got: list[list[bytes]] = [[] for _ in requests]
    start = time.perf_counter()
    with selectors.DefaultSelector() as watch:
        for number, request in enumerate(requests):
            one = socket.create_connection((host, port))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.sendall(request)
            one.setblocking(False)
            watch.register(one, selectors.EVENT_READ, number)
        while watch.get_map():
            for ready, _ in watch.select():
                reading = ready.fileobj
                assert isinstance(reading, socket.socket), "nothing else is watched"
                data = reading.recv(1 << 16)
                if data:
                    got[ready.data].append(data)
                else:
                    watch.unregister(reading)
                    reading.close()
    return {"seconds": time.perf_counter() - start, "answers": [b"".join(parts) for parts in got]}


def answered(raw: bytes) -> dict[str, Any]:
    """What an answer of server-sent events comes to.

    Returns:
        "status", "text", "tokens" (by the usage at its end; 0 without) and "events".

    >>> event, usage = b'data: {"choices": [{"text": "so"}]}', b'data: {"choices": [], "usage": {"completion_tokens": 1}}'
    >>> answered(b"\\r\\n\\r\\n".join([b"HTTP/1.1 200 OK", b"\\n\\n".join([event, usage, b""])]))
    {'status': 200, 'text': 'so', 'tokens': 1, 'events': 2}
    """
    head, _, body = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = _joined(body)
    events = [line[6:] for line in body.split(b"\n\n") if line.startswith(b"data: ") and line != b"data: [DONE]"]
    parts, tokens = [], 0
    for event in map(json.loads, events):
        parts += [choice.get("text") or "" for choice in event.get("choices", ())]
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return {"status": int(head.split(None, 2)[1]), "text": "".join(parts), "tokens": tokens, "events": len(events)}


def _request(host: str, port: int, path: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


def _joined(body: bytes) -> bytes:
    """A body without the lengths that HTTP/1.1 puts between its chunks."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16) if size else 0
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)


if __name__ == "__main__":
    for line in sys.stdin:
        found = round_of(**json.loads(line))
        found["answers"] = [answered(raw) for raw in found["answers"]]
        print(json.dumps(found), flush=True)
