"""Where a generation ends: stop ids, stop strings and the token limit, applied token by token inside whatever a pass emitted.

A pass may emit several tokens and the end may be any of them, so the tokens behind it are dropped here, after verification; plain decoding
goes through the same function one token at a time, which is why the two end at the same place.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from specdec_fn.text import Tokenizer, detokenizer, stop

__all__ = ["Ending", "Kept", "feed", "init"]


class Ending(NamedTuple):
    """How far a generation has come and what would end it.

    Attributes:
        left: tokens that may still be emitted.
        minimum: tokens that must still come before a stop string counts (stop ids are forbidden by the law itself until then).
        stop_ids: ids that end it.
        spelling: the detokenizer's state, or None without a tokenizer.
        matching: the stop-string matcher's state, or None without a tokenizer.
    """

    left: int
    minimum: int
    stop_ids: frozenset[int]
    spelling: Any
    matching: Any


class Kept(NamedTuple):
    """What is kept of a pass.

    Attributes:
        size: how many of its tokens stay, the first ones.
        text: text that is final now.
        finish_reason: "stop", "length", or None while the generation goes on.
    """

    size: int
    text: str
    finish_reason: str | None


def init(
    tokenizer: Tokenizer | None,
    prompt: Sequence[int],
    *,
    count: int,
    min_tokens: int = 0,
    stop_ids: Sequence[int] = (),
    stop_strings: Sequence[str] = (),
) -> Ending:
    """The state before the first token.

    Args:
        tokenizer: spells the tokens; None emits no text.
        prompt: ids that come before, for tokenizers whose spelling depends on them.
        count: most tokens to emit.
        min_tokens: stop strings count only from this many tokens on.
        stop_ids, stop_strings: what ends the generation.

    >>> feed(init(None, [], count=3, stop_ids=[9]), [4, 9, 5])[1]
    Kept(size=2, text='', finish_reason='stop')
    """
    spelling = None if tokenizer is None else detokenizer.init(tokenizer, prompt)
    matching = None if tokenizer is None else stop.init(stop_strings)
    return Ending(count, min_tokens, frozenset(stop_ids), spelling, matching)


def feed(ending: Ending, tokens: Sequence[int]) -> tuple[Ending, Kept]:
    """Takes what a pass emitted, up to the end if the end is in it.

    A stop id as the last allowed token counts as "stop", not "length". The stop's own text is never released; text that was held back is,
    when the generation ends otherwise.

    >>> feed(init(None, [], count=2), [4, 5, 6])[1]
    Kept(size=2, text='', finish_reason='length')
    """
    parts: list[str] = []
    for size, token in enumerate(tokens, start=1):
        ending = ending._replace(left=ending.left - 1, minimum=max(ending.minimum - 1, 0))
        if token in ending.stop_ids:
            return ending, Kept(size, "".join([*parts, _rest(ending)]), "stop")
        ending, text, hit = _spell(ending, token)
        parts.append(text)
        if hit:
            return ending, Kept(size, "".join(parts), "stop")
        if ending.left == 0:
            return ending, Kept(size, "".join([*parts, _rest(ending)]), "length")
    return ending, Kept(len(tokens), "".join(parts), None)


def _spell(ending: Ending, token: int) -> tuple[Ending, str, bool]:
    if ending.spelling is None:
        return ending, "", False
    spelling, text = detokenizer.feed(ending.spelling, [token])
    if ending.minimum > 0:  # not yet: the text passes by the matcher
        return ending._replace(spelling=spelling), text, False
    matching, safe, hit = stop.feed(ending.matching, text)
    return ending._replace(spelling=spelling, matching=matching), safe, hit


def _rest(ending: Ending) -> str:
    """Text still held when a generation ends without a stop string."""
    if ending.spelling is None:
        return ""
    matching, safe, hit = stop.feed(ending.matching, detokenizer.finish(ending.spelling))
    return safe if hit else safe + stop.finish(matching)
