"""Requests of a pass laid out in a bucket: the tensors that a captured step reads, padded to its one shape."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_map

from specdec_fn.engine.decode import Batch, Knobs
from specdec_fn.engine.propose import Proposal
from specdec_fn.engine.state import EngineState
from specdec_fn.kv.layout import layout
from specdec_fn.kv.table import Table
from specdec_fn.random import key_data
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import Draft, Race
from specdec_fn.speculate.ragged import Races, Words, words
from specdec_fn.typing import Tensor

__all__ = ["Bucket", "drafted_ids", "packed"]


class Bucket(NamedTuple):
    """The shape of a captured step.

    Attributes:
        sequences: requests that it has room for.
        rows: rows of each: k + 1.
        pages: pages of each: its tokens and its draft, by the page size, rounded up.
        verifier: by name.
        soft: drafts come with the laws that they were drawn from, as those of a drafting model do.
        cuts: requests may have top_k, top_p and min_p; without them a CPU need not sort.
    """

    sequences: int
    rows: int
    pages: int
    verifier: str = "token"
    soft: bool = False
    cuts: bool = True


def drafted_ids(one: Proposal) -> list[int]:
    """The ids that a request drafted.

    >>> from specdec_fn.speculate.draft import chain
    >>> drafted_ids(Proposal(None, None, chain([5, 7], 2)))
    [5, 7]
    """
    return [] if one.draft is None else one.draft.tokens.tolist()


def packed(state: EngineState, proposals: Sequence[Proposal], bucket: Bucket, *, whole: bool = True) -> Batch:
    """Lays a pass out in a bucket that it fits in.

    Args:
        state, proposals, bucket: as ``fitting`` had them.
        whole: False leaves the layout out, which only the model's part of a step reads.

    >>> from specdec_fn.engine.request import Config
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.models import toy
    >>> packed(init(toy.bigram(torch.eye(3)), Config()), [], Bucket(1, 2, 1)).draft.length
    tensor([0])
    """
    tables = {entry.id: entry.table for entry in state.work.running}
    drafts = [drafted_ids(one) for one in proposals]
    free, device, k = bucket.sequences - len(proposals), state.store.keys.device, bucket.rows - 1
    tokens = [[one.record.run.tokens[-1], *ids, *[0] * (k - len(ids))] for one, ids in zip(proposals, drafts, strict=True)]
    bases = [one.lane.stop for one in proposals]
    ends = [base + len(ids) for base, ids in zip(bases, drafts, strict=True)]
    own = [tables[one.lane.id] for one in proposals]
    params = [one.record.controls.params for one in proposals] + [SamplingParams()] * free
    base = torch.tensor([*bases, *[1] * free])
    made = Batch(
        tokens=torch.tensor([*tokens, *[[0] * bucket.rows] * free]),
        positions=(base[:, None] - 1 + torch.arange(bucket.rows)).clamp(max=state.sizes.context - 1),
        layout=layout(
            [Table(table.pages, end - 1) for table, end in zip(own, bases, strict=True)],
            ends,
            page_size=state.config.page_size,
            sequences=bucket.sequences,
            rows=bucket.rows,
            pages=bucket.pages,
        )
        if whole
        else None,
        draft=Draft(
            torch.tensor([*(ids + [-1] * (k - len(ids)) for ids in drafts), *[[-1] * k] * free], dtype=torch.int64).view(bucket.sequences, k),
            _laws(state, proposals, bucket) if bucket.soft else None,
            torch.tensor([*map(len, drafts), *[0] * free]),
        ),
        knobs=Knobs(
            *(torch.tensor([getattr(one, name) for one in params], dtype=torch.int64 if name == "top_k" else torch.float64) for name in Knobs._fields)
        ),
        drawn=_drawn(state, proposals, bucket),
    )
    return tree_map(lambda leaf: leaf if leaf is None else leaf.to(device), made)


def _drawn(state: EngineState, proposals: Sequence[Proposal], bucket: Bucket) -> Words | Races | Race:
    """The randomness of a pass, made before it: a compiler would make the words of a key anew for every number that they lead to."""
    runs, free, k = [one.record.run for one in proposals], bucket.sequences - len(proposals), bucket.rows - 1
    if bucket.verifier != "coupled":
        each = [words(run.key, k, len(run.tokens)) for run in runs]  # few words each, which integers make faster than tensors
        idle = Words(torch.zeros(k, dtype=torch.int64), torch.zeros((), dtype=torch.int64))
        return Words(*map(torch.stack, zip(*each, *[idle] * free, strict=True)))
    if state.store.keys.is_cuda:
        keys = torch.stack([*(key_data(run.key) for run in runs), *[torch.zeros(2, dtype=torch.int64)] * free])
        return Races(keys, torch.tensor([*(len(run.tokens) for run in runs), *[1] * free]))
    noise = torch.ones(bucket.sequences, bucket.rows, state.sizes.vocab_size, dtype=torch.float64)
    for place, run in enumerate(runs):
        noise[place] = run.verifier.tape(run.key, k, state.sizes.vocab_size, position=len(run.tokens)).noise
    return Race(noise)


def _laws(state: EngineState, proposals: Sequence[Proposal], bucket: Bucket) -> Tensor:
    laws = torch.zeros(bucket.sequences, bucket.rows - 1, state.sizes.vocab_size, dtype=torch.float64)
    for place, one in enumerate(proposals):
        if one.draft is not None and one.draft.probs is not None:
            laws[place, : one.draft.probs.shape[0]] = one.draft.probs
    return laws
