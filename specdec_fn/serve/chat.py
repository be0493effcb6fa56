"""The body of POST /v1/chat/completions, checked and understood."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec_fn.serve import choices, controls, fields, foreign
from specdec_fn.serve.asked import Asked, Served
from specdec_fn.serve.fields import Field, refused
from specdec_fn.serve.refusal import Refusal

__all__ = ["asked", "table"]


def table(served: Served) -> tuple[Field, ...]:
    """The fields.

    >>> from specdec_fn.serve.limits import Limits
    >>> [field.name for field in table(Served("m", None, 8, 4, Limits(), "ngram", "token", 5)) if field.needed]
    ['model', 'messages']
    """
    top, most = min(served.limits.top_logprobs, served.vocab_size), served.limits.messages
    about = "Most tokens of each choice; what the context leaves where nothing is said."
    return (
        *controls.common(served),
        Field(
            "messages",
            fields.listed(_message(most), 1, most, "messages"),
            "a list of messages with role and content",
            needed=True,
        ),
        choices.most_tokens("max_completion_tokens", served, about),
        choices.most_tokens("max_tokens", served, "The older name of max_completion_tokens."),
        Field("logprobs", fields.flag(), "Log-probabilities of the tokens."),
        Field("top_logprobs", fields.integer(0, top), "So many of the likeliest at each place; needs logprobs."),
        *foreign.chat(),
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
    >>> from specdec_fn.text import Tokenizer
    >>> tokenizer = Tokenizer(None, None, lambda messages: [len(one["content"]) for one in messages], (0,), 4)
    >>> served = Served("m", tokenizer, 8, 4, Limits(), "ngram", "token", 5)
    >>> asked({"model": "m", "messages": [{"role": "user", "content": "Hi!"}]}, served, 7).requests[0].prompt
    (3,)
    """
    controls.checked_model(body, served)
    given = fields.record(table(served)).read("", body)
    old, new = given.get("max_tokens"), given.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise refused("max_tokens", old, f"{new}, the same as max_completion_tokens, or one of the two")
    logprobs, top = given.get("logprobs", False), given.get("top_logprobs", 0)
    if top and not logprobs:
        raise refused("top_logprobs", top, "none without logprobs")
    most = "max_tokens" if new is None else "max_completion_tokens"
    ids = _ids(given["messages"], served)
    return choices.asked("chat.completion", given, served, [("messages", ids)], seed, most=(most, None), logprobs=logprobs, top=top)


def _ids(messages: Sequence[Mapping[str, str]], served: Served) -> tuple[int, ...]:
    if served.tokenizer.chat is None:
        raise Refusal("the model has no chat template; expected a prompt for /v1/completions", param="messages")
    choices.checked_bytes("messages", sum(len(one["content"].encode()) for one in messages), served)
    try:
        ids = served.tokenizer.chat(list(messages))
    except ValueError as error:
        raise Refusal(fields.clean(str(error)[:500]), param="messages") from None
    return choices.checked_ids("messages", ids, served)


def _message(most: int) -> fields.Kind:
    """A message; read, it has the role and the whole text, as templates take them."""
    roles = fields.choice("system", "developer", "user", "assistant", why=", since no tools are called here")
    content = fields.either((str, fields.text()), (list, fields.listed(_part(), 1, most, "parts")), expected="text, or a list of parts of text")
    none = fields.absent("none, since messages are text alone")
    nothing = fields.null("null, since messages are a role and a text alone")
    inner = fields.record(
        (
            Field("role", roles, '"system", "developer", "user" or "assistant"', needed=True),
            Field("content", content, "text, or a list of parts of text", needed=True),
            *(Field(name, nothing) for name in ("name", "refusal", "tool_call_id")),
            *(Field(name, none) for name in ("tool_calls", "function_call", "audio", "annotations")),
        )
    )

    def read(path: str, value: Any) -> dict[str, str]:
        given = inner.read(path, value)
        role, said = given["role"], given["content"]
        return {"role": "system" if role == "developer" else role, "content": said if isinstance(said, str) else "".join(said)}

    return inner._replace(read=read)


def _part() -> fields.Kind:
    """A part of a message; read, it is its text."""
    words = fields.choice("text", why=", since the model reads text alone")
    inner = fields.record((Field("type", words, '"text"', needed=True), Field("text", fields.text(), "text", needed=True)))

    def read(path: str, value: Any) -> str:
        if isinstance(value, Mapping) and value.get("type") is not None:
            words.read(f"{path}.type", value["type"])  # an image has other fields, which are not what is wrong
        text: str = inner.read(path, value)["text"]
        return text

    return inner._replace(read=read)
