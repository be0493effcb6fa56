"""The signature of whatever guesses the next tokens.

Whoever only has ``propose`` can use any proposer. A loop or an engine that runs the drafting model of a proposer itself calls ``Drafter.ask``, runs
the model for as many tokens as it is told, and says what was drafted with ``Drafter.told``; a wrapper of proposers wraps these two as well.

Under the verifier ``coupled`` a drafting model runs the verifier's own race, on its own laws, and so agrees as often as the laws do. A proposer that
does is another value, made by ``raced``: what settles a request knows its verifier and chooses.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate.draft import Draft

if TYPE_CHECKING:
    from specdec_fn.models import Model

__all__ = ["Drafter", "Proposer", "raced"]


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
        again: ``again(model, vocab_size, *, race=...) -> Proposer``: the same proposer with another form of the model, which races as this one does
            unless it is told; None: ``draft_model`` with it.
        ask: ``ask(key, state, tokens, k, *, position) -> (state, Draft | int)``, before the model is run: how many tokens it is to draft, at most
            ``k``; or a draft that makes it needless.
        told: ``told(state, tokens, draft) -> state``, after the model was run: what it drafted behind ``tokens``.
        race: whether token i of a draft is the winner of ``race.noise(key, position + i, vocab)`` on its law, as ``coupled`` has it, in place of the
            token at the height drawn at role DRAFT. The laws are the same. With any other verifier such drafts are no independent samples of them.
    """

    model: "Model"
    sampling: SamplingParams
    shares: bool = False
    again: Callable[..., "Proposer"] | None = None
    ask: Callable[..., tuple[Any, Draft | int]] = _all
    told: Callable[..., Any] = _same
    race: bool = False


class Proposer(NamedTuple):
    """A pair of pure functions; the factory that builds it closes over nothing but settings.

    Attributes:
        name: what reports call it.
        init: ``init(prompt: Sequence[int]) -> state``.
        propose: ``propose(key, state, tokens, k, *, position) -> (state, Draft)``: at most ``k`` tokens to follow ``tokens``, all the
            committed ones, prompt included. The state catches up or rolls back by their count. ``position`` is the base of the pass;
            randomness is drawn at ``tape.address(key, DRAFT, position)``, lane i for drafted token i, or is that of the race (``Drafter.race``).
            The draft has at most ``k`` nodes, of which ``length`` count.
        drafter: a proposer that drafts with a model says so here, so that an engine can run it for many requests at once on paged caches;
            None for all others. What an engine runs in place of ``propose`` follows the same laws at the same addresses.
        inner: of a wrapper that does no more than limit drafts, the proposer inside it, for a wrapper that takes its place.
    """

    name: str
    init: Callable[..., Any]
    propose: Callable[..., tuple[Any, Draft]]
    drafter: Drafter | None = None
    inner: "Proposer | None" = None


def raced(proposer: Proposer, race: bool, vocab_size: int) -> Proposer:
    """The proposer whose drafting model runs the race, or does not; one without a drafting model as it is.

    Args:
        proposer: who drafts; its state is good for the result, and the other way round.
        race: whether the request's verifier is ``coupled``.
        vocab_size: the target's number of ids, the size of the laws of a proposer that has to be made again.

    Returns:
        The proposer itself where it does so already. One that says no ``Drafter.again`` races only where something else runs its model.

    Raises:
        ValueError: controls of the drafts that name an id outside the vocabulary.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> from specdec_fn.speculate import verifiers
    >>> from specdec_fn.speculate.proposers import draft_model
    >>> even = toy.bigram(torch.full((8, 8), 1 / 8))  # every law is uniform, the target's as well
    >>> guess = raced(draft_model.proposer(even), True, 8)
    >>> draft = guess.propose(key(0), guess.init([4]), [4], 3, position=1)[1]
    >>> int(verifiers["coupled"].verify(key(0), torch.full((4, 8), 1 / 8, dtype=torch.float64), draft, position=1).accepted)
    3
    """
    drafter = proposer.drafter
    if drafter is None or drafter.race == race:
        return proposer
    if drafter.again is None:
        return proposer._replace(drafter=drafter._replace(race=race))
    return drafter.again(drafter.model, vocab_size, race=race)._replace(name=proposer.name)
