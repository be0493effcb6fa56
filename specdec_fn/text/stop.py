"""Stop strings in streamed text: release what is certain, hold back what may yet become a stop string, cut at the first that is complete.

The match that is *complete* first in the stream wins, and of two that are complete at the same character the longer, which began earlier. This
depends on the text alone, never on how it was cut into calls. For a single stop string it is the cut at ``text.find(string)``.
"""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Stop", "feed", "finish", "init"]


class Stop(NamedTuple):
    """A matcher's state.

    Attributes:
        strings: the stop strings.
        held: text that may be the beginning of one; always shorter than the longest.
        matched: the stop string that was found, or None.
    """

    strings: tuple[str, ...]
    held: str = ""
    matched: str | None = None


def init(strings: Sequence[str]) -> Stop:
    """Begins to look for stop strings; a single str counts as one of them.

    Raises:
        TypeError: one of them is not a str.
        ValueError: one of them is empty.

    >>> init(["</s>", "User:"])
    Stop(strings=('</s>', 'User:'), held='', matched=None)
    """
    every = (strings,) if isinstance(strings, str) else tuple(strings)
    for string in every:
        if not isinstance(string, str):
            raise TypeError(f"stop: received {string!r}, expected strings")
        if not string:
            raise ValueError("stop: received an empty string, expected strings of at least one character")
    return Stop(every)


def feed(state: Stop, text: str) -> tuple[Stop, str, bool]:
    """Takes more text and gives the text that no stop string can claim any more, and whether one has been found.

    After a find nothing more comes out.

    >>> state, text, hit = feed(init(["beta gamma"]), "alpha bet")
    >>> text, hit, feed(state, "a gamma delta")[1:]
    ('alpha ', False, ('', True))
    """
    if state.matched is not None:
        return state, "", True
    text = state.held + text
    found = [(at + len(string), at, string) for string in state.strings if (at := text.find(string)) >= 0]
    if found:
        _, at, string = min(found)
        return state._replace(held="", matched=string), text[:at], True
    # What was held is no match yet, so a match to come begins in the longest suffix that begins a stop string, or later.
    keep = max((_overlap(text, string) for string in state.strings), default=0)
    return state._replace(held=text[len(text) - keep :]), text[: len(text) - keep], False


def finish(state: Stop) -> str:
    """Gives the text that was held back when the stream ends without a stop string.

    >>> finish(feed(init(["beta gamma"]), "alpha bet")[0])
    'bet'
    """
    return state.held


def _overlap(text: str, string: str) -> int:
    """Length of the longest proper beginning of ``string`` that ``text`` ends with."""
    return next((n for n in range(min(len(string) - 1, len(text)), 0, -1) if text.endswith(string[:n])), 0)
