"""Answers over a socket: events as they come, or one body at the end; and a client that has gone, or that does not read."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specdec_fn.serve import answers, events
from specdec_fn.serve.desk import Desk, named
from specdec_fn.serve.ticket import Ticket

__all__ = ["Stream", "whole"]

HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


class Stream(Response):
    """A streamed answer: every step of the engine is an event at once, steps that the socket had no room for are sent together.

    Args:
        desk: where the request is to be withdrawn when its reader goes.
        ticket: the request, which is read.
    """

    def __init__(self, desk: Desk, ticket: Ticket) -> None:
        self._desk, self._ticket = desk, ticket
        self.background = None
        self.status_code = 200
        self.init_headers({**HEADERS, "x-request-id": ticket.id})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it (the application's interface of ASGI)."""
        watch = asyncio.ensure_future(_disconnected(receive, self._gone))
        try:
            await self._within(send({"type": "http.response.start", "status": 200, "headers": self.raw_headers}))
            await self._events(send)
        except TimeoutError:
            self._gone()
            abort = scope.get("extensions", {}).get("specdec.abort")
            if abort is None:
                raise ConnectionAbortedError("the client does not read") from None
            abort()
        finally:
            watch.cancel()

    async def _events(self, send: Send) -> None:
        ticket, asked, tell = self._ticket, self._ticket.asked, self._desk.served
        about = ticket.id, ticket.created, tell.model
        state, first = answers.begin(asked), answers.opening(asked, *about)
        while True:
            news = await ticket.take() if not first else []
            chunks, first = first, []
            for index, event in news:
                state, made = answers.chunks(asked, state, index, event, *about, tell.tokenizer)
                chunks += made
            if chunks:
                data = b"".join([events.event(chunk) for chunk in chunks])
                await self._within(send({"type": "http.response.body", "body": data, "more_body": True}))
            elif not ticket.live:
                break
        last = self._last()
        await self._within(send({"type": "http.response.body", "body": last, "more_body": False}))

    def _last(self) -> bytes:
        ticket, tell = self._ticket, self._desk.served
        if ticket.failure is not None:
            return events.event(ticket.failure.body()) + events.DONE
        done = [one for one in ticket.generations if one is not None]
        closing = answers.closing(ticket.asked, done, ticket.id, ticket.created, tell.model)
        return b"".join([events.event(chunk) for chunk in closing]) + events.DONE

    async def _within(self, sending: Awaitable[None]) -> None:
        async with asyncio.timeout(self._desk.served.limits.stalled):
            await sending

    def _gone(self) -> None:
        self._ticket.unread()
        if not self._ticket.asked.background:
            self._desk.withdraw(self._ticket)


async def whole(desk: Desk, ticket: Ticket, receive: Receive) -> Response:
    """The whole answer, once it is there; a client that goes meanwhile withdraws its request."""
    watch = asyncio.ensure_future(_disconnected(receive, lambda: _gone(desk, ticket)))
    try:
        await ticket.wait()
    finally:
        watch.cancel()
    headers = {"x-request-id": ticket.id}
    if ticket.failure is not None:
        raise named(ticket)
    assert ticket.body is not None, "it has ended"
    return Response(await asyncio.wrap_future(ticket.body), 200, headers, "application/json")


def _gone(desk: Desk, ticket: Ticket) -> None:
    """What becomes of a request whose client has gone."""
    if not ticket.asked.background:
        desk.withdraw(ticket)


async def _disconnected(receive: Receive, call: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    call()
