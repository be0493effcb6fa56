"""Greedy verification: keep drafted tokens while they are the target's first choice, then emit that choice.

    emit argmax p_0, argmax p_1, ... while the drafted token is the argmax before it; ties go to the lowest id

The emitted tokens are what greedy decoding gives, whatever was drafted. This is p itself where the rows of p are one-hot (temperature 0);
the doors refuse it at other temperatures. Source: Stern et al. 2018 (arXiv 1811.03115), theory A2.
"""

import torch

from specdec_fn.random import Key
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.tape import Tape
from specdec_fn.speculate.verdict import Verdict, of_chain
from specdec_fn.speculate.verifier import Verifier, check
from specdec_fn.typing import Float, Tensor

__all__ = ["decide", "tape", "verifier", "verify"]


def tape(key: Key, k: int, vocab_size: int, *, position: int | Tensor = 0, dtype: torch.dtype = torch.float64) -> Tape:
    """A tape of zeros: greedy decisions read no randomness.

    >>> from specdec_fn.random import key
    >>> tape(key(0), 2, 10).accept
    tensor([0., 0.], dtype=torch.float64)
    """
    del key, vocab_size, position
    return Tape(torch.zeros(k, dtype=dtype), torch.zeros((), dtype=dtype))


def decide(tape: Tape, target_probs: Float[Tensor, "rows vocab"], draft: Draft) -> Verdict:
    """The rule itself; see the room's docstring.

    Args:
        tape: ignored.
        target_probs: float [K + 1, V].
        draft: a chain of K tokens; its laws are ignored.

    Returns:
        The agreeing tokens and the target's next choice. A row that sums to 0 agrees with nothing and gives -1.

    >>> rows = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.2, 0.8]])
    >>> decide(Tape(torch.zeros(2), torch.zeros(())), rows, Draft(torch.tensor([1, 0]), None, torch.tensor(2))).tokens
    tensor([1, 0, 1])
    """
    del tape
    k = draft.tokens.shape[0]
    top, best = target_probs.max(-1)
    best = torch.where(top > 0, best, -1)
    drafted = torch.arange(k, device=draft.tokens.device) < draft.length
    accepted = (drafted & (draft.tokens == best[:k]) & (best[:k] >= 0)).cumprod(0).sum()
    return of_chain(draft, accepted, best.index_select(0, accepted[None]).squeeze(0))


def verify(key: Key, target_probs: Float[Tensor, "rows vocab"], draft: Draft, *, position: int | Tensor = 0) -> Verdict:
    """Validates and decides; the key is not read.

    Raises:
        ValueError: shapes or ids that do not fit, rows that are no laws, or a tree.

    >>> from specdec_fn.random import key
    >>> verify(key(0), torch.tensor([[0.1, 0.9], [1.0, 0.0]]), Draft(torch.tensor([0]), None, torch.tensor(1))).tokens
    tensor([ 1, -1])
    """
    check(target_probs, draft, chain=True)
    k, vocab = draft.tokens.shape[0], target_probs.shape[1]
    return decide(tape(key, k, vocab, position=position, dtype=target_probs.dtype), target_probs, draft)


verifier = Verifier(
    name="greedy",
    lossless=True,
    law="the argmax of each target row, lowest id first: p where the rows are one-hot (temperature 0)",
    tape=tape,
    decide=decide,
    verify=verify,
)
