"""A proposer that asks a function of yours: any guess at all is lossless, since it is verified as one-hot."""

import operator
from collections.abc import Callable, Sequence

from specdec_fn.random import Key
from specdec_fn.speculate.draft import Draft, chain
from specdec_fn.speculate.proposer import Proposer

__all__ = ["proposer"]


def proposer(fn: Callable[[list[int]], Sequence[int]]) -> Proposer:
    """Drafts the first ``k`` of the ids that ``fn(context)`` returns.

    Args:
        fn: from the committed ids, prompt included, to the ids it expects next. Its randomness, if any, must not be the verifier's.

    Raises:
        TypeError: ``fn`` is not callable; when drafting, ``fn`` returned something other than integers.

    >>> from specdec_fn.random import key
    >>> always = proposer(lambda context: [context[-1]] * 9)
    >>> always.propose(key(0), always.init([]), [3, 4], 2, position=2)[1].tokens
    tensor([4, 4])
    """
    if not callable(fn):
        raise TypeError(f"the drafting function is {fn!r}; expected a callable from a list of ids to a list of ids")

    def init(prompt: Sequence[int]) -> tuple[()]:
        del prompt
        return ()

    def propose(key: Key, state: tuple[()], tokens: Sequence[int], k: int, *, position: int) -> tuple[tuple[()], Draft]:
        del key, position
        drafted = fn(list(tokens))
        try:
            ids = [operator.index(token) for token in drafted]
        except TypeError:
            raise TypeError(f"the drafting function returned {drafted!r}; expected a list of ids") from None
        return state, chain(ids, k)

    return Proposer("scripted", init, propose)
