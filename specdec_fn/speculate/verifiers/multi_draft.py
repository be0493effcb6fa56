"""Several drafts of one token, tried one after another: recursive rejection.

With replacement (``multi_draft``): n tokens drawn from one law q; each is accepted with probability min(1, r/q), where r is what the rejections
before it left of p. Without (``multi_draft_without_replacement``): q loses each drawn token and is renormalised. The rule is that of ``tree`` at
one node, and on a tree it is applied at every node. Accepts with probability 1 - prod_j TV(r_j, q). Source: Miao et al. 2023 (SpecInfer, arXiv
2305.09781); without replacement: Chen et al. 2024 (Sequoia, arXiv 2402.12374).
"""

from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.tape import Tape, tape
from specdec_fn.speculate.verdict import Verdict
from specdec_fn.speculate.verifier import Verifier, door
from specdec_fn.speculate.verifiers import tree
from specdec_fn.speculate.verifiers.tree import decide as decide_without_replacement
from specdec_fn.speculate.verifiers.tree import descend
from specdec_fn.typing import Float, Tensor

__all__ = ["bounds", "decide", "decide_without_replacement", "verifier", "without_replacement"]


def decide(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft) -> Verdict:
    """The rule itself, for siblings drawn with replacement; arguments and result as in ``tree.decide``.

    >>> import torch
    >>> p = torch.tensor([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]])
    >>> q = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> twice = Draft(torch.tensor([0, 0]), q, torch.tensor(2), torch.tensor([-1, -1]))
    >>> decide(Tape(torch.tensor([0.6, 0.0]), torch.tensor(0.0)), p, twice).tokens  # after one rejection nothing of p is left on 0
    tensor([ 1, -1, -1])
    """
    return descend(tape, target_probs, draft, replacement=True)


def bounds(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft, verdict: Verdict) -> Float[Tensor, "K"]:
    """What each uniform was compared with, for siblings drawn with replacement; see ``tree.bounds``.

    >>> import torch
    >>> p = torch.tensor([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]])
    >>> q = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> twice = Draft(torch.tensor([0, 0]), q, torch.tensor(2), torch.tensor([-1, -1]))
    >>> tape = Tape(torch.tensor([0.6, 0.0]), torch.tensor(0.0))
    >>> bounds(tape, p, twice, decide(tape, p, twice))
    tensor([0.5000, 0.0000])
    """
    return tree.bounds(tape, target_probs, draft, verdict, replacement=True)


verifier = Verifier(
    name="multi_draft",
    lossless=True,
    law="the target's law p; siblings drawn with replacement",
    tape=tape,
    decide=decide,
    verify=door(tape, decide, trees=True),
    trees=True,
    bounds=bounds,
)
without_replacement = Verifier(
    name="multi_draft_without_replacement",
    lossless=True,
    law="the target's law p; siblings drawn without replacement",
    tape=tape,
    decide=decide_without_replacement,
    verify=door(tape, decide_without_replacement, trees=True),
    trees=True,
    bounds=tree.bounds,
)
