"""The second line of a step: every request that the plan brings to its last token is asked for a draft."""

from collections.abc import Sequence
from typing import NamedTuple

from specdec_fn.engine.running import drafted
from specdec_fn.engine.state import EngineState, Record
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


def proposed(state: EngineState, plan: Plan) -> tuple[EngineState, Sequence[Proposal]]:
    """Asks the proposers. One that raises, or drafts what cannot be verified, ends its own request and no other.

    >>> import torch
    >>> from specdec_fn.engine.request import Config, Request
    >>> from specdec_fn.engine.lifecycle import submit
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.schedule import schedule
    >>> state, _ = submit(init(toy.bigram(torch.eye(3)), Config(proposer="ngram")), Request([1, 2, 1], 4))
    >>> proposed(state, schedule(state.work, 256)[1])[1][0].draft.tokens
    tensor([2, 1])
    """
    return state, [_proposal(state, lane) for lane in plan.lanes]


def _proposal(state: EngineState, lane: Lane) -> Proposal:
    record = state.records[lane.id]
    if lane.stop < len(record.run.tokens):
        return Proposal(lane, record, None)
    try:
        run, draft = drafted(record.run, state.sizes.vocab_size)
    except Exception as error:
        return Proposal(lane, record, None, f"{type(error).__name__}: {error}")
    return Proposal(lane, record._replace(run=run), draft)
