"""The body of POST /v1/completions, checked and understood."""

from collections.abc import Mapping
from typing import Any

from specdec_fn.serve import choices, controls, fields
from specdec_fn.serve.asked import Asked, Served
from specdec_fn.serve.fields import Field, refused
from specdec_fn.serve.refusal import Refusal

__all__ = ["asked", "table"]

TOKENS = 16  # of an answer whose length is left open, as OpenAI has it


def table(served: Served) -> tuple[Field, ...]:
    """The fields.

    >>> from specdec_fn.serve.limits import Limits
    >>> [field.name for field in table(Served("m", None, 8, 4, Limits(), "ngram", "token", 5)) if field.needed]
    ['model', 'prompt']
    """
    limits = served.limits
    top = min(limits.top_logprobs, served.vocab_size)
    return (
        *controls.common(served),
        Field("prompt", _prompt(served), "text, ids, a list of texts, or a list of lists of ids", needed=True),
        choices.most_tokens("max_tokens", served, f"Most tokens of each choice; {TOKENS} where nothing is said."),
        Field("logprobs", fields.integer(0, top), "Log-probabilities of the tokens, and of so many of the likeliest at each place."),
        Field("echo", fields.flag(), "Begin each choice with its prompt; with logprobs, those of the prompt's tokens too."),
        Field("best_of", fields.integer(1, limits.choices), "The same as n, or nothing."),
        Field("suffix", fields.null("null, since the model cannot write before a given end"), "Nothing."),
    )


def asked(body: Mapping[str, Any], served: Served, seed: int) -> Asked:
    """What a body asks for.

    Args:
        body: the JSON object.
        served: what is served.
        seed: for a body that has none.

    Raises:
        Refusal: what it says cannot be served; ``param`` is the field at fault.

    >>> from specdec_fn.serve.limits import Limits
    >>> served = Served("m", None, 8, 4, Limits(), "ngram", "token", 5)
    >>> asked({"model": "m", "prompt": [1, 2], "max_tokens": 3}, served, 7).requests[0].prompt
    (1, 2)
    """
    controls.checked_model(body, served)
    given = fields.record(table(served)).read("", body)
    if given.get("best_of", given.get("n", 1)) != given.get("n", 1):
        raise refused("best_of", given["best_of"], f"{given.get('n', 1)}, the same as n, since every choice is returned")
    said = given["prompt"]
    prompts = [_ids(path, one, served) for path, one in said]
    logprobs = given.get("logprobs")
    texts = [one if isinstance(one, str) else served.tokenizer.decode(list(one)) for _, one in said] if given.get("echo") else []
    return choices.asked(
        "text_completion",
        given,
        served,
        prompts,
        seed,
        texts=tuple(texts),
        most=("max_tokens", TOKENS),
        logprobs=logprobs is not None,
        top=logprobs or 0,
    )


def _ids(path: str, one: str | tuple[int, ...], served: Served) -> tuple[str, tuple[int, ...]]:
    if not isinstance(one, str):
        return path, one
    choices.checked_bytes(path, len(one.encode()), served)
    try:
        ids = served.tokenizer.encode(one)
    except ValueError as error:
        raise Refusal(fields.clean(str(error)[:500]), param=path) from None
    return path, choices.checked_ids(path, ids, served)


def _prompt(served: Served) -> fields.Kind:
    """Every form of a prompt; read, it is a list of prompts, each with its path."""
    token, most = fields.integer(0, controls.ids_below(served) - 1), served.limits.choices
    ids = fields.listed(token, 1, None, "ids")
    texts, lists = fields.listed(fields.text(), 1, most, "texts"), fields.listed(ids, 1, most, "lists of ids")

    def read(path: str, value: Any) -> list[tuple[str, Any]]:
        if isinstance(value, str):
            return [(path, fields.text().read(path, value))]
        if not isinstance(value, list | tuple) or not value:
            raise refused(path, value, "text, a list of ids, a list of texts, or a list of lists of ids")
        if isinstance(value[0], str | list | tuple):
            several = texts if isinstance(value[0], str) else lists
            return [(f"{path}[{place}]", one) for place, one in enumerate(several.read(path, value))]
        return [(path, ids.read(path, value))]

    return fields.Kind({"anyOf": [fields.text().schema, ids.schema, texts.schema, lists.schema]}, read)
