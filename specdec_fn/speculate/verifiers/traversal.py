"""Traversal verification: judge the tree from the leaves to the root, so that a good ending makes good for a weak beginning.

    entering child t of a node of weight w, law r and draft law c:    w(t) = min(1, w r(t) / c(t)), with its own fresh p and c
    a node without remaining children:  accept the whole path to it with probability w and emit  y ~ r;  else delete it, and at its parent
        d = max(w r - c, 0),  S = sum d;    w <- S / (S + 1 - w),  r <- d / S,  c <- c without t, renormalised
    the root has w = 1 and always accepts

Nodes are judged in postorder, each once. What a deletion does to the parent does not depend on what happened below the child, so all weights are
known before any uniform is read, and the accepted node is the first in postorder with u < w. Siblings are drawn without replacement. On a chain
it is block verification. Source: Weng et al. 2025 (Traversal Verification, arXiv 2505.12398).
"""

import torch

from specdec_fn.sampling import draw
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.recover import residual, without
from specdec_fn.speculate.tape import Tape, tape
from specdec_fn.speculate.threshold import where_judged
from specdec_fn.speculate.tree import ancestors, parents_of
from specdec_fn.speculate.verdict import Verdict, of_chain, of_path
from specdec_fn.speculate.verifier import Verifier, door
from specdec_fn.typing import Bool, Float, Int, Tensor

__all__ = ["bounds", "decide", "postorder", "verifier"]


def decide(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft) -> Verdict:
    """The rule itself, for siblings drawn without replacement; arguments as in ``tree.decide``.

    Returns:
        The accepted path and the recovered or bonus token. Below a row that sums to 0 nothing is tried; where it must decide it gives -1.

    >>> p = torch.tensor([[1 / 3, 2 / 3]]).expand(3, 2)
    >>> q = torch.tensor([[2 / 3, 1 / 3]]).expand(2, 2)
    >>> chain = Draft(torch.tensor([0, 1]), q, torch.tensor(2))
    >>> decide(Tape(torch.tensor([0.9, 0.9]), torch.tensor(0.0)), p, chain).tokens
    tensor([0, 1, 0])
    """
    parents, k = parents_of(draft), draft.tokens.shape[0]
    if k == 0:
        return of_chain(draft, draft.length, draw(tape.final, target_probs[0]))
    above, row = ancestors(parents), torch.arange(k + 1, device=parents.device)  # 0 is the context's, i + 1 node i's
    valid, weight, law = _weights(target_probs, draft, parents, above, row)
    passed = valid & (tape.accept < weight[1:])
    order = torch.where(passed, postorder(parents, valid), k)
    chosen = (order == order.amin()) & passed
    kept = (above & chosen[:, None]).any(0)
    stop = torch.where(chosen, row[1:], 0).sum()
    return of_path(draft, kept, draw(tape.final, law.index_select(0, stop[None]).squeeze(0)))


def bounds(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft, verdict: Verdict) -> Float[Tensor, "K"]:
    """What each uniform was compared with: the weight of each node that was judged, in postorder up to the one that passed; NaN for the others.

    >>> p = torch.tensor([[1 / 3, 2 / 3]]).expand(3, 2)
    >>> q = torch.tensor([[2 / 3, 1 / 3]]).expand(2, 2)
    >>> tape, chain = Tape(torch.tensor([0.9, 0.9]), torch.tensor(0.0)), Draft(torch.tensor([0, 1]), q, torch.tensor(2))
    >>> bounds(tape, p, chain, decide(tape, p, chain))
    tensor([nan, 1.])
    """
    del tape
    parents, k = parents_of(draft), draft.tokens.shape[0]
    if k == 0:
        return target_probs.new_empty(0)
    valid, weight, _ = _weights(target_probs, draft, parents, ancestors(parents), torch.arange(k + 1, device=parents.device))
    place = postorder(parents, valid)
    last = verdict.path.gather(0, (verdict.accepted - 1).clamp(min=0)[None]).clamp(min=0)
    stop = torch.where(verdict.accepted > 0, place.gather(0, last).squeeze(0), k)
    return where_judged(valid & (place <= stop), weight[1:])


def _weights(target_probs: Tensor, draft: Draft, parents: Tensor, above: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which nodes can be judged, and of every row the weight and the law that it is judged with."""
    k = parents.shape[0]
    lawful = target_probs.sum(-1) > 0
    at = parents.clamp(-1, k - 1) + 1
    valid = (row[:k] < draft.length) & lawful.index_select(0, at)
    valid = (valid | ~above).all(-1)
    weight, law = torch.ones_like(target_probs[:, 0]), target_probs
    left = None if draft.probs is None else draft.probs.index_select(0, _first_child(at, valid))
    for i in range(k):
        token = torch.where(valid[i], draft.tokens[i], 0)
        w, r = weight.index_select(0, at[i, None]).squeeze(0), law.index_select(0, at[i, None]).squeeze(0)
        alone = torch.nn.functional.one_hot(token, r.shape[0]).to(r.dtype)
        c = alone if left is None else left.index_select(0, at[i, None]).squeeze(0)
        reached, drawn = w * r.gather(0, token[None]).squeeze(0), c.gather(0, token[None]).squeeze(0)
        entered = torch.where(reached < drawn, reached / drawn, (reached > 0).to(r.dtype))  # a token drawn twice has 0 of both
        excess = torch.clamp(w * r - c, min=0).sum()
        room = excess + 1 - w
        after = torch.where(room > 0, excess / torch.where(room > 0, room, 1), 1)
        here = valid[i] & (row == at[i])
        weight = torch.where(valid[i] & (row == i + 1), entered, torch.where(here, after, weight))
        weight = torch.where(row == 0, 1, weight)  # which it is, but for rounding
        law = torch.where(here[:, None], torch.where(excess > 0, residual(w * r, c), r), law)
        if left is not None:
            left = torch.where(here[:, None], without(c, token), left)
    return valid, weight, law


def postorder(parents: Int[Tensor, "K"], valid: Bool[Tensor, "K"]) -> Int[Tensor, "K"]:
    """The place of each valid node when children come before their parent and siblings in their order; vmappable.

    >>> postorder(torch.tensor([-1, -1, 0, 0]), torch.ones(4, dtype=torch.bool))
    tensor([2, 3, 0, 1])
    """
    above = ancestors(parents)
    size = (above & valid[:, None]).sum(0)  # nodes in the subtree of each
    lane = torch.arange(parents.shape[0], device=parents.device)
    earlier = (parents[:, None] == parents) & (lane < lane[:, None]) & valid  # earlier siblings of each
    before = (earlier * size).sum(-1)
    return size - 1 + (above * before).sum(-1)


def _first_child(at: Int[Tensor, "K"], valid: Bool[Tensor, "K"]) -> Int[Tensor, "rows"]:
    """For each row the first valid node under it; 0 where there is none."""
    row = torch.arange(at.shape[0] + 1, device=at.device)
    return ((at == row[:, None]) & valid).int().argmax(-1)


verifier = Verifier(
    name="traversal",
    lossless=True,
    law="the target's law p, jointly over the path of a pass; siblings drawn without replacement",
    tape=tape,
    decide=decide,
    verify=door(tape, decide, trees=True),
    trees=True,
    bounds=bounds,
)
