"""The second line of a step: every request that the plan brings to its last token is asked for a draft."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specdec_fn.engine.drafting import Reader, draft_together
from specdec_fn.engine.running import drafted, usable
from specdec_fn.engine.sharing import shares, told_of
from specdec_fn.engine.state import EngineState, Record
from specdec_fn.kv import store
from specdec_fn.kv.table import Table
from specdec_fn.models import Model
from specdec_fn.pytree import donates, enforced
from specdec_fn.schedule import Lane, Plan
from specdec_fn.speculate import Draft
from specdec_fn.speculate.draft import chain

__all__ = ["Proposal", "proposed"]


class Proposal(NamedTuple):
    """One request's part of a pass before the forward.

    Attributes:
        lane: what the plan gives it.
        record: the request, its proposer's state moved on.
        draft: what it drafted; None where the pass does not reach its last token, so that nothing is emitted.
        error: why it cannot go on; such a request has no rows in the pass.
        wanted: tokens that a drafting model is still to draft.
    """

    lane: Lane
    record: Record
    draft: Draft | None
    error: str | None = None
    wanted: int = 0


@donates("state")
def proposed(state: EngineState, plan: Plan) -> tuple[EngineState, Sequence[Proposal]]:
    """Asks the proposers; a drafting model is run once for all requests that draft with it. DONATES the pools that models draft in.

    Behind a prompt, one that shares the target's keys waits for the pass after the one that computes them, so that it reads the same in any batch.

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
    lanes = [_apart(state, lane) for lane in plan.lanes]
    made = {lane.id: _asked(state, lane) for lane in lanes}
    pools = {-1: state.store, **dict(enumerate(state.drafts))}
    tables = {entry.id: entry.table for entry in state.work.running}
    for place, model in _drafting(state, lanes):
        waiting = [one for one in made.values() if _drafts_with(state, one, place, model)]
        if waiting:
            pools[place], found = _with_model(state, model, pools[place], waiting, tables)
            made |= {one.lane.id: one for one in found}
    own = pools.pop(-1)
    return dataclasses.replace(state, store=own, drafts=tuple(pools.values())), [made[lane.id] for lane in lanes]


def _apart(state: EngineState, lane: Lane) -> Lane:
    """A model that drafts on the target's keys needs those of all tokens but the last: a pass that computes more of them ends before the last."""
    run = state.records[lane.id].run
    before_last = lane.stop == len(run.tokens) and lane.stop - lane.start > 1
    return lane._replace(stop=lane.stop - 1, k=0) if before_last and run.k and shares(run.proposer) else lane


def _drafting(state: EngineState, lanes: Sequence[Lane]) -> list[tuple[int, Model]]:
    """The models that may draft in this pass, each with the place of its pool; -1 is the target's."""
    found: list[tuple[int, Model]] = list(enumerate(state.drafters))
    for lane in lanes:
        drafter = state.records[lane.id].run.proposer.drafter
        if drafter is not None and drafter.shares and not any(place < 0 and model is drafter.model for place, model in found):
            found.append((-1, drafter.model))
    return found


def _drafts_with(state: EngineState, one: Proposal, place: int, model: Model) -> bool:
    """Whether this model has something to do for a request; one of its own pool reads on, whether it drafts or not."""
    drafter = one.record.run.proposer.drafter
    if drafter is None or one.error is not None or one.record.drafter != place:
        return False
    return place >= 0 or (drafter.model is model and one.wanted > 0)


def _asked(state: EngineState, lane: Lane) -> Proposal:
    record = state.records[lane.id]
    if lane.stop < len(record.run.tokens):
        return Proposal(lane, record, None)
    run, drafter = record.run, record.run.proposer.drafter
    try:
        if drafter is None:
            run, draft = drafted(run, state.sizes.vocab_size)
        else:
            most = min(lane.k, run.left - 1)
            guess, asked = drafter.ask(run.key, run.guess, list(run.tokens), most, position=len(run.tokens))
            run = run._replace(guess=guess)
            if not isinstance(asked, Draft):
                return Proposal(lane, record._replace(run=run), chain((), 0), wanted=min(asked, most))
            draft = usable(run, asked, state.sizes.vocab_size)
    except Exception as error:
        return Proposal(lane, record, None, f"{type(error).__name__}: {error}")
    return Proposal(lane, record._replace(run=run), draft)


def _with_model(
    state: EngineState, model: Model, pool: store.Store, waiting: Sequence[Proposal], tables: Mapping[int, Table]
) -> tuple[store.Store, list[Proposal]]:
    """Runs a drafting model for the requests that draft with it."""
    config, readers = state.config, []
    for lane, record, *_, wanted in waiting:
        drafter = record.run.proposer.drafter
        assert drafter is not None, "only those with a drafting model wait for one"
        read = lane.start if drafter.shares else record.drafted
        run = record.run
        readers.append(Reader(run.key, run.tokens, run.prompt, drafter.sampling, tables[lane.id], read, lane.stop, wanted, drafter.race))
    vocab = state.sizes.vocab_size
    spare = store.clone(pool) if enforced() else pool  # where donation is enforced, a failed drafting leaves the pool as it was
    try:
        pool, drafts = draft_together(model, spare, readers, vocab_size=vocab, page_size=config.page_size, invariant=config.invariant)
    except Exception as error:
        why = f"the drafting model failed with {type(error).__name__}: {error}"
        return pool, [one._replace(draft=None, error=why, wanted=0) for one in waiting]
    return pool, [_usable(state, *one) for one in zip(waiting, drafts, strict=True)]


def _usable(state: EngineState, one: Proposal, made: tuple[Draft, int]) -> Proposal:
    lane, record, *_ = one
    if record.drafter >= 0:
        record = record._replace(drafted=made[1])
    if not one.wanted:  # it has a draft already, or drafts nothing
        return one._replace(record=record)
    try:
        run = told_of(record.run, made[0])
        return Proposal(lane, record._replace(run=run), usable(run, made[0], state.sizes.vocab_size))
    except Exception as error:
        return Proposal(lane, record, None, f"{type(error).__name__}: {error}")
