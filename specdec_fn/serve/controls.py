"""The fields that completions and chat share: how to sample, where to stop, and how the answer comes."""

from collections.abc import Mapping
from typing import Any

from specdec_fn.sampling import SamplingParams
from specdec_fn.serve import constraints, fields, foreign, speculating
from specdec_fn.serve.asked import Served
from specdec_fn.serve.fields import Field, refused
from specdec_fn.serve.refusal import Refusal

__all__ = ["checked_model", "common", "ids_below", "sampling", "stop_ids", "usage"]

COOLEST = 1e-6  # a temperature below it divides by what float32 takes for 0
PLAIN = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
LISTS = ("bad_words", "allowed_ids", "min_tokens")


def common(served: Served) -> tuple[Field, ...]:
    """The fields, what each may be, and what it means.

    >>> from specdec_fn.serve.limits import Limits
    >>> served = Served("m", None, 8, 4, Limits(), "ngram", "token", 5)
    >>> next(field for field in common(served) if field.name == "n").kind.read("n", 3)
    3
    """
    limits = served.limits
    token = fields.integer(0, ids_below(served) - 1)
    ids = fields.listed(token, 0, limits.logit_bias, "ids")
    whole = fields.pattern("0|[1-9][0-9]{0,8}", "an id, in digits")
    spelled = fields.text(1, limits.stop_length)
    stop = fields.either(
        (str, spelled), (list, fields.listed(spelled, 0, limits.stop, "texts")), expected=f"text, or a list of at most {limits.stop} texts"
    )
    word = fields.either(
        (int, token), (list, fields.listed(token, 1, limits.stop_length, "ids")), expected=f"an id below {ids_below(served)}, or a list of ids"
    )
    options = (
        Field("include_usage", fields.flag(), "End the stream with the counts of tokens."),
        Field("include_obfuscation", fields.only(False, "false, since chunks are not padded")),
    )
    most = limits.max_tokens or served.context
    bias = fields.keyed(whole, fields.number(-100, 100), limits.logit_bias, f"an object of at most {limits.logit_bias} ids with numbers")
    return (
        Field("model", fields.only(served.model, f'"{served.model}"'), f'"{served.model}"', needed=True),
        Field("stream", fields.flag(), "Send events as the answer grows."),
        Field("stream_options", fields.record(options), "Of a stream."),
        Field("n", fields.integer(1, limits.choices), "Choices of each prompt."),
        Field("seed", fields.integer(-(2**63), 2**63 - 1), "Decides what is drawn; the answer tells it where it is not given."),
        Field("stop", stop, "Texts that end the answer, and are not part of it."),
        Field("stop_ids", ids, "Ids that end the answer."),
        Field("stop_token_ids", ids, "Another name of stop_ids."),
        Field("ignore_eos", fields.flag(), "Go on past the model's own ends."),
        Field("temperature", fields.number(0, 100), "Divides the logits; 0 takes the most probable token."),
        Field("top_p", fields.number(0, 1, above=True), "Keeps the shortest list of likeliest tokens with this mass."),
        Field("top_k", fields.integer(0, 2**31 - 1), "Keeps the k likeliest tokens; 0 keeps all."),
        Field("min_p", fields.number(0, 1), "Keeps tokens of at least this multiple of the largest probability."),
        Field("typical_p", fields.number(0, 1, above=True), "Keeps the most typical tokens with this mass."),
        Field("repetition_penalty", fields.number(0.01, 100), "Divides the positive logits of tokens that were there."),
        Field("presence_penalty", fields.number(-100, 100), "Subtracted from the logits of tokens that were generated."),
        Field("frequency_penalty", fields.number(-100, 100), "Subtracted as often as a token was generated."),
        Field("logit_bias", bias, "From ids, in digits, to what is added to their logits."),
        Field("bad_words", fields.listed(word, 0, limits.logit_bias, "ids or lists of ids"), "What must not appear: ids, or sequences of ids."),
        Field("allowed_ids", fields.listed(token, 1, ids_below(served), "ids"), "The only ids that may appear."),
        Field("min_tokens", fields.integer(0, most), "Nothing ends the answer before."),
        Field("priority", fields.integer(0, 2**31 - 1), "Requests of a lower number are served first."),
        Field("background", fields.flag(), "Go on when the connection is gone; unless it streams, the answer is an id at once."),
        speculating.speculation(served),
        *constraints.formats(served),
        *foreign.common(),
    )


def ids_below(served: Served) -> int:
    """Ids that have text are below this; others are only padding of the vocabulary.

    >>> from specdec_fn.serve.limits import Limits
    >>> ids_below(Served("m", None, 8, 4, Limits(), "ngram", "token", 5))
    4
    """
    return served.vocab_size if served.tokenizer is None else min(served.tokenizer.size, served.vocab_size)


def checked_model(body: Any, served: Served) -> None:
    """Refuses what is no object, or is sent to another model, before anything else is looked at.

    Raises:
        Refusal: 404 for another model, 400 for none.

    >>> from specdec_fn.serve.limits import Limits
    >>> checked_model({"model": "other"}, Served("m", None, 8, 4, Limits(), "ngram", "token", 5))
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: the model is "other"; expected "m"
    """
    if not isinstance(body, Mapping):
        raise refused("", body, "a JSON object")
    name = body.get("model")
    if isinstance(name, str) and name != served.model:
        raise Refusal(f'the model is {fields.shown(name)}; expected "{served.model}"', status=404, param="model", code="model_not_found")


def sampling(given: Mapping[str, Any], served: Served) -> SamplingParams:
    """How to sample.

    Args:
        given: the fields, as they were read.

    Raises:
        Refusal: controls that do not go together.

    >>> from specdec_fn.serve.limits import Limits
    >>> sampling({"top_k": 5}, Served("m", None, 8, 4, Limits(), "ngram", "token", 5)).top_k
    5
    """
    cool = given.get("temperature", 1.0)
    if 0 < cool < COOLEST:
        raise refused("temperature", cool, f"0, or at least {COOLEST:g}")
    bias = {int(name): value for name, value in given.get("logit_bias", {}).items()}
    for token in bias:
        if token >= ids_below(served):
            raise Refusal(f"logit_bias has the id {token}; expected ids below {ids_below(served)}, the vocabulary", param=f"logit_bias.{token}")
    named = {name: given[name] for name in (*PLAIN, *LISTS) if name in given}
    try:
        made = SamplingParams(**{**named, **({"logit_bias": bias} if bias else {})})
    except (TypeError, ValueError) as error:
        param = next((name for name in named if name in str(error)), None)
        raise Refusal(fields.clean(str(error)), param=param) from None
    _leaves_something(made, given, served)
    return made


def _leaves_something(made: SamplingParams, given: Mapping[str, Any], served: Served) -> None:
    """Refuses controls that could leave no token to choose from; the last id of a sequence counts as forbidden."""
    gone = {word if isinstance(word, int) else word[-1] for word in made.bad_words}  # type: ignore[index]
    if made.min_tokens:
        gone |= {*stop_ids(given), *(() if given.get("ignore_eos") else served.tokenizer.eos_ids)}
    if gone and gone.issuperset(range(ids_below(served)) if made.allowed_ids is None else made.allowed_ids):
        param = next(name for name in ("allowed_ids", "bad_words", "min_tokens") if name in given)
        expected = "one that bad_words, and the ends before min_tokens, do not use up"
        raise Refusal(f"{param} could leave no token to choose from; expected {expected}", param=param)


def stop_ids(given: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that end an answer, under the one name or the other.

    Raises:
        Refusal: the two differ.

    >>> stop_ids({"stop_token_ids": (3,)})
    (3,)
    """
    one, other = given.get("stop_ids"), given.get("stop_token_ids")
    if one is not None and other is not None and one != other:
        raise refused("stop_token_ids", other, "the same as stop_ids, or one of the two")
    found: tuple[int, ...] = one if one is not None else other if other is not None else ()
    return found


def usage(given: Mapping[str, Any]) -> bool:
    """Whether a stream ends with its usage.

    Raises:
        Refusal: options of a stream without one.

    >>> usage({"stream": True, "stream_options": {"include_usage": True}})
    True
    """
    options = given.get("stream_options")
    if options and not given.get("stream"):
        raise refused("stream_options", options, "none without stream")
    return bool(options and options.get("include_usage"))
