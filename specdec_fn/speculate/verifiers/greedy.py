"""Greedy verification: keep drafted tokens while they are the target's first choice, then emit that choice.

    emit argmax p_0, argmax p_1, ... while the drafted token is the argmax before it; ties go to the lowest id

The emitted tokens are what greedy decoding gives, whatever was drafted. This is p itself where the rows of p are one-hot (temperature 0);
the doors refuse it at other temperatures. Source: Stern et al. 2018 (arXiv 1811.03115).
"""

import torch

from specdec_fn.random import Key
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.follow import follow
from specdec_fn.speculate.tape import Tape
from specdec_fn.speculate.verdict import Verdict
from specdec_fn.speculate.verifier import Verifier, door
from specdec_fn.typing import Float, Tensor

__all__ = ["decide", "tape", "verifier"]


def tape(key: Key, k: int, vocab_size: int, *, position: int | Tensor = 0, dtype: torch.dtype = torch.float64) -> Tape:
    """A tape of zeros: greedy decisions read no randomness.

    >>> from specdec_fn.random import key
    >>> tape(key(0), 2, 10).accept
    tensor([0., 0.], dtype=torch.float64)
    """
    del vocab_size, position
    zeros = torch.zeros(k + 1, dtype=dtype, device=key.words.device)
    return Tape(zeros[:k].clone(), zeros[k].clone())


def decide(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft) -> Verdict:
    """The rule itself; see the room's docstring.

    Args:
        tape: ignored.
        target_probs: float [K + 1, V].
        draft: K tokens, a chain or a tree; its laws are ignored.

    Returns:
        The agreeing tokens and the target's next choice. A row that sums to 0 agrees with nothing and gives -1.

    >>> rows = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.2, 0.8]])
    >>> decide(Tape(torch.zeros(2), torch.zeros(())), rows, Draft(torch.tensor([1, 0]), None, torch.tensor(2))).tokens
    tensor([1, 0, 1])
    """
    del tape
    top, best = target_probs.max(-1)
    return follow(torch.where(top > 0, best, -1), draft)


verifier = Verifier(
    name="greedy",
    lossless=True,
    law="the argmax of each target row, lowest id first: p where the rows are one-hot (temperature 0)",
    tape=tape,
    decide=decide,
    verify=door(tape, decide, trees=True),
    trees=True,
)
