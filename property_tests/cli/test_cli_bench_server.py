"""``specdec bench http``, ``clients``, ``malformed`` and ``crash``, with sizes that take seconds."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Specdec = Callable[..., Any]


def room(name: str) -> Any:
    """A module of the bench, whose name is also that of its command."""
    return importlib.import_module(f"specdec_fn.cli.bench.{name}")


def test_http_serves_the_same_texts_both_ways(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("bench", "http", "--model", tiny, "--clients", "3", "--max-tokens", "6", "--repeats", "2", "--proposer", "ngram")
    monkeypatch.setattr(room("http"), "GATE", 0.0)
    run = specdec(*command, "--json")
    found = json.loads(run.out)
    assert (run.code, found["same"]) == (0, True)
    speeds = found["tokens_per_second"]
    assert found["shares"] == pytest.approx([a / b for a, b in zip(speeds["HTTP"], speeds["in process"], strict=True)])
    monkeypatch.setattr(room("http"), "GATE", 1e9)
    run = specdec(*command)
    assert (run.code, "FAILED" in run.out, "every text is the same both ways: True" in run.out) == (1, True, True)


def test_a_crowd_of_clients(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room("clients"), "GATE", 1e9)
    run = specdec("bench", "clients", "--model", tiny, "--clients", "20", "--max-tokens", "8", "--requests", "24", "--json")
    found = json.loads(run.out)
    assert (run.code, found["wrong"], found["live"]) == (0, 0, 0)
    assert (found["right"], found["gone"]) == (17, 3)
    assert found["pages"][0] == found["pages"][1]


def test_malformed_requests_are_refused(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room("malformed"), "GATE", 1e9)
    run = specdec("bench", "malformed", "--model", tiny, "--count", "400", "--json")
    found = json.loads(run.out)
    assert found["others"] == []
    assert (run.code, found["refused"], found["live"]) == (0, 400, 0)
    assert set(found["statuses"]) > {"400", "404", "405", "413", "415"}


def test_malformed_tells_what_was_not_refused(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrongs = room("wrongs")
    good = wrongs.Wrong("nothing at all", "GET", "/health", b"", ())
    monkeypatch.setattr(room("malformed"), "wrongs", lambda *about: iter([good] * 10))
    run = specdec("bench", "malformed", "--model", tiny, "--count", "10")
    assert (run.code, "nothing at all: 200" in run.out, "FAILED" in run.out) == (1, True, True)


def test_a_server_that_is_killed_finishes_what_it_began(specdec: Specdec, tiny: Path) -> None:
    run = specdec("bench", "crash", "--model", tiny, "--clients", "6", "--max-tokens", "240", "--json")
    found = json.loads(run.out)
    assert run.code == 0
    assert found["acknowledged"] > found["before"] >= 1
    assert found["same"] == [True] * found["acknowledged"]
