"""Coupled verification: every row emits the winner of its own keyed race; drafted tokens only say how many rows there are to read.

    y_i = argmin over x of E_x(position + i) / p_i(x);   emit y_0, y_1, ...; go on while y_i is the drafted token

The emitted tokens are a function of the request's key and the target: the same for every proposer, every K, and with no speculation at all.
Each is an exact sample of p, since a race's winner has law p. A drafter that runs the same race on its own law q agrees with probability
sum_i 1 / sum_j max(p_j/p_i, q_j/q_i) >= (1 - TV) / (1 + TV). Source: Daliri, Musco, Suresh 2024 (arXiv 2408.07978).
"""

import torch

from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.follow import follow
from specdec_fn.speculate.race import Race, tape, winner
from specdec_fn.speculate.tree import depths
from specdec_fn.speculate.verdict import Verdict
from specdec_fn.speculate.verifier import Verifier, door
from specdec_fn.typing import Float, Tensor

__all__ = ["decide", "verifier"]


def decide(tape: Race, target_probs: Float[Tensor, "rows vocab"], draft: Draft) -> Verdict:
    """The rule itself: a deterministic function of the noise, vmappable, in the dtype of its arguments.

    Args:
        tape: ``noise`` float [K + 1, V], exponential.
        target_probs: float [K + 1, V].
        draft: K tokens, a chain or a tree; its laws are not read.

    Returns:
        The agreeing tokens and the first winner that was not drafted. A row that sums to 0 has no winner and gives -1.

    >>> p = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    >>> decide(Race(torch.tensor([[2.0, 1.0], [1.0, 1.0]])), p, Draft(torch.tensor([1]), None, torch.tensor(1))).tokens
    tensor([1, 0])
    """
    rows = tape.noise
    if draft.parents is not None:  # a node of depth d races for position + d
        rows = rows.index_select(0, torch.nn.functional.pad(depths(draft.parents), (1, 0)))
    return follow(torch.func.vmap(winner)(rows, target_probs), draft)


verifier = Verifier(
    name="coupled",
    lossless=True,
    law="the winner of the target's own keyed race at every position: p, and the same tokens for every proposer and K",
    tape=tape,
    decide=decide,
    verify=door(tape, decide, trees=True),
    trees=True,
)
