"""One step of the engine in five lines: plan, propose, forward, verify, commit. State in, state out; what happened is the second result."""

import dataclasses
from collections.abc import Callable

from specdec_fn import schedule
from specdec_fn.engine.commit import committed
from specdec_fn.engine.event import Event
from specdec_fn.engine.forward import forwarded
from specdec_fn.engine.generation import Generation
from specdec_fn.engine.graphs import Graphs, decoded, fitting
from specdec_fn.engine.job import checked_model
from specdec_fn.engine.propose import proposed
from specdec_fn.engine.state import EngineState
from specdec_fn.engine.verify import verified
from specdec_fn.kv import store
from specdec_fn.models import Model
from specdec_fn.pytree import donates
from specdec_fn.schedule import Plan

__all__ = ["planned", "run", "step"]


@donates("state")
def step(
    model: Model, state: EngineState, *, graphs: Graphs | None = None, lap: Callable[[str], None] | None = None
) -> tuple[EngineState, list[Event]]:
    """Serves every request that the plan has room for with one forward of the model. DONATES the pools of keys and values.

    Args:
        model: the one that ``init`` was given.
        state: given up: step its result, or ``clone`` it first.
        graphs: captured steps, which passes that fit one are taken through.
        lap: called after each part with its name: "plan", "propose", "forward", "verify", "commit"; in a captured step "forward" is both it and
            "verify", which is not called. Whoever wants to time the parts brings a clock.

    Returns:
        The state, and the events: ``(request_id, tokens, logprobs, finish_reason | None)`` of each request that got tokens or ended.

    Raises:
        ValueError: another model.
        PassError: the forward failed; its ``state`` is valid and can be stepped again.

    >>> import torch
    >>> from specdec_fn.engine.request import Config, Request
    >>> from specdec_fn.engine.lifecycle import submit
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.models import toy
    >>> circle = toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> state, _ = submit(init(circle, Config()), Request([0], max_tokens=2))
    >>> state, events = step(circle, state)
    >>> [(event.request_id, event.tokens, event.finish_reason) for event in events]
    [(0, [1], None)]
    """
    _check(model, state)
    if graphs is not None and not isinstance(graphs, Graphs):
        raise TypeError(f"graphs is {graphs!r:.80}; expected what engine.graphs.graphs gives, or None")
    lap = _nothing if lap is None else lap
    state, plan = planned(state)
    lap("plan")
    state, proposals = proposed(state, plan)
    lap("propose")
    bucket = None if graphs is None else fitting(graphs, state, proposals)
    if graphs is not None and bucket is not None:
        state, judgements = decoded(model, graphs, bucket, state, proposals)
        lap("forward")
    else:
        state, logits = forwarded(model, state, proposals)
        lap("forward")
        judgements = verified(state, proposals, logits)
        lap("verify")
    state, events = committed(state, judgements)
    lap("commit")
    return state, events


@donates("state")
def run(model: Model, state: EngineState, steps: int | None = None, *, graphs: Graphs | None = None) -> tuple[EngineState, dict[int, Generation]]:
    """Steps until nothing is left to do, or ``steps`` times. DONATES the pools of keys and values.

    Args:
        model, state, graphs: as in ``step``.
        steps: at most so many; None for as many as it takes.

    Returns:
        The state, and the generations that ended, by request id.

    Raises:
        ValueError: ``steps`` below 0; and what ``step`` raises.

    >>> import torch
    >>> from specdec_fn.engine.request import Config, Request
    >>> from specdec_fn.engine.lifecycle import submit
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.models import toy
    >>> circle = toy.bigram(torch.eye(3).roll(1, dims=1))
    >>> state, first = submit(init(circle, Config()), Request([0], max_tokens=4))
    >>> run(circle, state)[1][first].tokens
    [1, 2, 0, 1]
    """
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 0):
        raise ValueError(f"steps is {steps!r}; expected a whole number of 0 or more, or None")
    done: dict[int, Generation] = {}
    while len(state.records) and steps != 0:
        state, events = step(model, state, graphs=graphs)
        done |= {event.request_id: event.generation for event in events if event.generation is not None}
        steps = None if steps is None else steps - 1
    return state, done


@donates("state")
def planned(state: EngineState) -> tuple[EngineState, Plan]:
    """The first line of a step: who has how many rows, in which pages. DONATES the pools, where shared pages are copied before they are written.

    >>> import torch
    >>> from specdec_fn.engine.request import Config, Request
    >>> from specdec_fn.engine.lifecycle import submit
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.models import toy
    >>> state, _ = submit(init(toy.bigram(torch.eye(3)), Config(prefill_chunk=2)), Request([1, 2, 1], 4))
    >>> planned(state)[1].lanes
    (Lane(id=0, epoch=0, start=0, stop=2, k=0),)
    """
    work, plan = schedule.schedule(state.work, state.config.prefill_chunk)
    pools = [state.store, *state.drafts]
    if plan.copies:
        old, new = zip(*plan.copies, strict=True)
        pools = [store.copy_pages(pool, old, new) for pool in pools]
    records, counters = state.records, state.counters._replace(preempted=state.counters.preempted + len(plan.preempted))
    for entry in (entry for entry in work.running if entry.id in plan.admitted):
        number, record = entry.id, records[entry.id]
        if entry.epoch == 0:
            counters = counters._replace(prompted=counters.prompted + len(entry.tokens), cached=counters.cached + entry.hit)
        records = records.insert(number, record._replace(drafted=entry.table.length))  # pages that are found hold the drafting model's keys too
    return dataclasses.replace(state, work=work, store=pools[0], drafts=tuple(pools[1:]), records=records, counters=counters), plan


def _nothing(part: str) -> None:
    """Nobody times the step."""


def _check(model: Model, state: EngineState) -> None:
    checked_model(model)
    if dataclasses.replace(model.config, context=state.sizes.context) != state.sizes:
        raise ValueError(f"this is a {model.config.architecture} model of other sizes; expected the model that the state was made for")
