"""Malformed requests without end: some break the server's own description, some are wrong before any field is read."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Wrong", "wrongs"]

JSON = ("Content-Type", "application/json")
ROUTES = ("/v1/completions", "/v1/chat/completions")
# Values of every kind, for fields that expect another.
SCALARS: tuple[Any, ...] = (None, True, False, 0, -1, 1, 0.5, -0.5, 1e308, 10**30, -(10**30), 2**53 + 1, "", "x", "none", "\ud800", "é" * 300)
LISTS: tuple[Any, ...] = ([], [None], [-1], [10**9], ["x"], [[]], [True], ["x"] * 99, [{"role": "user"}], [{"role": 5, "content": "x"}])
OBJECTS: tuple[Any, ...] = ({}, {"x": 1}, {"1": 1}, {"-1": 5}, {"99999999": 1}, {"1": "x"}, {"1": 1e9}, {"type": "x"})
VALUES = SCALARS + LISTS + OBJECTS
NUMBERS = (b"NaN", b"Infinity", b"-Infinity", b"01", b"1" * 5000, b"1e400")
NOWHERE = ("/v1", "/v2/completions", "//", "/v1/completions/x", "/..%2f..%2fetc/passwd", "/%ff", "/v1/embeddings")
METHODS = ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW")
KINDS = ("text/plain", "", "application/xml", "multipart/form-data")


class Wrong(NamedTuple):
    """A request that must be refused.

    Attributes:
        why: what is wrong with it, in a word or two.
        method, path, content, headers: the request.
    """

    why: str
    method: str
    path: str
    content: bytes
    headers: tuple[tuple[str, str], ...]


def wrongs(description: Any, most: int, seed: int) -> Iterator[Wrong]:
    """Malformed requests without end.

    Args:
        description: the server's, of OpenAPI.
        most: bytes that a body may have.
        seed: of what is chosen.
    """
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        raise ValueError("jsonschema is not installed, which decides what is malformed; expected pip install jsonschema") from None

    chance = random.Random(seed)
    checks = {path: Draft202012Validator({**_schema(description, path), "components": description.get("components", {})}) for path in ROUTES}
    while True:
        path = chance.choice(ROUTES)
        if chance.random() < 0.25:
            yield _rude(chance, path, most)
            continue
        body = _mutated(chance, path, _schema(description, path, description))
        if not checks[path].is_valid(body):
            content = json.dumps(body).encode()
            yield Wrong("against the description", "POST", path, content, (JSON,))


def _good(path: str) -> dict[str, Any]:
    what = {"prompt": "Hi"} if path == ROUTES[0] else {"messages": [{"role": "user", "content": "Hi"}]}
    return {"model": "served", "max_tokens": 1, **what}


def _schema(description: Any, path: str, whole: Any = None) -> Any:
    """The schema of a route's body; followed through its reference where the whole description is given."""
    found = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    if whole is not None and "$ref" in found:
        for part in found["$ref"].removeprefix("#/").split("/"):
            whole = whole[part]
        return whole
    return found


def _mutated(chance: random.Random, path: str, schema: Any) -> Any:
    """A good body with one to three fields of other values, absent, or unknown."""
    body, names = _good(path), sorted(schema["properties"])
    for _ in range(chance.randint(1, 3)):
        turn = chance.random()
        if turn < 0.1:
            body.pop(chance.choice(sorted(body)), None)
        elif turn < 0.2:
            body[chance.choice(("Temperature", "max_token", "top-p", "unknown", "", "prompt\n"))] = copy.deepcopy(chance.choice(VALUES))
        else:
            value = copy.deepcopy(chance.choice(VALUES))
            body[chance.choice(names)] = {chance.choice(("type", "k", "x", "proposer")): value} if chance.random() < 0.2 else value
    return body


def _rude(chance: random.Random, path: str, most: int) -> Wrong:
    """Wrong before any field is read."""
    good = json.dumps(_good(path)).encode()
    cut = good[: chance.randrange(len(good))]
    place = chance.randrange(len(good))
    deep = b'{"model":' + b"[" * 5000 + b"]" * 5000 + b"}"
    bodies = (
        ("cut", cut),
        ("not UTF-8", good[:place] + bytes([chance.choice((0x80, 0xC0, 0xFF))]) + good[place:]),
        ("no object", chance.choice((b"[]", b"5", b"null", b'"x"', b"true", b"", b" ", b"{}{}", b"{'a': 1}"))),
        ("no number", good.replace(b'"max_tokens": 1', b'"max_tokens": ' + chance.choice(NUMBERS))),
        ("a name twice", good.replace(b"{", b'{"model": "other", ', 1)),
        ("too deep", deep),
        ("noise", chance.randbytes(chance.randrange(1, 200))),
    )  # fmt: skip
    why, content = chance.choice(bodies)
    other = (
        Wrong(why, "POST", path, content, (JSON,)),
        Wrong(why, "POST", path, content, (JSON,)),
        Wrong("too large", "POST", path, b" " * (most + 1), (JSON,)),
        Wrong("another type", "POST", path, good, (("Content-Type", chance.choice(KINDS)),)),
        Wrong("another method", chance.choice(METHODS), path, b"", ()),
        Wrong("nowhere", "POST", chance.choice(NOWHERE), good, (JSON,)),
        Wrong("nobody's", chance.choice(("GET", "DELETE")), f"/v1/requests/{chance.choice(('x', 'cmpl-0', '%00', '..', 'a' * 500))}", b"", ()),
        Wrong("another model", "GET", f"/v1/models/{chance.choice(('x', '..%2f..%2fetc%2fpasswd', 'served/', '%ff'))}", b"", ()),
        Wrong("another origin", "POST", path, good, (JSON, ("Origin", "http://evil.example"))),
    )  # fmt: skip
    return chance.choice(other)
