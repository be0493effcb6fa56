"""The second line of a step: every request that the plan brings to its last token is asked for a draft."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from specdec_fn.engine.drafting import Reader, draft_together
from specdec_fn.engine.running import drafted, usable
from specdec_fn.engine.state import EngineState, Record
from specdec_fn.kv import store
from specdec_fn.pytree import donates, enforced
from specdec_fn.schedule import Lane, Plan
from specdec_fn.speculate import Draft

__all__ = ["Proposal", "proposed"]


class Proposal(NamedTuple):
    """One request's part of a pass before the forward.

    Attributes:
        lane: what the plan gives it.
        record: the request, its proposer's state moved on.
        draft: what it drafted; None where the pass does not reach its last token, so that nothing is emitted.
        error: why it cannot go on; such a request has no rows in the pass.
    """

    lane: Lane
    record: Record
    draft: Draft | None
    error: str | None = None


@donates("state")
def proposed(state: EngineState, plan: Plan) -> tuple[EngineState, Sequence[Proposal]]:
    """Asks the proposers; a drafting model is run once for all requests that draft with it. DONATES the drafting models' pools.

    A proposer that raises, or drafts what cannot be verified, ends its own request and no other; a drafting model, those that draft with it.

    >>> import torch
    >>> from specdec_fn.engine.lifecycle import submit
    >>> from specdec_fn.engine.request import Config, Request
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.schedule import schedule
    >>> state, _ = submit(init(toy.bigram(torch.eye(3)), Config(proposer="ngram")), Request([1, 2, 1], 4))
    >>> proposed(state, schedule(state.work, 256)[1])[1][0].draft.tokens
    tensor([2, 1])
    """
    made = {lane.id: _asked(state, lane) for lane in plan.lanes if state.records[lane.id].drafter < 0}
    pools = list(state.drafts)
    for place in range(len(state.drafters)):
        lanes = [lane for lane in plan.lanes if state.records[lane.id].drafter == place]
        if lanes:
            pools[place], found = _with_model(state, place, lanes)
            made |= zip((lane.id for lane in lanes), found, strict=True)
    return dataclasses.replace(state, drafts=tuple(pools)), [made[lane.id] for lane in plan.lanes]


def _asked(state: EngineState, lane: Lane) -> Proposal:
    record = state.records[lane.id]
    if lane.stop < len(record.run.tokens):
        return Proposal(lane, record, None)
    try:
        run, draft = drafted(record.run, state.sizes.vocab_size)
    except Exception as error:
        return Proposal(lane, record, None, f"{type(error).__name__}: {error}")
    return Proposal(lane, record._replace(run=run), draft)


def _with_model(state: EngineState, place: int, lanes: Sequence[Lane]) -> tuple[store.Store, list[Proposal]]:
    config, tables = state.config, {entry.id: entry.table for entry in state.work.running}
    records = [state.records[lane.id] for lane in lanes]
    readers = [
        Reader(one.run.key, one.run.tokens, one.run.prompt, one.run.proposer.drafter.sampling, tables[lane.id], one.drafted, lane.stop, lane.k)
        for lane, one in zip(lanes, records, strict=True)
        if one.run.proposer.drafter is not None
    ]
    model, pool, vocab = state.drafters[place], state.drafts[place], state.sizes.vocab_size
    spare = store.clone(pool) if enforced() else pool  # where donation is enforced, a failed drafting leaves the pool as it was
    try:
        pool, drafts = draft_together(model, spare, readers, vocab_size=vocab, page_size=config.page_size, invariant=config.invariant)
    except Exception as error:
        why = f"the drafting model failed with {type(error).__name__}: {error}"
        return pool, [Proposal(lane, record, None, why) for lane, record in zip(lanes, records, strict=True)]
    return pool, [_usable(state, *one) for one in zip(lanes, records, drafts, strict=True)]


def _usable(state: EngineState, lane: Lane, record: Record, made: tuple[Draft, int]) -> Proposal:
    record = record._replace(drafted=made[1])
    if lane.stop < len(record.run.tokens):
        return Proposal(lane, record, None)
    try:
        return Proposal(lane, record, usable(record.run, made[0], state.sizes.vocab_size))
    except Exception as error:
        return Proposal(lane, record, None, f"{type(error).__name__}: {error}")
