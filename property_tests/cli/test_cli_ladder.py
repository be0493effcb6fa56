"""``specdec ladder``: which stages run, how it ends, what it writes, and how it goes on."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_fn.stages import order, record
from specdec_fn.stages.stage import Gate, Line, NeedsGpuError, Plot, Progress, Result, Setup, Stage

Specdec = Callable[..., Any]


def result(figure: float) -> Result:
    plot = Plot("rows & more", "milliseconds <", (Line("measured", (1.0, 2.0), (3.0, figure)),), (1.0, "limit"))
    return Result(figure, f"{figure:.2f}", (("a pass", 2.5), ("another", 250.0)), plot, ("rows", "ms"), (("1 < 2", "3"),), (("it adds up", True),))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stages that take no time: 3 fails, 8 needs a GPU, 15 is not built, 17 raises; the numbers of those that were run, in order."""
    numbers: list[int] = []

    def stage(number: int) -> Stage:
        def run(setup: Setup, progress: Progress) -> Result:
            numbers.append(number)
            progress.say("measuring")
            if number == 8:
                raise NeedsGpuError("no kernel here")
            if number == 15:
                raise ImportError("there is no server", name="specdec_fn.serve")
            if number == 17:
                raise RuntimeError("it broke\nin two lines")
            return result(9.0 if number == 3 else 1.0)

        return Stage(f"stage {number}", f"number {number}", Gate(2.0), f"why {number}", run)

    made = tuple(stage(number) for number in range(1, 21))
    monkeypatch.setattr(order, "stages", lambda: made)
    return numbers


def test_the_whole_ladder_in_order(specdec: Specdec, tiny: Path, ran: list[int]) -> None:
    run = specdec("ladder", "--model", tiny)
    assert run.code == 1
    assert ran == list(range(1, 21))
    assert "16 passed, 2 failed, 1 not built yet, 1 need a GPU" in run.out
    assert "3, stage 3: failed: 9 is not at most 2" in run.out
    assert "17, stage 17: failed: RuntimeError: it broke" in run.out
    assert "15, stage 15: not built yet: there is no server" in run.out
    assert "8, stage 8: needs a GPU: no kernel here" in run.out
    assert re.search(r"a pass: 2\.5; another: 250\b", run.out)
    assert [int(line.split()[1].rstrip(",")) for line in run.err.splitlines() if line.startswith("stage")] == ran
    assert "\x1b" not in run.out


@pytest.mark.parametrize(
    ("options", "numbers", "code"),
    [
        (("--only", "7,1,2"), [1, 2, 7], 0),
        (("--only", "3"), [3], 1),
        (("--only", "8,15"), [8, 15], 0),
        (("--only", "17"), [17], 1),
        (("--from", "18"), [18, 19, 20], 0),
    ],
)
def test_some_stages(specdec: Specdec, tiny: Path, ran: list[int], options: tuple[str, ...], numbers: list[int], code: int) -> None:
    run = specdec("ladder", "--model", tiny, *options, "--json")
    assert (run.code, ran) == (code, numbers)
    found = json.loads(run.out)
    assert [one["number"] for one in found["stages"]] == numbers
    assert found["complete"]
    assert sum(found["counts"].values()) == len(numbers)


def test_json_keeps_what_was_measured(specdec: Specdec, tiny: Path, ran: list[int]) -> None:
    found = json.loads(specdec("ladder", "--model", tiny, "--only", "1,15", "--quick", "--seed", "4", "--json").out)
    assert (found["model"], found["quick"], found["seed"], found["counts"]["passed"]) == (str(tiny), True, 4, 1)
    first, server = record.from_json(found)
    assert first.result == result(1.0)
    assert server.result is None


def test_the_page_has_a_figure_for_each_stage(specdec: Specdec, tiny: Path, ran: list[int], tmp_path: Path) -> None:
    page = tmp_path / "ladder.html"
    assert specdec("ladder", "--model", tiny, "--html", page).code == 1
    text = page.read_text("utf-8")
    assert text.count("<figure>") == 20
    assert text.count("<svg") == 17  # all but those that measured nothing
    assert len(set(re.findall(r'aria-labelledby="(stage-\d+)-title', text))) == 17
    assert text.count("Nothing was measured") == 3
    assert "milliseconds &lt;" in text
    assert "1 &lt; 2" in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert not re.findall(r"<script|<link|@import|(?:src|href)=[\"'](?!#)|url\((?!#)", text)


def test_the_page_of_an_interruption_says_so(specdec: Specdec, tiny: Path, ran: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the fourth stage: three are printed, kept and drawn; the next run does the rest and nothing again."""
    made = order.stages()

    def interrupted(setup: Setup, progress: Progress) -> Result:
        raise KeyboardInterrupt

    file, page = tmp_path / "kept.json", tmp_path / "ladder.html"
    monkeypatch.setattr(order, "stages", lambda: (*made[:3], made[3]._replace(run=interrupted), *made[4:]))
    run = specdec("ladder", "--model", tiny, "--only", "1,2,3,4,5", "--resume", file, "--html", page)
    assert run.code == 130
    assert "interrupted after 3 stages" in run.err
    assert "2 passed, 1 failed" in run.out
    assert "interrupted" in page.read_text("utf-8")
    assert [one.number for one in record.from_json(json.loads(file.read_text("utf-8")))] == [1, 2, 3]

    ran.clear()
    monkeypatch.setattr(order, "stages", lambda: made)
    again = specdec("ladder", "--model", tiny, "--only", "1,2,3,4,5", "--resume", file, "--json")
    assert ran == [4, 5]
    assert again.code == 1  # stage 3 failed before
    found = json.loads(again.out)
    assert [one["number"] for one in found["stages"]] == [1, 2, 3, 4, 5]
    assert "threads" in found

    ran.clear()
    third = specdec("ladder", "--model", tiny, "--only", "2,5", "--resume", file, "--json")
    assert (third.code, ran) == (0, [])
    assert "threads" in json.loads(third.out)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--only", "0"), ("--only is '0'", "1 to 20")),
        (("--only", "21"), ("--only is '21'", "1 to 20")),
        (("--only", "one"), ("--only is 'one'", "1,2,7")),
        (("--only", ""), ("--only is ''",)),
        (("--from", "21"), ("--from is 21", "1 to 20")),
        (("--only", "1", "--from", "2"), ("--only together with --from",)),
        (("--html", "no/such/folder/a.html"), ("--html", "cannot be written")),
        (("--resume", "no/such/folder/a.json"), ("--resume", "cannot be written")),
        (("--resume", "."), ("--resume", "folder")),
        (("--model", "no-such-model", "--only", "1"), ("'no-such-model'", "smollm2-135m")),
    ],
)
def test_bad_input_is_one_line(specdec: Specdec, ran: list[int], options: tuple[str, ...], words: tuple[str, ...]) -> None:
    run = specdec("ladder", *options)
    assert (run.code, run.out, ran) == (2, "", [])
    assert len(run.err.splitlines()) == 1
    assert all(word in run.err for word in words)


def test_a_record_of_another_run_is_refused(specdec: Specdec, tiny: Path, ran: list[int], tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    assert specdec("ladder", "--model", tiny, "--only", "1", "--quick", "--resume", file).code == 0
    run = specdec("ladder", "--model", tiny, "--only", "1", "--resume", file)
    assert (run.code, "quick True" in run.err, "expected False" in run.err) == (2, True, True)
    file.write_text("{")
    run = specdec("ladder", "--model", tiny, "--only", "1", "--resume", file)
    assert (run.code, "is not a record" in run.err) == (2, True)


def test_without_matplotlib_the_page_is_refused_at_once(specdec: Specdec, ran: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_proofs.plots.available", lambda: False)
    run = specdec("ladder", "--only", "1", "--html", tmp_path / "a.html")
    assert (run.code, ran) == (2, [])
    assert "pip install -c constraints/pins.txt -e '.[plots]'" in run.err


def test_a_stage_that_is_real(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    """The allocator and the detokenizer, on a model of one layer."""
    page = tmp_path / "a.html"
    run = specdec("ladder", "--model", tiny, "--only", "6,14", "--quick", "--json", "--html", page)
    pages, text = record.from_json(json.loads(run.out))
    assert pages.result is not None
    assert text.result is not None
    assert pages.result.figure == pytest.approx(2048 / 208, rel=0.1)  # pages of a mean of 200 slots, half a page wasted, against 2,048
    assert all(holds for sentence, holds in text.result.also)
    assert math.isfinite(text.result.figure)
    assert page.read_text("utf-8").count("<svg") == 2
