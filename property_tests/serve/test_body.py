"""What the bytes of a body come to: an object, or a refusal that says why."""

import json
from typing import Any

import pytest

from specdec_fn.serve import body
from specdec_fn.serve.refusal import Refusal


def refusal(text: str | bytes) -> Refusal:
    with pytest.raises(Refusal) as found:
        body.parsed(text if isinstance(text, bytes) else text.encode())
    return found.value


def test_an_object_is_as_it_is_written() -> None:
    value: dict[str, Any] = {"a": [1, 2.5, None, True], "b": {"a": "é"}, "": {}}
    assert body.parsed(json.dumps(value).encode()) == value
    assert body.parsed(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the body is not JSON (Expecting value)"),
        ("{", "the body is not JSON"),
        ("[1]", "the body is [1]; expected a JSON object"),
        ("5", "the body is 5"),
        (b"\xff", "the body is not UTF-8 (byte 0)"),
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": -Infinity}', "-Infinity is no number of JSON"),
        ('{"a": ' + "1" * 5000 + "}", "the body is not JSON"),
        ('{"a":' * 200_000, "the body is nested too deeply"),
        ("[" * 200_000, "the body is nested too deeply"),
        ('{"a": 1, "b": 2, "a": 1}', "the name 'a' stands twice"),
        ('{"a": {"b": 1, "c": {}, "c": {}, "b": 2}}', "the name 'c' stands twice"),
    ],
)
def test_what_is_no_object_is_refused(text: str | bytes, said: str) -> None:
    found = refusal(text)
    assert (found.status, "expected a JSON object" in found.message) == (400, True)
    assert said in found.message
    assert len(found.message) < 300


def test_a_name_that_stands_twice_among_many_is_found_in_one_pass() -> None:
    compared = [0]

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared[0] += 1
            return str.__eq__(self, other)  # type: ignore[no-any-return]

    names = [*(Name(f"n{place}") for place in range(1000)), Name("n999")]
    with pytest.raises(ValueError, match="the name 'n999' stands twice"):
        body._once([(name, 1) for name in names])
    assert compared[0] < 10 * len(names)  # each with each would be half a million
    many = ", ".join(f'"n{place}": 1' for place in range(50_000))
    assert "the name 'n49999' stands twice" in refusal(f'{{{many}, "n49999": 2}}').message
