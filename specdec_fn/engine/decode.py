"""The decode-and-verify step as one function of tensors: a pass of the model over every sequence's last token and draft, laws, decisions.

``step`` takes requests of any kind together, and builds each pass anew from lists. This step takes a batch of one shape and never looks at a value,
so that it can be captured (``capture``): sequences with at most ``rows`` rows each, drafts that are chains, one verifier, and the controls that are
numbers (temperature, top_k, top_p, min_p). What it decides, it decides by the same rules from the same random words.
"""

from typing import NamedTuple

import torch

from specdec_fn.kv.layout import Layout, attend
from specdec_fn.kv.store import Store
from specdec_fn.models import Model
from specdec_fn.pytree import donates
from specdec_fn.sampling import rows as sampling_rows
from specdec_fn.speculate import Draft, Race, Verdict, Verifier
from specdec_fn.speculate.ragged import Races, Words, decide_all
from specdec_fn.typing import Float, Int, Tensor

__all__ = ["Batch", "Decided", "Knobs", "decided", "decode", "scored"]


class Knobs(NamedTuple):
    """The controls of each sequence that are numbers.

    Attributes:
        temperature, top_p, min_p: float64 [B].
        top_k: int64 [B]; 0 is off.
    """

    temperature: Float[Tensor, "batch"]
    top_k: Int[Tensor, "batch"]
    top_p: Float[Tensor, "batch"]
    min_p: Float[Tensor, "batch"]


class Batch(NamedTuple):
    """A pass in a bucket; a pytree of tensors.

    Attributes:
        tokens: int64 [B, rows], the last committed token of each sequence, then its draft; any id in the rows that are padding.
        positions: int64 [B, rows].
        layout: where the rows lie; None for ``decided`` alone.
        draft: [B] drafts of ``rows - 1`` nodes.
        knobs: the controls.
        drawn: the random words of the pass; for ``coupled`` the noise of its races, or on a GPU where that is found.
    """

    tokens: Int[Tensor, "batch rows"]
    positions: Int[Tensor, "batch rows"]
    layout: Layout | None
    draft: Draft
    knobs: Knobs
    drawn: Words | Races | Race


class Decided(NamedTuple):
    """What comes out of a pass.

    Attributes:
        verdict: every field with a leading axis of B.
        logprobs: float64 [B, rows], of the emitted tokens, in nats, as the unprocessed logits have them; what stands behind them means nothing.
    """

    verdict: Verdict
    logprobs: Float[Tensor, "batch rows"]


@donates("store")
def decode(model: Model, verifier: Verifier, store: Store, batch: Batch, *, cuts: bool = True, impl: str = "auto") -> tuple[Store, Decided]:
    """Runs a pass and decides it. DONATES the pool.

    Args:
        model: the target.
        verifier: of all sequences.
        store: the pool; rows of padding write nothing.
        batch: the pass.
        cuts: as in ``decided``.
        impl: "auto", "torch" or "triton", for attention, laws and decisions.

    >>> from specdec_fn.kv import store as stores
    >>> from specdec_fn.kv.layout import layout
    >>> from specdec_fn.kv.table import Table
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.speculate import verifiers
    >>> circle = toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> where = layout([Table((0,), 1)], [3], page_size=4, sequences=1, rows=2, pages=1)
    >>> off, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    >>> drafted = Draft(torch.tensor([[1]]), None, torch.tensor([1]))
    >>> drawn = Words(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    >>> batch = Batch(torch.tensor([[0, 1]]), torch.tensor([[1, 2]]), where, drafted, Knobs(off, off.long(), one, off), drawn)
    >>> pool = stores.init(circle.config, 1, 4, dtype=torch.float32)
    >>> decode(circle, verifiers["token"], pool, batch)[1].verdict.tokens
    tensor([[1, 2]])
    """
    store, logits = scored(model, store, batch, impl=impl)
    return store, decided(verifier, logits, batch, cuts=cuts, impl=impl)


@donates("store")
def scored(model: Model, store: Store, batch: Batch, *, impl: str = "auto") -> tuple[Store, Float[Tensor, "tokens vocab"]]:
    """The first half: the pass of the model. DONATES the pool.

    Returns:
        The pool, and the logits of all rows, padding included: float [B * rows, V].

    >>> from specdec_fn.kv import store as stores
    >>> from specdec_fn.kv.layout import layout
    >>> from specdec_fn.models import toy
    >>> model = toy.bigram(torch.full((3, 3), 1 / 3))
    >>> pool = stores.init(model.config, 1, 4, dtype=torch.float32)
    >>> idle = Batch(*torch.zeros(2, 2, 1, dtype=torch.int64), layout([], [], page_size=4, sequences=2, rows=1, pages=1), None, None, None)
    >>> scored(model, pool, idle)[1].shape
    torch.Size([2, 3])
    """
    assert batch.layout is not None, "the model's part of a step reads where its rows lie"
    attention = attend(batch.layout, page_size=store.page_size, impl=impl)
    logits, store = model.apply(model.params, batch.tokens.flatten(), batch.positions.flatten(), store, attention)
    return store, logits


def decided(verifier: Verifier, logits: Float[Tensor, "tokens vocab"], batch: Batch, *, cuts: bool = True, impl: str = "auto") -> Decided:
    """The second half: target laws from logits, the verifier on every draft, log-probabilities of what is emitted.

    Args:
        verifier: of all sequences.
        logits: what ``scored`` gave.
        batch: the pass.
        cuts: False is the caller's word that no sequence has top_k, top_p or min_p, which saves a CPU two sorts of the vocabulary.
        impl: as in ``decode``.

    >>> from specdec_fn.speculate import verifiers
    >>> off, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    >>> drafted = Draft(torch.tensor([[2]]), None, torch.tensor([1]))
    >>> where = torch.tensor([[0, 2]]), torch.tensor([[0, 1]]), None
    >>> batch = Batch(*where, drafted, Knobs(off, off.long(), one, off), Words(torch.zeros(1, 1).long(), torch.zeros(1).long()))
    >>> decided(verifiers["token"], torch.tensor([[0.0, 0.0, 9.0], [0.0, 9.0, 0.0]]), batch).verdict.tokens
    tensor([[2, 1]])
    """
    count, rows = batch.tokens.shape
    wide = torch.float64 if logits.device.type == "cpu" else torch.float32
    knobs = (knob.repeat_interleave(rows) for knob in batch.knobs)
    probs = sampling_rows.laws(logits, *knobs, dtype=wide, cuts=cuts, impl=impl).unflatten(0, (count, rows))
    draft = batch.draft if batch.draft.probs is None else batch.draft._replace(probs=batch.draft.probs.to(wide))
    verdict = decide_all(verifier, batch.drawn, probs, draft, impl)
    chosen = logits.gather(1, verdict.tokens.clamp(min=0).view(-1, 1)).squeeze(1)
    return Decided(verdict, (chosen.to(wide) - logits.to(wide).logsumexp(-1)).view(count, rows))
