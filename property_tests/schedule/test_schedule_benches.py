"""The figures of ``bench arrivals`` and ``bench scheduling``, with sizes that take seconds."""

import importlib
import json
from itertools import product
from typing import Any

import pytest

from specdec_fn.cli.bench.arrivals import Case, arrivals, latency, passes_of, service, simulated
from specdec_fn.cli.bench.scheduling import scheduling
from specdec_fn.random import key

LOAD = {"rate": 4.0, "tokens": 30, "weights_ms": 7.0, "acceptance": 0.7, "draft_cost": 0.05}
DEFAULTS: dict[str, Any] = {**LOAD, "launch_ms": 2.0, "k": 4, "requests": 40, "runs": 6, "seed": 3, "json_": True}


# Batching, graphs, speculation; service with a launch of 2 ms; latency with a launch of 2 ms and of 0: worked out by hand, None where unstable.
@pytest.mark.parametrize(
    ("batching", "graphs", "speculation", "alone", "with_launch", "without"),
    [
        (False, False, False, 270.0, None, 761.2),
        (False, True, False, 210.0, 761.2, 761.2),
        (True, False, False, 270.0, 270.0, 210.0),
        (False, False, True, 116.8, 168.1, 116.8),
        (True, True, False, 210.0, 210.0, 210.0),
        (False, True, True, 90.9, 116.8, 116.8),
        (True, False, True, 116.8, 116.8, 90.9),
        (True, True, True, 90.9, 90.9, 90.9),
    ],
)
def test_the_arithmetic_gives_the_table(
    batching: bool, graphs: bool, speculation: bool, alone: float, with_launch: float | None, without: float
) -> None:
    for launch, wanted in ((2.0, with_launch), (0.0, without)):
        case = Case(**LOAD, launch_ms=0.0 if graphs else launch, batching=batching, k=4 if speculation else 0)
        mean = service(case)
        found = latency(case, mean, mean**2)
        assert found is None if wanted is None else found == pytest.approx(wanted, abs=0.05)
        if launch:
            assert mean == pytest.approx(alone, abs=0.05)


def test_the_law_of_the_passes_is_that_of_all_coin_tosses() -> None:
    """Six tokens, two drafts: every pass tosses its coins, all sequences of tosses are gone through."""
    case = Case(**{**LOAD, "tokens": 6, "acceptance": 0.3}, launch_ms=0.0, batching=False, k=2)
    wanted: dict[int, float] = {}
    for tosses in product((True, False), repeat=12):  # two for each of at most six passes
        chance = 1.0
        for toss in tosses:
            chance *= 0.3 if toss else 0.7
        left, passes = 6, 0
        while left:
            first, second = tosses[2 * passes : 2 * passes + 2]
            left -= 1 + (0 if not first or left < 2 else 1 if not second or left < 3 else 2)
            passes += 1
        wanted[passes] = wanted.get(passes, 0.0) + chance
    assert passes_of(case) == pytest.approx(wanted)


def test_a_simulated_request_alone_takes_its_service() -> None:
    """Arrivals so far apart that nobody meets: 30 passes of 7 ms, with batching and without."""
    for batching in (False, True):
        case = Case(**{**LOAD, "rate": 0.001}, launch_ms=0.0, batching=batching, k=0)
        assert simulated(case, key(0), 20, 4, 16, 1000) == pytest.approx(210.0)


def test_without_batching_the_queue_is_first_come_first_served() -> None:
    """Lindley's recursion on the same arrivals: each starts when it came or when the one before it is done."""
    from specdec_fn.random import split, uniform

    case = Case(**LOAD, launch_ms=0.0, batching=False, k=0)
    came = (-(1 - uniform(split(key(9))[0], (60,))).log() * 250).cumsum(0).tolist()
    done, waits = 0.0, []
    for at in came:
        done = max(done, at) + 210
        waits.append(done - at)
    assert simulated(case, key(9), 60, 12, 16, 1000) == pytest.approx(sum(waits[12:]) / 48)


def test_arrivals_says_the_same_for_the_same_seed(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        arrivals(**DEFAULTS)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    found = json.loads(texts[0])
    assert [(row["batching"], row["graphs"], row["speculation"]) for row in found["rows"]] == list(product((False, True), repeat=3))
    assert [row["arithmetic_ms"] is None for row in found["rows"]] == [True] + [False] * 7
    assert found["paging_gain_ms"] == 0
    assert [row["fit"] for row in found["memory"]] == [524, 61]  # of 125,885 tokens: 7867 pages, 15 each; 61 times 2048


def test_arrivals_prints_a_table_and_fails_where_simulation_and_model_disagree(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert arrivals(**{**DEFAULTS, "json_": False}) == 0
    assert "unstable" in capsys.readouterr().out
    monkeypatch.setattr(importlib.import_module("specdec_fn.cli.bench.arrivals"), "passes_of", lambda case: {2 * case.tokens: 1.0})
    assert arrivals(**{**DEFAULTS, "json_": False}) == 1
    assert "NO" in capsys.readouterr().out


def test_scheduling_times_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    small: dict[str, Any] = {"running": 20, "waiting": 50, "k": 4, "page_size": 16, "passes": 30}
    assert scheduling(**small, json_=True) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [len(rows[0][name]) for name in ("schedule_ms", "commit_ms", "submit_us", "abort_us")] == [30, 30, 50, 50]
    assert [bool(row["preempted"]) for row in rows] == [False, False, True]
    assert [bool(row["admitted"]) for row in rows[:2]] == [False, True]
    assert scheduling(**small, json_=False) == 0
    assert "in 100" in capsys.readouterr().out  # a narrow table breaks its words apart


def test_scheduling_holds_the_gate_at_its_own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("specdec_fn.cli.bench.scheduling")
    monkeypatch.setattr(module, "SIZES", (20, 50, 4, 16))
    monkeypatch.setattr(module, "GATE", 0.0)
    assert scheduling(running=20, waiting=50, k=4, page_size=16, passes=4, json_=True) == 1
    monkeypatch.setattr(module, "GATE", 1e9)
    assert scheduling(running=20, waiting=50, k=4, page_size=16, passes=4, json_=True) == 0
