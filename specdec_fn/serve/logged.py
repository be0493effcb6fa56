"""What the log keeps of a request, and what a later server makes of it: the same request, whatever its own defaults are."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specdec_fn.serve import chat, completion
from specdec_fn.serve.asked import Asked, Served
from specdec_fn.serve.journal import Entry
from specdec_fn.serve.refusal import Refusal

__all__ = ["PARSERS", "logged", "unlogged"]

PARSERS = {"completions": completion.asked, "chat": chat.asked}


def logged(body: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """What was sent, and how what it left open was settled: the seed, how it speculates, and how long each choice may be.

    Args:
        body: what the client sent.
        asked: what that came to.

    >>> from specdec_fn.serve.limits import Limits
    >>> served = Served("m", None, 8, 4, Limits(), "ngram", "token", 5)
    >>> body = {"model": "m", "prompt": [1, 2], "max_tokens": 3}
    >>> logged(body, completion.asked(body, served, 7))["lengths"]
    [3]
    """
    one = asked.requests[0]
    verifier = one.verifier if one.verifier is None or isinstance(one.verifier, str) else one.verifier.name
    how = {"proposer": one.proposer, "verifier": verifier, "k": one.k, "explain": one.explain}
    return {"sent": dict(body), "seed": asked.seed, "speculation": how, "lengths": [request.max_tokens for request in asked.requests]}


def unlogged(entry: Entry, served: Served) -> Asked:
    """What a logged request asks for, whatever the model is called by now.

    Raises:
        Refusal: this server cannot serve it.

    >>> from specdec_fn.serve.limits import Limits
    >>> served = Served("m", None, 8, 4, Limits(), "ngram", "token", 5)
    >>> body = {"model": "m", "prompt": [1, 2], "max_tokens": 3}
    >>> asked = completion.asked(body, served, 7)
    >>> unlogged(Entry("a", "completions", b"", 0, logged(body, asked)), served._replace(model="n", proposer="suffix", k=1)) == asked
    True
    """
    settled = entry.body
    try:
        body = {**settled["sent"], "model": served.model, "seed": settled["seed"], "speculation": settled["speculation"]}
        asked = PARSERS[entry.route](body, served, 0)
        requests = [replace(request, max_tokens=length) for request, length in zip(asked.requests, settled["lengths"], strict=True)]
    except (LookupError, TypeError, ValueError) as error:
        raise Refusal(f"it is not as this server logs requests ({error})") from None
    return asked._replace(requests=tuple(requests))
