"""Log-probabilities in the two shapes that OpenAI has: parallel lists for completions, a list of entries for chat."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_fn.text import Tokenizer, detokenizer

__all__ = ["entries", "finite", "lists", "pieces", "written"]

NEVER = -9999.0  # what OpenAI writes for a log-probability that JSON has no number for


def finite(logprob: float) -> float:
    """A log-probability as a number of JSON.

    >>> finite(float("-inf"))
    -9999.0
    """
    return logprob if math.isfinite(logprob) else NEVER


def written(tokenizer: Tokenizer, token: int) -> tuple[str, list[int] | None]:
    """A token's text by itself, and its bytes, which for a part of a character are no text.

    Special tokens are written out. An id that only pads the vocabulary, and can be likely but never drawn, has a made-up text and no bytes.

    >>> decode = lambda ids, skip_special=True: bytes(ids).decode("utf-8", "replace")
    >>> written(Tokenizer(None, decode, None, (), 256, lambda id, skip_special=True: bytes([id])), 0xC3)
    ('\ufffd', [195])
    """
    if token >= tokenizer.size:
        return f"<id {token}>", None
    text = tokenizer.decode([token], skip_special=False)
    if tokenizer.token_bytes is None:
        return text, list(text.encode())
    return text, list(tokenizer.token_bytes(token, skip_special=False))


def pieces(state: detokenizer.Detokenizer, tokens: Sequence[int]) -> tuple[detokenizer.Detokenizer, list[str]]:
    """What each token adds to a text; a token in the middle of a character adds nothing.

    >>> decode = lambda ids, skip_special=True: bytes(ids).decode("utf-8", "replace")
    >>> pieces(detokenizer.init(Tokenizer(None, decode, None, (), 256)), list("né".encode()))[1]
    ['n', '', 'é']
    """
    added = []
    for token in tokens:
        state, text = detokenizer.feed(state, [token])
        added.append(text)
    return state, added


def entries(
    tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Sequence[float], likeliest: Sequence[Mapping[int, float]] | None
) -> dict[str, Any]:
    """As chat has them.

    Args:
        tokenizer: spells the tokens.
        tokens, logprobs: of the answer, or of a part of it.
        likeliest: for each the likeliest ids there; None where none are told.

    >>> decode = lambda ids, skip_special=True: bytes(ids).decode()
    >>> entries(Tokenizer(None, decode, None, (), 256), [65], [-0.5], [{66: -0.25}])["content"][0]["top_logprobs"]
    [{'token': 'B', 'logprob': -0.25, 'bytes': [66]}]
    """
    content = []
    for place, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        best = [] if likeliest is None else [_entry(tokenizer, *pair) for pair in _falling(likeliest[place])]
        content.append({**_entry(tokenizer, token, logprob), "top_logprobs": best})
    return {"content": content, "refusal": None}


def lists(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    logprobs: Sequence[float],
    likeliest: Sequence[Mapping[int, float]] | None,
    offsets: Sequence[int],
) -> dict[str, Any]:
    """As completions have them.

    Texts are keys there, so a part of a character is written as OpenAI writes it, ``bytes:\\xf0``, which keeps unlike tokens apart; of tokens that
    still have one text the likeliest is told.

    Args:
        tokenizer: spells the tokens.
        tokens, logprobs: of the answer, or of a part of it.
        likeliest: for each the likeliest ids there, beside which the token itself is told; None where none are told.
        offsets: for each where it begins, in characters of the choice's text.

    >>> decode = lambda ids, skip_special=True: bytes(ids).decode()
    >>> lists(Tokenizer(None, decode, None, (), 256), [65], [-0.5], [{66: -0.25}], [3])["top_logprobs"]
    [{'B': -0.25, 'A': -0.5}]
    """
    told = None
    if likeliest is not None:
        told = [_by_text(tokenizer, best, token, logprob) for best, token, logprob in zip(likeliest, tokens, logprobs, strict=True)]
    return {
        "tokens": [_key(tokenizer, token) for token in tokens],
        "token_logprobs": [finite(logprob) for logprob in logprobs],
        "top_logprobs": told,
        "text_offset": list(offsets),
    }


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    text, spelled = written(tokenizer, token)
    return {"token": text, "logprob": finite(logprob), "bytes": spelled}


def _key(tokenizer: Tokenizer, token: int) -> str:
    text, spelled = written(tokenizer, token)
    if spelled is None or text.encode("utf-8", "replace") == bytes(spelled):
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _by_text(tokenizer: Tokenizer, best: Mapping[int, float], token: int, logprob: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for one, value in [*_falling(best), (token, logprob)]:
        found.setdefault(_key(tokenizer, one), finite(value))
    return found


def _falling(best: Mapping[int, float]) -> list[tuple[int, float]]:
    return sorted(best.items(), key=lambda pair: -pair[1])
