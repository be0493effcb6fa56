"""The one mutable thing: a thread that owns the engine's current state, and steps it while anything is to be done.

Everybody else sends it letters and hears of its steps. Nothing outside this file ever holds the state, so that nothing else can step it, or keep
what a step has given up.
"""

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from specdec_fn import engine
from specdec_fn.engine import Config, EngineState, PassError, Request
from specdec_fn.engine.event import Event
from specdec_fn.engine.generation import Stats
from specdec_fn.engine.state import Counters
from specdec_fn.models import Model
from specdec_fn.text import Tokenizer

__all__ = ["EngineLoop", "Gauges", "Hears", "StoppedError"]

RETRIES = 3  # forwards that may fail one after the other before those who take part are given up


class Gauges(NamedTuple):
    """The engine after a step.

    Attributes:
        counters: totals since the start.
        waiting, running: requests.
        free_pages, pages: of the pool.
    """

    counters: Counters
    waiting: int
    running: int
    free_pages: int
    pages: int


class StoppedError(RuntimeError):
    """The engine's thread has ended."""


class Hears(Protocol):
    """Who hears of the loop's steps, on the loop's own thread."""

    def stepped(self, events: Sequence[tuple[Any, Event]], laps: Mapping[str, float], gauges: Gauges) -> None:
        """After every step: the events, each with the name that its request was submitted under, and the seconds of the step's parts."""

    def dropped(self, name: Any, proposer: str, stats: Stats) -> None:
        """A request was called off."""

    def failed(self, names: Sequence[Any], why: str) -> None:
        """The engine could not go on with these requests; they are gone."""


class _Submit(NamedTuple):
    names: Sequence[Any]
    requests: Sequence[Request]
    done: "Future[None]"


class _Drop(NamedTuple):
    names: Sequence[Any]


class EngineLoop:
    """An engine in a thread of its own.

    Args:
        model: the target.
        config: the engine's settings.
        tokenizer: the model's.
        hears: told of every step.
        clock: seconds, for the parts of a step.

    Attributes:
        gauges: of the last step; to be looked at from any thread.
    """

    def __init__(
        self, model: Model, config: Config, tokenizer: Tokenizer | None, hears: Hears, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._model, self._config, self._tokenizer, self._hears, self._clock = model, config, tokenizer, hears, clock
        self._state = engine.init(model, config, tokenizer)
        self._before = Counters()  # of engines that had to be made anew
        self._inbox: queue.SimpleQueue[_Submit | _Drop | None] = queue.SimpleQueue()
        self._names: dict[int, Any] = {}
        self._numbers: dict[Any, int] = {}
        self._proposers: dict[int, str] = {}
        self._failures, self._ended = 0, False
        self.gauges = self._gauges()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread.

        Raises:
            RuntimeError: it was started before; an engine that was stopped is not started again.
        """
        if self._thread.ident is not None:
            raise RuntimeError("this server has run already; expected one that was put together anew (serve.assembled)")
        self._thread.start()

    def submit(self, names: Sequence[Any], requests: Sequence[Request]) -> "Future[None]":
        """Puts requests in the engine's queue, all of them or none, before its next step.

        Args:
            names: what their events will be told under, each unlike all others that are served; hashable.
            requests: the engine's.

        Returns:
            A future that holds what the engine's ``submit`` raised, if it did; StoppedError where the thread has ended.
        """
        done: Future[None] = Future()
        self._inbox.put(_Submit(names, requests, done))
        if self._ended:
            self._refuse()
        return done

    def drop(self, names: Sequence[Any]) -> None:
        """Calls requests off before the next step; those that have ended already are left alone."""
        self._inbox.put(_Drop(names))

    def stop(self) -> None:
        """Ends the thread after the step that it is in, and waits for that."""
        self._inbox.put(None)
        if self.alive:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:  # whatever it was: nobody is left waiting
            self._ended = True
            self._refuse()
            if self._numbers:
                self._hears.failed(list(self._numbers), "the engine has stopped")

    def _turn(self) -> bool:
        """Reads the letters and makes a step; False at the end."""
        try:
            if not self._read():
                return False
            self._step()
        except Exception:  # a fault of ours, which must not end the server; what it was doing to the state is not known
            print(f"specdec: the engine failed and is made anew\n{traceback.format_exc()}", file=sys.stderr)
            self._give_up("the engine failed, and was made anew")
        return True

    def _refuse(self) -> None:
        """Tells those whose letters nobody will read."""
        while True:
            try:
                letter = self._inbox.get(block=False)
            except queue.Empty:
                return
            if isinstance(letter, _Submit):
                letter.done.set_exception(StoppedError("the engine has stopped"))

    def _read(self) -> bool:
        """Reads the letters that are there, and waits for one where nothing else is to be done; False at the end."""
        while True:
            try:
                letter = self._inbox.get(block=not len(self._state.records))
            except queue.Empty:
                return True
            if letter is None:
                return False
            if isinstance(letter, _Submit):
                self._submit(letter)
            else:
                self._drop(letter)

    def _submit(self, letter: _Submit) -> None:
        state, numbers = self._state, []
        try:
            for request in letter.requests:
                state, number = engine.submit(state, request)
                numbers.append(number)
        except Exception as error:  # the state that we had is as it was
            letter.done.set_exception(error)
            return
        self._state = state
        for name, number in zip(letter.names, numbers, strict=True):
            self._names[number], self._numbers[name] = name, number
            self._proposers[number] = state.records[number].run.proposer.name
        letter.done.set_result(None)

    def _drop(self, letter: _Drop) -> None:
        for name in letter.names:
            number = self._numbers.pop(name, None)
            if number is None:
                continue
            stats = self._state.records[number].stats if number in self._state.records else Stats()
            self._state = engine.abort(self._state, number)
            self._hears.dropped(self._names.pop(number), self._proposers.pop(number), stats)
        self._hears.stepped((), {}, self._told())

    def _step(self) -> None:
        laps: dict[str, float] = {}
        last = self._clock()

        def lap(part: str) -> None:
            nonlocal last
            now = self._clock()
            laps[part], last = now - last, now

        try:
            self._state, events = engine.step(self._model, self._state, lap=lap)
        except PassError as error:
            self._state = error.state
            self._failures += 1
            if self._failures >= RETRIES:
                self._give_up(f"the model's forward failed {RETRIES} times: {error}")
            return
        self._failures = 0
        told = [(self._names[event.request_id], event) for event in events]
        for event in events:
            if event.finish_reason is not None:
                del self._numbers[self._names.pop(event.request_id)], self._proposers[event.request_id]
        self._hears.stepped(told, laps, self._told())

    def _give_up(self, why: str) -> None:
        names = list(self._numbers)
        self._before = self._gauges().counters
        self._state = engine.init(self._model, self._config, self._tokenizer)
        self._names, self._numbers, self._proposers, self._failures = {}, {}, {}, 0
        self._hears.failed(names, why)
        self._hears.stepped((), {}, self._told())

    def _told(self) -> Gauges:
        self.gauges = self._gauges()
        return self.gauges

    def _gauges(self) -> Gauges:
        state: EngineState = self._state
        totals = Counters(*(old + new for old, new in zip(self._before, state.counters, strict=True)))
        running = len(state.work.running)
        return Gauges(totals, len(state.records) - running, running, engine.free_pages(state), self._config.num_pages)
