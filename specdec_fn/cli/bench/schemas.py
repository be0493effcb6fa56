"""JSON schemas drawn from a seed, and the bytes of the longest text that follows one."""

import json
import random
from typing import Any

__all__ = ["longest", "schemas"]

NAMES = ("name", "kind", "size", "count", "open", "tags", "price", "owner", "note", "color", "rank", "since", "place", "parts")
WORDS = ("red", "green", "blue", "low", "high", "new", "used", "north", "south", "none", "été", '"quoted"')
DEEPEST = 2


def schemas(count: int, seed: int, most: int) -> list[dict[str, Any]]:
    """Objects whose longest text has at most some bytes, so at most as many tokens.

    >>> schemas(2, 0, 200) == schemas(2, 0, 200), all(longest(one) <= 200 for one in schemas(20, 1, 200))
    (True, True)
    """
    source, made = random.Random(seed), list[dict[str, Any]]()
    while len(made) < count:
        one = _object(source, 0)
        if longest(one) <= most:
            made.append(one)
    return made


def longest(schema: dict[str, Any]) -> int:
    """Bytes of the longest JSON without optional white space that follows a schema of the kinds drawn here.

    >>> longest({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}})
    19
    """
    if "const" in schema or "enum" in schema:
        # Any character may be written as an escape of six bytes.
        return max(len(json.dumps(one, separators=(",", ":"))) for one in schema.get("enum", [schema.get("const")]))
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return max(_longest(kind, schema) for kind in kinds)


def _longest(kind: str, schema: dict[str, Any]) -> int:
    if kind == "object":
        fields = [len(json.dumps(name)) + 1 + longest(part) for name, part in schema["properties"].items()]
        return 2 + sum(fields) + max(0, len(fields) - 1)
    if kind == "array":
        items = schema["maxItems"]
        return 2 + items * longest(schema["items"]) + max(0, items - 1)
    if kind == "string":
        return 2 + 6 * int(schema["maxLength"])
    if kind == "integer":
        return max(len(str(schema["minimum"])), len(str(schema["maximum"])), 2)
    return {"boolean": 5, "null": 4}[kind]


def _object(source: random.Random, depth: int) -> dict[str, Any]:
    names = source.sample(NAMES, source.randint(1, 5 - depth))
    required = [name for name in names if source.random() < 0.7]
    fields = {name: _any(source, depth + 1) for name in names}
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def _any(source: random.Random, depth: int) -> dict[str, Any]:
    kind = source.choice(("enum", "const", "string", "integer", "boolean", "nullable", "array", "object")[: 8 if depth < DEEPEST else 6])
    if kind == "object":
        return _object(source, depth)
    if kind == "array":
        return {"type": "array", "items": _any(source, DEEPEST), "minItems": source.randint(0, 1), "maxItems": source.randint(1, 3)}
    if kind == "enum":
        return {"enum": source.sample((*WORDS, 1, -20, True, None), source.randint(1, 4))}
    if kind == "const":
        return {"const": source.choice((*WORDS, 7, False, None))}
    if kind == "integer":
        least = source.randint(-50, 1000)
        return {"type": "integer", "minimum": least, "maximum": least + source.randint(0, 2000)}
    if kind == "boolean":
        return {"type": "boolean"}
    size = source.randint(1, 12)
    return {"type": ["string", "null"] if kind == "nullable" else "string", "minLength": source.randint(0, 1), "maxLength": size}
