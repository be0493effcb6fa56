"""Drafting with a model for many requests at once, on pages: the drafting model's pool has the target's pages, so that tables, rollback, forks,
preemption and the prefix cache hold for both.

In every pass the drafting model reads the tokens that it has not read, up to the last committed one, and then drafts, a row a forward for every
request that drafts so far. The last drafted token is not read; a later pass does that if it stays. A page is published once it holds the drafting
model's keys too (``Done.filled``), so a prefix hit serves both. A fork may read that one token again into a page that it shares: the same numbers.

A model that shares the target's keys and values drafts in the target's own pool, behind the slots that count.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from specdec_fn import models
from specdec_fn.engine.law import Controls
from specdec_fn.engine.laws import Ask, laws
from specdec_fn.engine.sharing import in_dtype
from specdec_fn.kv import paged, table
from specdec_fn.kv.paged import Span
from specdec_fn.kv.store import Store
from specdec_fn.kv.table import Table
from specdec_fn.models import Model
from specdec_fn.models.model import Attend, parameter
from specdec_fn.pytree import donates
from specdec_fn.random import Key, uniform
from specdec_fn.sampling import SamplingParams, draw
from specdec_fn.speculate import Draft
from specdec_fn.speculate.draft import chain
from specdec_fn.speculate.race import noise, winner
from specdec_fn.speculate.tape import DRAFT, address
from specdec_fn.typing import Float, Tensor

__all__ = ["Reader", "draft_together"]


class Reader(NamedTuple):
    """One request in the drafting of a pass.

    Attributes:
        key: the request's key.
        tokens: committed ids.
        prompt: how many of them are prompt.
        sampling: the controls of its drafts' laws.
        table: its pages, with room for the pass.
        read: slots that hold the drafting model's keys of ``tokens``; at the end of the drafting also of drafted tokens.
        stop: end of the tokens that the pass computes.
        most: most tokens to draft; 0 where the pass does not reach the last token.
        race: whether drafted tokens are the winners of the request's race at their positions, as under ``coupled``.
    """

    key: Key
    tokens: tuple[int, ...]
    prompt: int
    sampling: SamplingParams
    table: Table
    read: int
    stop: int
    most: int
    race: bool = False


@donates("pool")
def draft_together(
    model: Model, pool: Store, readers: Sequence[Reader], *, vocab_size: int, page_size: int, invariant: bool
) -> tuple[Store, list[tuple[Draft, int]]]:
    """Drafts for several requests, one forward of the drafting model for all of them at a time. DONATES its pool.

    A request's draft is shorter than asked where the drafting model's context ends, where its logits give no law, and empty once a token was
    committed that it has no row for. Token i is drawn at height u of its law, u being lane i of ``tape.address(key, DRAFT, len(tokens))``; for
    a reader with ``race`` it is the winner of the race at position len(tokens) + i on its law.

    Args:
        model: the drafting model.
        pool: its keys and values.
        readers: the requests.
        vocab_size: of the target: the laws have that size.
        page_size: of the pools.
        invariant: whether no bit may depend on who drafts beside whom.

    Returns:
        The pool, and for each request its draft, a chain with float64 laws, and ``Reader.read`` after it.

    >>> from specdec_fn.kv import store
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> circle = toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> pool = store.init(circle.config, 2, 4, dtype=torch.float32)
    >>> reader = Reader(key(0), (0, 1), 1, SamplingParams(), Table((0, 1), 1), 0, 2, 3)
    >>> [(draft, read)] = draft_together(circle, pool, [reader], vocab_size=3, page_size=4, invariant=False)[1]
    >>> draft.tokens, read
    (tensor([2, 0, 1]), 4)
    """
    model = models.invariant(model) if invariant else model
    # The rows of a model in fewer bits may have another dtype than the target's pool, on which it may draft.
    share, dtype = model.config.heads // max(model.config.kv_heads, 1), pool.keys.dtype
    build = paged.attend_invariant if invariant else partial(paged.attend, share=share, dtype=dtype)
    context, ids_known = model.config.context, model.config.vocab_size
    lines = [list(reader.tokens) for reader in readers]
    reads = [reader.read for reader in readers]
    probs: list[list[Tensor]] = [[] for _ in readers]
    heights = [uniform(address(one.key, DRAFT, len(one.tokens)), (one.most,)) for one in readers]
    deaf = {place for place, one in enumerate(readers) if max(one.tokens) >= ids_known or one.stop > context}
    ends = {place: one.stop for place, one in enumerate(readers) if place not in deaf and one.stop > one.read}
    ends |= {place: one.stop for place, one in enumerate(readers) if place not in deaf and one.most and len(one.tokens) < context}
    while ends:
        spans: list[Span] = []
        ids: list[int] = []
        positions: list[int] = []
        for place, end in ends.items():
            start = min(reads[place], end - 1)
            slots = table.slots(readers[place].table, 0, end, page_size=page_size)
            spans.append(Span(slots, end - start))
            ids += lines[place][start:end]
            positions += range(start, end)
            reads[place] = end
        drawing = [place for place in ends if len(probs[place]) < readers[place].most and len(lines[place]) == ends[place] < context]
        logits, pool = _read(
            model,
            pool,
            ids,
            positions,
            in_dtype(build(spans), dtype, parameter(model).dtype),
            [place in drawing for place in ends],
            [span.count for span in spans],
        )
        rows = F.pad(logits.to("cpu", torch.float64), (0, vocab_size - logits.shape[1]), value=-torch.inf).split(1) if drawing else ()
        asks = [
            Ask(row, Controls(readers[place].sampling, tuple(lines[place][: readers[place].prompt])), lines[place][readers[place].prompt :], [])
            for place, row in zip(drawing, rows, strict=True)
        ]
        ends = {}
        for place, law in zip(drawing, laws(asks), strict=True):
            one, lane = readers[place], len(probs[place])
            token = int(winner(noise(one.key, len(one.tokens) + lane, vocab_size), law[0]) if one.race else draw(heights[place][lane], law[0]))
            if token >= 0:
                probs[place].append(law[0])
                lines[place].append(token)
                if len(probs[place]) < readers[place].most and len(lines[place]) < context:
                    ends[place] = len(lines[place])
    return pool, [(_draft(line[len(one.tokens) :], own, vocab_size), read) for line, own, one, read in zip(lines, probs, readers, reads, strict=True)]


def _draft(ids: list[int], probs: list[Float[Tensor, "vocab"]], vocab_size: int) -> Draft:
    return chain(ids, len(ids), torch.stack(probs) if probs else torch.empty(0, vocab_size, dtype=torch.float64))


@torch.inference_mode()
def _read(
    model: Model, pool: Store, ids: list[int], positions: list[int], attend: Attend, drawing: list[bool], counts: list[int]
) -> tuple[Float[Tensor, "drawing vocab"], Store]:
    """One forward, and the logits of the last row of each request that draws."""
    device = parameter(model).device
    inputs = torch.tensor(ids, device=device), torch.tensor(positions, device=device)
    lasts = [sum(counts[: place + 1]) - 1 for place in range(len(counts)) if drawing[place]]
    if not lasts and model.prefill is not None:
        return torch.empty(0, model.config.vocab_size), model.prefill(model.params, *inputs, pool, attend)
    if model.apply_at is not None:
        return model.apply_at(model.params, *inputs, pool, attend, torch.tensor(lasts, dtype=torch.int64, device=device))
    logits, pool = model.apply(model.params, *inputs, pool, attend)
    return logits[lasts], pool
