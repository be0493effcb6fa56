"""Token verification: accept each drafted token with probability min(1, p/q), repair the first rejection from the residual.

    for i = 1..K:   accept x_i  iff  u_i * q(x_i) < p(x_i)             (p, q at the row before x_i)
    first rejection at i:  emit  y ~ max(p - q, 0) / sum               (recovered)
    none:                  emit  y ~ p after x_K                       (bonus)

Proof for one position: x comes out with q(x) min(1, p/q) + Pr[reject] * residual(x) = min(p, q) + max(p - q, 0) = p(x); the chain follows by
induction, since a rejection ends the pass. Source: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
"""

import torch

from specdec_fn.sampling import draw
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.recover import residual, without
from specdec_fn.speculate.tape import Tape, tape
from specdec_fn.speculate.threshold import threshold, tried, where_judged
from specdec_fn.speculate.verdict import Verdict, of_chain
from specdec_fn.speculate.verifier import Verifier, door
from specdec_fn.typing import Float, Tensor

__all__ = ["bounds", "decide", "verifier"]


def decide(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft) -> Verdict:
    """The rule itself: a deterministic function of the tape, vmappable, in the dtype of its arguments.

    Args:
        tape: ``accept`` float [K] and ``final`` float scalar, both on [0, 1).
        target_probs: float [K + 1, V]; row 0 is the law after the context, row i + 1 the law after drafted token i.
        draft: a chain of K tokens, with its laws or one-hot.

    Returns:
        The accepted tokens and the recovered or bonus token. A row that sums to 0 accepts nothing and gives -1.

    >>> p = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    >>> q = torch.tensor([[0.5, 0.5]])
    >>> draft = Draft(torch.tensor([0]), q, torch.tensor(1))
    >>> decide(Tape(torch.tensor([0.49]), torch.tensor(0.9)), p, draft).tokens  # accepted, since .49 < .25 / .5; then the bonus
    tensor([0, 1])
    >>> decide(Tape(torch.tensor([0.50]), torch.tensor(0.9)), p, draft).tokens  # rejected; the residual is all on 1
    tensor([ 1, -1])
    """
    k, length = draft.tokens.shape[0], draft.length
    drafted = torch.arange(k, device=draft.tokens.device) < length
    tokens = torch.where(drafted, draft.tokens, 0)
    p = target_probs[:k].gather(1, tokens[:, None]).squeeze(1)
    q = torch.ones_like(p) if draft.probs is None else draft.probs.gather(1, tokens[:, None]).squeeze(1)
    accept = drafted & (tape.accept * q < p)
    accepted = accept.cumprod(0).sum()
    rejected = accepted < length
    p_row = _row(target_probs, accepted)
    if k == 0:
        law = p_row
    elif draft.probs is None:
        law = torch.where(rejected, without(p_row, _row(tokens, accepted)), p_row)
    else:
        law = torch.where(rejected, residual(p_row, _row(draft.probs, accepted)), p_row)
    return of_chain(draft, accepted, draw(tape.final, law))


def bounds(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft, verdict: Verdict) -> Float[Tensor, "K"]:
    """What each uniform was compared with: min(1, p / q), to the last bit; NaN behind the first rejection.

    >>> p, q = torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.tensor([[0.5, 0.5]])
    >>> tape, draft = Tape(torch.tensor([0.49]), torch.tensor(0.9)), Draft(torch.tensor([0]), q, torch.tensor(1))
    >>> bounds(tape, p, draft, decide(tape, p, draft))
    tensor([0.5000])
    """
    del tape
    k = draft.tokens.shape[0]
    judged = tried(draft, verdict)
    tokens = torch.where(judged, draft.tokens, 0)[:, None]
    target = target_probs[:k].gather(1, tokens).squeeze(1)
    drawn = torch.ones_like(target) if draft.probs is None else draft.probs.gather(1, tokens).squeeze(1)
    return where_judged(judged, threshold(lambda u: u * drawn < target, target))


def _row(rows: Tensor, index: Tensor) -> Tensor:
    """Row ``index`` of a tensor, the last one where index is past the end, without a data-dependent Python index."""
    return rows.index_select(0, index.clamp(max=rows.shape[0] - 1)[None]).squeeze(0)


verifier = Verifier(
    name="token",
    lossless=True,
    law="the target's law p, token by token",
    tape=tape,
    decide=decide,
    verify=door(tape, decide),
    bounds=bounds,
)
