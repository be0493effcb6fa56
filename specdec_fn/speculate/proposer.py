"""The signature of whatever guesses the next tokens."""

from collections.abc import Callable
from typing import Any, NamedTuple

from specdec_fn.speculate.draft import Draft

__all__ = ["Proposer"]


class Proposer(NamedTuple):
    """A pair of pure functions; the factory that builds it closes over nothing but settings.

    Attributes:
        name: what reports call it.
        init: ``init(prompt: Sequence[int]) -> state``.
        propose: ``propose(key, state, tokens, k, *, position) -> (state, Draft)``: at most ``k`` tokens to follow ``tokens``, all the
            committed ones, prompt included. The state catches up or rolls back by their count. ``position`` is the base of the pass;
            randomness is drawn at ``tape.address(key, DRAFT, position)``, lane i for drafted token i. The draft has at most ``k`` nodes, of
            which ``length`` count.
    """

    name: str
    init: Callable[..., Any]
    propose: Callable[..., tuple[Any, Draft]]
