"""Every claim of the quick run holds, and fails when the code that ships is wrong."""

import io
from collections.abc import Callable

import pytest

from specdec_fn.speculate import verifiers
from specdec_proofs import claims, exact, report, sampled
from specdec_proofs.claim import Claim, Figure, settle
from specdec_proofs.enumerate import token
from specdec_proofs.mutants import catalogue

TASKS = {name: (gate, measurement) for name, gate, measurement in (*exact.claims(), *sampled.claims())}


@pytest.mark.parametrize("name", TASKS)
def test_claim(name: str) -> None:
    """D1, D6, D9, D10, D12, D23, L16: the claims hold, each with its figure."""
    gate, measurement = TASKS[name]
    figure = measurement()
    assert figure.passed, f"{name}: {figure.value:g}, gate {gate}; {figure.detail}"


def of(name: str) -> Callable[[], Figure]:
    """The measurement of a claim, made anew."""
    return next(measurement for other, _, measurement in (*exact.claims(), *sampled.claims()) if other == name)


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
    assert not exact._killed(dead)().passed
    assert not sampled._rejected(dead, 0)().passed
    assert not exact._killed(dead._replace(law=token))().passed, "its law is as written down, and it is the right one"
    assert not exact._killed(first._replace(law=second.law))().passed, "wrong, but not as written down"


def test_a_measurement_that_raises_is_a_failed_claim() -> None:
    def broken() -> Figure:
        raise RuntimeError("no such law")

    claim = settle("never", "== 0", broken)
    assert not claim.passed
    assert "no such law" in claim.detail
    assert claim.figure != claim.figure
    assert report.as_json([claim])[0]["figure"] is None


def test_deep_run_goes_on_where_it_stopped() -> None:
    whole = [step.p_values for step in claims.deep_steps(6, 2000)]
    resumed = [step.p_values for step in claims.deep_steps(6, 2000, done=whole[2])]
    assert [len(values) for values in whole] == [1, 2, 3, 4, 5, 6]
    assert resumed == whole[3:]


def test_deep_run_makes_two_claims() -> None:
    said: list[str] = []
    found = claims.deep(10, 5000, progress=said.append)
    assert [claim.passed for claim in found] == [True, True]
    assert "10 of 10" in said[-1]
    with pytest.raises(ValueError, match="expected at least 1"):
        claims.deep(0)


def test_deep_run_fails_on_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers.token, "decide", catalogue()[12].decide())
    assert not claims.deep(10, 20_000)[0].passed


def test_run_yields_as_it_goes() -> None:
    said: list[str] = []
    claim = next(claims.run(progress=said.append))
    assert said == [claim.name]
    assert isinstance(claim, Claim)


def test_report() -> None:
    from rich.console import Console

    some = [Claim("holds", 1.5e-16, "<= 1e-14", True, "N [3]", 0.1), Claim("does not", 0.2, "== 0", False, "", 1.0)]
    console = Console(width=120, color_system=None, file=io.StringIO())
    console.print(report.table(some))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1.5e-16" in text
    assert "passed" in text
    assert "FAILED" in text
    assert "N [3]" in text
    assert "2 claims, 1 failed" in text
    assert report.as_json(some)[1] == {"name": "does not", "figure": 0.2, "gate": "== 0", "passed": False, "detail": "", "seconds": 1.0}
