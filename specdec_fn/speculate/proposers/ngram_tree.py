"""n-gram drafting into a tree: the text has said this before, more than once, and went on differently.

What followed the earlier occurrences of the last n tokens, longest n and most recent first, is merged into one tree of at most k nodes, which one
pass checks. One-hot, as all of them are guesses without a law. Needs a verifier that takes trees, such as ``tree``, ``traversal`` or ``coupled``.
"""

from collections.abc import Sequence
from itertools import islice

from specdec_fn.random import Key
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.proposer import Proposer
from specdec_fn.speculate.proposers import ngram
from specdec_fn.speculate.tree import merge

__all__ = ["candidates", "proposer"]

LOOKED_AT = 64  # occurrences; a token as common as a blank has more than a pass could check


def candidates(tokens: Sequence[int], n_max: int, n_min: int, k: int, branches: int) -> list[list[int]]:
    """The first ``branches`` distinct continuations that ``ngram.matches`` finds, none the beginning of an earlier one.

    >>> candidates([1, 2, 3, 1, 2, 4, 1, 2], 2, 1, 2, 3)
    [[4, 1], [3, 1]]
    """
    found: list[list[int]] = []
    for one in islice(ngram.matches(tokens, n_max, n_min, k), LOOKED_AT):
        if len(found) == branches:
            break
        if one not in (known[: len(one)] for known in found):
            found.append(one)
    return found


def proposer(n_max: int = 3, n_min: int = 1, branches: int = 3) -> Proposer:
    """A proposer that drafts a tree of what followed earlier; its state is empty, since it searches the committed tokens themselves.

    Args:
        n_max, n_min: longest and shortest suffix to look up.
        branches: most continuations.

    Raises:
        ValueError: ``n_min`` below 1 or above ``n_max``, or no branch.

    >>> from specdec_fn.random import key
    >>> wide = proposer()
    >>> draft = wide.propose(key(0), wide.init([]), [1, 2, 3, 1, 2, 4, 1, 2], 4, position=8)[1]
    >>> draft.tokens.tolist(), draft.parents.tolist()
    ([4, 3, 1, 1], [-1, -1, 0, 1])
    """
    ngram.matches((), n_max, n_min)
    if branches < 1:
        raise ValueError(f"branches is {branches}; expected at least 1")

    def init(prompt: Sequence[int]) -> tuple[()]:
        del prompt
        return ()

    def propose(key: Key, state: tuple[()], tokens: Sequence[int], k: int, *, position: int) -> tuple[tuple[()], Draft]:
        del key, position
        return state, merge(candidates(tokens, n_max, n_min, k, branches), k)

    return Proposer("ngram_tree", init, propose)
