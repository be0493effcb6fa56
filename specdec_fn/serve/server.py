"""The server: a socket, uvicorn, and an orderly end."""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from specdec_fn.serve.assembly import Assembly
from specdec_fn.serve.desk import Desk
from specdec_fn.serve.refusal import Refusal

__all__ = ["bound", "in_thread", "serve", "url"]

FIRST = 30.0  # seconds that a connection has for a request to come


class _Protocol(H11Protocol):
    """Uvicorn's, which answers what is no HTTP in the shape of all other errors, and lets the application cut a connection that is stuck."""

    def __init__(self, stalled: float, **named: Any) -> None:
        super().__init__(**named)
        self._stalled, self._unsent = stalled, 0
        self._late: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        inner: Any = self.app

        async def with_abort(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {"specdec.abort": self.transport.abort}
            await inner(scope, receive, send)

        self.app = with_abort

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """From here the next request has so long to come whole, and what is sent has so long to be taken."""
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()
        self._late = self.loop.call_later(FIRST, self._check_late)
        self._unsent = self.transport.get_write_buffer_size()
        self._stuck = self.loop.call_later(self._stalled, self._check_stuck) if self._unsent else None

    def _check_late(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def _check_stuck(self) -> None:
        before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if self._unsent and self._unsent >= before:
            self.transport.abort()
        elif self._unsent:
            self._stuck = self.loop.call_later(self._stalled, self._check_stuck)

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is under way: nothing else can be said
            self.transport.close()
            return
        body = json.dumps(Refusal("the request is not HTTP that can be read; expected HTTP/1.1").body()).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        parts: Sequence[Any] = (h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.Data(data=body), h11.EndOfMessage())
        for part in parts:
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()


class _Server(uvicorn.Server):
    """Uvicorn's, which opens the desk before it listens and closes it before it ends."""

    def __init__(self, config: uvicorn.Config, desk: Desk, grace: float, up: Callable[[], None]) -> None:
        super().__init__(config)
        self._desk, self._grace, self._up = desk, grace, up
        self.signal, self.cut = 0, 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._desk.open()
        await super().startup(sockets)
        self._up()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        running = self._desk.load().requests
        if running and self.signal:
            print(f"specdec: {running} request(s) have {self._grace:g} seconds to end; once more to stop at once", file=sys.stderr, flush=True)
        self.cut = await self._desk.close(self._grace)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:  # asked again: now
            self.force_exit = True
            self._desk.hurry()
        self.should_exit, self.signal = True, sig


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one.

    Raises:
        OSError: nobody can.

    >>> with bound("127.0.0.1", 0) as listener:
    ...     listener.getsockname()[1] > 0
    True
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family, backlog=2048)


def url(listener: socket.socket) -> str:
    """Where a socket listens, as clients write it.

    >>> with bound("127.0.0.1", 0) as listener:
    ...     url(listener).rpartition(":")[0]
    'http://127.0.0.1'
    """
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(assembly: Assembly, listener: socket.socket, *, grace: float, up: Callable[[], None]) -> tuple[int, int]:
    """Serves until a signal comes; the second one does not wait.

    Args:
        assembly: what ``assembled`` made.
        listener: what ``bound`` gave.
        grace: seconds that requests have to end.
        up: called once requests are served.

    Returns:
        The signal, and how many requests were cut off.

    >>> import os, signal
    >>> from specdec_fn.serve.assembly import example
    >>> listener = bound("127.0.0.1", 0)
    >>> serve(example(), listener, grace=0.0, up=lambda: os.kill(os.getpid(), signal.SIGTERM)) == (signal.SIGTERM, 0)
    True
    """
    server = _server(assembly, grace, up)
    with asyncio.Runner() as runner:
        runner.run(server.serve(sockets=[listener]))
    return server.signal, server.cut


@contextmanager
def in_thread(assembly: Assembly, *, host: str = "127.0.0.1", port: int = 0, grace: float = 5.0) -> Iterator[str]:
    """A server in a thread of its own, for experiments and tests that want one beside them; ends with the block.

    Args:
        assembly: what ``assembled`` made; it serves once.
        host, port: where to listen; port 0 takes a free one.
        grace: seconds that requests have to end.

    Yields:
        Its address, such as ``http://127.0.0.1:8000``.

    Raises:
        RuntimeError: it did not start.

    >>> from urllib.request import urlopen
    >>> from specdec_fn.serve.assembly import example
    >>> with in_thread(example()) as place, urlopen(f"{place}/health") as answer:
    ...     answer.status
    200
    """
    listener = bound(host, port)
    up = threading.Event()
    server = _server(assembly, grace, up.set)

    faults: list[BaseException] = []

    def run() -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(server.serve(sockets=[listener]))
        except BaseException as error:
            faults.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=run, name="server")
    thread.start()
    up.wait()
    try:
        if not server.started:
            raise RuntimeError(f"the server did not start: {faults[0] if faults else 'it was stopped'}") from (faults[0] if faults else None)
        yield url(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _server(assembly: Assembly, grace: float, up: Callable[[], None]) -> _Server:
    quiet: dict[str, Any] = {"log_config": None, "log_level": "critical", "access_log": False, "server_header": False}
    common: dict[str, Any] = {"ws": "none", "lifespan": "off", "loop": "asyncio", "timeout_graceful_shutdown": 5}
    protocol: Any = partial(_Protocol, assembly.desk.served.limits.stalled)
    return _Server(uvicorn.Config(assembly.app, http=protocol, **common, **quiet), assembly.desk, grace, up)
