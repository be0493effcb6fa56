"""n-gram drafting (prompt lookup): the text has said this before, so it may go on as it did then.

The last n tokens are looked up among all committed ones, longest n first; the tokens after the most recent earlier occurrence are the draft.
No model and no law: the draft is one-hot, which is lossless. Source: Saxena 2023 (prompt lookup decoding).
"""

from array import array
from collections.abc import Iterator, Sequence

from specdec_fn.random import Key
from specdec_fn.speculate.draft import Draft, chain
from specdec_fn.speculate.proposer import Proposer

__all__ = ["match", "matches", "proposer"]


def match(tokens: Sequence[int], n_max: int = 3, n_min: int = 1, k: int = 5) -> list[int]:
    """What followed the most recent earlier occurrence of the last n tokens, for the longest n that occurs.

    Args:
        tokens: committed ids, prompt and output.
        n_max, n_min: longest and shortest suffix to look up.
        k: most tokens to return; the continuation may be shorter, since it ends where ``tokens`` end.

    Raises:
        ValueError: ``n_min`` below 1 or above ``n_max``, or negative ``k``.

    >>> match([1, 2, 3, 4, 9, 1, 2, 5, 6, 1, 2], k=2)
    [5, 6]
    >>> match([7, 7, 7], n_max=2, k=3)
    [7]
    """
    return next(matches(tokens, n_max, n_min, k), [])


def matches(tokens: Sequence[int], n_max: int = 3, n_min: int = 1, k: int = 5) -> Iterator[list[int]]:
    """What followed every earlier occurrence of the last n tokens: longest n first, and for one n the most recent first.

    An occurrence of n tokens is one of fewer, too, so the same continuation may come again. Arguments and errors as for ``match``.

    >>> list(matches([1, 2, 3, 4, 9, 1, 2, 5, 6, 1, 2], n_max=2, n_min=2, k=2))
    [[5, 6], [3, 4]]
    """
    if not 1 <= n_min <= n_max:
        raise ValueError(f"n_min is {n_min} and n_max is {n_max}; expected 1 <= n_min <= n_max")
    if k < 0:
        raise ValueError(f"k is {k}; expected 0 or more tokens to propose")
    return _found(tokens, n_max, n_min, k) if k else iter(())


def _found(tokens: Sequence[int], n_max: int, n_min: int, k: int) -> Iterator[list[int]]:
    words = array("q", tokens)
    text, size = words.tobytes(), words.itemsize
    for n in range(min(n_max, len(words) - 1), n_min - 1, -1):
        suffix = text[-n * size :]
        found = text.rfind(suffix, 0, len(text) - size)
        while found >= 0:
            if found % size == 0:  # a match across the borders of two ids is none
                start = found // size + n
                yield list(words[start : start + k])
            found = text.rfind(suffix, 0, found + len(suffix) - 1)


def proposer(n_max: int = 3, n_min: int = 1) -> Proposer:
    """A proposer that drafts what ``match`` finds; its state is empty, since it searches the committed tokens themselves.

    Raises:
        ValueError: ``n_min`` below 1 or above ``n_max``.

    >>> from specdec_fn.random import key
    >>> ngram = proposer()
    >>> ngram.propose(key(0), ngram.init([]), [1, 2, 3, 1, 2], 3, position=5)[1].tokens
    tensor([3, 1, 2])
    """
    match((), n_max, n_min)

    def init(prompt: Sequence[int]) -> tuple[()]:
        del prompt
        return ()

    def propose(key: Key, state: tuple[()], tokens: Sequence[int], k: int, *, position: int) -> tuple[tuple[()], Draft]:
        del key, position
        return state, chain(match(tokens, n_max, n_min, k), k)

    return Proposer("ngram", init, propose)
