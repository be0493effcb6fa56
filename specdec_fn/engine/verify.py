"""The fourth line of a step: target laws from the logits, and each request's verifier on its own draft."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from specdec_fn.engine import grammar
from specdec_fn.engine.generation import Pass
from specdec_fn.engine.laws import Ask, laws
from specdec_fn.engine.propose import Proposal
from specdec_fn.engine.running import decided, no_law
from specdec_fn.engine.state import EngineState, Record
from specdec_fn.schedule import Lane
from specdec_fn.typing import Float, Int, Tensor

__all__ = ["Judgement", "verified"]

ROWS = 64  # rows whose laws are made at a time: float64 laws over a large vocabulary take their memory


class Judgement(NamedTuple):
    """One request's part of a pass after it.

    Attributes:
        lane: what the plan gave it.
        record: the request, with the emitted tokens.
        one: what was emitted; None where the pass did not reach its last token.
        kept: rows, counted from that of the last token, whose keys and values stay.
        likeliest: for each emitted token, the ids that the request asked for with their log-probabilities.
        error: why the request cannot go on after these tokens.
    """

    lane: Lane
    record: Record
    one: Pass | None = None
    kept: Int[Tensor, "kept"] | None = None
    likeliest: tuple[dict[int, float], ...] = ()
    error: str | None = None


@torch.inference_mode()
def verified(state: EngineState, proposals: Sequence[Proposal], logits: Sequence[Float[Tensor, "rows vocab"]]) -> list[Judgement]:
    """Decides every draft; requests with the same controls share the making of their laws.

    >>> from specdec_fn.engine.request import Config, Request
    >>> from specdec_fn.engine.lifecycle import submit
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.schedule import schedule
    >>> from specdec_fn.engine.propose import proposed
    >>> state, _ = submit(init(toy.bigram(torch.eye(3)), Config()), Request([1, 2, 1], 4))
    >>> state, proposals = proposed(state, schedule(state.work, 256)[1])
    >>> verified(state, proposals, [torch.tensor([[0.0, 99.0, 0.0]])])[0].one.tokens
    [1]
    """
    scored = [_scored(one, rows) for one, rows in zip(proposals, logits, strict=True)]
    return [judgement for block in _blocks(scored) for judgement in _judged(state, block)]


def _blocks(scored: Sequence[tuple[Proposal, Tensor]]) -> Iterator[list[tuple[Proposal, Tensor]]]:
    block: list[tuple[Proposal, Tensor]] = []
    for pair in scored:
        if block and sum(rows.shape[0] for _, rows in block) + pair[1].shape[0] > ROWS:
            yield block
            block = []
        block.append(pair)
    if block:
        yield block


def _judged(state: EngineState, block: Sequence[tuple[Proposal, Tensor]]) -> list[Judgement]:
    asks: dict[int, Ask] = {}
    made: dict[int, Judgement] = {}
    for place, (one, rows) in enumerate(block):
        if one.error is not None or one.draft is None:
            made[place] = Judgement(one.lane, one.record, error=one.error)
            continue
        run, request = one.record.run, one.record.request
        try:
            mask = None if request.constraint is None else grammar.allowed(request.constraint, one.record.grammar, one.draft, state.sizes.vocab_size)
        except Exception as error:
            made[place] = Judgement(one.lane, one.record, error=f"the constraint failed with {type(error).__name__}: {error}")
            continue
        asks[place] = Ask(rows, one.record.controls, run.tokens[run.prompt :], one.draft.tokens.tolist(), one.draft.parents, mask)
    for (place, ask), probs in zip(asks.items(), laws(list(asks.values())), strict=True):
        made[place] = _decided(block[place][0], ask.logits, probs)
    return [made[place] for place in range(len(block))]


def _decided(one: Proposal, logits: Tensor, probs: Tensor) -> Judgement:
    assert one.draft is not None, "only a request at its last token is decided"
    try:
        run, emitted, kept = decided(one.record.run, one.draft, probs, logits, explain=one.record.request.explain)
        _check(emitted.tokens, kept.tolist(), *probs.shape)
    except Exception as error:
        return Judgement(one.lane, one.record, error=f"the verifier failed with {type(error).__name__}: {error}")
    wanted = one.record.request.logprobs
    likeliest = _likeliest(logits[kept][: len(emitted.tokens)], wanted) if wanted else ()
    return Judgement(one.lane, one.record._replace(run=run), emitted, kept, likeliest, no_law(run) if run.lawless else None)


def _check(tokens: list[int], kept: list[int], rows: int, vocab: int) -> None:
    """Refuses what a verifier of one's own may give and nobody else could live with."""
    if any(not isinstance(token, int) or not 0 <= token < vocab for token in tokens):
        raise ValueError(f"it emitted {tokens}; expected ids in [0, {vocab})")
    if kept[0] != 0 or any(not before < after < rows for before, after in pairwise(kept)):
        raise ValueError(f"it kept the nodes {[row - 1 for row in kept[1:]]}; expected them ascending, of {rows - 1}")


def _likeliest(logits: Float[Tensor, "emitted vocab"], count: int) -> tuple[dict[int, float], ...]:
    top = logits.to(torch.float64).log_softmax(-1).topk(min(count, logits.shape[1]))
    return tuple(dict(zip(ids, values, strict=True)) for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True))


def _scored(one: Proposal, logits: Tensor) -> tuple[Proposal, Tensor]:
    """Takes the log-probabilities of prompt tokens out of the logits, where they were asked for, and leaves the rows that decide."""
    deciding = 0 if one.draft is None else 1 + one.draft.tokens.shape[0]
    if logits.shape[0] == deciding:
        return one, logits
    record, start = one.record, one.lane.start
    known, last = len(record.prompt_logprobs), min(one.lane.stop, record.run.prompt - 1)
    rows = logits[known - start : last - start].to(torch.float64)
    following = torch.tensor(record.run.tokens[known + 1 : last + 1], dtype=torch.int64)
    found = (rows[torch.arange(rows.shape[0]), following] - rows.logsumexp(-1)).tolist()
    record = record._replace(prompt_logprobs=(*record.prompt_logprobs, *found))
    return one._replace(record=record), logits[logits.shape[0] - deciding :]
