"""Fields of JSON: what each may be, said once, as a reader that refuses everything else and as the JSON Schema that is published.

Nothing is guessed: true is no number, 1.0 is no whole number, null is the same as absent, and a name that is not known is refused, since a
setting that is silently ignored is worse than none.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from specdec_fn.serve.refusal import Refusal

__all__ = [
    "Field",
    "Kind",
    "absent",
    "choice",
    "clean",
    "either",
    "flag",
    "integer",
    "keyed",
    "listed",
    "null",
    "number",
    "only",
    "pattern",
    "record",
    "refused",
    "shown",
    "text",
]

LONGEST = 64  # characters of a name for which a near one is looked for


class Kind(NamedTuple):
    """What a value may be.

    Attributes:
        schema: the same as JSON Schema; where a rule cannot be written there, the schema lets more through, never less.
        read: ``read(path, value)`` gives the value, or raises the Refusal that names the path.
    """

    schema: Mapping[str, Any]
    read: Callable[[str, Any], Any]


class Field(NamedTuple):
    """A field of an object.

    Attributes:
        name: of the field.
        kind: what it may be; null as well, unless it must be there.
        about: what it means, for the description.
        needed: whether it must be there.
    """

    name: str
    kind: Kind
    about: str = ""
    needed: bool = False


def shown(value: Any) -> str:
    """A value as an error may quote it: short, in JSON's own words, and never an error itself, however large or deep the value is.

    >>> shown(None), shown("a" * 99), shown([1, [2]]), shown(10**5000)
    ('null', '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…"', 'a list of 2', 'a whole number of 16610 bits')
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else f"a whole number of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return f'"{clean(value[:40])}{"…" if len(value) > 40 else ""}"'
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    return f"an object of {len(value)}" if isinstance(value, Mapping) and value else "an empty object" if isinstance(value, Mapping) else "no JSON"


def clean(text: str) -> str:
    """Text that can be written, and read on one line.

    >>> clean("a\\nb")
    'a\\\\nb'
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def refused(path: str, value: Any, expected: str, **more: Any) -> Refusal:
    """The refusal of a value.

    >>> refused("n", 0, "1 to 16").message
    'n is 0; expected 1 to 16'
    """
    return Refusal(f"{path or 'the body'} is {shown(value)}; expected {expected}", param=path or None, **more)


def integer(least: int, most: int) -> Kind:
    """A whole number in a range, both ends of which belong to it.

    >>> integer(1, 16).read("n", True)
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: n is true; expected a whole number from 1 to 16
    """

    def read(path: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise refused(path, value, f"a whole number from {least} to {most}")
        return value

    return Kind({"type": "integer", "minimum": least, "maximum": most}, read)


def number(least: float, most: float, *, above: bool = False) -> Kind:
    """A finite number in a range; with ``above`` the lower end does not belong to it.

    >>> number(0, 1).read("top_p", 1)
    1.0
    """
    lower = "exclusiveMinimum" if above else "minimum"
    expected = f"a number {f'above {least:g}, at most' if above else f'from {least:g} to'} {most:g}"

    def read(path: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most or (above and value == least):
            raise refused(path, value, expected)
        return float(value)

    return Kind({"type": "number", lower: least, "maximum": most}, read)


def flag() -> Kind:
    """True or false.

    >>> flag().read("stream", True)
    True
    """

    def read(path: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise refused(path, value, "true or false")
        return value

    return Kind({"type": "boolean"}, read)


def text(least: int = 0, most: int | None = None) -> Kind:
    """Text of so many characters, that can be written as UTF-8.

    >>> text().read("user", "\\ud800")
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: user is "\\ud800"; expected text that can be written as UTF-8, without halves of surrogate pairs
    """
    lengths = {} if most is None else {"maxLength": most}
    expected = (
        "text" if not least and most is None else f"text of at least {least} characters" if most is None else f"text of {least} to {most} characters"
    )

    def read(path: str, value: Any) -> str:
        if not isinstance(value, str) or len(value) < least or (most is not None and len(value) > most):
            raise refused(path, value, expected)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refused(path, value, "text that can be written as UTF-8, without halves of surrogate pairs") from None
        return value

    return Kind({"type": "string", **({"minLength": least} if least else {}), **lengths}, read)


def choice(*names: str, why: str = "") -> Kind:
    """One of some words; ``why`` is said where it is none of them.

    >>> choice("text", "json_object").read("type", "xml")
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: type is "xml"; expected "text" or "json_object"
    """
    expected = " or ".join(f'"{name}"' for name in names) + why

    def read(path: str, value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise refused(path, value, expected)
        return value

    return Kind({"type": "string", "enum": list(names)}, read)


def pattern(form: str, expected: str) -> Kind:
    """Text of a pattern.

    >>> pattern("[ab]+", "letters a and b").read("x", "ab")
    'ab'
    """

    def read(path: str, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(form, value):
            raise refused(path, value, expected)
        return value

    return Kind({"type": "string", "pattern": f"^({form})$"}, read)


def only(value: Any, why: str) -> Kind:
    """One value alone, as of a control that can be off and nothing else.

    >>> only(False, "false, since nothing is stored").read("store", True)
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: store is true; expected false, since nothing is stored
    """

    def read(path: str, given: Any) -> Any:
        if type(given) is not type(value) or given != value:
            raise refused(path, given, why)
        return given

    return Kind({"const": value}, read)


def absent(why: str) -> Kind:
    """Nothing, or an empty list or object, which clients send for nothing.

    >>> absent("none, since no tools are called").read("tools", [])
    """

    def read(path: str, value: Any) -> None:
        if not isinstance(value, list | dict) or value:
            raise refused(path, value, why)

    return Kind({"anyOf": [{"type": "array", "maxItems": 0}, {"type": "object", "maxProperties": 0}]}, read)


def null(why: str) -> Kind:
    """Nothing but null, which is the same as absent.

    >>> null("null, since there are no names").read("name", "x")
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: name is "x"; expected null, since there are no names
    """

    def read(path: str, value: Any) -> None:
        raise refused(path, value, why)

    return Kind({"type": "null"}, read)


def listed(kind: Kind, least: int, most: int | None, what: str) -> Kind:
    """A list; ``what`` says of what.

    >>> listed(integer(0, 9), 0, 3, "ids").read("ids", [1, 2])
    (1, 2)
    """
    lengths = {} if most is None else {"maxItems": most}
    expected = f"a list of {least} to {most} {what}" if most is not None else f"a list of {what}" + (f", at least {least}" if least else "")

    def read(path: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) < least or (most is not None and len(value) > most):
            raise refused(path, value, expected)
        return tuple([kind.read(f"{path}[{place}]", item) for place, item in enumerate(value)])

    return Kind({"type": "array", "items": kind.schema, "minItems": least, **lengths}, read)


def either(*kinds: tuple[type | tuple[type, ...], Kind], expected: str) -> Kind:
    """One of several kinds, told apart by Python's type of the value.

    >>> either((str, text()), (list, listed(text(), 0, 2, "texts")), expected="text or texts").read("stop", 5)
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: stop is 5; expected text or texts
    """

    def read(path: str, value: Any) -> Any:
        for types, kind in kinds:
            if isinstance(value, types) and (not isinstance(value, bool) or types is bool):
                return kind.read(path, value)
        raise refused(path, value, expected)

    return Kind({"anyOf": [kind.schema for _, kind in kinds]}, read)


def keyed(names: Kind, values: Kind, most: int, expected: str) -> Kind:
    """An object with names that are not known beforehand.

    Args:
        names, values: what its names and values may be.
        most: how many.
        expected: what is said where it is none.

    >>> keyed(text(), number(0, 1), 2, "texts to numbers").read("odds", {"a": 1})
    {'a': 1.0}
    """

    def read(path: str, value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping) or len(value) > most:
            raise refused(path, value, expected)
        return {names.read(path, name): values.read(_joined(path, name), item) for name, item in value.items()}

    return Kind({"type": "object", "propertyNames": names.schema, "additionalProperties": values.schema, "maxProperties": most}, read)


def record(fields: Sequence[Field]) -> Kind:
    """An object with known fields, of which those that are given come out.

    >>> record([Field("top_k", integer(0, 9)), Field("top_p", number(0, 1))]).read("", {"topk": 5})
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: the field "topk" is unknown; expected top_k
    """
    known = {field.name: field for field in fields}

    def read(path: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise refused(path, value, "an object")
        for name in value:
            if name not in known:
                raise _unknown(path, name, known)
        given = {}
        for name, field in known.items():
            item = value.get(name)
            if item is not None:
                given[name] = field.kind.read(_joined(path, name), item)
            elif field.needed:
                received = "null" if name in value else "missing"
                raise Refusal(f"{_joined(path, name)} is {received}; expected {field.about}", param=_joined(path, name))
        return given

    properties = {field.name: _described(field) for field in fields}
    needed = [field.name for field in fields if field.needed]
    return Kind({"type": "object", "properties": properties, "required": needed, "additionalProperties": False}, read)


def _described(field: Field) -> dict[str, Any]:
    schema = dict(field.kind.schema)
    if not field.needed:
        if isinstance(schema.get("type"), str) and "enum" not in schema:
            schema["type"] = [*dict.fromkeys([schema["type"], "null"])]
        else:
            schema = {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "description": field.about} if field.about else schema


def _unknown(path: str, name: Any, known: Mapping[str, Any]) -> Refusal:
    plain = str(name)[:LONGEST].lower().replace("-", "_")
    near = get_close_matches(plain, list(known), 1) if len(str(name)) <= LONGEST else []
    where = f" of {path}" if path else ""
    expected = near[0] if near else f"one of {', '.join(known)}" if path else "a field of /openapi.json"
    return Refusal(f"the field {shown(name)}{where} is unknown; expected {expected}", param=_joined(path, str(name)), code="unknown_field")


def _joined(path: str, name: str) -> str:
    part = clean(name[:LONGEST])
    return f"{path}.{part}" if path else part
