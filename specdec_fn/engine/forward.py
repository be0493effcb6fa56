"""The third line of a step: one forward of the target over the rows of every request in the plan."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch

from specdec_fn import models
from specdec_fn.engine.propose import Proposal
from specdec_fn.engine.state import EngineState
from specdec_fn.kv import paged, store, table
from specdec_fn.kv.paged import Span
from specdec_fn.kv.table import Table
from specdec_fn.models import Model
from specdec_fn.models.model import parameter
from specdec_fn.pytree import donates, enforced
from specdec_fn.speculate import Draft, tree
from specdec_fn.typing import Bool, Float, Tensor

__all__ = ["PassError", "forwarded", "wanted"]


class PassError(RuntimeError):
    """The forward failed.

    Attributes:
        state: the planned state, which is valid: nothing of the pass counts, and it can be stepped again.
    """

    def __init__(self, message: str, state: EngineState) -> None:
        super().__init__(message)
        self.state = state


@donates("state")
def forwarded(model: Model, state: EngineState, proposals: Sequence[Proposal]) -> tuple[EngineState, list[Float[Tensor, "rows vocab"]]]:
    """Runs the model once over all rows. DONATES the pool of keys and values.

    Returns:
        The state, and for every proposal the logits of the rows that ``wanted`` names.

    Raises:
        PassError: whatever the model raised, with the state before the pass.

    >>> from specdec_fn.engine.propose import proposed
    >>> from specdec_fn.engine.request import Config, Request
    >>> from specdec_fn.engine.lifecycle import submit
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.schedule import schedule
    >>> model = toy.bigram(torch.eye(3))
    >>> state, _ = submit(init(model, Config()), Request([1, 2, 1], 4))
    >>> work, plan = schedule(state.work, 256)
    >>> state, proposals = proposed(dataclasses.replace(state, work=work), plan)
    >>> forwarded(model, state, proposals)[1]
    [tensor([[-inf, 0., -inf]])]
    """
    live = [one for one in proposals if one.error is None]
    if not live:
        return state, [torch.empty(0, state.sizes.vocab_size) for _ in proposals]
    tables = {entry.id: entry.table for entry in state.work.running}
    spans = [_span(one, tables[one.lane.id], state.config.page_size) for one in live]
    device = parameter(model).device
    ids, positions = (torch.tensor([part for row in rows for part in row], device=device) for rows in zip(*map(_rows, live), strict=True))
    starts = [0, *accumulate(span.count for span in spans)]
    counts = [wanted(one) for one in live]
    rows = [row for end, count in zip(starts[1:], counts, strict=True) for row in range(end - count, end)]
    share = state.sizes.heads // max(state.sizes.kv_heads, 1)
    ordinary = partial(paged.attend, share=share, dtype=parameter(model).dtype)
    attend = (paged.attend_invariant if state.config.invariant else ordinary)(spans, device=device)
    pool = store.clone(state.store) if enforced() else state.store  # where donation is enforced, the state of a failed pass keeps its own
    try:
        with torch.inference_mode():
            used = models.invariant(model) if state.config.invariant else model
            if not rows and used.prefill is not None:
                logits, pool = torch.empty(0, state.sizes.vocab_size), used.prefill(used.params, ids, positions, pool, attend)
            elif len(rows) < ids.shape[0] and used.apply_at is not None:
                logits, pool = used.apply_at(used.params, ids, positions, pool, attend, torch.tensor(rows, device=device))
            else:
                logits, pool = used.apply(used.params, ids, positions, pool, attend)
                logits = logits if len(rows) == ids.shape[0] else logits[rows]
        if logits.shape != (len(rows), state.sizes.vocab_size) or not logits.is_floating_point():
            raise ValueError(f"the logits are {logits.dtype} {list(logits.shape)}; expected floats {[len(rows), state.sizes.vocab_size]}")
    except Exception as error:
        raise PassError(f"the forward failed with {type(error).__name__}: {error}", state) from error
    parts = iter(logits.cpu().split(counts))  # laws are made and drafts judged there, beside the requests' tokens
    return dataclasses.replace(state, store=pool), [next(parts) if one.error is None else logits[:0] for one in proposals]


def wanted(one: Proposal) -> int:
    """How many of a request's rows need logits, counted from its last: its last token and its draft; the whole chunk where its prompt is scored.

    >>> from types import SimpleNamespace
    >>> from specdec_fn.schedule import Lane
    >>> quiet = SimpleNamespace(request=SimpleNamespace(prompt_logprobs=False))
    >>> wanted(Proposal(Lane(0, 0, 0, 4, 0), quiet, None))
    0
    >>> wanted(Proposal(Lane(0, 0, 0, 4, 2), quiet, Draft(torch.tensor([5]), None, torch.tensor(1))))
    2
    """
    lane, drafted = one.lane, 0 if one.draft is None else one.draft.tokens.shape[0]
    if one.record.request.prompt_logprobs and len(one.record.prompt_logprobs) < one.record.run.prompt - 1:
        return lane.stop - lane.start + drafted
    return 0 if one.draft is None else 1 + drafted


def _rows(one: Proposal) -> tuple[list[int], list[int]]:
    """Ids and positions of a request's rows: its tokens that have no keys yet, then its draft."""
    lane, draft = one.lane, one.draft
    tokens = list(one.record.run.tokens[lane.start : lane.stop])
    drafted = [] if draft is None else draft.tokens.tolist()
    if draft is None or draft.parents is None:
        return tokens + drafted, list(range(lane.start, lane.stop + len(drafted)))
    return tokens + drafted, [*range(lane.start, lane.stop - 1), *tree.positions(draft.parents, lane.stop).tolist()]


def _span(one: Proposal, own: Table, page_size: int) -> Span:
    drafted = 0 if one.draft is None else one.draft.tokens.shape[0]
    end = one.lane.stop + drafted
    return Span(table.slots(own, 0, end, page_size=page_size), end - one.lane.start, _seen(one.draft, end - one.lane.start))


def _seen(draft: Draft | None, count: int) -> Bool[Tensor, "rows rows"] | None:
    if draft is None or draft.parents is None:
        return None
    branching = tree.mask(draft.parents)
    before = count - branching.shape[0]
    seen = torch.ones(count, count, dtype=torch.bool).tril()
    seen[before:, before:] = branching
    return seen
