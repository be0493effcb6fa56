"""Pieces: the bytes that each id stands for, and the text of a list of ids.

Where a vocabulary's decoder is a matter of bytes, decoding is one rule: join the bytes, read them as UTF-8, and put U+FFFD for what can never
be a character. So the text of a list does not depend on how the list was cut, and a character that is spread over tokens is never lost.
"""

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["Pieces", "byte_level", "check", "decoder", "from_decoder"]

# GPT-2's printable alphabet for the 256 bytes: printable Latin-1 stands for itself, the rest follow from U+0100 in order.
_PLAIN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_SHIFTED = tuple(byte for byte in range(256) if byte not in _PLAIN)
_TO_BYTES = MappingProxyType({byte: byte for byte in _PLAIN} | {256 + n: byte for n, byte in enumerate(_SHIFTED)} | dict.fromkeys(_SHIFTED, 0xFFFF))


class Pieces(NamedTuple):
    """What ids stand for.

    Attributes:
        table: bytes of each id, b"" for an id without text.
        specials: ids that ``skip_special`` leaves out.
        strip: spaces taken from the very start of a decoded text (vocabularies that put a space before the first word).
    """

    table: tuple[bytes, ...]
    specials: frozenset[int]
    strip: int = 0


def byte_level(token: str) -> bytes:
    """Reads a token written in the byte alphabet of GPT-2; a token with any other character in it is taken as the text it is.

    >>> byte_level("ĠcafÃ©").decode(), byte_level("two words")
    (' café', b'two words')
    """
    try:
        # 0xFFFF stands for the Latin-1 characters outside the alphabet, so that encoding refuses them as it does every other stranger.
        return token.translate(_TO_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "replace")


def check(ids: Iterable[int], size: int) -> list[int]:
    """Returns ids as plain ints.

    Raises:
        TypeError: ids is not a sequence of whole numbers.
        ValueError: an id is outside [0, size).

    >>> check((1, 2), 3)
    [1, 2]
    """
    try:
        out = [operator.index(i) for i in ids]
    except TypeError as error:
        raise TypeError(f"ids: received {ids!r}, expected a sequence of whole numbers") from error
    for i in out:
        if not 0 <= i < size:
            raise ValueError(f"ids: received {i}, expected ids from 0 to {size - 1}")
    return out


def decoder(pieces: Pieces) -> tuple[Callable[..., str], Callable[..., bytes]]:
    """Makes ``decode(ids, *, skip_special=True)`` and ``token_bytes(id, *, skip_special=True)`` of a table.

    >>> decode, token_bytes = decoder(Pieces((b"<s>", b"caf", b"\\xc3", b"\\xa9"), frozenset({0})))
    >>> decode([0, 1, 2, 3]), decode([0, 1, 2], skip_special=False), token_bytes(2)
    ('café', '<s>caf\\ufffd', b'\\xc3')
    """
    table, specials, strip = pieces
    size = len(table)

    def token_bytes(id: int, *, skip_special: bool = True) -> bytes:
        (i,) = check((id,), size)
        return b"" if skip_special and i in specials else table[i]

    def decode(ids: Sequence[int], *, skip_special: bool = True) -> str:
        joined = b"".join([table[i] for i in check(ids, size) if not (skip_special and i in specials)])
        text = joined.decode("utf-8", "replace")
        return text[min(strip, len(text) - len(text.lstrip(" "))) :] if strip else text

    return decode, token_bytes


def from_decoder(decoder_json: Any, tokens: Sequence[str | None], added: frozenset[int], specials: frozenset[int]) -> Pieces | None:
    """Reads the table off a ``tokenizer.json`` decoder, or gives None where that decoder is not a matter of bytes.

    Two kinds are: the byte alphabet (``ByteLevel``), and byte fallback (tokens such as <0xE2>, with a replacement for the space and perhaps a
    space taken from the start). Byte fallback in the library turns *every* byte of a run with one bad byte into U+FFFD, also of its good
    characters, so a later token changes earlier text; here a good character stays good, which is what makes streaming exact.

    Args:
        decoder_json: the decoder's JSON value.
        tokens: text of each id, None for an id without one.
        added: ids of added tokens, which are plain text and not in the byte alphabet.
        specials: ids of special tokens.

    >>> from_decoder({"type": "ByteLevel"}, ["Ġa", "é"], frozenset({1}), frozenset()).table
    (b' a', b'\\xc3\\xa9')
    """
    steps = _flat(decoder_json)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return Pieces(tuple(b"" if t is None else t.encode() if i in added else byte_level(t) for i, t in enumerate(tokens)), specials)
    # Strip before Fuse would work on each token; a pattern that is a Regex, or a strip at the end, is no matter of single tokens either.
    replaced = {"String"}.issuperset(key for step in steps if step["type"] == "Replace" for key in step["pattern"])
    if re.fullmatch(r"(Replace )*ByteFallback Fuse( Strip)?", " ".join(kinds)) is None or not replaced:
        return None
    strip: dict[str, Any] = steps[-1] if kinds[-1] == "Strip" else {"content": " ", "start": 0, "stop": 0}
    if strip["content"] != " " or strip["stop"] != 0:
        return None
    swaps = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
    return Pieces(tuple(b"" if t is None else _fallback(t, swaps) for t in tokens), specials, strip["start"])


def _flat(decoder_json: Any) -> list[Any]:
    if decoder_json is None:
        return []
    return [leaf for step in decoder_json["decoders"] for leaf in _flat(step)] if decoder_json["type"] == "Sequence" else [decoder_json]


def _fallback(token: str, swaps: list[tuple[str, str]]) -> bytes:
    for old, new in swaps:
        token = token.replace(old, new)
    byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token)
    return bytes([int(byte[1], 16)]) if byte else token.encode()
