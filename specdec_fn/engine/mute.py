"""What an engine goes on with that was restored without its tokenizer: the ids that end a text and the ids that have text, and no spelling."""

from collections.abc import Sequence

from specdec_fn.text import Tokenizer

__all__ = ["is_mute", "mute"]


def mute(eos_ids: Sequence[int], size: int) -> Tokenizer:
    """A tokenizer that spells nothing and reads no text.

    >>> mute([2], 9).decode([1]), mute([2], 9).eos_ids
    ('', (2,))
    """
    return Tokenizer(_encode, _decode, _encode, tuple(eos_ids), size)


def is_mute(tokenizer: Tokenizer | None) -> bool:
    """Whether there is a tokenizer, and it is a mute one.

    >>> is_mute(mute([], 9)), is_mute(None)
    (True, False)
    """
    return tokenizer is not None and tokenizer.encode is _encode


def _encode(text: object, *, special: bool = False) -> list[int]:
    raise ValueError("the engine was restored without its tokenizer; expected ids, or restore(..., tokenizer=...)")


def _decode(ids: Sequence[int], *, skip_special: bool = True) -> str:
    return ""
