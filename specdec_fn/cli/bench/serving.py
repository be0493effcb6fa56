"""What the measurements of the engine share: conversations from the committed prompts, an engine with room for them, and steps with their times."""

import time
from collections.abc import Sequence
from typing import Any

from specdec_fn import engine
from specdec_fn.cli.prompts import read
from specdec_fn.engine import Config, EngineState, Request
from specdec_fn.engine.event import Event
from specdec_fn.kv.table import pages_for

__all__ = ["conversations", "opened", "timed"]

PAGE = 16


def conversations(tokenizer: Any, file: str, count: int) -> list[list[int]]:
    """Ids of ``count`` conversations that open with the prompts of a file, which come again in the same order where they are fewer."""
    prompts = read(file)
    return [tokenizer.chat([{"role": "user", "content": prompts[place % len(prompts)].text}]) for place in range(count)]


def opened(model: Any, requests: Sequence[Request], tokenizer: Any = None, **settings: Any) -> EngineState:
    """An engine that these requests wait in, with places, prompt rows and pages for all of them at once unless the settings say otherwise."""
    slots = [len(request.prompt) + request.max_tokens + (request.k or 0) for request in requests]
    room = {
        "page_size": PAGE,
        "num_pages": sum(pages_for(count, page_size=PAGE) for count in slots) + len(requests),
        "max_batch": len(requests),
        "prefill_chunk": sum(len(request.prompt) for request in requests),
    }
    state = engine.init(model, Config(**(room | settings)), tokenizer)
    for request in requests:
        state, _ = engine.submit(state, request)
    return state


def timed(model: Any, state: EngineState) -> tuple[EngineState, list[Event], float]:
    """One step, with its seconds."""
    start = time.perf_counter()
    state, events = engine.step(model, state)
    return state, events, time.perf_counter() - start
