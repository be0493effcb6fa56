"""``specdec prove``: levels, exit codes, a long run that is kept and resumed, a report that is refused before the run and not after."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec_fn.cli import prove
from specdec_proofs import claims, deep, deep_rows, deep_state, plots, report_html
from specdec_proofs.claim import Claim, Figure
from specdec_proofs.deep_rows import Row

Specdec = Callable[..., Any]
ROWS = (Row("token", "reference chain"), Row("greedy", "softmax at temperature 0"))


def claim(passed: bool, figure: float = 0.5, name: str = "one is two") -> Claim:
    return Claim(name, figure, "== 0", passed, "for the test", 0.1, "tested")


@pytest.fixture(autouse=True)
def model_claims(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Callable[[], Figure]]]:
    """In place of the hours on the embedded model: none, until a test puts some there."""
    listed: list[tuple[str, str, Callable[[], Figure]]] = []
    monkeypatch.setattr(prove, "_one_sequence", lambda: iter(listed))
    return listed


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The fixed claims are one that holds; what they are asked for is written down, with how many were settled before."""
    seen: list[tuple[str, int]] = []

    def run(level: str, progress: Any = None, settled: tuple[Claim, ...] = ()) -> Iterator[Claim]:
        seen.append((level, len(settled)))
        return iter([claim(True)])

    monkeypatch.setattr(claims, "run", run)
    monkeypatch.setattr(claims, "count", lambda level: 1)
    return seen


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """A long run of two rows and of short repetitions."""
    monkeypatch.setattr(deep_rows, "rows", lambda: ROWS)
    monkeypatch.setattr(deep, "EACH", 2000)
    monkeypatch.setattr(deep, "REPEATS", 5)
    return asked


def refused(run: Any, *words: str) -> None:
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("specdec: ")
    assert run.err.count("\n") == 1
    assert "Traceback" not in run.err
    for word in words:
        assert word in run.err, run.err


@pytest.mark.parametrize(("passed", "code"), [([True, True], 0), ([True, False, True], 1), ([False], 1)])
def test_prove_exits_1_if_a_claim_fails(specdec: Specdec, monkeypatch: pytest.MonkeyPatch, passed: list[bool], code: int) -> None:
    monkeypatch.setattr(claims, "run", lambda *_: iter(map(claim, passed)))
    run = specdec("prove", "--quick", "--json")
    assert run.code == code
    rows = json.loads(run.out)
    assert [row["passed"] for row in rows] == passed
    assert {"name", "figure", "gate", "detail", "seconds", "family", "p_value", "p_corrected"} <= set(rows[0])
    run = specdec("prove", "--quick")
    assert run.code == code
    assert "one is two" in run.out
    assert "seed 20240" in run.out
    assert "\x1b[" not in run.out
    assert ("FAILED: one is two" in run.out) == (code == 1)


def test_levels(specdec: Specdec, short: list[tuple[str, int]]) -> None:
    for options in (["--quick"], [], ["--deep", "--rounds", "1", "--processes", "1"]):
        assert specdec("prove", *options).code == 0
    assert [level for level, _ in short] == ["quick", "default", "deep"]


def test_an_interrupted_proof_prints_what_was_proved(specdec: Specdec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run_some(*_: Any) -> Iterator[Claim]:
        yield claim(True)
        raise KeyboardInterrupt

    monkeypatch.setattr(claims, "run", run_some)
    run = specdec("prove", "--json", "--html", tmp_path / "report.html")
    assert (run.code, len(json.loads(run.out))) == (130, 1)
    assert "Interrupted: 1 claims checked so far" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--quick", "--deep"], ["--quick", "--deep", "expected one of the two"]),
        (["--hours", "1"], ["--hours without --deep"]),
        (["--rounds", "1", "--quick"], ["--rounds without --deep"]),
        (["--state", "x.json"], ["--state without --deep"]),
        (["--processes", "2"], ["--processes without --deep"]),
        (["--deep", "--hours", "1", "--rounds", "2"], ["--hours together with --rounds"]),
        (["--deep", "--hours", "0"], ["--hours is 0"]),
        (["--deep", "--hours", "nan"], ["--hours is nan"]),
        (["--deep", "--rounds", "0"], ["--rounds is 0; expected at least 1"]),
        (["--deep", "--processes", "-1"], ["--processes is -1"]),
        (["--deep", "--rounds", "x"], ["'x'"]),
        (["--html", "/dev/null/report.html"], ["--html", "cannot be written"]),
        (["--html", "."], ["--html", "cannot be written", "directory"]),
        (["--html", "no/such/folder/report.html"], ["--html", "No such file or directory"]),
        (["--deep", "--state", "no/such/folder/run.json"], ["--state", "No such file or directory"]),
    ],
)
def test_what_cannot_be_is_refused_before_the_run(specdec: Specdec, asked: list[Any], options: list[str], words: list[str]) -> None:
    refused(specdec("prove", *options), *words)
    assert asked == []


def test_a_report_without_matplotlib_is_refused_before_the_run(
    specdec: Specdec, asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plots, "available", lambda: False)
    refused(specdec("prove", "--html", tmp_path / "r.html"), "matplotlib", "pip install -c constraints/pins.txt -e '.[plots]'")
    assert asked == []
    assert list(tmp_path.iterdir()) == []


def test_a_long_run_is_kept_and_resumed(specdec: Specdec, short: list[tuple[str, int]], tmp_path: Path) -> None:
    """Two rounds and then one are what three at once are; the fixed claims are settled once."""
    parts, whole = tmp_path / "parts.json", tmp_path / "whole.json"
    assert specdec("prove", "--deep", "--rounds", "2", "--state", parts, "--processes", "1").code == 0
    run = specdec("prove", "--deep", "--rounds", "1", "--state", parts, "--processes", "1", "--json")
    assert run.code == 0
    rows = json.loads(run.out)
    assert [row["family"] for row in rows] == ["tested", *["deep"] * 4]
    assert "N 150,000" in rows[1]["detail"]
    assert specdec("prove", "--deep", "--rounds", "3", "--state", whole, "--processes", "1").code == 0
    assert [settled for _, settled in short] == [0, 1, 0]
    one, other = (json.loads(path.read_text()) for path in (parts, whole))
    assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert one["rounds"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.json", "whole.json"]


def test_an_interrupted_long_run_is_kept(specdec: Specdec, short: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right = deep.rounds

    def some(*arguments: Any) -> Iterator[Any]:
        yield next(right(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(deep, "rounds", some)
    run = specdec("prove", "--deep", "--state", tmp_path / "run.json", "--processes", "1", "--json")
    assert run.code == 130
    assert len(json.loads(run.out)) == 5
    assert json.loads((tmp_path / "run.json").read_text())["rounds"] == 1


def test_hours_end_a_long_run(specdec: Specdec, short: list[Any], tmp_path: Path) -> None:
    assert specdec("prove", "--deep", "--hours", "1e-9", "--state", tmp_path / "run.json", "--processes", "1").code == 0
    assert json.loads((tmp_path / "run.json").read_text())["rounds"] == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", ["is no JSON"]), ("{}", ["cannot be resumed", "format None"]), (None, ["cannot be resumed", "made by program"])],
)
def test_a_state_of_something_else_is_refused(specdec: Specdec, short: list[Any], tmp_path: Path, content: str | None, words: list[str]) -> None:
    file = tmp_path / "run.json"
    file.write_text(content or json.dumps(deep_state.to_json(deep_state.begin(ROWS, "other"))))
    before = file.read_bytes()
    refused(specdec("prove", "--deep", "--state", file), *words)
    assert short == []
    assert file.read_bytes() == before


def test_a_report_is_written(specdec: Specdec, asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    picture = report_html.Exhibit("A picture", "<svg></svg>", "of nothing")
    monkeypatch.setattr(report_html, "gather", lambda state, said: [picture])
    file = tmp_path / "report.html"
    assert specdec("prove", "--quick", "--html", file).code == 0
    text = file.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "All 1 claims hold" in text
    assert "A picture" in text


def test_lines_now_and_then_where_stderr_is_no_terminal(specdec: Specdec, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(level: str, progress: Any, settled: Any) -> Iterator[Claim]:
        progress("the first")
        yield claim(True)

    monkeypatch.setattr(claims, "run", run)
    assert specdec("prove", "--quick").err == ""
    monkeypatch.setattr(prove, "QUIET", 0.0)
    ran = specdec("prove", "--quick")
    assert ran.err == f"0 of {claims.count('quick')} claims checked; the first\n"


def test_the_claims_on_a_model_come_last_and_are_kept(
    specdec: Specdec, tmp_path: Path, short: list[tuple[str, int]], model_claims: list[tuple[str, str, Callable[[], Figure]]]
) -> None:
    """They take hours, so whatever else there is has been done, and each is settled once."""
    taken: list[str] = []

    def measured() -> Figure:
        taken.append("once")
        return Figure(0.0, True)

    model_claims.append(("one sequence: tiny", "== 0", measured))
    file = tmp_path / "run.json"
    for _ in range(2):
        ran = specdec("prove", "--deep", "--rounds", "1", "--processes", "1", "--state", file, "--json")
        assert ran.code == 0
        assert "one sequence: tiny" in [one["name"] for one in json.loads(ran.out)]
    assert taken == ["once"]
    assert not [one for one in json.loads(specdec("prove", "--quick", "--json").out) if one["family"] == "one sequence"]


PROGRAM = """
import sys
from specdec_fn.cli import main
from specdec_proofs import claims, deep, deep_rows
if __name__ == "__main__":
    deep.REPEATS = 0
    claims.run = lambda *_: iter(())
    deep_rows.rows = lambda: (deep_rows.Row("token", "reference chain"),)
    sys.argv = ["specdec", "prove", "--deep", "--rounds", "1000000", "--processes", "2", "--state", sys.argv[1], "--json"]
    main()
"""


def test_ctrl_c_saves_and_says_what_there_is(tmp_path: Path) -> None:
    """The real thing, with processes: the signal goes to all of them, as from a terminal."""
    (tmp_path / "program.py").write_text(PROGRAM)
    file = tmp_path / "run.json"
    command = [sys.executable, str(tmp_path / "program.py"), str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            until = time.monotonic() + 90
            while time.monotonic() < until and not (file.exists() and json.loads(file.read_text())["rounds"]):
                time.sleep(0.2)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert json.loads(file.read_text())["rounds"] >= 1
    assert json.loads(out)[0]["name"] == "token on reference chain: log10 E, largest"
