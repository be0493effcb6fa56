"""Text: tokenizers as values, streaming text, chat templates, stop strings."""

from specdec_fn.text import chat, detokenizer, stop, tokenizer, vocabulary
from specdec_fn.text.tokenizer import Tokenizer

__all__ = ["Tokenizer", "chat", "detokenizer", "stop", "tokenizer", "vocabulary"]
