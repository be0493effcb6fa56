"""What an answer must look like: OpenAI's ``response_format``, and ``grammar`` beside it, become the engine's constraint."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from specdec_fn.engine import Constraint
from specdec_fn.serve import fields
from specdec_fn.serve.asked import Served
from specdec_fn.serve.fields import Field, refused
from specdec_fn.serve.refusal import Refusal

__all__ = ["constraint", "formats"]

AGAINST = ("ignore_eos", "min_tokens", "allowed_ids", "bad_words")  # each could forbid the only token that a grammar leaves


def formats(served: Served) -> tuple[Field, ...]:
    """The fields.

    >>> from specdec_fn.serve.limits import Limits
    >>> [field.name for field in formats(Served("m", None, 8, 4, Limits(), "ngram", "token", 5))]
    ['response_format', 'grammar']
    """
    most = served.limits.grammar
    schema = (
        Field("name", fields.text(0, 64), "What the schema is called; it changes nothing."),
        Field("description", fields.text(), "What it is for; it changes nothing."),
        Field("schema", _schema(most), "The schema: an object, or true for any JSON.", needed=True),
        Field("strict", fields.flag(), "Changes nothing: answers always follow the schema."),
    )
    response = (
        Field("type", fields.choice("text", "json_object", "json_schema"), '"text", "json_object" or "json_schema"', needed=True),
        Field("json_schema", fields.record(schema), "With the type json_schema."),
    )
    value = fields.either(
        (str, fields.text(1, most)), (list, fields.listed(fields.text(1, most), 1, most, "texts")), expected="text, or for a choice a list of texts"
    )
    grammar = (
        Field("type", fields.choice("regex", "lark", "choice"), '"regex", "lark" or "choice"', needed=True),
        Field("value", value, "a pattern, a grammar, or a list of texts", needed=True),
    )
    return (
        Field("response_format", fields.record(response), "What the answer must be; needs llguidance, but for the type text."),
        Field("grammar", fields.record(grammar), "The same by a regular expression, a Lark grammar, or a list of texts."),
    )


def constraint(given: Mapping[str, Any], served: Served) -> Constraint | None:
    """The constraint that the fields ask for; None for none.

    Args:
        given: the fields of the request, as they were read.

    Raises:
        Refusal: there are no grammars here, or not this one.

    >>> from specdec_fn.serve.limits import Limits
    >>> constraint({"response_format": {"type": "json_object"}}, Served("m", None, 8, 4, Limits(), "ngram", "token", 5))
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: response_format needs llguidance, which is not installed; expected the extra specdec_fn[grammar] on the server
    """
    response, grammar = given.get("response_format", {"type": "text"}), given.get("grammar")
    kind = response["type"]
    if kind != "json_schema" and "json_schema" in response:
        raise refused("response_format.json_schema", response["json_schema"], f"none with the type {kind}")
    if kind == "json_schema" and "json_schema" not in response:
        raise Refusal("response_format.json_schema is missing; expected one with the type json_schema", param="response_format.json_schema")
    if kind != "text" and grammar is not None:
        raise refused("grammar", grammar, f"none beside the response_format {kind}")
    if kind == "text" and grammar is None:
        return None
    for name in AGAINST:
        if given.get(name):
            raise refused(name, given[name], "none together with a grammar, since the two could leave no token at all")
    if grammar is not None:
        return _made("grammar", served, lambda room, known: _written(room, known, grammar, served.limits.grammar))
    if kind == "json_object":
        return _made("response_format", served, lambda room, known: room.json_object(known))
    return _made("response_format", served, lambda room, known: room.json_schema(known, response["json_schema"]["schema"]))


def _made(param: str, served: Served, make: Callable[[Any, Any], Constraint]) -> Constraint:
    message = f"{param} needs llguidance, which is not installed; expected the extra specdec_fn[grammar] on the server"
    missing = Refusal(message, param=param, code="grammar_not_installed")
    if served.vocabulary is None:
        raise missing
    from specdec_fn import grammar

    try:
        return make(grammar, served.vocabulary())
    except ImportError:  # it is there and cannot be loaded
        raise missing from None
    except (ValueError, RecursionError) as error:
        message = str(error) if isinstance(error, ValueError) else f"{param} is nested too deeply; expected fewer levels"
        raise Refusal(fields.clean(message[:500]), param=param, code="grammar_refused") from None


def _written(room: Any, vocabulary: Any, grammar: Mapping[str, Any], most: int) -> Constraint:
    kind, value = grammar["type"], grammar["value"]
    if (kind == "choice") is isinstance(value, str):
        raise refused("grammar.value", value, "a list of texts with the type choice" if kind == "choice" else f"text with the type {kind}")
    size = len(value.encode()) if isinstance(value, str) else sum(len(one.encode()) for one in value)
    if size > most:
        raise Refusal(f"grammar.value has {size} bytes; expected at most {most}", param="grammar.value")
    made: Constraint = getattr(room, kind)(vocabulary, value)
    return made


def _schema(most: int) -> fields.Kind:
    def read(path: str, value: Any) -> Any:
        if not isinstance(value, Mapping | bool):
            raise refused(path, value, "an object, true or false")
        try:
            size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
        except (ValueError, TypeError, RecursionError):
            raise refused(path, value, "JSON of finite numbers and whole characters, of a few levels") from None
        if size > most:
            raise Refusal(f"{path} has {size} bytes; expected at most {most}", param=path)
        return value

    return fields.Kind({"anyOf": [{"type": "object"}, {"type": "boolean"}]}, read)
