"""``specdec bench`` on the engine: batching, continuous, chunks, prefix, together and soak, with sizes that take seconds."""

import dataclasses
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import engine
from specdec_fn.cli.bench.serving import Service, abreast, engine_for, whole
from specdec_fn.cli.bench.soak import Tally, judge
from specdec_fn.cli.bench.together import Served
from specdec_fn.cli.status import Status
from specdec_fn.engine import Request
from specdec_fn.models import toy
from specdec_fn.random import key
from specdec_fn.stages.continuous_batching import Shape, shapes

Specdec = Callable[..., Any]


def room(name: str) -> Any:
    """A module of the bench, whose name is also that of its command."""
    return importlib.import_module(f"specdec_fn.cli.bench.{name}")


# batching


def test_batching_ratios(specdec: Specdec, tiny: Path) -> None:
    command = ("bench", "batching", "--model", tiny, "--batch", "3", "--max-tokens", "5", "--repeats", "2")
    run = specdec(*command, "--json")
    found = json.loads(run.out)
    assert run.code == 0
    alone, batch = found["step_ms"]["engine, alone"], found["step_ms"]["engine, batch"]
    assert found["tokens_per_second"]["engine, batch"] == pytest.approx([3000 / ms for ms in batch])
    assert found["ratios"]["batch against alone"] == pytest.approx([3 * one / many for one, many in zip(alone, batch, strict=True)])
    assert found["ratios"]["alone against generate"] == pytest.approx([a / b for a, b in zip(found["step_ms"]["generate"], alone, strict=True)])
    assert "gate" not in specdec(*command).out  # it is for a batch of 16


def test_batching_holds_the_gate(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room("batching"), "GATED", 2)
    command = ("bench", "batching", "--model", tiny, "--batch", "2", "--max-tokens", "3", "--repeats", "1")
    monkeypatch.setattr(room("batching"), "GATE", 1e9)
    run = specdec(*command)
    assert (run.code, "FAILED" in run.out) == (1, True)
    monkeypatch.setattr(room("batching"), "GATE", 0.0)
    assert specdec(*command).code == 0


# continuous


@given(st.lists(st.integers(1, 9), min_size=1, max_size=14), st.integers(1, 4))
def test_shapes_are_those_of_a_simulation(lengths: list[int], places: int) -> None:
    """Step by step, a set of places: continuous fills every free place, static only when all are free."""

    def simulated(refill: Callable[[list[int]], bool], rectangle: bool) -> Shape:
        queue, running, steps, rows = list(lengths), list[int](), 0, 0
        while queue or running:
            if refill(running):
                running, queue = running + queue[: places - len(running)], queue[places - len(running) :]
                size = len(running)
            steps += 1
            rows += size if rectangle else len(running)
            running = [left - 1 for left in running if left > 1]
        return Shape(steps, rows)

    assert shapes(lengths, places) == {
        "continuous": simulated(lambda running: True, rectangle=False),
        "shrinking": simulated(lambda running: not running, rectangle=False),
        "rectangle": simulated(lambda running: not running, rectangle=True),
    }


def test_continuous_counts_what_the_lengths_tell(specdec: Specdec, tiny: Path) -> None:
    command = ("bench", "continuous", "--model", tiny, "--requests", "7", "--batch", "3", "--longest", "9", "--seed", "4")
    run = specdec(*command, "--json")
    found = json.loads(run.out)
    lengths = whole(key(4), 7, 1, 9)
    batches = [lengths[:3], lengths[3:6], lengths[6:]]
    assert (run.code, found["exact"], found["wanted"]) == (0, True, sum(lengths))
    assert found["steps"]["rectangle"] == found["steps"]["shrinking"] == sum(max(part) for part in batches)
    assert found["useful"] == pytest.approx(
        {"continuous": 1.0, "shrinking": 1.0, "rectangle": sum(lengths) / sum(max(part) * len(part) for part in batches)}
    )
    assert found["filled"]["shrinking"] == pytest.approx(sum(lengths) / (3 * sum(max(part) for part in batches)))
    assert found["ratios"]["rectangle"] == pytest.approx([found["seconds"]["rectangle"][0] / found["seconds"]["continuous"][0]])
    assert "as its lengths tell: True" in specdec(*command).out


def test_continuous_sees_an_engine_that_does_otherwise(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lazy(lengths: list[int], places: int) -> dict[str, Shape]:
        return shapes(lengths, places) | {"continuous": Shape(1, 1)}

    monkeypatch.setattr("specdec_fn.stages.continuous_batching.shapes", lazy)
    run = specdec("bench", "continuous", "--model", tiny, "--requests", "3", "--batch", "2", "--longest", "3", "--json")
    assert (run.code, json.loads(run.out)["exact"]) == (1, False)


# prefix


def test_prefix_counts_what_the_cache_had(specdec: Specdec, tiny: Path) -> None:
    command = ("bench", "prefix", "--model", tiny, "--length", "168", "--suffix", "9", "--chunk", "50", "--repeats", "2")
    run = specdec(*command, "--json")
    found = json.loads(run.out)
    assert (run.code, found["exact"]) == (0, True)
    assert found["cached"] == {"cold": [0, 0], "warm": [160, 160]}  # ten full pages of 16; half of the next is the request's own
    assert found["shares"] == pytest.approx([warm / cold for warm, cold in zip(found["ms"]["warm"], found["ms"]["cold"], strict=True)])
    assert "had what it must have: True" in specdec(*command).out


def test_prefix_sees_a_cache_that_forgets(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(*args: Any, **settings: Any) -> Any:
        return engine_for(*args, **settings, prefix_cache=False)

    monkeypatch.setattr("specdec_fn.stages.serving.engine_for", forgetful)
    run = specdec("bench", "prefix", "--model", tiny, "--length", "40", "--repeats", "1", "--json")
    assert (run.code, json.loads(run.out)["exact"]) == (1, False)


# chunks


def test_chunks_take_as_many_steps_as_they_must(specdec: Specdec, tiny: Path) -> None:
    command = ("bench", "chunks", "--model", tiny, "--length", "50", "--running", "2", "--chunk", "20", "--chunk", "7", "--repeats", "2")
    run = specdec(*command, "--json")
    found = json.loads(run.out)
    assert (run.code, found["exact"]) == (0, True)
    assert [(way["chunk"], way["steps"]) for way in found["ways"]] == [(20, 3), (7, 8), (50, 1)]
    first, _, unchunked = found["ways"]
    assert first["shares"] == pytest.approx([a / b for a, b in zip(first["gap_ms"], unchunked["gap_ms"], strict=True)])
    assert all(gap <= end for way in found["ways"] for gap, end in zip(way["gap_ms"], way["first_ms"], strict=True))
    assert "as length and chunk tell: True" in specdec(*command).out


def test_chunks_hold_the_gate(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room("chunks"), "GATED", (30, 10))
    monkeypatch.setattr(room("chunks"), "GATE", 0.0)
    run = specdec("bench", "chunks", "--model", tiny, "--length", "30", "--running", "1", "--chunk", "10")
    assert (run.code, "FAILED" in run.out) == (1, True)


# together


def test_together_emits_what_plain_does(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"name": f"p{i}", "text": "ab " * (i + 2)}) for i in range(3)]
    (tmp_path / "some.jsonl").write_text("\n".join(lines))
    some = ("--prompts", tmp_path / "some.jsonl", "--batch", "2", "--k", "2", "--k", "4", "--max-tokens", "8", "--repeats", "2")
    command = ("bench", "together", "--model", tiny, *some)
    run = specdec(*command, "--json")
    found = json.loads(run.out)
    plain, *drafted = found["ways"]
    assert run.code == 0
    assert [way["way"] for way in found["ways"]] == ["plain", "K = 2", "K = 4"]
    assert all(way["same_as_plain"] == 3 for way in drafted)
    assert all(way["tokens"] == plain["tokens"] for way in drafted)
    assert plain["proposed"] == 0
    assert plain["tokens_per_pass"] == 1.0
    for way in drafted:
        assert way["ratios"] == pytest.approx([a / b for a, b in zip(way["rates"], plain["rates"], strict=True)])
        assert way["proposed"] > 0
    assert "plain" in specdec(*command).out  # a narrow table breaks its words apart


def test_together_counts_prompts_with_the_same_ids() -> None:
    """The second differs in the first round, the third in the second one."""
    rounds = [Served(1.0, tokens, 2, 0, 0) for tokens in ([[1], [2, 3], [4]], [[1], [2, 5], [4]])]
    plain = [Served(1.0, tokens, 2, 0, 0) for tokens in ([[1], [2, 4], [4]], [[1], [2, 5], [6]])]
    assert room("together")._same(rounds, plain) == 1
    assert room("together")._same(plain, plain) == 3


# soak


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few different requests, short, of which the longest fills half the pool."""
    for name, value in {"DISTINCT": 12, "LONGEST_PROMPT": 9, "LONGEST_ANSWER": 7, "PAGES": 11, "ABORTS": 0.1, "FORKS": 0.1}.items():
        monkeypatch.setattr(room("soak"), name, value)


@pytest.mark.usefixtures("brief")
def test_soak_finds_nothing(specdec: Specdec) -> None:
    run = specdec("bench", "soak", "--requests", "60", "--json")
    found = json.loads(run.out)
    assert (run.code, found["passed"], found["faults"]) == (0, True, [])
    assert found["submitted"] == 60 == found["finished"] + found["aborted"]
    assert found["pages"] == [11, 11]
    assert found["counters"]["aborted"] == found["aborted"] > 0
    assert found["counters"]["preempted"] > 0
    assert found["forked"] > 0
    assert found["counters"]["accepted"] > 0
    assert 0 < found["first"] <= found["longest"] <= found["counters"]["steps"]


@pytest.mark.usefixtures("brief")
def test_soak_sees_a_wrong_answer(specdec: Specdec, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that gives every fourth request another seed."""
    submit = engine.submit

    def careless(state: Any, request: Request) -> Any:
        seed = request.seed if state.counters.submitted % 4 else request.seed + 1000
        return submit(state, dataclasses.replace(request, seed=seed))

    monkeypatch.setattr(engine, "submit", careless)
    run = specdec("bench", "soak", "--requests", "40")
    assert run.code == 1
    assert "another answer than alone" in run.out


@pytest.mark.usefixtures("brief")
def test_soak_sees_lost_pages_and_impatience(specdec: Specdec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room("soak"), "PATIENCE", 2)
    run = specdec("bench", "soak", "--requests", "30", "--json")
    found = json.loads(run.out)
    assert (run.code, bool(found["starved"])) == (1, True)
    assert any("did not end within 2 steps" in fault for fault in found["faults"])


@pytest.mark.parametrize(
    ("tally", "word"),
    [
        (Tally(submitted=2, finished=2, pages=(9, 8)), "9 pages were free"),
        (Tally(submitted=2, finished=2, pages=(9, 9), wrong=(1,)), "another answer"),
        (Tally(submitted=2, finished=2, pages=(9, 9), starved=(1,)), "did not end"),
        (Tally(submitted=3, finished=2, pages=(9, 9)), "3 requests came"),
        (Tally(submitted=3, finished=2, aborted=1, pages=(9, 9), left=1), "1 are left"),
    ],
)
def test_each_fault_is_named(tally: Tally, word: str) -> None:
    [fault] = judge(tally)
    assert word in fault


def test_a_clean_run_has_no_fault() -> None:
    assert judge(Tally(submitted=3, finished=2, aborted=1, pages=(9, 9))) == []


# what they share


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """How far each way had come after each of its steps, in the last round."""
    found: dict[str, list[float]] = {}

    def noted(name: str, way: Iterator[float]) -> Iterator[float]:
        found[name] = []
        for mark in way:
            found[name].append(mark)
            yield mark

    for where in ("specdec_fn.cli.bench.serving.abreast", "specdec_fn.stages.serving.abreast"):
        monkeypatch.setattr(where, lambda ways, watch: abreast({n: noted(n, w) for n, w in ways.items()}, watch))
    return found


def test_the_ways_of_batching_count_tokens_of_a_request(specdec: Specdec, tiny: Path, marks: dict[str, list[float]]) -> None:
    assert specdec("bench", "batching", "--model", tiny, "--batch", "3", "--max-tokens", "5", "--repeats", "1").code == 0
    assert list(marks.values()) == [[2, 3, 4, 5]] * 3


def test_the_ways_of_continuous_end_at_one(specdec: Specdec, tiny: Path, marks: dict[str, list[float]]) -> None:
    assert specdec("bench", "continuous", "--model", tiny, "--requests", "7", "--batch", "3", "--longest", "9").code == 0
    assert [way[-1] for way in marks.values()] == [1.0, 1.0, 1.0]


def test_a_service_serves_group_after_group() -> None:
    model = toy.llama(key(1), vocab_size=16)
    groups = [[Request([1, 2], 3), Request([5], 1)], [Request([7], 2)]]
    service = Service(model, engine_for(model, [one for group in groups for one in group]), groups)
    assert list(service) == [2, 3, 4, 5, 6]  # two together, one of them two steps more, then the third
    assert [len(service.ended[number].tokens) for number in range(3)] == [3, 1, 2]


def test_abreast_lets_the_last_go_first() -> None:
    """Whoever is furthest behind, and of two that are as far now one and now the other."""
    order: list[str] = []

    def way(name: str, steps: int) -> Iterator[float]:
        for step in range(steps):
            order.append(name)
            yield (step + 1) / steps

    seconds = abreast({"a": way("a", 20), "b": way("b", 20), "c": way("c", 1)}, Status(""))
    assert min(seconds.values()) > 0
    assert "c" in order[:3]
    order.remove("c")
    assert all({one, two} == {"a", "b"} for one, two in zip(order[::2], order[1::2], strict=True))
    assert set(order[::2]) == {"a", "b"}


def test_whole_numbers_reach_both_ends() -> None:
    drawn = whole(key(3), 200, 16, 19)
    assert set(drawn) == {16, 17, 18, 19}
    assert drawn == whole(key(3), 200, 16, 19) != whole(key(4), 200, 16, 19)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("chunks", "--length", "8"), ("--length is 8", "64")),
        (("chunks", "--chunk", "0"), ("chunk",)),
        (("continuous", "--requests", "0"), ("requests",)),
        (("together", "--prompts", "nowhere.jsonl"), ("'nowhere.jsonl'", "one JSON object a line")),
        (("together", "--proposer", "parrot"), ("'parrot'", "ngram")),
    ],
)
def test_bad_arguments_are_refused(specdec: Specdec, tiny: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    run = specdec("bench", *arguments, "--model", tiny)
    assert run.code == 2
    assert all(word in run.err for word in words)
    assert not run.out
