"""The signature of whatever guesses the next tokens.

Whoever only has ``propose`` can use any proposer. A loop or an engine that runs the drafting model of a proposer itself calls ``Drafter.ask``, runs
the model for as many tokens as it is told, and says what was drafted with ``Drafter.told``; a wrapper of proposers wraps these two as well.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate.draft import Draft

if TYPE_CHECKING:
    from specdec_fn.models import Model

__all__ = ["Drafter", "Proposer"]


def _all(key: Any, state: Any, tokens: Any, k: int, *, position: int) -> tuple[Any, Draft | int]:
    """Every pass is drafted for, as far as it goes."""
    del key, tokens, position
    return state, k


def _same(state: Any, tokens: Any, draft: Draft) -> Any:
    """Nothing is remembered of a draft."""
    del tokens, draft
    return state


class Drafter(NamedTuple):
    """What an engine needs to run the drafting of a proposer itself, for many requests at once and on paged caches.

    Attributes:
        model: the model that drafts.
        sampling: the controls under which its logits become the laws q.
        shares: whether the model reads and writes the target's own keys and values of its layers, where a loop or an engine has them, so that
            it needs no cache of its own and no prompt is read twice. It writes in slots past the committed ones only, and the target's pass
            over the draft writes them again.
        again: ``again(model, vocab_size) -> Proposer``: the same proposer with another form of the model; None: ``draft_model`` with it.
        ask: ``ask(key, state, tokens, k, *, position) -> (state, Draft | int)``, before the model is run: how many tokens it is to draft, at most
            ``k``; or a draft that makes it needless.
        told: ``told(state, tokens, draft) -> state``, after the model was run: what it drafted behind ``tokens``.
    """

    model: "Model"
    sampling: SamplingParams
    shares: bool = False
    again: Callable[..., "Proposer"] | None = None
    ask: Callable[..., tuple[Any, Draft | int]] = _all
    told: Callable[..., Any] = _same


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
        inner: of a wrapper that does no more than limit drafts, the proposer inside it, for a wrapper that takes its place.
    """

    name: str
    init: Callable[..., Any]
    propose: Callable[..., tuple[Any, Draft]]
    drafter: Drafter | None = None
    inner: "Proposer | None" = None
