"""The engine's steps through captured ones: which buckets there are, which passes fit one, and how such a pass is run.

Captured steps are a value that is made once and handed to ``step`` beside the model. A pass fits where every request in it decodes with nothing but
what ``decode`` knows; any other pass (prompts, trees, penalties, grammars, explained requests, invariant mode) is taken as without graphs.
``counters.captured`` counts those that fit. The tokens are decided by the same rules from the same random words either way; the logits may differ in
their last bits, as they do with the number of rows.

On a GPU the whole step is one graph, in which a row of padding costs as good as nothing. On a CPU every row costs: the model runs as it does without
graphs, over the rows that there are, what follows it is compiled (laws, decisions, log-probabilities), and a pass that would fill its bucket by
less than half takes none. It is no faster there (``specdec bench graphs``): a CPU has no launches to save.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from specdec_fn.engine.capture import capture
from specdec_fn.engine.decode import Batch, decided, decode
from specdec_fn.engine.forward import PassError, forwarded, wanted
from specdec_fn.engine.packing import Bucket, drafted_ids, packed
from specdec_fn.engine.propose import Proposal
from specdec_fn.engine.running import no_law, settled
from specdec_fn.engine.state import EngineState, clone
from specdec_fn.engine.verify import Judgement
from specdec_fn.kv.store import Store
from specdec_fn.kv.table import pages_for
from specdec_fn.models import Model
from specdec_fn.models.model import parameter
from specdec_fn.pytree import donates, enforced
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import verifiers
from specdec_fn.typing import Tensor

__all__ = ["Bucket", "Graphs", "decoded", "fitting", "graphs"]

FILL = 0.5  # on a CPU; what is padded costs as much as what is not


class Graphs(NamedTuple):
    """Captured steps by bucket, smallest first.

    Attributes:
        steps: for each bucket the function from the pool and a batch to the pool and what was decided; or from logits and a batch to that.
        whole: the model is part of them.
        fill: a pass takes a bucket if its rows are at least this share of the bucket's; the rest goes without.
        model: the fingerprint of the model that is part of them, if it is.
    """

    steps: Mapping[Bucket, Callable[[Any, Batch], Any]]
    whole: bool = False
    fill: float = 0.0
    model: str = ""


def graphs(model: Model, state: EngineState, buckets: Iterable[Bucket]) -> Graphs:
    """Captures the decode-and-verify step of an engine for some shapes. On a CPU a compiler takes some ten seconds to a minute for each.

    Args:
        model: the engine's.
        state: the engine; on a GPU the graphs hold for its pool, and for no clone of it.
        buckets: the shapes. A pass takes the smallest that it fits in.

    Raises:
        TypeError: no Bucket.
        ValueError: a bucket that no pass of this engine can need, an unknown verifier, or one of trees.

    >>> from specdec_fn.engine.request import Config
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.models import toy
    >>> model = toy.bigram(torch.eye(3))
    >>> list(graphs(model, init(model, Config()), []).steps)
    []
    """
    asked, made, config = list(buckets), {}, state.config
    if wrong := [one for one in asked if not isinstance(one, Bucket)]:
        raise TypeError(f"received {wrong[0]!r:.80} among the buckets; expected Bucket(sequences, rows, pages)")
    pages = min(config.num_pages, pages_for(state.sizes.context, page_size=config.page_size))
    for bucket in sorted(set(asked), key=lambda one: (one.sequences * one.rows, one.pages, one)):
        for name, most in (("sequences", config.max_batch), ("rows", state.sizes.context), ("pages", pages)):
            if type(getattr(bucket, name)) is not int or not 1 <= getattr(bucket, name) <= most:
                raise ValueError(f"{name} of {bucket} is {getattr(bucket, name)!r}; expected 1 to {most}, the most that this engine can need")
        if bucket.verifier not in verifiers.all or (verifiers.all[bucket.verifier].trees and bucket.verifier not in ("greedy", "coupled")):
            known = [name for name in verifiers.all if not verifiers.all[name].trees or name in ("greedy", "coupled")]
            raise ValueError(f"the verifier is {bucket.verifier!r}; expected one of {', '.join(known)}")
        made[bucket] = _captured(model, state, bucket)
    if state.store.keys.is_cuda:
        return Graphs(MappingProxyType(made), True, model=state.model)
    return Graphs(MappingProxyType(made), fill=FILL)


def _captured(model: Model, state: EngineState, bucket: Bucket) -> Callable[[Any, Batch], Any]:
    verifier, whole = verifiers.all[bucket.verifier], state.store.keys.is_cuda
    idle = packed(state, [], bucket, whole=whole)  # all of it is padding: it writes nothing
    if whole:
        return capture(lambda pool, batch: decode(model, verifier, pool, batch, cuts=bucket.cuts), _bare(state.store), idle, donated=(0,))
    rows = torch.zeros(bucket.sequences * bucket.rows, state.sizes.vocab_size, dtype=parameter(model).dtype)
    return capture(lambda logits, batch: decided(verifier, logits, batch, cuts=bucket.cuts), rows, idle)


def fitting(graphs: Graphs, state: EngineState, proposals: Sequence[Proposal]) -> Bucket | None:
    """The smallest bucket that a pass fits in; None where it fits none.

    >>> fitting(Graphs({}), None, []) is None
    True
    """
    if not graphs.steps or not proposals or state.config.invariant or not all(map(_plain, proposals)):
        return None
    if graphs.whole and enforced():  # pools then move at every step, and a graph holds for one place
        return None
    rules = {one.record.run.verifier for one in proposals}
    drafts = [one.draft for one in proposals if one.draft is not None and one.draft.tokens.shape[0]]
    soft = {draft.probs is not None for draft in drafts} or {False}
    if len(rules) > 1 or len(soft) > 1:
        return None
    ends = [one.lane.stop + len(drafted_ids(one)) for one in proposals]
    rows = max(len(drafted_ids(one)) for one in proposals) + 1
    pages = max(pages_for(end, page_size=state.config.page_size) for end in ends)
    shape = len(proposals), rows, pages
    rule, kind = rules.pop(), soft.pop()
    total = sum(len(drafted_ids(one)) + 1 for one in proposals)
    cuts = any(params.top_k or params.top_p < 1 or params.min_p for params in (one.record.controls.params for one in proposals))
    for bucket in graphs.steps:
        if total < graphs.fill * bucket.sequences * bucket.rows or (cuts and not bucket.cuts):
            continue
        if verifiers.all[bucket.verifier] is rule and (bucket.soft == kind or not drafts) and all(map(int.__le__, shape, bucket[:3])):
            return bucket
    return None


def _plain(one: Proposal) -> bool:
    """Whether a request decodes, with nothing that a captured step does not know."""
    request, params = one.record.request, one.record.controls.params
    known = SamplingParams(temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p)
    if one.error is not None or one.draft is None or one.draft.parents is not None or one.lane.stop - one.lane.start != 1:
        return False
    if request.constraint is not None or request.logprobs or request.explain or wanted(one) != 1 + len(drafted_ids(one)):
        return False
    return params == known and one.record.controls.mask is None


@donates("state")
def decoded(model: Model, graphs: Graphs, bucket: Bucket, state: EngineState, proposals: Sequence[Proposal]) -> tuple[EngineState, list[Judgement]]:
    """Runs a pass through the captured step of a bucket. DONATES the pool of keys and values.

    Raises:
        PassError: whatever the step raised, with the state before the pass.

    >>> decoded(None, Graphs({}), Bucket(1, 1, 1), None, [])
    (None, [])
    """
    if not proposals:
        return state, []
    if graphs.whole and graphs.model != state.model:
        raise ValueError("the graphs were captured with another model's parameters; expected those of the model that the state was made for")
    batch, step = packed(state, proposals, bucket, whole=graphs.whole), graphs.steps[bucket]
    spare = clone(state) if enforced() else state  # where donation is enforced, the state of a failed pass keeps what it has
    try:
        with torch.no_grad():
            if graphs.whole:
                pool, found = step(_bare(spare.store), batch)
                after = dataclasses.replace(spare, store=dataclasses.replace(pool, scratch=spare.store.scratch))
            else:
                after, logits = forwarded(model, spare, proposals)
                found = step(_padded(logits, bucket), batch)
    except PassError as error:
        raise PassError(str(error), state) from error.__cause__
    except Exception as error:
        raise PassError(f"the captured step failed with {type(error).__name__}: {error}", state) from error
    tokens, accepted, logprobs = found.verdict.tokens.tolist(), found.verdict.accepted.tolist(), found.logprobs.tolist()
    judgements = [_judged(one, *row) for one, row in zip(proposals, zip(tokens, accepted, logprobs, strict=True), strict=False)]
    return dataclasses.replace(after, counters=after.counters._replace(captured=after.counters.captured + 1)), judgements


def _bare(pool: Store) -> Store:
    """The pool without the scratch of passes that are not captured, which comes and grows."""
    return dataclasses.replace(pool, scratch=())


def _padded(logits: Sequence[Tensor], bucket: Bucket) -> Tensor:
    """The logits of a pass in the rows of a bucket."""
    rows = torch.zeros(bucket.sequences, bucket.rows, logits[0].shape[1], dtype=logits[0].dtype)
    for place, own in enumerate(logits):
        rows[place, : own.shape[0]] = own
    return rows.flatten(0, 1)


def _judged(one: Proposal, tokens: list[int], accepted: int, logprobs: list[float]) -> Judgement:
    assert one.draft is not None, "only a request at its last token is decided"
    run, emitted = settled(one.record.run, one.draft, tokens[: accepted + 1], accepted - 1, logprobs)
    why = no_law(run) if run.lawless else None
    return Judgement(one.lane, one.record._replace(run=run), emitted, torch.arange(accepted + 1), (), why)
