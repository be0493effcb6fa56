"""The ways to write a grammar: a JSON schema, any JSON object, a regular expression, a Lark grammar, a list of texts."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_fn.engine import Constraint
from specdec_fn.grammar.matching import constraint
from specdec_fn.grammar.vocabulary import Vocabulary

__all__ = ["choice", "json_object", "json_schema", "lark", "regex"]

# Every optional space would make an answer longer without end.
COMPACT: tuple[tuple[str, Any], ...] = (
    ("whitespace_flexible", False),
    ("item_separator", ","),
    ("key_separator", ":"),
    ("lenient", False),
    ("coerce_one_of", False),
)


def json_schema(known: Vocabulary, schema: Mapping[str, Any] | bool) -> Constraint:
    """JSON that satisfies a schema, without optional white space, so that the schema bounds its length where it bounds strings, arrays and numbers.

    Properties come in the order of the schema. References reach nothing outside the schema. Where ``max_tokens`` comes first the text is cut, and is
    no JSON: a string of at most n characters has at most 6 n + 2 bytes (escapes), and a token has at least one.

    Args:
        known: of the model.
        schema: a JSON schema; True allows any JSON.

    Raises:
        TypeError: no mapping, True or False.
        ValueError: no JSON, a keyword that llguidance does not know, nothing that satisfies it, or too much work to follow.

    >>> json_schema(None, {"x-guidance": {}})
    Traceback (most recent call last):
    ...
    ValueError: the schema has 'x-guidance'; expected a schema without it, since it changes how JSON is spaced
    """
    from llguidance import LLMatcher

    if not isinstance(schema, Mapping | bool):
        raise TypeError(f"the schema is {schema!r:.80}; expected a mapping, True or False")
    if schema is False:
        raise ValueError("the schema is False, which nothing satisfies; expected one that something does")
    if schema is not True and "x-guidance" in schema:
        raise ValueError("the schema has 'x-guidance'; expected a schema without it, since it changes how JSON is spaced")
    try:
        options: Any = dict(COMPACT)
        text = json.dumps({} if schema is True else schema, allow_nan=False)
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=options)
    except RecursionError:
        raise ValueError("the schema is nested too deeply; expected fewer levels") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"the schema is not readable as JSON ({error!s:.200}); expected a JSON schema of not too many levels") from None
    return constraint(known, grammar, of="the schema")


def json_object(known: Vocabulary) -> Constraint:
    """Any JSON object, without optional white space; nothing bounds its length but ``max_tokens``.

    Args:
        known: of the model.

    >>> from specdec_fn.grammar import vocabulary
    >>> from specdec_fn.text import Tokenizer
    >>> def decode(ids, skip_special=True):
    ...     return "".join("{}"[i:][:1] for i in ids)
    >>> braces = Tokenizer(lambda text: ["{}".index(sign) for sign in text], decode, None, (2,), 3)
    >>> init, mask, advance = json_object(vocabulary(braces, 3))
    >>> mask(init).tolist(), mask(advance(advance(init, 0), 1)).tolist()
    ([True, False, False], [False, False, True])
    """
    return json_schema(known, {"type": "object"})


def regex(known: Vocabulary, pattern: str) -> Constraint:
    r"""Text that a regular expression matches from its first to its last character (Rust's syntax: no look-around, no back references).

    Args:
        known: of the model.
        pattern: the expression.

    Raises:
        TypeError: no text. ValueError: not an expression, or too much work to follow.

    >>> regex(None, "(a")
    Traceback (most recent call last):
    ...
    ValueError: the regular expression cannot be followed: invalid regex: unclosed group; expected one that llguidance can follow
    """
    from llguidance import LLMatcher

    return constraint(known, LLMatcher.grammar_from_regex(_text(pattern, "the regular expression")), of="the regular expression")


def lark(known: Vocabulary, text: str) -> Constraint:
    """Text of a context-free grammar in llguidance's variant of Lark, whose first rule is ``start``; control tokens cannot be asked for.

    Args:
        known: of the model.
        text: the grammar.

    Raises:
        TypeError: no text. ValueError: not a grammar, or too much work to follow.

    >>> lark(None, "start: other")
    Traceback (most recent call last):
    ...
    ValueError: the Lark grammar cannot be followed: at 1(8): unknown name: "other"; expected one that llguidance can follow
    """
    from llguidance import LLMatcher

    return constraint(known, LLMatcher.grammar_from_lark(_text(text, "the Lark grammar")), of="the Lark grammar")


def choice(known: Vocabulary, texts: Sequence[str]) -> Constraint:
    """One of some texts.

    Args:
        known: of the model.
        texts: at least one.

    Raises:
        TypeError: no sequence of texts. ValueError: none, or too much work to follow.

    >>> choice(None, [])
    Traceback (most recent call last):
    ...
    ValueError: the choice has no texts; expected at least one
    """
    from llguidance import LLMatcher

    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise TypeError(f"the choice is {texts!r:.80}; expected a sequence of texts")
    if not texts:
        raise ValueError("the choice has no texts; expected at least one")
    pattern = "|".join(_literal(_text(one, "a text of the choice")) for one in texts)
    return constraint(known, LLMatcher.grammar_from_regex(pattern), of="the choice")


def _literal(text: str) -> str:
    return "".join(f"\\x{{{ord(sign):x}}}" if sign.isascii() and not sign.isalnum() else sign for sign in text)


def _text(given: Any, what: str) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{what} is {given!r:.80}; expected text")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is {given!r:.80}, with a lone surrogate; expected text that can be written as UTF-8") from None
    return given
