"""What a client asked for, checked and understood: a value between the wire and the engine."""

from collections.abc import Callable
from typing import Any, NamedTuple

from specdec_fn.engine import Request
from specdec_fn.serve.limits import Limits
from specdec_fn.text import Tokenizer

__all__ = ["Asked", "Served"]


class Served(NamedTuple):
    """What a server serves; whatever reads a request needs of it.

    Attributes:
        model: the name that clients say.
        tokenizer: the model's.
        context: most tokens of a request, prompt and output.
        vocab_size: rows of the head; at least ``tokenizer.size``.
        limits: of requests.
        proposer, verifier, k: how a request speculates that does not say.
        vocabulary: gives what ``specdec_fn.grammar.vocabulary`` makes of the tokenizer; None where llguidance is not installed.
        longest: most bytes of a token, from ``choices.longest``, so that text that is far too long is refused unread; None for no such check.
    """

    model: str
    tokenizer: Tokenizer
    context: int
    vocab_size: int
    limits: Limits
    proposer: str
    verifier: str
    k: int
    vocabulary: Callable[[], Any] | None = None
    longest: int | None = None


class Asked(NamedTuple):
    """A request of a client. Choice ``i`` of prompt ``j`` is request ``j * n + i``, and has that index in the answer.

    Attributes:
        kind: "text_completion" or "chat.completion".
        requests: the engine's, in the order of their indices; their salts are left to the server.
        n: choices of each prompt.
        prompts: ids of each prompt.
        texts: of each prompt, for ``echo``; empty where it is not asked for.
        seed: the request's, given or drawn: request i has it itself where i is 0, and ``batch.seed_of(seed, i)`` otherwise.
        stream, usage: whether to stream, and whether to end a stream with the usage.
        logprobs: whether log-probabilities are told; and beside each, the ``top`` likeliest.
        top: how many; 0 for none.
        explain: whether to tell of every token how it came to be.
        background: whether it goes on when its connection is gone.
    """

    kind: str
    requests: tuple[Request, ...]
    n: int
    prompts: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    seed: int
    stream: bool
    usage: bool
    logprobs: bool
    top: int
    explain: bool
    background: bool
