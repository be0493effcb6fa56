"""The engine's thread: what it is told arrives, what happens is told, and nothing that fails takes the others along."""

import queue
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

from specdec_fn import engine, models
from specdec_fn.engine import Config, Constraint, Request
from specdec_fn.engine.event import Event
from specdec_fn.engine.generation import Stats
from specdec_fn.models import Model, toy
from specdec_fn.random import key
from specdec_fn.serve import loop as room
from specdec_fn.serve.loop import EngineLoop, Gauges

WAIT = 60.0
PARTS = {"plan", "propose", "forward", "verify", "commit"}


class Heard:
    """Hears everything, and lets a test wait for it."""

    def __init__(self) -> None:
        self.letters: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.seen: list[tuple[Any, ...]] = []

    def stepped(self, events: Sequence[tuple[Any, Event]], laps: Mapping[str, float], gauges: Gauges) -> None:
        self.letters.put(("stepped", list(events), dict(laps), gauges))

    def dropped(self, name: Any, proposer: str, stats: Stats) -> None:
        self.letters.put(("dropped", name, proposer, stats))

    def failed(self, names: Sequence[Any], why: str) -> None:
        self.letters.put(("failed", list(names), why))

    def until(self, wanted: Any) -> tuple[Any, ...]:
        """The next letter that is wanted."""
        while True:
            letter = self.letters.get(timeout=WAIT)
            self.seen.append(letter)
            if wanted(letter):
                return letter

    def end_of(self, name: Any) -> Event:
        """The last event of a request."""
        self.until(lambda letter: letter[0] == "stepped" and any(one == name and event.finish_reason for one, event in letter[1]))
        return next(event for one, event in self.seen[-1][1] if one == name and event.finish_reason)


@pytest.fixture
def model() -> Model:
    return toy.llama(key(1), vocab_size=32, context=128)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def loop(model: Model, heard: Heard) -> Iterator[EngineLoop]:
    made = EngineLoop(model, Config(num_pages=32, max_batch=4, proposer="ngram"), None, heard)
    made.start()
    yield made
    made.stop()
    assert not made.alive


def test_what_comes_out_is_what_the_engine_gives(model: Model, loop: EngineLoop, heard: Heard) -> None:
    requests = [Request([1, 2, 1, 2, place], 12, seed=place) for place in range(6)]
    assert loop.submit("abcdef", requests).result(WAIT) is None
    got: dict[str, Any] = {}
    while len(got) < 6:
        got |= {name: event.generation for name, event in _ends(heard.until(_ends))}
    state = engine.init(model, Config(num_pages=32, max_batch=4, proposer="ngram"))
    for request in requests:
        state, _ = engine.submit(state, request)
    _, expected = engine.run(model, state)
    assert [got[name].tokens for name in "abcdef"] == [expected[number].tokens for number in range(6)]
    steps = [letter for letter in heard.seen if letter[0] == "stepped" and letter[1]]
    assert all(set(letter[2]) == PARTS and min(letter[2].values()) >= 0 for letter in steps)
    assert loop.gauges.free_pages == loop.gauges.pages == 32
    assert (loop.gauges.waiting, loop.gauges.running) == (0, 0)


def _ends(letter: tuple[Any, ...]) -> list[tuple[Any, Event]]:
    return [(name, event) for name, event in letter[1] if event.finish_reason] if letter[0] == "stepped" else []


def test_a_refused_request_leaves_its_companions_out_and_the_others_in(loop: EngineLoop, heard: Heard) -> None:
    assert loop.submit(["good"], [Request([1], 40)]).result(WAIT) is None
    with pytest.raises(ValueError, match="expected an id"):
        loop.submit(["fine", "bad"], [Request([1], 4), Request([99], 4)]).result(WAIT)
    assert heard.end_of("good").finish_reason == "length"
    assert loop.gauges.counters.submitted == 1


def test_a_dropped_request_is_gone_before_the_second_next_step(loop: EngineLoop, heard: Heard) -> None:
    loop.submit(["long", "other"], [Request([1], 100, seed=1), Request([2], 100, seed=2)]).result(WAIT)
    heard.until(lambda letter: letter[0] == "stepped" and any(name == "long" and event.tokens for name, event in letter[1]))
    loop.drop(["long", "never there"])
    _, name, proposer, stats = heard.until(lambda letter: letter[0] == "dropped")
    assert (name, proposer) == ("long", "ngram")
    assert stats.passes > 0
    place = len(heard.seen)
    heard.end_of("other")
    after = [name for letter in heard.seen[place:] if letter[0] == "stepped" for name, _ in letter[1]]
    assert "long" not in after
    loop.drop(["long", "other"])  # once more, and after the end
    assert loop.submit(["next"], [Request([1], 2)]).result(WAIT) is None
    heard.end_of("next")
    assert loop.gauges.free_pages == 32


def test_a_request_that_fails_fails_alone(loop: EngineLoop, heard: Heard) -> None:
    def mask(state: int) -> torch.Tensor:
        if state == 3:
            raise ArithmeticError("three")
        return torch.ones(32, dtype=torch.bool)

    broken = Constraint(0, mask, lambda state, token: state + 1)
    loop.submit(["broken", "whole"], [Request([1], 20, constraint=broken), Request([2], 20)]).result(WAIT)
    ends = {}
    while len(ends) < 2:
        ends |= dict(_ends(heard.until(_ends)))
    assert ends["broken"].finish_reason == "error"
    assert "three" in ends["broken"].generation.error
    assert ends["whole"].finish_reason == "length"
    assert loop.gauges.free_pages == 32


class Moody:
    """A model that fails when it is told to."""

    def __init__(self, inner: Model) -> None:
        self.fails = 0
        self.inner = inner

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("a cosmic ray")
        return self.inner.apply(*arguments, **named)


def moody(model: Model) -> tuple[Model, Moody]:
    mood = Moody(model)
    return model._replace(apply=mood) if hasattr(model, "_replace") else models.Model(model.config, model.params, mood), mood


def test_a_forward_that_fails_once_is_done_again(model: Model, heard: Heard) -> None:
    whole, mood = moody(model)
    loop = EngineLoop(whole, Config(num_pages=32), None, heard)
    mood.fails = room.RETRIES - 1
    loop.start()
    loop.submit(["a"], [Request([1], 6, seed=4)]).result(WAIT)
    end = heard.end_of("a")
    loop.stop()
    assert end.generation is not None
    state, number = engine.submit(engine.init(model, Config(num_pages=32)), Request([1], 6, seed=4))
    assert end.generation.tokens == engine.run(model, state)[1][number].tokens


def test_a_forward_that_goes_on_failing_ends_its_requests_and_not_the_server(model: Model, heard: Heard) -> None:
    whole, mood = moody(model)
    loop = EngineLoop(whole, Config(num_pages=32), None, heard)
    mood.fails = room.RETRIES
    loop.start()
    loop.submit(["a", "b"], [Request([1], 6), Request([2], 6)]).result(WAIT)
    _, names, why = heard.until(lambda letter: letter[0] == "failed")
    assert sorted(names) == ["a", "b"]
    assert "a cosmic ray" in why
    loop.submit(["c"], [Request([1], 6)]).result(WAIT)
    assert heard.end_of("c").finish_reason == "length"
    loop.stop()
    assert loop.gauges.counters.submitted == 3  # totals go on through a new engine
    assert loop.gauges.free_pages == 32


def test_a_fault_of_the_engine_itself_ends_its_requests_and_not_the_server(
    model: Model, heard: Heard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = EngineLoop(model, Config(num_pages=32), None, heard)
    right = engine.step
    monkeypatch.setattr(room.engine, "step", lambda *arguments, **named: 1 / 0)
    loop.start()
    loop.submit(["a"], [Request([1], 6)]).result(WAIT)
    assert heard.until(lambda letter: letter[0] == "failed")[1] == ["a"]
    monkeypatch.setattr(room.engine, "step", right)
    loop.submit(["b"], [Request([1], 6)]).result(WAIT)
    heard.end_of("b")
    loop.stop()
    assert "ZeroDivisionError" in capsys.readouterr().err
