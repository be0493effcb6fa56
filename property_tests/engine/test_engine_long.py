"""A long life: requests come, fork, are called off, fail and are restored, and after it the engine is as large as it was.

A few thousand rule steps by default, a million under HYPOTHESIS_PROFILE=deep (about forty minutes on one core).
"""

import gc
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from specdec_fn import SamplingParams, generate
from specdec_fn.engine import Config, EngineState, PassError, Request, abort, clone, fork, free_pages, init, restore, run, snapshot, step, submit
from specdec_fn.kv import pages, prefix
from specdec_fn.models import toy

STEPS = 1_000_000 if settings().max_examples >= 2000 else 4_000
VOCAB, PAGES = 6, 12
MODEL = toy.bigram(torch.softmax(torch.arange(36.0, dtype=torch.float64).view(6, 6).mul(1.7).sin(), -1))


def fails(*_: Any) -> Any:
    raise OSError("out of luck")


DEAD = MODEL._replace(apply=fails, prefill=fails)


class Life:
    """An engine and what is known about it; ``live(steps)`` takes so many rule steps and then drives it to the end."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.state = init(MODEL, Config(page_size=2, num_pages=PAGES, max_batch=3, prefill_chunk=4, proposer="ngram", k=2))
        self.asked: dict[int, Request] = {}
        self.checked = 0
        self.past: tuple[EngineState, dict[int, Request]] | None = None

    def live(self, steps: int) -> None:
        rules = (self.step, self.submit, self.fork, self.abort, self.fail, self.go_back, self.write_down)
        for _ in range(steps):
            self.chance.choices(rules, (50, 30, 8, 6, 2, 1, 1))[0]()
            work = self.state.work
            held = {page for entry in work.running for page in entry.table.pages}
            assert pages.free_count(work.pool) + prefix.idle_count(work.cache) + len(held) == PAGES
        self.past = None
        for _ in range(500):
            self.step()
        assert not len(self.state.records)
        assert free_pages(self.state) == PAGES
        self.asked.clear()

    def step(self) -> None:
        self.state, events = step(MODEL, self.state)
        for event in events:
            if event.finish_reason is not None and (request := self.asked.pop(event.request_id, None)) is not None and event.request_id % 29 == 0:
                alone = generate(MODEL, request.prompt, seed=request.seed or 0, max_tokens=request.max_tokens, proposer="ngram", k=2, stop_ids=[5])
                assert (event.generation.tokens, event.finish_reason) == (alone.tokens, alone.finish_reason)
                self.checked += 1

    def submit(self) -> None:
        if len(self.state.records) < 8:
            start = self.chance.choice(((1, 2, 3, 4), (0, 1, 0, 1, 0, 1)))
            prompt = [*start[: self.chance.randint(1, 6)], self.chance.randrange(VOCAB)]
            request = Request(prompt, self.chance.randint(1, 9), seed=self.chance.randrange(99), stop_ids=[5], priority=self.chance.randrange(2))
            self.state, number = submit(self.state, request)
            self.asked[number] = request

    def one(self) -> int:
        return self.chance.choice(sorted(self.state.records.keys()))

    def fork(self) -> None:
        if 0 < len(self.state.records) < 8:
            self.state, _ = fork(self.state, self.one(), **self.chance.choice(({}, {"k": 3}, {"sampling": SamplingParams(temperature=0)})))

    def abort(self) -> None:
        if len(self.state.records):
            self.state = abort(self.state, number := self.one())
            self.asked.pop(number, None)

    def fail(self) -> None:
        try:
            self.state, events = step(DEAD, self.state)
            assert not events
        except PassError as error:
            self.state = error.state

    def go_back(self) -> None:
        if self.past is None:
            self.past = clone(self.state), dict(self.asked)
        else:
            (self.state, self.asked), self.past = self.past, None

    def write_down(self) -> None:
        self.state = restore(MODEL, snapshot(self.state))


def resident() -> int:
    """Bytes of memory that the process has now; 0 where the system does not say."""
    place = Path("/proc/self/statm")
    return int(place.read_text().split()[1]) * 4096 if place.exists() else 0


def objects() -> int:
    """How many values of this package, tensors and plain containers of them there are."""
    gc.collect()
    kinds = (torch.Tensor, dict, list, tuple)
    return sum(kind in kinds or str(kind.__module__).startswith("specdec_fn") for kind in map(type, gc.get_objects()))


@pytest.mark.timeout(6 * 3600)
def test_a_long_life_leaves_nothing_behind() -> None:
    """P7, P9: the second half ends with as many objects, as much memory and as small a state as the first."""
    life, sizes = Life(7), []
    life.live(STEPS // 4)  # whatever is made once is made here
    for part in (STEPS // 4, STEPS // 2):
        life.live(part)
        sizes.append((objects(), resident(), len(snapshot(life.state))))
    (count, memory, written), (more, more_memory, more_written) = sizes
    assert more - count < 100
    assert more_memory - memory < 16 * 2**20
    assert max(written, more_written) < 20_000
    assert life.checked > STEPS // 400
    assert life.state.counters.preempted > STEPS // 1000
    assert life.state.counters.cached > STEPS // 100
    assert run(MODEL, life.state)[1] == {}
