"""Whether two tokenizers give the same text to the same ids, which a drafting model and its target must."""

from collections.abc import Callable
from functools import partial
from typing import cast

from specdec_fn.text.tokenizer import Tokenizer

__all__ = ["check_same", "first_difference"]


def first_difference(target: Tokenizer, draft: Tokenizer) -> int | None:
    """The first id that both have and that has another text in the one than in the other; None where there is none.

    >>> def letters(text):
    ...     return Tokenizer(list, lambda ids, skip_special=True: "".join(text[i] for i in ids), None, (), len(text))
    >>> first_difference(letters("abc"), letters("abX")), first_difference(letters("abc"), letters("abcd"))
    (2, None)
    """
    for one in (target, draft):
        if not isinstance(one, Tokenizer):
            raise TypeError(f"one of the tokenizers is {one!r:.80}; expected a Tokenizer, such as load(...)[1]")
    wanted, found = _texts(target, draft)
    return next((token for token in range(min(target.size, draft.size)) if wanted(token) != found(token)), None)


def check_same(target: Tokenizer, draft: Tokenizer) -> None:
    """Refuses a drafting model whose ids mean other texts than the target's.

    One vocabulary may go on where the other ends: ids that only one of the two has are never accepted, or never drafted.

    Args:
        target, draft: the tokenizers of the two models.

    Raises:
        TypeError: not Tokenizers. ValueError: an id that has two texts; the sizes and the first such id are named.

    >>> def letters(text):
    ...     return Tokenizer(list, lambda ids, skip_special=True: "".join(text[i] for i in ids), None, (), len(text))
    >>> check_same(letters("abc"), letters("abcd"))
    >>> check_same(letters("abc"), letters("aXc"))
    Traceback (most recent call last):
    ...
    ValueError: the draft's vocabulary of 3 tokens has 'X' as token 1; expected 'b', as in the target's of 3 tokens
    """
    token = first_difference(target, draft)
    if token is not None:
        other, one = (_shown(text(token)) for text in _texts(target, draft))
        sizes = f"the draft's vocabulary of {draft.size:,} tokens has {one} as token {token}"
        raise ValueError(f"{sizes}; expected {other}, as in the target's of {target.size:,} tokens")


def _texts(*both: Tokenizer) -> list[Callable[[int], bytes]]:
    """From a token to its bytes, control tokens spelled out; to the bytes of its text where not both tokenizers can give bytes."""
    if all(one.token_bytes is not None for one in both):
        return [partial(cast(Callable[..., bytes], one.token_bytes), skip_special=False) for one in both]
    return [partial(_decoded, one) for one in both]


def _decoded(tokenizer: Tokenizer, token: int) -> bytes:
    return tokenizer.decode([token], skip_special=False).encode()


def _shown(text: bytes) -> str:
    """Bytes for a message: text where they are text."""
    try:
        return repr(text.decode())
    except UnicodeDecodeError:
        return repr(text)
