"""What a generation is when it is done, and the pieces it arrives in."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from specdec_fn.speculate.explain import Explained

__all__ = ["Generation", "Pass", "Piece", "Stats", "add_pass"]


class Pass(NamedTuple):
    """One target forward over the last committed token and the drafted ones.

    Attributes:
        tokens: emitted ids.
        kinds: for each, "accepted", "recovered" (from the residual), "bonus" (nothing was drafted behind it) or "plain" (nothing was drafted).
        logprobs: for each, the log softmax of the unprocessed logits at its prefix, in nats.
        proposed: drafted tokens that were verified; the nodes, if the draft was a tree.
        depth: the most of them that one path could keep; None where that is all of them.
        why: how the tokens came to be, where that was asked for.
    """

    tokens: list[int]
    kinds: list[str]
    logprobs: list[float]
    proposed: int
    depth: int | None = None
    why: Explained | None = None


class Piece(NamedTuple):
    """What one pass adds to a stream.

    Attributes:
        text: new text, final once it is here. It may lag behind the tokens: a character may need more tokens, and text that may turn out
            to be the beginning of a stop string is held back.
        tokens: the pass's ids.
        kinds: accepted, recovered, bonus or plain, one for each id.
    """

    text: str
    tokens: list[int]
    kinds: list[str]


class Stats(NamedTuple):
    """Counts of a generation; tokens that fall away behind a stop count nowhere but in ``proposed``.

    Attributes:
        passes: target forwards after the prefill.
        proposed, accepted, emitted: tokens.
        per_position: ``(passes that drafted so far, passes that kept it)`` for each place in the draft, in a tree for each depth.
        seconds: wall time by part: prefill, propose, forward, verify (laws, decision and log-probabilities), text; empty without a clock.
    """

    passes: int = 0
    proposed: int = 0
    accepted: int = 0
    emitted: int = 0
    per_position: tuple[tuple[int, int], ...] = ()
    seconds: Mapping[str, float] = MappingProxyType({})

    @property
    def tokens_per_pass(self) -> float:
        """Emitted / passes; 0 before the first pass."""
        return self.emitted / self.passes if self.passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / proposed; 0 where nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0


class Generation(NamedTuple):
    """A finished generation.

    Attributes:
        tokens: emitted ids; the stop id, or the token that completes a stop string, is the last.
        text: their text without the stop; empty where no tokenizer was given.
        finish_reason: "stop", "length", "abort" or "error".
        logprobs: for each token, the log softmax of the unprocessed logits at its prefix, in nats.
        stats: counts and seconds.
        likeliest: for each token the likeliest ids there with their log-probabilities, where an engine's request asked for them.
        prompt_logprobs: of prompt tokens 1, 2, ..., where asked for.
        error: why it ended, where that is "error".
    """

    tokens: list[int]
    text: str
    finish_reason: str
    logprobs: list[float]
    stats: Stats
    likeliest: list[dict[int, float]] | None = None
    prompt_logprobs: list[float] | None = None
    error: str | None = None


def add_pass(stats: Stats, one: Pass) -> Stats:
    """Counts one pass, of which only the tokens that were kept are in ``one``.

    >>> add_pass(Stats(), Pass([4, 5], ["accepted", "recovered"], [-1.0, -1.0], 3)).per_position
    ((1, 1), (1, 0), (1, 0))
    """
    accepted = sum(kind == "accepted" for kind in one.kinds)
    depth = one.proposed if one.depth is None else one.depth
    places = max(len(stats.per_position), depth)
    padded = stats.per_position + ((0, 0),) * (places - len(stats.per_position))
    counted = tuple((seen + (i < depth), kept + (i < accepted)) for i, (seen, kept) in enumerate(padded))
    return stats._replace(
        passes=stats.passes + 1,
        proposed=stats.proposed + one.proposed,
        accepted=stats.accepted + accepted,
        emitted=stats.emitted + len(one.tokens),
        per_position=counted,
    )
