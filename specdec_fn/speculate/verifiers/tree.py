"""Top-down tree verification: at every node try the siblings in the order they were drawn, descend into the first that passes.

    r = p after the node, c = the law its children were drawn from
    child t:   accept  iff  u * c(t) < r(t);  then go on below it with its own p and c
    rejected:  r <- max(r - c, 0) / sum;  c <- c without t, renormalised        (siblings drawn without replacement)
    no child left:  emit  y ~ r

Each try is token verification of r by c, so what comes out at the node has law p; the tree follows by induction from the leaves up. On a chain it
is token verification. Source: Miao et al. 2023 (SpecInfer, arXiv 2305.09781), Chen et al. 2024 (Sequoia, arXiv 2402.12374) for draws without
replacement.
"""

import torch

from specdec_fn.sampling import draw
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.recover import residual, without
from specdec_fn.speculate.tape import Tape, tape
from specdec_fn.speculate.threshold import threshold, where_judged
from specdec_fn.speculate.tree import parents_of
from specdec_fn.speculate.verdict import Verdict, of_chain, of_path
from specdec_fn.speculate.verifier import Verifier, door
from specdec_fn.typing import Float, Tensor

__all__ = ["bounds", "decide", "descend", "verifier"]


def decide(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft) -> Verdict:
    """The rule itself, for siblings drawn without replacement; vmappable, in the dtype of its arguments.

    Args:
        tape: ``accept`` float [K], number i for node i, and ``final`` float scalar, all on [0, 1).
        target_probs: float [K + 1, V]; row 0 is the law after the context, row i + 1 the law after node i.
        draft: a chain or a tree of K nodes. ``probs`` row i is the law at node i's parent before any sibling was removed; None declares each
            node one-hot.

    Returns:
        The accepted path and the recovered or bonus token. A row that sums to 0 accepts nothing and gives -1.

    >>> p = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> q = torch.tensor([[0.0, 0.5, 0.5], [0.0, 0.5, 0.5]])
    >>> siblings = Draft(torch.tensor([1, 2]), q, torch.tensor(2), torch.tensor([-1, -1]))
    >>> decide(Tape(torch.tensor([0.4, 0.0]), torch.tensor(0.0)), p, siblings).tokens  # 1 passes: .4 * .5 < .25
    tensor([ 1,  0, -1])
    >>> decide(Tape(torch.tensor([0.6, 0.0]), torch.tensor(0.0)), p, siblings).tokens  # neither: the residual is all on 0
    tensor([ 0, -1, -1])
    """
    return descend(tape, target_probs, draft)


def descend(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft, *, replacement: bool = False) -> Verdict:
    """The walk from the context down, in one sweep over the nodes: a node is tried when its parent is where the walk stands.

    Args:
        tape, target_probs, draft: as for ``decide``.
        replacement: whether siblings were drawn with replacement, from one law all; then nothing is removed from it.

    >>> q = torch.tensor([[0.25, 0.75], [0.25, 0.75]])
    >>> twice = Draft(torch.tensor([1, 1]), q, torch.tensor(2), torch.tensor([-1, -1]))
    >>> descend(Tape(torch.tensor([0.9, 0.0]), torch.tensor(0.0)), torch.tensor([[0.5, 0.5]]).expand(3, 2), twice, replacement=True).tokens
    tensor([ 0, -1, -1])
    """
    kept, final, _ = _walk(tape, target_probs, draft, replacement)
    return of_path(draft, torch.stack(kept), final) if kept else of_chain(draft, draft.length, final)


def bounds(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft, verdict: Verdict, *, replacement: bool = False) -> Float[Tensor, "K"]:
    """What each uniform was compared with: min(1, r / c) of the node when its turn came, to the last bit; NaN for nodes that had none.

    >>> q = torch.tensor([[0.0, 0.5, 0.5], [0.0, 0.5, 0.5]])
    >>> p = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> siblings = Draft(torch.tensor([1, 2]), q, torch.tensor(2), torch.tensor([-1, -1]))
    >>> tape = Tape(torch.tensor([0.6, 0.0]), torch.tensor(0.0))
    >>> bounds(tape, p, siblings, decide(tape, p, siblings))
    tensor([0.5000, 0.0000])
    """
    del verdict
    tries = _walk(tape, target_probs, draft, replacement)[2]
    if not tries:
        return target_probs.new_empty(0)
    judged, p, q = (torch.stack(part) for part in zip(*tries, strict=True))
    return where_judged(judged, threshold(lambda u: u * q < p, p))


def _walk(tape: Tape, target_probs: Tensor, draft: Draft, replacement: bool) -> tuple[list[Tensor], Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """Whether each node is kept, the final token, and of each node's turn: whether it came, r and c of its token."""
    parents = parents_of(draft)
    tries = []
    node, law = torch.full_like(draft.length, -1), target_probs[0]
    tried, left, kept = torch.zeros_like(node, dtype=torch.bool), law, []  # tried: a sibling at this node; left: the draft's law without it
    for i in range(parents.shape[0]):
        here = (i < draft.length) & (parents[i] == node)
        token = torch.where(here, draft.tokens[i], 0)
        p = law.gather(0, token[None]).squeeze(0)
        if draft.probs is None:
            drawn = torch.ones_like(p)
            passes, repaired = tape.accept[i] < p, without(law, token)
        else:
            q = draft.probs[i] if replacement else torch.where(tried, left, draft.probs[i])
            drawn = q.gather(0, token[None]).squeeze(0)
            passes, repaired = tape.accept[i] * drawn < p, residual(law, q)
        tries.append((here, p, drawn))
        kept.append(here & passes)
        rejected = here & ~passes
        if draft.probs is not None and not replacement:
            left = torch.where(rejected, without(q, token), left)
        node = torch.where(kept[i], i, node)
        law = torch.where(kept[i], target_probs[i + 1], torch.where(rejected, repaired, law))
        tried = torch.where(here, rejected, tried)
    final = draw(tape.final, law)
    return kept, final, tries


verifier = Verifier(
    name="tree",
    lossless=True,
    law="the target's law p, from the context down; siblings drawn without replacement",
    tape=tape,
    decide=decide,
    verify=door(tape, decide, trees=True),
    trees=True,
    bounds=bounds,
)
