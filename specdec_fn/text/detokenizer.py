"""Streaming text: ids in as they come, text out as soon as it is certain.

The pieces of text, joined, are what decoding all the ids at once gives, however the ids are cut into calls. A character that is spread over
tokens comes out when its last byte does; bytes that no byte to come can make a character come out as U+FFFD. What is kept between calls is
bounded, so a token costs the same at any length.
"""

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from specdec_fn.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "feed", "finish", "init"]

_LOST = "\ufffd"
_WINDOW = 16  # more tokens than can hang on one another: a character has at most four bytes
_REPEATS = 4  # more than any decoder takes away at the start of a text
_SYNCED = 3  # UTF-8 forgets: where its reader stands after three bytes does not depend on what was before them


class Detokenizer(NamedTuple):
    """A stream's state.

    Attributes:
        tokenizer: the tokenizer.
        skip_special: whether special tokens are left out.
        tail: bytes of a character that is not yet complete; or, for a tokenizer without ``token_bytes``, the last few ids.
        given: characters of ``decode(tail)`` that have been given out (0 where ``tail`` is bytes).
    """

    tokenizer: Tokenizer
    skip_special: bool
    tail: bytes | tuple[int, ...]
    given: int


def init(tokenizer: Tokenizer, prompt: Sequence[int] = (), *, skip_special: bool = True) -> Detokenizer:
    """Begins a stream that continues the text of a prompt; the prompt's own text is not repeated.

    A character that the prompt leaves incomplete is given whole when the stream completes it.

    Args:
        tokenizer: any tokenizer; ``token_bytes`` is used where it has one, and ``decode`` of a few ids otherwise.
        prompt: ids before the stream.
        skip_special: whether special tokens are left out, as in ``decode``.

    Raises:
        ValueError: an id that the tokenizer does not have.

    >>> encode, decode = lambda text: list(text.encode()), lambda ids, skip_special=True: bytes(ids).decode("utf-8", "replace")
    >>> tokenizer = Tokenizer(encode, decode, None, (), 256)
    >>> state, text = feed(init(tokenizer, encode("a")), [0xC3])
    >>> text, feed(state, [0xA9])[1]
    ('', 'é')
    """
    if tokenizer.token_bytes is not None:
        pending = b""
        for i in reversed(prompt):
            pending = tokenizer.token_bytes(i, skip_special=skip_special) + pending
            if len(pending) >= _SYNCED:
                break
        return Detokenizer(tokenizer, skip_special, pending[codecs.utf_8_decode(pending, "replace", False)[1] :], 0)
    state = Detokenizer(tokenizer, skip_special, (), 0)
    tail: list[int] = []
    for i in reversed(prompt):
        if _matters(state, i):
            tail.insert(0, i)
        if len(tail) == _WINDOW:
            break
    text = _decode(state, tuple(tail))
    return _trimmed(state._replace(tail=tuple(tail), given=len(text.rstrip(_LOST))), text)


def feed(state: Detokenizer, ids: Sequence[int]) -> tuple[Detokenizer, str]:
    """Takes the next ids and gives the text that has become certain.

    Raises:
        ValueError: an id that the tokenizer does not have; the state that came in is still good.

    >>> tokenizer = Tokenizer(None, lambda ids, skip_special=True: bytes(ids).decode("utf-8", "replace"), None, (), 256)
    >>> feed(init(tokenizer), b"caf\\xc3")[1]
    'caf'
    """
    if state.tokenizer.token_bytes is not None:
        assert isinstance(state.tail, bytes)
        pending = state.tail + b"".join([state.tokenizer.token_bytes(i, skip_special=state.skip_special) for i in ids])
        text, used = codecs.utf_8_decode(pending, "replace", False)
        return state._replace(tail=pending[used:]), text
    out = []
    for i in ids:
        state, text = _step(state, i)
        out.append(text)
    return state, "".join(out)


def finish(state: Detokenizer) -> str:
    """Gives what was held back: U+FFFD if the stream ends inside a character, else nothing.

    >>> tokenizer = Tokenizer(None, lambda ids, skip_special=True: bytes(ids).decode("utf-8", "replace"), None, (), 256)
    >>> finish(feed(init(tokenizer), b"caf\\xc3")[0]) == "\\ufffd"
    True
    """
    if isinstance(state.tail, bytes):
        return state.tail.decode("utf-8", "replace")
    return _decode(state, state.tail)[state.given :]


def _step(state: Detokenizer, i: int) -> tuple[Detokenizer, str]:
    """One id through a tokenizer that only decodes: the difference that it makes to the text of a few ids.

    Trailing U+FFFD may be the beginning of a character and are held. Held for long they are none: all but the last are then given.
    """
    if not _matters(state, i):
        return state, ""
    assert isinstance(state.tail, tuple)
    tail = (*state.tail, i)
    text = _decode(state, tail)
    certain = len(text) - 1 if len(tail) > _WINDOW and text.endswith(_LOST) else len(text.rstrip(_LOST))
    certain = max(certain, state.given)
    return _trimmed(state._replace(tail=tail, given=certain), text), text[state.given : certain]


def _trimmed(state: Detokenizer, text: str) -> Detokenizer:
    """Forgets the ids that can no longer matter. ``text`` is the tail's, ``given`` what is certain of it."""
    assert isinstance(state.tail, tuple)
    if not text.endswith(_LOST):
        # The reader stands between characters. One id is context enough, unless its text by itself is another (bytes of one character, "##ing").
        for n in range(1, len(state.tail)):
            own = _decode(state, state.tail[-n:])
            if own and text.endswith(own):
                return state._replace(tail=state.tail[-n:], given=len(own))
        return state._replace(given=len(text))
    if len(state.tail) <= _WINDOW:
        return state
    tail = state.tail[-_SYNCED:]
    return state._replace(tail=tail, given=len(_decode(state, tail)) - 1)


def _matters(state: Detokenizer, i: int) -> bool:
    # A space that the start of a text takes away has no text alone but has some when repeated; a skipped token has none ever.
    return bool(_decode(state, (i,) * _REPEATS))


def _decode(state: Detokenizer, ids: tuple[int, ...]) -> str:
    return state.tokenizer.decode(list(ids), skip_special=state.skip_special)
