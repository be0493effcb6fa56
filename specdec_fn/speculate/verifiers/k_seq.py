"""k-SEQ: n drafts of one token, each judged alone against a scaled ratio, and one residual for the case that none passes.

    accept t  iff  u * rho * q(t) < p(t);    m = min(p / rho, q),  b = sum m,  P = 1 - (1 - b)^n  (some draft passes)
    none:  emit  y ~ p - m P / b

Exact where the residual is nowhere negative, as it is for every rho from the root of 1 - (1 - b)^n = rho b in [1, n] on. The smaller rho, the more
is accepted, at the root at least 1 - 1/e of what any rule can. Drafts are drawn with replacement; a declared one-hot draft is no sample, so
there the rule is ``multi_draft``'s. On a tree it is applied at every node. Source: Sun et al. 2023 (SpecTr, arXiv 2310.15141).
"""

import torch

from specdec_fn.sampling import draw
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.tape import Tape, tape
from specdec_fn.speculate.threshold import threshold, tried, where_judged
from specdec_fn.speculate.tree import parents_of
from specdec_fn.speculate.verdict import Verdict, of_path
from specdec_fn.speculate.verifier import Verifier, door
from specdec_fn.speculate.verifiers import tree
from specdec_fn.speculate.verifiers.tree import descend
from specdec_fn.typing import Float, Int, Tensor

__all__ = ["bounds", "decide", "scale", "verifier"]

HALVINGS = 20  # any scale above the root is exact; the last halving leaves (n - 1) 2**-20 of it, which costs as little acceptance


def decide(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft) -> Verdict:
    """The rule itself, for siblings drawn with replacement; arguments and result as in ``tree.decide``.

    >>> p = torch.tensor([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]])
    >>> q = torch.tensor([[0.75, 0.25], [0.75, 0.25]])
    >>> pair = Draft(torch.tensor([0, 1]), q, torch.tensor(2), torch.tensor([-1, -1]))
    >>> decide(Tape(torch.tensor([0.9, 0.0]), torch.tensor(0.0)), p, pair).tokens
    tensor([ 1,  0, -1])
    """
    parents, k = parents_of(draft), draft.tokens.shape[0]
    if draft.probs is None or not k:
        return descend(tape, target_probs, draft)
    drafted = torch.arange(k, device=parents.device) < draft.length
    tokens = torch.where(drafted, draft.tokens, 0)[:, None]
    p, q, tries, rho = _scaled(target_probs, draft.probs, parents, drafted)
    passes = tape.accept * rho * q.gather(1, tokens).squeeze(1) < p.gather(1, tokens).squeeze(1)
    unserved = torch.func.vmap(_unserved, in_dims=(0, 0, 0, 0, None))(p, q, rho, tries, k)
    node, law, kept = torch.full_like(draft.length, -1), target_probs[0], []
    for i in range(k):
        here = drafted[i] & (parents[i] == node)
        kept.append(here & passes[i])
        node = torch.where(kept[i], i, node)
        law = torch.where(kept[i], target_probs[i + 1], torch.where(here, unserved[i], law))
    return of_path(draft, torch.stack(kept), draw(tape.final, law))


def bounds(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft, verdict: Verdict) -> Float[Tensor, "K"]:
    """What each uniform was compared with: min(1, p / (rho q)), to the last bit; NaN for nodes that had no turn.

    >>> p = torch.tensor([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]])
    >>> q = torch.tensor([[0.75, 0.25], [0.75, 0.25]])
    >>> pair = Draft(torch.tensor([0, 1]), q, torch.tensor(2), torch.tensor([-1, -1]))
    >>> tape = Tape(torch.tensor([0.9, 0.0]), torch.tensor(0.0))
    >>> bounds(tape, p, pair, decide(tape, p, pair)) < 1
    tensor([ True, False])
    """
    parents, k = parents_of(draft), draft.tokens.shape[0]
    if draft.probs is None or not k:
        return tree.bounds(tape, target_probs, draft, verdict)
    judged = tried(draft, verdict)
    p, q, _, rho = _scaled(target_probs, draft.probs, parents, torch.arange(k, device=parents.device) < draft.length)
    token = torch.where(judged, draft.tokens, 0)[:, None]
    target, drawn = p.gather(1, token).squeeze(1), q.gather(1, token).squeeze(1)
    return where_judged(judged, threshold(lambda u: u * rho * drawn < target, target))


def _scaled(target_probs: Tensor, q: Tensor, parents: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each node the laws at its parent, how many siblings there are, and their scale."""
    k = parents.shape[0]
    p = target_probs.index_select(0, parents.clamp(-1, k - 1) + 1)
    tries = ((parents[:, None] == parents) & drafted).sum(-1)
    rho = torch.func.vmap(scale, in_dims=(0, 0, 0, None))(p, q, tries, k)
    return p, q, tries, rho


def scale(p: Float[Tensor, "vocab"], q: Float[Tensor, "vocab"], tries: Int[Tensor, ""], most: int) -> Float[Tensor, ""]:
    """The scale rho of n tries: the root of 1 - (1 - b(rho))^n = rho b(rho) in [1, n], approached from above.

    Args:
        p, q: the target's law and the draft's.
        tries: int64 scalar n, at most ``most``.

    >>> round(float(scale(torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25]), torch.tensor(1), 2)), 4)
    1.0
    """
    low, high = torch.ones_like(p[0]), tries.to(p.dtype).clamp(min=1)
    for _ in range(HALVINGS if most > 1 else 0):
        middle = (low + high) / 2
        served = torch.minimum(p / middle, q).sum()
        valid = _powers(served, tries, most) <= middle
        low, high = torch.where(valid, low, middle), torch.where(valid, middle, high)
    return high


def _powers(served: Float[Tensor, ""], tries: Int[Tensor, ""], most: int) -> Float[Tensor, ""]:
    """(1 - (1 - b)^n) / b = sum over j < n of (1 - b)^j, without the cancellation."""
    total = torch.ones_like(served)
    for j in range(1, most):
        total = torch.where(j < tries, total * (1 - served) + 1, total)
    return total


def _unserved(p: Tensor, q: Tensor, rho: Tensor, tries: Tensor, most: int) -> Float[Tensor, "vocab"]:
    """What is left of p when no try passed, as weights; p itself where nothing is left."""
    served = torch.minimum(p / rho, q)
    weights = torch.clamp(p - served * _powers(served.sum(), tries, most), min=0)
    return torch.where(weights.sum() > 0, weights, p)


verifier = Verifier(
    name="k_seq",
    lossless=True,
    law="the target's law p; siblings drawn with replacement",
    tape=tape,
    decide=decide,
    verify=door(tape, decide, trees=True),
    trees=True,
    bounds=bounds,
)
