"""``specdec bench constrained`` on a model of the bytes, and the schemas it draws."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import grammar
from specdec_fn.cli.bench.schemas import longest, schemas

Specdec = Callable[..., Any]
SMALL = ("bench", "constrained", "--schemas", "4", "--batch", "3", "--max-tokens", "90")


@pytest.mark.parametrize("proposer", ["ngram", "none"])
def test_all_answers_follow_their_schemas(specdec: Specdec, tiny: Path, proposer: str) -> None:
    run = specdec(*SMALL, "--model", tiny, "--proposer", proposer, "--json")
    found = json.loads(run.out)
    assert run.code == 0
    assert (found["schemas"], found["valid"], found["faults"], found["passed"]) == (4, 4, [], True)
    assert found["finish_reasons"] == {"stop": 4}
    assert found["tokens_per_pass"] == pytest.approx(found["tokens"] / found["passes"])
    assert (found["proposed"] == 0) is (proposer == "none")
    assert found["ms"]["a mask"] > 0


def test_an_answer_that_does_not_follow_fails(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "json_schema", lambda known, schema: grammar.choice(known, ["{", "[]"]))
    run = specdec(*SMALL, "--model", tiny)
    assert run.code == 1
    assert "gate: 0 of 4 answers follow their schema, all must: FAILED" in run.out
    assert "is no JSON" in run.out or "does not follow its schema" in run.out


@pytest.mark.parametrize("missing", ["jsonschema", "llguidance"])
def test_what_is_not_installed(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    run = specdec(*SMALL, "--model", tiny)
    assert (run.code, run.out) == (2, "")
    assert f"{missing} is not installed" in run.err


def written(schema: dict[str, Any], pick: Callable[[list[Any]], Any]) -> Any:
    """Some value that follows a schema of the kinds that are drawn."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return pick(schema["enum"])
    kind = pick(schema["type"]) if isinstance(schema["type"], list) else schema["type"]
    if kind == "object":
        return {name: written(part, pick) for name, part in schema["properties"].items() if name in schema["required"] or pick([True, False])}
    if kind == "array":
        return [written(schema["items"], pick) for _ in range(pick([schema["minItems"], schema["maxItems"]]))]
    if kind == "string":
        return pick(["a", "\0", "🙂"]) * pick([schema["minLength"], schema["maxLength"]])
    return {"integer": lambda: pick([schema["minimum"], schema["maximum"]]), "boolean": lambda: pick([True, False]), "null": lambda: None}[kind]()


@given(st.integers(0, 10_000), st.integers(40, 300), st.data())
def test_the_longest_text_of_a_schema(seed: int, most: int, data: st.DataObject) -> None:
    for schema in schemas(3, seed, most):
        value = written(schema, lambda options: data.draw(st.sampled_from(options)))
        jsonschema.Draft202012Validator(schema).validate(value)
        assert len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()) <= longest(schema) <= most


def test_schemas_of_every_kind_come() -> None:
    text = json.dumps(schemas(100, 0, 199))
    assert all(f'"{word}"' in text for word in ("enum", "const", "maxLength", "minimum", "boolean", "null", "maxItems"))
    assert any(part.get("type") == "object" for one in schemas(100, 0, 199) for part in one["properties"].values())
    assert any(set(one["properties"]) - set(one["required"]) for one in schemas(100, 0, 199))
