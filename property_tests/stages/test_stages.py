"""The twenty stages: their order, how each ending is told, what a record keeps, and some of them run on a small model."""

import ast
import importlib
import inspect
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specdec_fn.models import toy
from specdec_fn.random import key
from specdec_fn.schedule import Limits, init, schedule, submit
from specdec_fn.stages import continuous_batching, record, scheduler
from specdec_fn.stages.order import ROOMS, stages
from specdec_fn.stages.settle import STATUSES, Outcome, settle
from specdec_fn.stages.stage import Gate, Line, Mute, NeedsGpuError, Plot, Progress, Result, Setup, Stage, ratios, spread
from specdec_fn.text import Tokenizer

# DESIGN, section 7, in its order.
NAMES = (
    "naive loop",
    "KV cache",
    "roofline",
    "static batching",
    "continuous batching",
    "block allocator",
    "paged attention, torch",
    "paged attention, Triton",
    "prefix caching",
    "scheduler",
    "chunked prefill",
    "graphs",
    "sampler",
    "detokenizer",
    "server",
    "rejection sampler",
    "n-gram proposer",
    "draft model",
    "choice of K",
    "speculation x batching",
)
VOCAB = 64
RESULT = Result(
    1.5,
    "1.50",
    (("one", 2.0), ("other", 3.0)),
    Plot("x", "y", (Line("a", (1.0, 2.0), (3.0, 4.0)),), (1.0, "level"), True, False, ("p", "q")),
    ("column",),
    (("cell",),),
    (("it holds", True),),
)


def words() -> Tokenizer:
    def encode(text: str, *, special: bool = False) -> list[int]:
        return [ord(letter) % VOCAB for letter in text]

    def decode(ids: Any, *, skip_special: bool = True) -> str:
        return "".join(chr(65 + one % 26) for one in ids)

    return Tokenizer(encode, decode, None, (), VOCAB)


@pytest.fixture(scope="module")
def setup() -> Setup:
    model = toy.llama(key(3), vocab_size=VOCAB, context=128, width=32, heads=2, head_dim=16, ffn=32, dtype=torch.float32)  # 4-bit groups have 32
    text = "the quick brown fox jumps over the lazy dog; " * 4
    lines = (tuple(words().encode(text[:24])), tuple(words().encode(text[7:40])))
    return Setup(model, words(), lines, lines, text, quick=True)


def made(run: Callable[[Setup, Progress], Result], gate: Gate = Gate(1.0)) -> Stage:  # noqa: B008 (immutable)
    return Stage("a stage", "a number", gate, "why", run)


def test_the_stages_are_those_of_the_design() -> None:
    found = stages()
    assert tuple(stage.name for stage in found) == NAMES
    assert len(set(ROOMS)) == len(found) == 20
    assert all(stage.number and stage.about and math.isfinite(stage.gate.limit) for stage in found)


@pytest.mark.parametrize("room", ROOMS)
def test_what_a_stage_imports_is_there(room: str) -> None:
    """A part of ours that is missing is told as not built, so a wrong name would never fail: it is looked up here."""
    module = importlib.import_module(f"specdec_fn.stages.{room}")
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specdec_"):
            for alias in node.names:
                where = importlib.import_module(node.module or "")
                assert hasattr(where, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")


# How a stage ends


def unbuilt(setup: Setup, progress: Progress) -> Result:
    importlib.import_module("specdec_fn.nowhere")
    return RESULT


def foreign(setup: Setup, progress: Progress) -> Result:
    importlib.import_module("a_library_that_is_nowhere")
    return RESULT


def raising(setup: Setup, progress: Progress) -> Result:
    raise ValueError("the first line\nand another")


def lacking(setup: Setup, progress: Progress) -> Result:
    raise NeedsGpuError("no kernel here")


@pytest.mark.parametrize(
    ("run", "gate", "status", "reason"),
    [
        (lambda s, p: RESULT, Gate(1.5), "passed", ""),
        (lambda s, p: RESULT, Gate(1.5, least=True), "passed", ""),
        (lambda s, p: RESULT, Gate(1.4), "failed", "1.5 is not at most 1.4"),
        (lambda s, p: RESULT, Gate(1.6, least=True), "failed", "1.5 is not at least 1.6"),
        (lambda s, p: RESULT._replace(figure=math.nan), Gate(2.0), "failed", "nan is not at most 2"),
        (lambda s, p: RESULT._replace(also=(("pigs fly", False),)), Gate(2.0), "failed", "it does not hold that pigs fly"),
        (lambda s, p: RESULT._replace(needs_gpu="a share"), Gate(2.0), "needs a GPU", "a share"),
        (lambda s, p: RESULT._replace(needs_gpu="a share"), Gate(1.0), "failed", "1.5 is not at most 1"),
        (lacking, Gate(1.0), "needs a GPU", "no kernel here"),
        (unbuilt, Gate(1.0), "not built yet", "No module named 'specdec_fn.nowhere'"),
        (foreign, Gate(1.0), "failed", "ModuleNotFoundError: No module named 'a_library_that_is_nowhere'"),
        (raising, Gate(1.0), "failed", "ValueError: the first line"),
    ],
)
def test_how_a_stage_ends(setup: Setup, run: Callable[[Setup, Progress], Result], gate: Gate, status: str, reason: str) -> None:
    one = settle(7, made(run, gate), setup, Mute())
    assert (one.number, one.status, one.reason) == (7, status, reason)
    assert one.seconds >= 0
    assert (one.result is None) == (run in (unbuilt, foreign, raising, lacking))


def test_an_interruption_is_no_failure(setup: Setup) -> None:
    def interrupted(setup: Setup, progress: Progress) -> Result:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        settle(1, made(interrupted), setup, Mute())


# Records


def test_a_record_gives_the_same_back(setup: Setup) -> None:
    outcomes = [settle(1, made(lambda s, p: RESULT), setup, Mute()), settle(2, made(unbuilt), setup, Mute())]
    text = json.dumps(record.to_json(outcomes, {"model": "m"}), allow_nan=False)
    assert record.from_json(json.loads(text)) == outcomes
    assert json.loads(text)["counts"] == {"passed": 0, "failed": 1, "not built yet": 1, "needs a GPU": 0}


def test_a_record_of_what_is_no_number() -> None:
    one = Outcome(1, "a", "b", "at most 1", "", "failed", RESULT._replace(figure=math.inf), "why", 0.5)
    [back] = record.from_json(json.loads(json.dumps(record.to_json([one], {}), allow_nan=False)))
    assert back.result is not None
    assert math.isnan(back.result.figure)


@pytest.mark.parametrize("written", [None, [], {}, {"stages": [{}]}, {"stages": 3}, {"stages": [{"status": "dreamt", "result": None, "number": 1}]}])
def test_what_is_no_record_is_refused(written: Any) -> None:
    with pytest.raises(ValueError, match="expected the JSON object"):
        record.from_json(written)


# What they share


def test_ratios_and_spread() -> None:
    assert ratios([4.0, 9.0], [2.0, 3.0]) == [2.0, 3.0]
    assert spread([3.0, 1.0, 2.0], 1) == "2.0 (1.0 to 3.0)"
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [])


def test_a_setup_repeats_its_text_and_keeps_to_the_context(setup: Setup) -> None:
    once = words().encode(setup.text)
    assert setup.ids(len(once) + 3) == [*once, *once[:3]]
    assert setup.ids(4, start=len(once) + 2) == once[2:6]
    assert setup.room(1_000, spare=8) == 120
    assert setup.room(20, spare=8) == 20
    assert (setup.pick("whole", "quick"), setup._replace(quick=False).pick("whole", "quick")) == ("quick", "whole")


# Real stages, whose structure is looked at and not their times


EXACT = {  # what must hold whatever the machine does: the sentence begins so
    2: "the first 6 tokens",
    5: "steps and rows",
    6: "every page but the last",
    7: "no attention output",
    9: "the cache held",
    10: "every request ends",
    11: "steps are as many",
    14: "the pieces are",
    15: "every text is the same",
    16: "no mass",
}


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19, 20])
def test_a_stage_measures(setup: Setup, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SIZES", (5, 20))
    stage = stages()[number - 1]
    one = settle(number, stage, setup, Mute())
    assert one.result is not None, one.reason
    assert one.status in STATUSES[:2]
    result = one.result
    assert math.isfinite(result.figure)
    assert result.shown
    assert result.milliseconds
    assert all(name and ms > 0 for name, ms in result.milliseconds)
    assert result.rows
    assert all(len(row) == len(result.columns) for row in result.rows)
    assert result.plot.lines
    assert all(len(line.x) == len(line.y) > 0 for line in result.plot.lines)
    assert not result.plot.names or all(0 <= x < len(result.plot.names) for line in result.plot.lines for x in line.x)
    assert all(holds for said, holds in result.also if said.startswith(EXACT.get(number, "never")))
    assert number not in EXACT or any(said.startswith(EXACT[number]) for said, _ in result.also)
    if number in (6, 13, 16):  # figures in which no time is
        assert stage.gate.holds(result.figure)


def test_a_sampler_that_leans_is_seen(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is laid out with a millionth of its mass moved to its last token."""
    room = importlib.import_module("specdec_fn.stages.sampler")
    exact = room.row_law

    def leaning(probs: torch.Tensor) -> Any:
        moved = probs * (1 - 1e-6)
        moved[-1] += 1e-6
        return exact(moved)

    monkeypatch.setattr(room, "row_law", leaning)
    one = settle(13, stages()[12], setup, Mute())
    assert (one.status, one.result is not None) == ("failed", True)
    assert "not at most 1e-09" in one.reason


def test_the_kernel_needs_a_gpu_for_its_bandwidth(setup: Setup) -> None:
    one = settle(8, stages()[7], setup, Mute())
    assert one.result is not None, one.reason
    assert one.status == ("passed" if torch.cuda.is_available() else "needs a GPU")
    assert any(row[0].startswith("compiled for") and row[3] == "0" for row in one.result.rows)


def test_nobody_waits_longer_than_everything_takes() -> None:
    ended, longest, work = scheduler.longest_wait(30, 3, 20, 5)
    assert ended == 30
    assert longest <= work


def test_a_scheduler_that_starves_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It plans nothing while request 0 runs, so that one never ends."""
    monkeypatch.setattr(scheduler, "schedule", lambda state, rows: (schedule(state, rows)[0], schedule(state, rows)[1]._replace(lanes=())))
    ended, _, _ = scheduler.longest_wait(5, 3, 20, 5)
    assert ended == 0


def test_a_plan_is_a_value() -> None:
    """What ``longest_wait`` relies on: a state that was planned can be planned again."""
    state = submit(init(Limits(16, 8, 2)), id=0, tokens=range(4), limit=8, k=0)
    assert schedule(state, 10)[1] == schedule(state, 10)[1]


def test_serving_counts_what_was_served() -> None:
    model = toy.llama(key(1), vocab_size=16)
    lengths = [3, 1, 4, 1, 5]
    took, found = continuous_batching.served(model, [[one] for one in lengths], lengths, 2, Mute(), ways=("continuous", "rectangle"))
    assert found == {name: shape for name, shape in continuous_batching.shapes(lengths, 2).items() if name != "shrinking"}
    assert all(seconds > 0 for seconds in took.values())
