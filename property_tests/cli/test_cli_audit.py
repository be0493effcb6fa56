"""``specdec audit``: exit codes, what is printed where, and one line for each bad input, before anything runs."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec_proofs import audit, audit_generator
from specdec_proofs.claim import Claim
from specdec_proofs.suspects import SuspectError
from specdec_proofs.worlds import chain_reference

Specdec = Callable[..., Any]
SOURCE = """
import random
import torch

def fair(p, q, tokens):
    return [int(torch.multinomial(p[0], 1))]

def biased(p, q, tokens):
    return [int(tokens[0])]

def empty(p, q, tokens):
    return []

def beyond(p, q, tokens):
    return [99]

def raising(p, q, tokens):
    raise KeyError("no such thing")

def two(p, q):
    return [0]

def loaded(p, q, tokens):
    return [random.SystemRandom().randrange(3), random.SystemRandom().randrange(3)]

def leaving(p, q, tokens):
    raise SystemExit(0)

def restless(tape, target_probs, draft):
    from specdec_fn.speculate import verifiers
    return verifiers["token"].decide(tape._replace(final=torch.rand((), dtype=tape.final.dtype)), target_probs, draft)

def counting(tape, target_probs, draft, calls=[]):
    from specdec_fn.speculate import verifiers
    calls.append(1)
    return verifiers["token"].decide(tape._replace(final=tape.final * 0 + 0.9 * (len(calls) % 2)), target_probs, draft)

def talking(p, q, tokens):
    print("hello")
    return fair(p, q, tokens)

def exits(context, n_tokens, seed, speculate):
    raise SystemExit(0)

def same(context, n_tokens, seed, speculate):
    return [random.Random(2 * seed + speculate).randrange(3) for _ in range(n_tokens)]

def apart(context, n_tokens, seed, speculate):
    return [0 if speculate else random.Random(seed).randrange(3) for _ in range(n_tokens)]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the working directory."""
    (tmp_path / "sampler_of_mine.py").write_text(SOURCE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(audit, "worlds", lambda greedy=False: (chain_reference(),))
    yield "sampler_of_mine"
    sys.modules.pop("sampler_of_mine", None)


def refused(run: Any, *words: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr."""
    assert (run.code, run.out) == (2, ""), run
    assert run.err.startswith("specdec: ")
    assert run.err.count("\n") == 1, run.err
    for word in words:
        assert word in run.err


def test_a_fair_sampler_exits_0(specdec: Specdec, mine: str) -> None:
    run = specdec("audit", f"{mine}:fair", "--rounds", "1000", "--seed", "4")
    assert (run.code, run.err) == (0, ""), run
    assert "seed 4" in run.out
    assert "lossless by all evidence" in run.out
    assert "\x1b[" not in run.out


def test_a_biased_sampler_exits_1_and_says_what_it_is(specdec: Specdec, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "known_laws", lambda world, say: iter(()))
    report = Path("report.json")
    run = specdec("audit", f"{mine}:biased", "--rounds", "1000", "--json", "--out", report)
    found = json.loads(run.out)
    assert (run.code, run.err, found["passed"]) == (1, "", False)
    world = chain_reference()
    expected = sum(abs(a - b) for a, b in zip(world.target(()), world.draft(()), strict=True)) / 2  # the first token is q's, the rest p's
    assert found["laws"][0]["tv"]["estimate"] == pytest.approx(float(expected), abs=1e-6)
    assert found == json.loads(report.read_text("utf-8"))
    assert "not lossless" in found["conclusion"]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("empty", "emitted 0 tokens"),
        ("beyond", "emitted id 99; expected ids in [0, 3)"),
        ("raising", "raised KeyError"),
        ("two", "takes (p, q); expected (tape, target_probs, draft)"),
        ("loaded", "from the same random numbers"),
        ("leaving", "raised SystemExit"),
        ("restless", "expected a deterministic function of its tape"),
        ("counting", "expected a"),
        ("nothing", "has no 'nothing'"),
    ],
)
def test_a_bad_callable_is_refused_by_name(specdec: Specdec, mine: str, function: str, words: str) -> None:
    refused(specdec("audit", f"{mine}:{function}", "--rounds", "1000"), f"{mine}", words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to audit"),
        (("tokn",), "no suspect is called 'tokn'; expected module:function or one of transformers"),
        (("nowhere:f",), "'nowhere' cannot be imported"),
        (("token", "--rounds", "10"), "received 10 rounds"),
        (("token", "--seed", "-1"), "the seed is -1"),
        (("token", "--mutants"), "--mutants with token; expected it with transformers"),
        (("token", "--out", "no/such/folder/report.json"), "cannot be written"),
        (("token", "--context", "0"), "--context without --generator"),
        (("token", "--generator"), "expected module:function"),
        (("a:b", "--generator", "--mutants"), "--generator together with --mutants"),
        (("math:pi", "--generator"), "expected a callable"),
        (("math:sqrt", "--generator", "--context", "a"), "--context is 'a'"),
        (("gpt-fast",), "--checkout"),
        (("gpt-fast", "--checkout", "no/such/folder"), "generate.py"),
    ],
)
def test_bad_usage_is_refused(specdec: Specdec, arguments: tuple[str, ...], words: str) -> None:
    refused(specdec("audit", *arguments), words)


def test_a_report_that_cannot_be_written_is_said_before_the_run(specdec: Specdec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the audit ran")

    monkeypatch.setattr(audit, "run", never)
    refused(specdec("audit", "token", "--out", tmp_path), "cannot be written")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_audit_prints_what_exists(specdec: Specdec, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = audit.run

    def interrupted(*args: Any, **settings: Any) -> Iterator[audit.Audit]:
        yield next(iter(whole(*args, **settings)))
        raise KeyboardInterrupt

    monkeypatch.setattr(audit, "run", interrupted)
    run = specdec("audit", f"{mine}:fair", "--rounds", "1000", "--json")
    found = json.loads(run.out)
    assert (run.code, len(found["claims"])) == (130, 2)
    assert (found["passed"], found["complete"]) == (None, False), "nobody may take this for a pass"
    assert "interrupted" in run.err
    assert all(claim["name"].startswith("exact law") for claim in found["claims"])


def test_what_a_callable_prints_does_not_spoil_the_report(specdec: Specdec, mine: str) -> None:
    run = specdec("audit", f"{mine}:talking", "--rounds", "1000", "--json")
    assert json.loads(run.out)["complete"]
    assert run.code == 0
    assert "hello" in run.err


def test_a_generator_that_leaves_the_process_is_refused(specdec: Specdec, mine: str) -> None:
    refused(specdec("audit", f"{mine}:exits", "--generator", "--rounds", "1000"), "raised SystemExit")


def test_mutants_are_added_to_the_report(specdec: Specdec, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not rejected is a claim that failed."""
    from specdec_proofs.suspects import transformers_chain

    suspect = audit.Suspect("transformers", "here", lambda p, q, tokens: [int(p[0].multinomial(1))], mutants=lambda: ())
    monkeypatch.setattr(transformers_chain, "load", lambda checkout=None: suspect)
    for passed in (True, False):
        monkeypatch.setattr(audit, "mutants", lambda *_, passed=passed, **__: iter([Claim("mutant, one", 0.5, "> 0", passed, "", 0.1)]))
        run = specdec("audit", "transformers", "--mutants", "--rounds", "1000", "--json")
        found = json.loads(run.out)
        assert (run.code, found["passed"], [claim["name"] for claim in found["mutants"]]) == (int(not passed), passed, ["mutant, one"])


def test_generators_are_audited_end_to_end(specdec: Specdec, mine: str) -> None:
    run = specdec("audit", f"{mine}:same", "--generator", "--rounds", "200", "--context", "0", "--context", "1,2", "--json")
    found = json.loads(run.out)
    assert (run.code, len(found["claims"])) == (0, 2 * len(audit_generator.VIEWS))
    assert found["claims"][-1]["name"].endswith("after [1, 2]")
    run = specdec("audit", f"{mine}:apart", "--generator", "--rounds", "200")
    assert run.code == 1
    assert "FAILED" in run.out
    refused(specdec("audit", f"{mine}:two", "--generator", "--rounds", "200"), "raised TypeError")


def test_the_list_says_what_is_installed(specdec: Specdec) -> None:
    run = specdec("audit", "--list", "--json")
    rows = {row["name"]: row["installed"] for row in json.loads(run.out)}
    assert (run.code, run.err) == (0, "")
    assert rows["transformers"][0].isdigit()
    assert rows["token"] == "here"
    assert rows["gpt-fast"] == "needs --checkout FOLDER"
    run = specdec("audit", "--list")
    assert (run.code, run.err) == (0, "")
    assert "flashinfer" in run.out


def test_a_refusal_is_a_value_error() -> None:
    """What the command line makes one line and exit code 2 of."""
    assert issubclass(SuspectError, ValueError)
