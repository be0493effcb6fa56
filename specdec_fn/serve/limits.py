"""What a server lets a request ask for, and how much it takes on at once."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """The limits of a server; what is over one is refused before anything is held.

    Attributes:
        body: bytes of a request's body.
        max_tokens: most tokens that a choice may ask for; None for what the context leaves.
        choices: prompts times n of one request.
        entries: of an answer: its tokens, and what is told beside each, the likeliest and what was drafted for it.
        messages: of a chat, and parts of one message.
        stop: stop strings of a request.
        stop_length: characters of each.
        logit_bias: entries.
        top_logprobs: likeliest tokens a position.
        k: drafted tokens a pass.
        grammar: bytes of a schema or grammar.
        requests: choices that run or wait at once, of all clients; more are told to come again.
        per_key: of one key; None for no limit but the common one.
        seconds: that a request may take, from its arrival to its end.
        stalled: seconds that a reader may take nothing while there is something for it.
        kept: finished answers that can be read again.
        proposers: names that a request may draft with, besides the server's own.
        lossy: whether a request may name a verifier that does not keep the target's law.
    """

    body: int = 1 << 20
    max_tokens: int | None = None
    choices: int = 16
    entries: int = 200_000
    messages: int = 1024
    stop: int = 16
    stop_length: int = 256
    logit_bias: int = 1024
    top_logprobs: int = 20
    k: int = 16
    grammar: int = 1 << 16
    requests: int = 256
    per_key: int | None = None
    seconds: float = 600.0
    stalled: float = 30.0
    kept: int = 1000
    proposers: tuple[str, ...] = ("none", "ngram", "ngram_tree", "suffix")
    lossy: bool = False
