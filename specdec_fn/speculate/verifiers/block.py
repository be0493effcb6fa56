"""Block verification: judge the draft as a whole and keep its longest passing beginning, not what stands before the first failure.

    w_0 = 1,  w_i = min(1, w_{i-1} p(x_i) / q(x_i))                      i = 1..K    (p, q at the row before x_i)
    S_i = sum over x of max(w_i p_i(x) - q_i(x), 0)                      i = 0..K-1  (rows after x_i)
    h_i = S_i / (S_i + 1 - w_i)  for i < K,   h_K = w_K
    accepted = the largest i with u_i < h_i, else 0
    accepted < K:  emit  y ~ max(w_i p_i - q_i, 0) / S_i  at i = accepted;      accepted = K:  emit  y ~ p after x_K

Pr[accepted >= i | x_1..x_i] = w_i, which no rule can exceed for every prefix at once, so it accepts at least what token verification does. With one
drafted token the two are the same. Source: Sun et al. 2024 (arXiv 2403.10444).
"""

import torch
import torch.nn.functional as F

from specdec_fn.sampling import draw
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.recover import residual
from specdec_fn.speculate.tape import Tape, tape
from specdec_fn.speculate.threshold import where_judged
from specdec_fn.speculate.verdict import Verdict, of_chain
from specdec_fn.speculate.verifier import Verifier, door
from specdec_fn.typing import Float, Int, Tensor

__all__ = ["bounds", "decide", "verifier"]


def decide(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft) -> Verdict:
    """The rule itself: a deterministic function of the tape, vmappable, in the dtype of its arguments.

    Args:
        tape: ``accept`` float [K], of which u_i is number i - 1, and ``final`` float scalar, all on [0, 1).
        target_probs: float [K + 1, V]; row 0 is the law after the context, row i the law after the i-th drafted token.
        draft: a chain of K tokens, with its laws or one-hot.

    Returns:
        The accepted tokens and the recovered or bonus token. A row that sums to 0 ends the draft, and gives -1 where it must decide.

    >>> p = torch.tensor([[1 / 3, 2 / 3]]).expand(3, 2)
    >>> q = torch.tensor([[2 / 3, 1 / 3]]).expand(2, 2)
    >>> draft = Draft(torch.tensor([0, 1]), q, torch.tensor(2))  # w = 1/2, then 1: the second token makes good for the first
    >>> decide(Tape(torch.tensor([0.9, 0.9]), torch.tensor(0.0)), p, draft).tokens
    tensor([0, 1, 0])
    """
    k = draft.tokens.shape[0]
    if k == 0:
        return of_chain(draft, draft.length, draw(tape.final, target_probs[0]))
    lane = torch.arange(k, device=draft.tokens.device)
    length, laws, weight, height = _heights(target_probs, draft, lane)
    passed = (lane < length) & (tape.accept < height)
    accepted = torch.where(passed, lane + 1, 0).amax()
    p_row, q_row = _row(target_probs, accepted), _row(laws, accepted)
    law = torch.where(accepted < length, residual(_row(weight, accepted) * p_row, q_row), p_row)
    return of_chain(draft, accepted, draw(tape.final, law))


def bounds(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft, verdict: Verdict) -> Float[Tensor, "K"]:
    """What each uniform was compared with: h_i of the nodes from the last accepted one on; NaN for those before it, which it decided.

    >>> p = torch.tensor([[1 / 3, 2 / 3]]).expand(3, 2)
    >>> q = torch.tensor([[2 / 3, 1 / 3]]).expand(2, 2)
    >>> tape, draft = Tape(torch.tensor([0.9, 0.9]), torch.tensor(0.0)), Draft(torch.tensor([0, 1]), q, torch.tensor(2))
    >>> bounds(tape, p, draft, decide(tape, p, draft))
    tensor([nan, 1.])
    """
    del tape
    lane = torch.arange(draft.tokens.shape[0], device=draft.tokens.device)
    if not lane.shape[0]:
        return target_probs.new_empty(0)
    length, _, _, height = _heights(target_probs, draft, lane)
    return where_judged((lane + 1 >= verdict.accepted) & (lane < length), height)


def _heights(target_probs: Tensor, draft: Draft, lane: Int[Tensor, "K"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """How far the draft can be judged, its laws, w_0 to w_K and h_1 to h_K."""
    k = lane.shape[0]
    # Behind a row that is no law nothing can be judged: the draft ends there.
    length = torch.minimum(draft.length, (target_probs.sum(-1) > 0).cumprod(0).sum())
    tokens = torch.where(lane < length, draft.tokens, 0)
    p, laws = target_probs[:k], F.one_hot(tokens, target_probs.shape[1]).to(target_probs.dtype) if draft.probs is None else draft.probs
    weight = _weights(*(rows.gather(1, tokens[:, None]).squeeze(1) for rows in (p, laws)))
    # Inner nodes, w_i against the rows after x_i: number i - 1 of u, row i of p and q.
    excess = torch.clamp(weight[1:k, None] * p[1:] - laws[1:], min=0).sum(-1)
    room = excess + 1 - weight[1:k]
    inner = torch.where(room > 0, excess / torch.where(room > 0, room, 1), 1)
    height = torch.where(lane + 1 == length, weight[1:], F.pad(inner, (0, 1)))
    return length, laws, weight, height


def _weights(p: Float[Tensor, "K"], q: Float[Tensor, "K"]) -> Float[Tensor, "rows"]:
    """w_0 to w_K."""
    weights = [torch.ones_like(p[0])]
    for i in range(p.shape[0]):
        reached = weights[i] * p[i]
        weights.append(torch.where(reached < q[i], reached / q[i], (reached > 0).to(p.dtype)))
    return torch.stack(weights)


def _row(rows: Tensor, index: Tensor) -> Tensor:
    """Row ``index`` of a tensor, the last one where index is past the end, without a data-dependent Python index."""
    return rows.index_select(0, index.clamp(max=rows.shape[0] - 1)[None]).squeeze(0)


verifier = Verifier(
    name="block",
    lossless=True,
    law="the target's law p, jointly over the tokens of a pass",
    tape=tape,
    decide=decide,
    verify=door(tape, decide),
    bounds=bounds,
)
