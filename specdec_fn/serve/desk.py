"""Between the sockets and the engine: lets requests in, knows those that are served, and keeps what they came to.

Everything here runs on the thread of the sockets, but for three calls that the engine's thread makes, which only pass on what they are told.
"""

import asyncio
import json
import math
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from specdec_fn.engine import Config, Request
from specdec_fn.engine.event import Event
from specdec_fn.engine.generation import Stats
from specdec_fn.models import Model
from specdec_fn.serve import answers
from specdec_fn.serve.asked import Asked, Served
from specdec_fn.serve.journal import Entry, Journal, Kept
from specdec_fn.serve.logged import logged, unlogged
from specdec_fn.serve.loop import EngineLoop, Gauges
from specdec_fn.serve.metrics import Metrics
from specdec_fn.serve.refusal import Refusal
from specdec_fn.serve.results import Result, Results
from specdec_fn.serve.ticket import Ticket

__all__ = ["Desk", "Load", "named"]


class Load(NamedTuple):
    """What is going on.

    Attributes:
        status: "ok", "closing" or "failed".
        requests: of clients, that are not answered yet.
        waiting, running: choices in the engine.
        free_pages, pages: of its pool.
    """

    status: str
    requests: int
    waiting: int
    running: int
    free_pages: int
    pages: int


class Desk:
    """Takes requests, and gives a ticket for each.

    Args:
        served: what is served.
        model, config: the engine's.
        metrics: told of everything.
        journal: where submissions are logged; None for nowhere.
        drafting: makes the proposer of a request that a name does not make, as with a second model.
    """

    def __init__(
        self,
        served: Served,
        model: Model,
        config: Config,
        metrics: Metrics,
        *,
        journal: Journal | None = None,
        drafting: Callable[[Request], Request] = lambda request: request,
    ) -> None:
        self.served, self.metrics = served, metrics
        self._engine = EngineLoop(model, config, served.tokenizer, self)
        self._journal, self._drafting = journal, drafting
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")  # one, so that ends follow their beginnings
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="answers")  # large ones would keep the sockets waiting
        self._results = Results(served.limits.kept)
        self._live: dict[str, Ticket] = {}
        self._choices: dict[bytes, int] = {}
        self._timers: dict[Ticket, asyncio.TimerHandle] = {}
        self._seconds = 1.0  # that a request takes, a running mean
        self._closing = self._cut = False
        self._idle, self._hurried = asyncio.Event(), asyncio.Event()
        self._sockets: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Starts the engine, and what an earlier server left unfinished."""
        self._sockets = asyncio.get_running_loop()
        self._deliver((), {}, self._engine.gauges)
        self._engine.start()
        for kept in self._journal.ended if self._journal else ():
            body = b"" if kept.answer is None else _json(kept.answer)
            self._results.keep(Result(kept.id, kept.owner, kept.created, kept.status, body))
        for entry in self._journal.unfinished if self._journal else ():
            await self._resume(entry)

    async def accept(self, route: str, body: Mapping[str, Any], asked: Asked, owner: bytes) -> Ticket:
        """Lets a request in.

        Args:
            route: "completions" or "chat".
            body: what was sent, for the log.
            asked: what it comes to.
            owner: whose it is.

        Raises:
            Refusal: 429 where there is no room, 503 on the way out, 400 where the engine cannot serve it.
        """
        self._admit(len(asked.requests), owner)
        ticket = self._ticket(f"{'cmpl' if route == 'completions' else 'chatcmpl'}-{secrets.token_hex(16)}", asked, owner, int(time.time()))
        if asked.stream:
            ticket.read()
        try:
            if self._journal is not None:
                entry = Entry(ticket.id, route, owner, ticket.created, logged(body, asked))
                await asyncio.get_running_loop().run_in_executor(self._writer, self._journal.submitted, entry)
            await self._hand_over(ticket)
        except (TypeError, ValueError) as error:
            ticket.fail(Refusal(str(error)))
        except OSError as error:
            message = f"the request could not be logged ({error.strerror}); expected room for the state file"
            ticket.fail(Refusal(message, status=503, kind="server_error"))
        except RuntimeError:  # the engine, or the thread of the log, has stopped meanwhile
            ticket.fail(_closing())
        if ticket.failure is not None:
            raise named(ticket)
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Calls a request off; one that has ended stays as it is."""
        if ticket.live:
            ticket.fail(Refusal("the request was cancelled", status=409, kind="cancelled", code="cancelled"), "cancelled")

    def find(self, id: str, owner: bytes) -> Ticket | Result | None:
        """A request that is served, or what it came to; None where nothing is known, or not to them."""
        ticket = self._live.get(id)
        if ticket is not None:
            return ticket if ticket.owner == owner else None
        return self._results.find(id, owner)

    def load(self) -> Load:
        """What is going on."""
        gauges = self._engine.gauges
        status = "closing" if self._closing else "ok" if self._engine.alive else "failed"
        return Load(status, len(self._live), gauges.waiting, gauges.running, gauges.free_pages, gauges.pages)

    async def close(self, grace: float) -> int:
        """Lets nothing in any more, and waits for what runs.

        Args:
            grace: seconds to wait; what runs on then is cut off, and stays in the log as unfinished.

        Returns:
            How many were cut off.
        """
        self._closing = True
        self._idle.clear()
        if self._live:
            waiting = [asyncio.ensure_future(event.wait()) for event in (self._idle, self._hurried)]
            await asyncio.wait(waiting, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            for one in waiting:
                one.cancel()
        self._cut, left = True, [ticket for ticket in self._live.values() if ticket.live]
        for ticket in left:
            ticket.fail(_closing(f"; ask for /v1/requests/{ticket.id} once it is back" if self._journal else "; try another, or this one later"))
        for stop in (self._engine.stop, self._maker.shutdown, self._writer.shutdown):
            await asyncio.to_thread(stop)
        if self._journal is not None:
            self._journal.close()
        return len(left)

    def hurry(self) -> None:
        """Ends the waiting of ``close``; may be called by a handler of signals."""
        if self._sockets is not None:
            self._sockets.call_soon_threadsafe(self._hurried.set)

    def stepped(self, events: Sequence[tuple[Any, Event]], laps: Mapping[str, float], gauges: Gauges) -> None:
        """On the engine's thread: passes a step on."""
        self._pass_on(self._deliver, events, laps, gauges)

    def dropped(self, name: Any, proposer: str, stats: Stats) -> None:
        """On the engine's thread: passes on what a request that was called off had come to."""
        self._pass_on(self.metrics.ended, "abort", proposer, stats)

    def failed(self, names: Sequence[Any], why: str) -> None:
        """On the engine's thread: passes on that requests are lost."""
        self._pass_on(self._lost, names, why)

    def _pass_on(self, call: Callable[..., None], *arguments: Any) -> None:
        assert self._sockets is not None, "the engine starts when the desk opens"
        try:
            self._sockets.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the sockets' loop is closed: nobody is left to tell
            return

    def _deliver(self, events: Sequence[tuple[Any, Event]], laps: Mapping[str, float], gauges: Gauges) -> None:
        now, metrics = time.monotonic(), self.metrics
        for (ticket, index), event in events:
            try:
                self._told(ticket, index, event, now)
            except Exception:  # a fault of ours in one answer is no reason for the others to miss their events
                print(f"specdec: {ticket.id} failed\n{traceback.format_exc()}", file=sys.stderr)
                ticket.fail(Refusal("the server failed; its log says why", status=500, kind="server_error"))
        metrics.stepped(
            gauges.counters,
            [event for _, event in events],
            laps,
            waiting=gauges.waiting,
            running=gauges.running,
            free_pages=gauges.free_pages,
            pages=gauges.pages,
        )

    def _told(self, ticket: Ticket, index: int, event: Event, now: float) -> None:
        if event.generation is not None:
            how = ticket.asked.requests[index].proposer or self.served.proposer
            self.metrics.ended(event.generation.finish_reason, str(how), event.generation.stats)
        if event.tokens and ticket.live:
            last, ticket.last[index] = ticket.last[index], now
            if last is None:
                self.metrics.first(now - ticket.arrived)
            else:
                self.metrics.between((now - last) / len(event.tokens))
        ticket.put(index, event)

    def _lost(self, names: Sequence[Any], why: str) -> None:
        for ticket, _ in names:
            ticket.fail(Refusal(why, status=500, kind="server_error", code="engine_failed"))

    def _admit(self, choices: int, owner: bytes) -> None:
        limits = self.served.limits
        if self._closing:
            raise _closing()
        if not self._engine.alive:
            raise Refusal("the engine has stopped; the server must be started again", status=503, kind="server_error", code="engine_failed")
        now, own = sum(self._choices.values()), self._choices.get(owner, 0)
        for held, most, whose in ((now, limits.requests, "all clients"), (own, limits.per_key, "this key")):
            if most is not None and choices > most:
                raise Refusal(f"this asks for {choices} choices; expected at most {most} at once", param="n")
            if most is not None and held + choices > most:
                later = {"retry-after": str(max(1, min(60, math.ceil(self._seconds))))}
                message = f"{held} choices of {whose} run or wait, and this asks for {choices}; expected at most {most} together, so try again later"
                raise Refusal(message, status=429, kind="rate_limit_error", code="rate_limit_exceeded", headers=later)

    def _ticket(self, id: str, asked: Asked, owner: bytes, created: int) -> Ticket:
        ticket = Ticket(id, asked, owner, created=created, arrived=time.monotonic(), ended=self._ended)
        self._live[id] = ticket
        self._choices[owner] = self._choices.get(owner, 0) + len(asked.requests)
        self._timers[ticket] = asyncio.get_running_loop().call_later(self.served.limits.seconds, self._expire, ticket)
        return ticket

    async def _hand_over(self, ticket: Ticket) -> None:
        if ticket.live:
            requests = [self._drafting(replace(request, salt=ticket.owner)) for request in ticket.asked.requests]
            await asyncio.wrap_future(self._engine.submit(_names(ticket), requests))
        if not ticket.live:  # it was called off meanwhile, which the engine did not know
            self._engine.drop(_names(ticket))

    async def _resume(self, entry: Entry) -> None:
        """Runs again what an earlier server left; what this one cannot serve stays in the log, for one that can."""
        try:
            asked = unlogged(entry, self.served)
        except Refusal as refusal:
            print(f"specdec: {entry.id} of the log cannot be served and stays in it: {refusal.message}", file=sys.stderr)
            self._results.keep(Result(entry.id, entry.owner, entry.created, "failed", _json(refusal.body())))
            return
        ticket = self._ticket(entry.id, asked._replace(background=True), entry.owner, entry.created)
        try:
            await self._hand_over(ticket)
        except (TypeError, ValueError) as error:
            ticket.fail(Refusal(str(error)))

    def _expire(self, ticket: Ticket) -> None:
        message = f"the request took more than {self.served.limits.seconds:g} seconds; expected fewer tokens, or a quieter server"
        ticket.fail(Refusal(message, status=504, kind="server_error", code="timeout", headers={"x-should-retry": "false"}))

    def _ended(self, ticket: Ticket) -> None:
        """Gives back what it held; its answer is made beside, and is found from then on."""
        left = self._choices.pop(ticket.owner, 0) - len(ticket.asked.requests)
        if left > 0:
            self._choices[ticket.owner] = left
        self._timers.pop(ticket).cancel()
        if ticket.status == "finished":
            self._seconds += 0.1 * (time.monotonic() - ticket.arrived - self._seconds)
        else:
            self._engine.drop(_names(ticket))
        ticket.body = self._maker.submit(self._answer, ticket)
        ticket.body.add_done_callback(lambda made: self._pass_on(self._keep, ticket, made))

    def _answer(self, ticket: Ticket) -> bytes:
        """The body of the answer to a request that has ended, or of its error."""
        if ticket.failure is not None:
            return _json(ticket.failure.body())
        done = [one for one in ticket.generations if one is not None]
        return _json(answers.whole(ticket.asked, done, ticket.whys, ticket.id, ticket.created, self.served.model, self.served.tokenizer))

    def _keep(self, ticket: Ticket, made: "Future[bytes]") -> None:
        self._live.pop(ticket.id, None)
        if not self._live:
            self._idle.set()
        if self._cut and ticket.status == "failed":  # what is cut off goes on when the server is back
            return
        fault = made.exception()
        if fault is not None:
            print(f"specdec: {ticket.id} failed\n{''.join(traceback.format_exception(fault))}", file=sys.stderr)
        status = "failed" if fault is not None else ticket.status
        result = Result(ticket.id, ticket.owner, ticket.created, status, b"" if fault is not None else made.result())
        self._results.keep(result)
        if self._journal is not None:
            with suppress(RuntimeError):  # the thread of the log has ended: it is run again, to the same answer
                self._writer.submit(self._log_end, self._journal, result)

    @staticmethod
    def _log_end(journal: Journal, result: Result) -> None:
        try:
            journal.end(Kept(result.id, result.owner, result.created, result.status, json.loads(result.body) if result.body else None))
        except OSError as error:  # the answer is there all the same; after a crash the request would be run again
            print(f"specdec: the end of {result.id} could not be logged: {error.strerror}", file=sys.stderr)


def _names(ticket: Ticket) -> list[tuple[Ticket, int]]:
    return [(ticket, index) for index in range(len(ticket.asked.requests))]


def named(ticket: Ticket) -> Refusal:
    """Why a request failed, with its id, under which it can be asked for later.

    >>> from specdec_fn.serve.ticket import Ticket
    >>> from types import SimpleNamespace
    >>> ticket = Ticket("a", SimpleNamespace(requests=[0]), b"", created=0, arrived=0.0, ended=lambda ticket: None)
    >>> ticket.fail(Refusal("why not"))
    >>> named(ticket).headers
    {'x-request-id': 'a'}
    """
    failure = ticket.failure
    assert failure is not None, "it has failed"
    headers = {**failure.headers, "x-request-id": ticket.id}
    about = {"status": failure.status, "kind": failure.kind, "param": failure.param, "code": failure.code}
    return Refusal(failure.message, **about, headers=headers)  # type: ignore[arg-type]


def _closing(more: str = "; try another, or this one later") -> Refusal:
    return Refusal(f"the server is shutting down{more}", status=503, kind="server_error", code="shutting_down")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
