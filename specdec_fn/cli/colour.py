"""Streaming text whose colour says how each token came to be."""

from collections.abc import Mapping
from types import MappingProxyType

from rich.console import Console
from rich.text import Text

from specdec_fn.engine.generation import Piece
from specdec_fn.text import Tokenizer, detokenizer

__all__ = ["STYLES", "Painter", "legend"]

STYLES: Mapping[str, str] = MappingProxyType({"accepted": "green", "recovered": "bold magenta", "bonus": "bold cyan", "plain": ""})


class Painter:
    """Prints the pieces of a stream, each token's text in the colour of its kind.

    A piece's text may lag behind its tokens (characters split over tokens, held-back stop strings), so the text of each token is queued
    under its kind and printed only as far as the pieces have released it. ``whole`` is all that was printed.
    """

    def __init__(self, console: Console, tokenizer: Tokenizer, prompt: list[int]) -> None:
        self._console = console
        self._spelling = detokenizer.init(tokenizer, prompt)
        self._queue: list[tuple[str, str]] = []
        self.whole = Text()

    def show(self, piece: Piece) -> None:
        """Prints what ``piece`` releases, in colour on a terminal, character for character elsewhere."""
        for token, kind in zip(piece.tokens, piece.kinds, strict=True):
            self._spelling, text = detokenizer.feed(self._spelling, [token])
            self._queue.append((text, kind))
        painted = self._take(piece.text)
        self.whole.append_text(painted)
        if self._console.is_terminal or self._console.quiet:
            self._console.print(painted, end="", soft_wrap=True, highlight=False)
        else:  # the text itself: print would expand tabs and drop control characters
            self._console.file.write(piece.text)
        self._console.file.flush()

    def _take(self, text: str) -> Text:
        """The released text, coloured; it is a prefix of what is queued, save for the flush of an incomplete character at the end."""
        painted, left = Text(), text
        while left and self._queue:
            queued, kind = self._queue.pop(0)
            painted.append(left[: len(queued)], STYLES[kind])
            if len(queued) > len(left):
                self._queue.insert(0, (queued[len(left) :], kind))
            left = left[len(queued) :]
        return painted.append(left)


def legend() -> Text:
    """One line that explains the colours."""
    words = {"accepted": "accepted draft", "recovered": "recovered from the residual", "bonus": "bonus after a whole draft", "plain": "plain"}
    parts = [Text().append("■ ", STYLES[kind]).append(word) for kind, word in words.items()]
    return Text("   ").join(parts)
