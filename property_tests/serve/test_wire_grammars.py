"""Grammars on the wire: which field makes which constraint, and what is refused before, or by, the room that makes them."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import specdec_fn
from specdec_fn.engine import Constraint
from specdec_fn.serve import chat, completion
from specdec_fn.serve.asked import Asked
from specdec_fn.serve.limits import Limits
from specdec_fn.serve.refusal import Refusal

from . import wire

SERVED = wire.served(limits=Limits(grammar=60), vocabulary=lambda: "the vocabulary")
BODY = {"model": "toy", "messages": [{"role": "user", "content": "a"}]}


def read(served: Any = SERVED, **body: Any) -> Asked:
    return chat.asked({**BODY, **body}, served, 0)


def refusal(served: Any = SERVED, **body: Any) -> Refusal:
    with pytest.raises(Refusal) as found:
        read(served, **body)
    assert found.value.message.isprintable()
    return found.value


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A room that writes down what it is asked for, as the state of the constraint."""

    def maker(kind: str) -> Any:
        def make(vocabulary: Any, *what: Any) -> Constraint:
            if "bad" in what:
                raise ValueError("the grammar is bad\n; expected a good one")
            return Constraint((kind, vocabulary, *what), print, print)

        return make

    made = SimpleNamespace(**{name: maker(name) for name in ("json_schema", "json_object", "regex", "lark", "choice")})
    monkeypatch.setitem(sys.modules, "specdec_fn.grammar", made)
    monkeypatch.setattr(specdec_fn, "grammar", made, raising=False)


SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, ("json_object", "the vocabulary")),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, ("json_schema", "the vocabulary", SCHEMA)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": True, "strict": True}}},
            ("json_schema", "the vocabulary", True),
        ),
        ({"grammar": {"type": "regex", "value": "a+"}}, ("regex", "the vocabulary", "a+")),
        ({"grammar": {"type": "lark", "value": "start: A"}, "response_format": {"type": "text"}}, ("lark", "the vocabulary", "start: A")),
        ({"grammar": {"type": "choice", "value": ["a", "b"]}}, ("choice", "the vocabulary", ("a", "b"))),
    ],
)
def test_what_is_made(body: dict[str, Any], expected: tuple[Any, ...]) -> None:
    (one,) = read(**body).requests
    assert one.constraint is not None
    assert one.constraint.init == expected
    several = completion.asked({"model": "toy", "prompt": ["a", "b"], "n": 2, **body}, SERVED, 0).requests
    assert len({id(each.constraint.init) for each in several if each.constraint}) == 1


def test_text_needs_nothing() -> None:
    bare = wire.served()
    assert read(bare, response_format={"type": "text"}).requests[0].constraint is None
    missing = refusal(bare, response_format={"type": "json_object"})
    assert (missing.status, missing.code, missing.param) == (400, "grammar_not_installed", "response_format")
    assert "specdec_fn[grammar]" in missing.message


DEEP: Any = {}
for _ in range(3000):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"grammar": {"type": "regex", "value": "bad"}}, "grammar"),
        ({"grammar": {"type": "regex", "value": ["a"]}}, "grammar.value"),
        ({"grammar": {"type": "choice", "value": "a"}}, "grammar.value"),
        ({"grammar": {"type": "choice", "value": []}}, "grammar.value"),
        ({"grammar": {"type": "choice", "value": ["a", ""]}}, "grammar.value[1]"),
        ({"grammar": {"type": "choice", "value": ["a" * 40, "b" * 21]}}, "grammar.value"),
        ({"grammar": {"type": "regex", "value": "é" * 31}}, "grammar.value"),
        ({"grammar": {"type": "regex", "value": "a"}, "response_format": {"type": "json_object"}}, "grammar"),
        *(({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}, "response_format.json_schema.schema")
          for schema in (5, [], "x", {"a": "b" * 60}, {"a": "\ud800"}, {"a": float("nan")}, DEEP)),
        *(({"response_format": {"type": "json_object"}, **more}, next(iter(more)))
          for more in ({"ignore_eos": True}, {"min_tokens": 1}, {"allowed_ids": [3]}, {"bad_words": [3]})),
    ],
)  # fmt: skip
def test_what_is_refused(body: dict[str, Any], param: str) -> None:
    assert refusal(**body).param == param


def test_controls_that_take_nothing_away_go_with_a_grammar() -> None:
    body = {"ignore_eos": False, "min_tokens": 0, "bad_words": [], "logit_bias": {"1": 5}, "top_k": 3}
    assert read(response_format={"type": "json_object"}, **body).requests[0].constraint is not None
