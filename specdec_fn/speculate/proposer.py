"""The signature of whatever guesses the next tokens."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate.draft import Draft

if TYPE_CHECKING:
    from specdec_fn.models import Model

__all__ = ["Drafter", "Proposer"]


class Drafter(NamedTuple):
    """What an engine needs to run the drafting of a proposer itself, for many requests at once and on paged caches.

    Attributes:
        model: the model that drafts.
        sampling: the controls under which its logits become the laws q.
    """

    model: "Model"
    sampling: SamplingParams


class Proposer(NamedTuple):
    """A pair of pure functions; the factory that builds it closes over nothing but settings.

    Attributes:
        name: what reports call it.
        init: ``init(prompt: Sequence[int]) -> state``.
        propose: ``propose(key, state, tokens, k, *, position) -> (state, Draft)``: at most ``k`` tokens to follow ``tokens``, all the
            committed ones, prompt included. The state catches up or rolls back by their count. ``position`` is the base of the pass;
            randomness is drawn at ``tape.address(key, DRAFT, position)``, lane i for drafted token i. The draft has at most ``k`` nodes, of
            which ``length`` count.
        drafter: a proposer that drafts with a model says so here, so that an engine can run it for many requests at once on paged caches;
            None for all others. What an engine runs in place of ``propose`` follows the same laws at the same addresses.
    """

    name: str
    init: Callable[..., Any]
    propose: Callable[..., tuple[Any, Draft]]
    drafter: Drafter | None = None
