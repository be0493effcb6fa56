"""One request of a client while it is served: what has come so far, and who waits for it.

A ticket lives on the thread of the sockets. The engine's thread never touches one; what it has to say comes through ``put``.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from specdec_fn.engine.event import Event
from specdec_fn.engine.generation import Generation
from specdec_fn.serve.asked import Asked
from specdec_fn.serve.refusal import Refusal
from specdec_fn.speculate.explain import Explained

__all__ = ["Ticket"]


class Ticket:
    """A request that was accepted.

    Attributes:
        id: what the client calls it; it cannot be guessed.
        asked: the request.
        owner: whose it is: what ``Access`` made of the key.
        created: seconds since 1970.
        arrived: on the server's clock.
        generations: of its choices; None while one goes on.
        whys: of each choice, pass by pass, how its tokens came to be, where that was asked for.
        status: "queued", "running", "finished", "failed" or "cancelled".
        failure: why it failed, or was cancelled.
        last: when each choice last got tokens, on the server's clock; None before its first.
        body: JSON of the answer or of the error, once it has ended.
    """

    def __init__(self, id: str, asked: Asked, owner: bytes, *, created: int, arrived: float, ended: Callable[["Ticket"], None]) -> None:
        self.id, self.asked, self.owner, self.created, self.arrived = id, asked, owner, created, arrived
        self.generations: list[Generation | None] = [None] * len(asked.requests)
        self.whys: list[list[Explained]] = [[] for _ in asked.requests]
        self.status = "queued"
        self.failure: Refusal | None = None
        self.last: list[float | None] = [None] * len(asked.requests)
        self.body: Future[bytes] | None = None
        self._ended, self._left = ended, len(asked.requests)
        self._news: deque[tuple[int, Event]] | None = None
        self._wake = asyncio.Event()

    @property
    def live(self) -> bool:
        """Whether something is still to come."""
        return self.status in ("queued", "running")

    def read(self) -> None:
        """From now on events are kept until ``take`` takes them."""
        self._news = deque()

    def unread(self) -> None:
        """Nobody reads any more; events are dropped, the generations are not."""
        self._news = None

    def put(self, index: int, event: Event) -> None:
        """An event of a choice; the last one of the last choice ends the request."""
        if not self.live:
            return
        self.status = "running"
        if event.why is not None:
            self.whys[index].append(event.why)
        if event.finish_reason == "error":
            why = "the generation failed" if event.generation is None else event.generation.error
            self.fail(Refusal(f"{why}", status=500, kind="server_error", code="generation_failed"))
            return
        if self._news is not None:
            self._news.append((index, event))
            self._wake.set()
        if event.generation is not None:
            self.generations[index], self._left = event.generation, self._left - 1
            if not self._left:
                self._end("finished")

    def fail(self, failure: Refusal, status: str = "failed") -> None:
        """Ends it without an answer; what has ended already stays as it is."""
        if self.live:
            self.failure = failure
            self._end(status)

    def _end(self, status: str) -> None:
        self.status = status
        self._ended(self)
        self._wake.set()

    async def take(self) -> list[tuple[int, Event]]:
        """The events since the last time, at least one unless the request has ended; only between ``read`` and ``unread``."""
        while not self._news and self.live:
            self._wake.clear()
            await self._wake.wait()
        news = list(self._news or ())
        if self._news is not None:
            self._news.clear()
        return news

    async def wait(self) -> None:
        """Returns when the request has ended."""
        while self.live:
            self._wake.clear()
            await self._wake.wait()
