"""The first draft that is not empty: cheap guesses are asked before dear ones.

What was said before is found for nothing, and where it is found it is often right for many tokens; a model is asked only where nothing was found.
"""

from collections.abc import Sequence
from typing import Any

from specdec_fn.random import Key
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.proposer import Proposer, raced

__all__ = ["proposer"]


def proposer(*proposers: Any) -> Proposer:
    """Asks each proposer in turn until one drafts; drafts with and without laws may alternate from pass to pass.

    A proposer that was not asked, since one before it drafted, keeps its state, and catches up when it is asked again.

    Args:
        proposers: at least one; only the last may draft with a model, since what stands behind a model would hardly ever be asked.

    Returns:
        a proposer named after them, as "ngram+quantized", whose state is a tuple of theirs. It has a ``drafter`` if the last one has.

    Raises:
        TypeError: something that is no Proposer. ValueError: none at all, or one with a model that is not the last.

    >>> from specdec_fn.random import key
    >>> from specdec_fn.speculate.proposers import ngram, scripted
    >>> both = proposer(ngram.proposer(), scripted.proposer(lambda context: [9]))
    >>> both.name, [both.propose(key(0), both.init([1]), line, 2, position=2)[1].tokens.tolist() for line in ([1, 2, 1], [1, 2, 3])]
    ('ngram+scripted', [[2, 1], [9, -1]])
    """
    for one in proposers:
        if not isinstance(one, Proposer):
            raise TypeError(f"one of the proposers is {one!r:.80}; expected a Proposer")
    if not proposers:
        raise ValueError("there are no proposers; expected at least one")
    early = [one.name for one in proposers[:-1] if one.drafter is not None]
    if early:
        raise ValueError(f"proposer {early[0]!r} drafts with a model and is not the last; expected it as the last one")
    cheap, last = proposers[:-1], proposers[-1]
    drafter = last.drafter

    def init(prompt: Sequence[int]) -> tuple[Any, ...]:
        return tuple(one.init(prompt) for one in proposers)

    def found(key: Key, state: tuple[Any, ...], tokens: Sequence[int], k: int, position: int) -> tuple[tuple[Any, ...], Draft | None]:
        """Asks all but the last, up to the first that drafts."""
        for place, one in enumerate(cheap):
            own, draft = one.propose(key, state[place], tokens, k, position=position)
            state = (*state[:place], own, *state[place + 1 :])
            if int(draft.length):
                return state, draft
        return state, None

    def propose(key: Key, state: tuple[Any, ...], tokens: Sequence[int], k: int, *, position: int) -> tuple[tuple[Any, ...], Draft]:
        state, draft = found(key, state, tokens, k, position)
        if draft is not None:
            return state, draft
        own, draft = last.propose(key, state[-1], tokens, k, position=position)
        return (*state[:-1], own), draft

    name = "+".join(one.name for one in proposers)
    if drafter is None:
        return Proposer(name, init, propose)

    def again(model: Any, vocab_size: int, *, race: bool = drafter.race) -> Proposer:
        return proposer(*cheap, raced(last, race, vocab_size) if drafter.again is None else drafter.again(model, vocab_size, race=race))

    def ask(key: Key, state: tuple[Any, ...], tokens: Sequence[int], k: int, *, position: int) -> tuple[tuple[Any, ...], Draft | int]:
        state, draft = found(key, state, tokens, k, position)
        if draft is not None:
            return state, draft
        own, wanted = drafter.ask(key, state[-1], tokens, k, position=position)
        return (*state[:-1], own), wanted

    def told(state: tuple[Any, ...], tokens: Sequence[int], draft: Draft) -> tuple[Any, ...]:
        return (*state[:-1], drafter.told(state[-1], tokens, draft))

    return Proposer(name, init, propose, drafter._replace(again=again, ask=ask, told=told))
