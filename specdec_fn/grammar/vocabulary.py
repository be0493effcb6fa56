"""A tokenizer as llguidance sees it: the bytes of every id, and which ids a grammar over text may use."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from specdec_fn.text import Tokenizer
from specdec_fn.typing import Bool, Tensor

__all__ = ["Vocabulary", "vocabulary"]


class Vocabulary(NamedTuple):
    """What grammars of one model share; nobody changes it.

    Attributes:
        tokens: llguidance's ``LLTokenizer``.
        text: Bool [V], ids that stand for bytes of text; control tokens, ids without text and ids past the tokenizer's are not among them.
        ends: Bool [V], ids that end an answer.
    """

    tokens: Any
    text: Bool[Tensor, "vocab"]
    ends: Bool[Tensor, "vocab"]


def vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """Reads the bytes of every id, which takes some tenths of a second for 49,152; one is enough for all grammars of a model.

    Where a tokenizer has no ``token_bytes``, the bytes are those of the text that an id adds behind another one, and an id that adds no whole
    characters is left out.

    Args:
        tokenizer: of the model.
        vocab_size: columns of the model's logits, at least the tokenizer's size.

    Raises:
        ImportError: llguidance is not installed.
        ValueError: the sizes do not fit, or no id ends an answer, so that a grammar could never end one.

    >>> def decode(ids, skip_special=True):
    ...     return "".join("ab"[i:][:1] for i in ids)
    >>> letters = Tokenizer(lambda text: [ord(sign) - 97 for sign in text], decode, None, (2,), 3)
    >>> made = vocabulary(letters, 4)
    >>> made.text.tolist(), made.ends.tolist()
    ([True, True, False, False], [False, False, True, False])
    """
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ImportError as error:
        raise ImportError("llguidance is not installed; expected the extra specdec_fn[grammar]") from error
    if vocab_size < tokenizer.size:
        raise ValueError(f"vocab_size is {vocab_size}; expected at least the tokenizer's {tokenizer.size}")
    ends = tuple(dict.fromkeys(i for i in tokenizer.eos_ids if 0 <= i < vocab_size))
    if not ends:
        raise ValueError(f"the tokenizer's eos_ids are {tokenizer.eos_ids}; expected an id in [0, {vocab_size}), which ends a finished answer")
    pieces = [*_pieces(tokenizer), *(b"" for _ in range(tokenizer.size, vocab_size))]
    text = torch.tensor([bool(piece) for piece in pieces])
    text[list(ends)] = False
    made = LLTokenizer(TokenizerWrapper(_Backend(tokenizer, pieces, text.tolist(), ends)), n_vocab=vocab_size, eos_token=list(ends))
    return Vocabulary(made, text, torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, torch.tensor(ends), True))


def _pieces(tokenizer: Tokenizer) -> list[bytes]:
    if tokenizer.token_bytes is not None:
        return [tokenizer.token_bytes(i) for i in range(tokenizer.size)]
    # The start of a text may lose its space, so an id is read behind another one.
    first = next((i for i in range(tokenizer.size) if tokenizer.decode([i]).strip("\ufffd ")), 0)
    before = tokenizer.decode([first])
    found = [tokenizer.decode([first, i]) for i in range(tokenizer.size)]
    return [b"" if "\ufffd" in text or not text.startswith(before) else text[len(before) :].encode() for text in found]


class _Backend:
    """The attributes that llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, pieces: Sequence[bytes], text: Sequence[bool], ends: Sequence[int]) -> None:
        self.eos_token_id, self.bos_token_id = ends[0], None
        # An id that is no text gets a name that no grammar can write, so that none can ask for it.
        self.tokens = [piece if kept else b"\xfe%d" % i for i, (piece, kept) in enumerate(zip(pieces, text, strict=True))]
        self.special_token_ids = [i for i, kept in enumerate(text) if not kept]
        self._encode, self._bos = tokenizer.encode, len(tokenizer.encode(""))
        self._ids = {piece: i for i, piece in reversed(list(enumerate(pieces))) if text[i]}
        self._longest = max(map(len, self._ids), default=1)
        self._pieces = pieces

    def __call__(self, text: str | bytes) -> list[int]:
        """How the model would have spelled a text that a grammar leaves no choice about."""
        if isinstance(text, bytes):
            raise TypeError("bytes; expected text")
        wanted = text.encode()
        ids = self._encode(text)[self._bos :]
        if b"".join(self._pieces[i] for i in ids) == wanted:
            return ids
        return self._greedy(wanted)  # the tokenizer rewrites texts, as by a space in front

    def _greedy(self, wanted: bytes) -> list[int]:
        ids: list[int] = []
        while wanted:
            size = next((size for size in range(min(self._longest, len(wanted)), 0, -1) if wanted[:size] in self._ids), 0)
            if not size:
                break
            ids.append(self._ids[wanted[:size]])
            wanted = wanted[size:]
        return ids
