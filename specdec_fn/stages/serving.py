"""What the measurements of the engine share: an engine with room for its requests, and several ways of serving that advance side by side."""

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from specdec_fn import engine, random
from specdec_fn.engine import Config, EngineState, Request
from specdec_fn.engine.generation import Generation
from specdec_fn.engine.graphs import Graphs
from specdec_fn.kv.table import pages_for
from specdec_fn.stages.stage import Progress

__all__ = ["Service", "abreast", "engine_for", "shares", "whole"]


class Service:
    """Requests served by an engine, group after group; each ``next`` is a step and gives the tokens emitted so far.

    Attributes:
        state: the engine's, after the last step.
        ended: what has ended, by number in the order of submission.
        tokens: emitted so far.
    """

    def __init__(self, model: Any, state: EngineState, groups: Iterable[Sequence[Request]], graphs: Graphs | None = None) -> None:
        self.state, self.ended, self.tokens = state, dict[int, Generation](), 0
        self._model, self._groups, self._graphs = model, iter(groups), graphs

    def __iter__(self) -> "Service":
        return self

    def __next__(self) -> int:
        if not len(self.state.records):
            for request in next(self._groups):
                self.state, _ = engine.submit(self.state, request)
        self.state, events = engine.step(self._model, self.state, graphs=self._graphs)
        self.ended |= {event.request_id: event.generation for event in events if event.generation is not None}
        self.tokens += sum(len(event.tokens) for event in events)
        return self.tokens


def abreast(ways: Mapping[str, Iterator[float]], watch: Progress) -> dict[str, float]:
    """Seconds that each way takes from its first step to its last.

    Each yields how far it has come, on a scale that all share; the one that is furthest behind goes next, so that all of them see the same machine.
    Among equals chance decides, by a key: a step is slower after another's long one, and none may always have that place.

    >>> from specdec_fn.stages.stage import Mute
    >>> sorted(abreast({"a": iter([0.5, 1.0]), "b": iter([1.0])}, Mute()))
    ['a', 'b']
    """
    seconds, reached = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0.0)
    alive = dict(ways)
    for turn in itertools.count():
        if not alive:
            break
        least = min(reached[way] for way in alive)
        behind = [way for way in alive if reached[way] == least]
        name = behind[whole(random.fold_in(random.key(0), turn), 1, 0, len(behind) - 1)[0]]
        start = time.perf_counter()
        mark = next(alive[name], None)
        if mark is None:
            del alive[name]
            continue
        seconds[name] += time.perf_counter() - start
        reached[name] = mark
        watch.say(", ".join(f"{way} {seconds[way]:.1f} s at {reached[way]:.3g}" for way in ways))
    return seconds


def shares(service: Iterator[int], whole: int) -> Iterator[float]:
    """How far a service has come, of so many tokens.

    >>> list(shares(iter([2, 3, 4]), 4))
    [0.5, 0.75, 1.0]
    """
    for tokens in service:
        yield tokens / whole


def engine_for(model: Any, requests: Sequence[Any], tokenizer: Any = None, **settings: Any) -> EngineState:
    """An engine without requests, with places, prompt rows and pages for these at once where the settings do not say otherwise.

    >>> from specdec_fn.models import toy
    >>> state = engine_for(toy.llama(random.key(0)), [Request([1, 2], 3), Request([4], 20)])
    >>> state.config.max_batch, state.config.num_pages, state.config.prefill_chunk
    (2, 5, 3)
    """
    size = int(settings.get("page_size", 16))
    slots = [len(request.prompt) + request.max_tokens + (request.k or 0) for request in requests]
    room: dict[str, Any] = {
        "num_pages": sum(pages_for(count, page_size=size) for count in slots) + len(requests),
        "max_batch": len(requests),
        "prefill_chunk": sum(len(request.prompt) for request in requests),
    }
    return engine.init(model, Config(**(room | settings)), tokenizer)


def whole(key: random.Key, count: int, low: int, high: int) -> list[int]:
    """``count`` whole numbers from ``low`` to ``high``, each as likely as the others.

    >>> set(whole(random.key(0), 50, 3, 5))
    {3, 4, 5}
    """
    return (low + (random.uniform(key, (count,)) * (high - low + 1)).long()).tolist()
