"""From what was read to the engine's requests, one for each choice of each prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec_fn.batch import seed_of
from specdec_fn.engine import Request
from specdec_fn.serve import constraints, controls, speculating
from specdec_fn.serve.asked import Asked, Served
from specdec_fn.serve.fields import Field, clean, integer, refused
from specdec_fn.serve.refusal import Refusal
from specdec_fn.text import Tokenizer

__all__ = ["asked", "checked_bytes", "checked_ids", "longest", "most_tokens"]


def most_tokens(name: str, served: Served, about: str) -> Field:
    """A field that says how many tokens an answer may have; its description knows the context, which is refused with a code of its own.

    >>> from specdec_fn.serve.limits import Limits
    >>> most_tokens("max_tokens", Served("m", None, 8, 4, Limits(), "ngram", "token", 5), "").kind.schema["maximum"]
    7
    """
    most, room = served.limits.max_tokens, max(1, served.context - 1)  # a prompt has a token
    kind = integer(1, room if most is None else min(room, most))

    def read(path: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and room < value and (most is None or value <= most):
            message = f"{path} is {clean(str(value)[:40])}; expected at most {room}, what a context of {served.context} leaves beside a prompt"
            raise Refusal(message, param=path, code="context_length_exceeded")
        length: int = kind.read(path, value)
        return length

    return Field(name, kind._replace(read=read), about)


def longest(tokenizer: Tokenizer) -> int | None:
    """The most bytes that one token stands for, for ``Served.longest``; None where a tokenizer does not tell bytes. Looks at every token, once.

    >>> longest(Tokenizer(None, None, None, (), 3, lambda id, skip_special=True: (b"a", b"bc", b"d")[id]))
    2
    """
    told = tokenizer.token_bytes
    return None if told is None else max((len(told(id, skip_special=False)) for id in range(tokenizer.size)), default=None)


def checked_bytes(path: str, size: int, served: Served) -> None:
    """Refuses text for its size alone, as the encoding of what cannot fit the context would take seconds.

    Were every token the longest there is, the context would hold ``served.context * served.longest`` bytes. More could fit only if the tokenizer
    dropped or joined most of them, which is refused all the same.

    Args:
        path: of the text.
        size: its bytes in UTF-8.

    Raises:
        Refusal: there are more than that.

    >>> from specdec_fn.serve.limits import Limits
    >>> checked_bytes("prompt", 17, Served("m", None, 8, 4, Limits(), "ngram", "token", 5, longest=2))
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: prompt has 17 bytes; expected at most 16, what a context of 8 tokens of at most 2 bytes can hold
    """
    if served.longest is not None and size > served.context * served.longest:
        holds = f"what a context of {served.context} tokens of at most {served.longest} bytes can hold"
        message = f"{path} has {size} bytes; expected at most {served.context * served.longest}, {holds}"
        raise Refusal(message, param=path, code="context_length_exceeded")


def checked_ids(path: str, ids: Sequence[int], served: Served) -> tuple[int, ...]:
    """The ids of a prompt, of which there must be some, and which the model must know.

    Raises:
        Refusal: there are none, or one is unknown.

    >>> from specdec_fn.serve.limits import Limits
    >>> checked_ids("prompt", [3], Served("m", None, 8, 4, Limits(), "ngram", "token", 5))
    (3,)
    """
    if not ids:
        raise Refusal(f"{path} is empty; expected at least one token", param=path)
    below = controls.ids_below(served)
    if not 0 <= min(ids) <= max(ids) < below:
        raise Refusal(f"{path} has an id outside [0, {below}); expected what the model can read", param=path)
    return tuple(ids)


def asked(
    kind: str,
    given: Mapping[str, Any],
    served: Served,
    prompts: Sequence[tuple[str, tuple[int, ...]]],
    seed: int,
    *,
    texts: tuple[str, ...] = (),
    most: tuple[str, int | None],
    logprobs: bool = False,
    top: int = 0,
) -> Asked:
    """The request as a value.

    Args:
        kind: as ``Asked.kind``.
        given: the fields, as they were read.
        prompts: ids, each with the path of its field.
        seed: for a request that has none.
        texts: of the prompts, for ``echo``.
        most: the name of the field that says how many tokens, and how many are taken where it says nothing; None for all that are left, by the
            context and by ``Limits.entries``.
        logprobs, top: as in ``Asked``.

    Raises:
        Refusal: what cannot be served.

    >>> from specdec_fn.serve.limits import Limits
    >>> served = Served("m", None, 8, 4, Limits(), "ngram", "token", 5)
    >>> asked("text_completion", {}, served, [("prompt", (1, 2))], 7, most=("max_tokens", None)).requests[0].max_tokens
    6
    """
    n, own = given.get("n", 1), given.get("seed", seed)
    if n * len(prompts) > served.limits.choices:
        message = f"{len(prompts)} prompts with n {n} make {n * len(prompts)} choices; expected at most {served.limits.choices}"
        raise Refusal(message, param="n" if len(prompts) == 1 else "prompt")
    usage, ends, sampling = controls.usage(given), controls.stop_ids(given), controls.sampling(given, served)
    how = speculating.settled(given, served, sampling)
    each, echoed = 1 + top + (how.k if how.explain else 0), sum(len(ids) for _, ids in prompts) if texts else 0
    share = (served.limits.entries // (n * each) - echoed) // len(prompts)
    lengths = [_length(given, served, path, len(ids), *most, max(1, share)) for path, ids in prompts]
    tokens = n * (sum(lengths) + echoed)
    if tokens * each > served.limits.entries:
        fits = f", as with {most[0]} {share}" if share > 0 else ""
        message = f"the answer may have {tokens} tokens, of {each} entries each; expected at most {served.limits.entries} entries{fits}"
        raise Refusal(message, param=most[0])
    if sampling.min_tokens > min(lengths):
        raise refused("min_tokens", sampling.min_tokens, f"at most {min(lengths)}, the most tokens of the answer")
    stop = given.get("stop", ())
    constraint = constraints.constraint(given, served)  # the slow part comes last
    requests = [
        Request(
            ids,
            length,
            sampling,
            seed=own if not place else seed_of(own, place),
            stop_ids=ends,
            stop=(stop,) if isinstance(stop, str) else stop,
            ignore_eos=given.get("ignore_eos", False),
            k=how.k,
            proposer=how.proposer,
            verifier=how.verifier,
            priority=given.get("priority", 0),
            logprobs=top,
            prompt_logprobs=logprobs and bool(texts),
            constraint=constraint,
            explain=how.explain,
        )
        for place, (length, ids) in enumerate((length, ids) for length, (_, ids) in zip(lengths, prompts, strict=True) for _ in range(n))
    ]
    return Asked(
        kind=kind,
        requests=tuple(requests),
        n=n,
        prompts=tuple(ids for _, ids in prompts),
        texts=texts,
        seed=own,
        stream=given.get("stream", False),
        usage=usage,
        logprobs=logprobs,
        top=top,
        explain=how.explain,
        background=given.get("background", False),
    )


def _length(given: Mapping[str, Any], served: Served, path: str, size: int, name: str, default: int | None, share: int) -> int:
    """How many tokens an answer to a prompt of so many may have; at most ``share`` where nothing is said."""
    left = served.context - size
    if left < 1:
        message = f"{path} has {size} tokens; expected at most {served.context - 1}, so that one more fits the context"
        raise Refusal(message, param=path, code="context_length_exceeded")
    wanted = given.get(name)
    if wanted is None:
        return min(limit for limit in (left, share, default, served.limits.max_tokens) if limit is not None)
    if wanted > left:
        message = f"{name} is {wanted} after {size} tokens of {path}; expected at most {left}, what is left of a context of {served.context}"
        raise Refusal(message, param=name, code="context_length_exceeded")
    length: int = wanted
    return length
