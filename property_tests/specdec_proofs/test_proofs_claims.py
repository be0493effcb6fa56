"""Every claim of the quick run holds, and fails when the code that ships is wrong."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from specdec_fn import random
from specdec_fn.speculate import verifiers
from specdec_proofs import claims, killed, report
from specdec_proofs.claim import Claim, Figure, settle
from specdec_proofs.enumerate import token
from specdec_proofs.mutants import catalogue

LONGER = ("exact rules, longer", "mutants of trees, sampled")
QUICK = [room for room in claims.ROOMS if room.level == claims.QUICK or room.name in LONGER]
TASKS = {name: (gate, measurement) for room in QUICK for name, gate, measurement in room.claims()}


@pytest.mark.parametrize("name", TASKS)
def test_claim(name: str) -> None:
    """D1, D6, D9, D10, D12, D23, L16: the claims hold, each with its figure."""
    gate, measurement = TASKS[name]
    figure = measurement()
    assert figure.passed, f"{name}: {figure.value:g}, gate {gate}; {figure.detail}"


def of(name: str) -> Callable[[], Figure]:
    """The measurement of a claim, made anew."""
    return next(measurement for room in QUICK for other, _, measurement in room.claims() if other == name)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("algorithm and code: mean emitted on the toy", 11),
        ("code: joint TV, float64, V=6 K=3, drafts of varying length", 1),
        ("code: joint TV, float32, zeros, one-hots, ties", 1),
        ("code: token at temperature 0 is greedy", 11),
        ("sampled: joint law, V=3 K=2", 1),
        ("sampled: one law from five proposers", 11),
    ],
)
def test_claims_fail_when_the_shipped_rule_is_wrong(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is exchanged for one that takes recovered tokens from p, or accepts always: the claims must notice."""
    monkeypatch.setattr(verifiers.token, "decide", next(mutant for mutant in catalogue() if mutant.number == number).decide())
    assert not of(name)().passed


@pytest.mark.parametrize(
    ("name", "room", "wrong"),
    [
        ("code: block, joint TV, float64, V=6 K=3, soft q", "block", "residual of token"),
        ("sampled: block, joint law, V=3 K=2", "block", "first failure"),
        ("code: coupled, points of the race won otherwise, V=3 B=4", "coupled", "noise alone"),
        ("code: coupled, verdicts that are not the winners of their rows", "coupled", "row before"),
    ],
)
def test_claims_about_other_rules_fail_when_they_are_wrong(name: str, room: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = next(mutant for mutant in catalogue(room) if wrong in mutant.name)
    decide = mutant.decide()
    monkeypatch.setattr(getattr(verifiers, room), "decide", decide)
    monkeypatch.setattr(verifiers, "all", {**verifiers.all, room: verifiers.all[room]._replace(decide=decide)})
    assert not of(name)().passed


def test_claims_about_keys_and_greedy_fail_when_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    right = verifiers.token.verifier
    monkeypatch.setattr(verifiers.greedy, "decide", verifiers.token.decide)
    assert not of("code: greedy rule, mass off the greedy sequence")().passed
    deaf = right._replace(verify=lambda key, rows, draft, *, position=0: right.verify(key, rows, draft))
    monkeypatch.setattr(verifiers.token, "verifier", deaf)
    assert not of("keys: keyed verdicts that differ from the injected tape")().passed
    monkeypatch.setattr(verifiers.token, "tape", lambda key, k, vocab, *, position=0: right.tape(key, k, vocab))
    assert not of("keys: numbers of a pass that occur twice")().passed


def test_a_mutant_that_does_nothing_is_not_called_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = catalogue()[:2]
    dead = first._replace(edits=())
    assert not killed._killed(dead)().passed
    assert not killed._rejected(dead, random.key(0))().passed
    assert not killed._killed(dead._replace(law=token))().passed, "its law is as written down, and it is the right one"
    assert not killed._killed(first._replace(law=second.law))().passed, "wrong, but not as written down"


def test_a_measurement_that_raises_is_a_failed_claim() -> None:
    def broken() -> Figure:
        raise RuntimeError("no such law")

    claim = settle("never", "== 0", broken)
    assert not claim.passed
    assert "no such law" in claim.detail
    assert claim.figure != claim.figure
    assert report.as_json([claim])[0]["figure"] is None


def test_claims_bear_the_name_and_the_p_value_of_their_test() -> None:
    def at(value: float, p_value: float | None = None) -> Figure:
        return Figure(value, True, "", p_value)

    assert settle("fits", "p > 1e-06", lambda: at(0.3), "sampled")[6:] == ("sampled", 0.3)
    assert settle("smallest of two", "p > 1e-06 (Holm)", lambda: at(0.3, 0.6)).p_value == 0.6
    assert settle("a mutant", "p <= 1e-06", lambda: at(1e-9)).p_value is None, "it is meant to be rejected"
    assert settle("broken", "p > 1e-06", lambda: at(float("nan"))).p_value is None


def room(name: str, level: str, *tasks: str) -> claims.Room:
    return claims.Room(name, level, lambda: [(task, "== 1", lambda: Figure(1.0, True)) for task in tasks], name)


def test_a_level_holds_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = (room("a", claims.QUICK, "a1", "a2"), room("b", claims.DEEP, "b1"), room("c", claims.DEFAULT, "c1"))
    monkeypatch.setattr(claims, "ROOMS", rooms)
    assert [[claim.name for claim in claims.run(level)] for level in claims.LEVELS] == [["a1", "a2"], ["a1", "a2", "c1"], ["a1", "a2", "b1", "c1"]]
    assert [claims.count(level) for level in claims.LEVELS] == [2, 3, 4]
    assert [claim.family for claim in claims.quick()] == ["a", "a"]
    with pytest.raises(ValueError, match="level is 'slow'; expected one of quick, default, deep"):
        next(claims.run("slow"))


def test_settled_claims_are_not_settled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "ROOMS", (room("a", claims.QUICK, "a1", "a2"), room("b", claims.QUICK, "a1")))
    old = Claim("a1", 7.0, "== 1", False, "from before", 9.0, "a")
    said: list[str] = []
    found = list(claims.run(progress=said.append, settled=[old]))
    assert found[0] is old
    assert [claim.figure for claim in found] == [7.0, 1.0, 1.0]
    assert said == ["a2", "a1"]


def test_rooms_have_names_of_their_own_and_claims_too() -> None:
    names = [found.name for found in claims.ROOMS]
    assert len(set(names)) == len(names)
    for found in claims.ROOMS:
        listed = [name for name, _, _ in found.claims()]
        assert len(set(listed)) == len(listed), found.name
        assert found.level in claims.LEVELS


def test_run_yields_as_it_goes() -> None:
    said: list[str] = []
    claim = next(claims.run(progress=said.append))
    assert said == [claim.name]
    assert isinstance(claim, Claim)


def test_a_claim_holds_plain_values_whatever_the_measurement_gave() -> None:
    """A library's own booleans and floats would stop a report that is written as JSON, at its end."""
    claim = settle("from an array", "== 1", lambda: Figure(np.float64(1.0), np.bool_(True)))
    assert json.dumps(report.as_json([claim]))
    assert type(claim.passed) is bool
