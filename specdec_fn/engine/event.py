"""What a step says has happened: for each request that got tokens or ended, one event."""

from typing import NamedTuple

from specdec_fn.engine.generation import Generation
from specdec_fn.speculate.explain import Explained

__all__ = ["Event"]


class _Four(NamedTuple):
    request_id: int
    tokens: list[int]
    logprobs: list[float]
    finish_reason: str | None


class Event(_Four):
    """One request's part of a step. It is the tuple of its first four fields, and has the others beside them.

    Attributes:
        request_id: whose.
        tokens: ids that the step emitted for it.
        logprobs: for each, the log softmax of the unprocessed logits at its prefix, in nats.
        finish_reason: "stop", "length" or "error", or None while it goes on.
        text: text that became final; it may lag behind the tokens.
        kinds: accepted, recovered, bonus or plain, one for each id.
        generation: the whole of it, with the last event.
        why: how the pass's tokens came to be; None unless the request has ``explain``.
        likeliest: for each id the ``request.logprobs`` likeliest ids there with their log-probabilities; None where none are asked for.
        proposed: tokens that were drafted in this pass and verified.

    >>> request_id, tokens, logprobs, finish_reason = Event(3, [5], [-0.1], None, text="so")
    >>> request_id, Event(3, [5], [-0.1], None, text="so").text
    (3, 'so')
    """

    text: str
    kinds: list[str]
    generation: Generation | None
    why: Explained | None
    likeliest: list[dict[int, float]] | None
    proposed: int

    def __new__(
        cls,
        request_id: int,
        tokens: list[int],
        logprobs: list[float],
        finish_reason: str | None,
        *,
        text: str = "",
        kinds: list[str] | None = None,
        generation: Generation | None = None,
        why: Explained | None = None,
        likeliest: list[dict[int, float]] | None = None,
        proposed: int = 0,
    ) -> "Event":
        made = super().__new__(cls, request_id, tokens, logprobs, finish_reason)
        made.text, made.kinds, made.generation = text, [] if kinds is None else kinds, generation
        made.why, made.likeliest, made.proposed = why, likeliest, proposed
        return made
