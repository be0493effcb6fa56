"""Splits: how text is cut into words before any merge, for each name that a GGUF file may state in ``tokenizer.ggml.pre``.

A wrong split still decodes to readable text, so it is a fault that no smoke test sees: names are matched exactly and never guessed.
The expressions are the formats' own, as their published tokenizer files state them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

__all__ = ["SPLITS", "Split", "build"]


class Split(NamedTuple):
    """A way of cutting text into words.

    Attributes:
        pattern: the words as a regular expression (Oniguruma syntax); None is GPT-2's own.
        single_digits: every character of Unicode class N stands alone before the pattern is applied.
        whole_words: a word that is itself a token is taken as it is, without merges.
        bos: whether a bos id opens a plain text when the file does not say.
        nfc: the text is first brought to Unicode form NFC.

    >>> SPLITS["smollm"].single_digits
    True
    """

    pattern: str | None = None
    single_digits: bool = False
    whole_words: bool = False
    bos: bool = False
    nfc: bool = False


def _cl100k(digits: str) -> str:
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
    rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return f"{words}|{digits}|{rest}"


SPLITS: Mapping[str, Split] = MappingProxyType(
    {
        "default": Split(),
        "gpt-2": Split(),
        "smollm": Split(single_digits=True),
        "llama-bpe": Split(pattern=_cl100k(r"\p{N}{1,3}"), whole_words=True, bos=True),
        "qwen2": Split(pattern=_cl100k(r"\p{N}"), nfc=True),
    }
)


def build(split: Split) -> "tuple[Normalizer | None, PreTokenizer]":
    """Makes the library's normalizer and pre-tokenizer of a split; the words come out in the byte alphabet.

    >>> [word for word, _ in build(SPLITS["smollm"])[1].pre_tokenize_str("in 1984")]
    ['in', 'Ġ', '1', '9', '8', '4']
    """
    from tokenizers import Regex, normalizers, pre_tokenizers

    steps: list[PreTokenizer] = []
    if split.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    return normalizers.NFC() if split.nfc else None, pre_tokenizers.Sequence(steps)
