"""``specdec bench`` rounds, coupled and invariant, with sizes that take seconds."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_fn.cli.bench.passes import in_turns, target_pass
from specdec_fn.kv import dense
from specdec_fn.load import load
from specdec_fn.models import Model, invariant, logits

Specdec = Callable[..., Any]
SMALL = ("--rounds", "50", "--repeats", "2", "--chunk", "20")


def test_rounds_of_each_verifier(specdec: Specdec) -> None:
    run = specdec("bench", "rounds", *SMALL, "--verifier", "coupled", "--verifier", "token", "--vocab", "5", "--k", "2", "--json")
    found = json.loads(run.out)
    assert run.code == 0
    assert found["seconds_per_million"].keys() == {"coupled", "token"}
    assert all(len(values) == 2 for values in found["seconds_per_million"].values())
    assert all(1 <= mean <= 3 for mean in found["emitted_per_round"].values())


def test_rounds_do_not_depend_on_chunks_or_threads(specdec: Specdec) -> None:
    """Each round has a base of its own, so its tape is the same in every chunk; the rows of a chunk of 50 repeat in none of these."""
    first = ("bench", "rounds", "--rounds", "50", "--repeats", "1", "--chunk", "50", "--vocab", "5", "--json")
    one, three = (json.loads(specdec(*first, "--threads", threads).out)["emitted_per_round"] for threads in (1, 3))
    assert one == three


def test_rounds_hold_the_gate(specdec: Specdec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("specdec_fn.cli.bench.rounds"), "GATE", 0.0)
    run = specdec("bench", "rounds", *SMALL)
    assert run.code == 1
    assert "FAILED" in run.out
    assert specdec("bench", "rounds", *SMALL, "--k", "3").code == 0  # no gate for other sizes


def test_rounds_leave_the_number_of_threads_alone(specdec: Specdec) -> None:
    before = torch.get_num_threads()
    assert specdec("bench", "rounds", *SMALL, "--k", "1").code == 0
    assert torch.get_num_threads() == before


def test_coupled_shares(tiny: Path) -> None:
    """In a process of its own, since what checks shapes while the tests run cannot be compiled."""
    command = (
        sys.executable,
        "-m",
        "specdec_fn",
        "bench",
        "coupled",
        "--model",
        str(tiny),
        "--k",
        "2",
        "--repeats",
        "2",
        "--backend",
        "eager",
        "--json",
    )
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    found = json.loads(run.stdout)
    assert run.returncode in (0, 1)  # the gate is for a real model
    assert found["same_integers"]
    assert found["same_noise"]
    assert [row["rows"] for row in found["rows"]] == [3, 1]
    for row in found["rows"]:
        shares = [noise / whole for noise, whole in zip(row["ms"]["compiled"], row["ms"]["pass"], strict=True)]
        assert row["shares"]["compiled"] == pytest.approx(shares)


def test_coupled_holds_the_gate(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("specdec_fn.cli.bench.coupled"), "GATE", 0.0)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    run = specdec("bench", "coupled", "--model", tiny, "--k", "2", "--repeats", "2")
    assert run.code == 1
    assert "FAILED" in run.out


def test_coupled_finds_integers_that_differ(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that breaks the integers is found out."""

    def breaking(function: Callable[[Any], Any], **options: Any) -> Callable[[Any], Any]:
        return lambda words: function(words) + 1

    monkeypatch.setattr(importlib.import_module("specdec_fn.cli.bench.coupled"), "GATE", 1e9)
    monkeypatch.setattr(torch, "compile", breaking)
    run = specdec("bench", "coupled", "--model", tiny, "--k", "1", "--repeats", "1", "--json")
    assert run.code == 1
    assert not json.loads(run.out)["same_integers"]


def test_invariant_ratios(specdec: Specdec, tiny: Path) -> None:
    command = ("bench", "invariant", "--model", tiny, "--rows", "1,3", "--repeats", "2")
    run = specdec(*command, "--json")
    found = json.loads(run.out)
    assert run.code == 0
    assert [one["rows"] for one in found["passes"]] == [1, 3]
    assert all(one["same_bits"] for one in found["passes"])
    one = found["passes"][1]
    assert one["ratios"] == pytest.approx([a / b for a, b in zip(one["invariant_ms"], one["ordinary_ms"], strict=True)])
    assert "times as long" in specdec(*command).out


def test_invariant_sees_bits_that_depend_on_the_rows(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaning(model: Model) -> Model:
        def apply(params: Any, tokens: Any, *rest: Any) -> Any:
            logits, kv = model.apply(params, tokens, *rest)
            return logits + 1e-6 * len(tokens), kv

        return model._replace(apply=apply)

    monkeypatch.setattr("specdec_fn.models.invariant", leaning)
    assert specdec("bench", "invariant", "--model", tiny, "--rows", "2", "--repeats", "1", "--json").code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rounds", "--verifier", "tokn"), ("'tokn'", "token, block")),
        (("rounds", "--rounds", "0"), ("rounds",)),
        (("invariant", "--rows", "1,x"), ("'1,x'", "such as 1,2,4")),
        (("invariant", "--rows", "0"), ("'0'", "such as 1,2,4")),
    ],
)
def test_bad_arguments_are_refused(specdec: Specdec, tiny: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    model = () if arguments[0] == "rounds" else ("--model", tiny)
    run = specdec("bench", *arguments, *model)
    assert run.code == 2
    assert all(word in run.err for word in words)
    assert not run.out


def test_a_pass_gives_the_logits_of_a_cold_one(tiny: Path) -> None:
    model = load(str(tiny))[0]
    cold = logits(model, torch.arange(131) * 101 % model.config.vocab_size)[-3:]
    run = target_pass(model, 3)
    assert torch.allclose(run(), cold, atol=1e-5)
    assert torch.equal(run(), run())
    assert torch.allclose(target_pass(invariant(model), 3, dense.attend_invariant)(), cold, atol=1e-5)


def test_turns_alternate() -> None:
    order: list[str] = []
    times = in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert "".join(order) == "baabba"
    assert [len(values) for values in times.values()] == [2, 2]
