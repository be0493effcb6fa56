"""Files that are damaged, of another run or of another model, and runs that are interrupted: one clear line, or what exists."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_fn.cli.bench.questions import Kept, read
from specdec_fn.cost.curve import Curve, from_json

Specdec = Callable[..., Any]
DEEP = "[" * 100_000  # JSON whose nesting no parser of Python follows


def refused(run: Any, *words: str) -> None:
    assert (run.code, run.out) == (2, ""), run
    assert run.err.count("\n") == 1, run.err
    assert all(word in run.err for word in words), run.err


def test_json_of_any_depth_is_refused_in_a_line(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text(DEEP)
    refused(specdec("generate", "ab", "--model", tiny, "--k", "auto", "--curve", file), "deep.json", "no JSON")
    refused(specdec("ladder", "--model", tiny, "--only", "1", "--resume", file), "deep.json", "not a record")
    (tmp_path / "questions.jsonl").write_text(DEEP)
    with pytest.raises(ValueError, match="line 1 is not JSON"):
        read(tmp_path)
    with pytest.raises(ValueError, match="no file of an earlier run"):
        Kept(file, {}, dict)


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"question_id": "one"}', '{"question_id": null}', DEEP])
def test_a_damaged_record_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "kept.jsonl"
    Kept(path, {"k": 5}, dict).add({"question_id": 1})
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=r"kept\.jsonl, line 3 is no record of a question; expected"):
        Kept(path, {"k": 5}, dict)


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere" / "kept.jsonl"):
        measured: list[int] = []
        with pytest.raises(OSError, match=f"{tmp_path.name}"):
            Kept(place, {}, lambda measured=measured: measured.append(1) or {})
        assert not measured


@pytest.mark.parametrize(
    "written",
    [{"seconds": "12"}, {"seconds": ["1", "2"]}, {"seconds": [True]}, {"seconds": [1], "draft": "0"}, {"seconds": {"1": 2}}, {"seconds": [10**400]}],
)
def test_what_only_reads_like_times_is_no_curve(written: Any) -> None:
    with pytest.raises(ValueError, match=r"^the curve is .*expected"):
        from_json(written)


@pytest.mark.parametrize("seconds", ["12", (None,), (), 3.0, (1.0, "2"), (True,), (float("nan"),), (0.0,)])
def test_a_curve_takes_times_alone(seconds: Any) -> None:
    with pytest.raises(ValueError, match=r"^the curve's seconds are .*; expected at least one time above 0$"):
        Curve(seconds)
    with pytest.raises(ValueError, match=r"^the curve's draft is .*; expected seconds of 0 or more$"):
        Curve((1.0,), draft="0")  # type: ignore[arg-type]
    assert Curve([1, 2]) == Curve((1.0, 2.0))  # type: ignore[arg-type]
    assert hash(Curve([1, 2])) == hash(Curve((1.0, 2.0)))  # type: ignore[arg-type]


def test_a_roofline_of_endless_rows_and_a_picture_that_is_a_folder(specdec: Specdec, tmp_path: Path) -> None:
    refused(specdec("roofline", "--machine", "A100", "--k", "1025"), "--k is 1025", "1024")
    folder = tmp_path / "x.png"
    folder.mkdir()
    refused(specdec("roofline", "--machine", "A100", "--plot", folder), "x.png", "cannot be written")


@pytest.fixture
def asked(tiny: Path, tmp_path: Path) -> tuple[Any, ...]:
    turns = [{"question_id": number, "category": "copy", "turns": ["ab ab ab"]} for number in range(3)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in turns))
    return "bench", "spec", "--prompts", tmp_path, "--model", tiny, "--max-tokens", "6"


def test_a_bench_refuses_a_draft_of_another_vocabulary(specdec: Specdec, tiny: Path, tmp_path: Path, asked: tuple[Any, ...]) -> None:
    other = tmp_path / "other.gguf"
    data = tiny.read_bytes()
    assert data.count(b"\x02\x00\x00\x00\x00\x00\x00\x00ab") == 2 - 1
    other.write_bytes(data.replace(b"\x02\x00\x00\x00\x00\x00\x00\x00ab", b"\x02\x00\x00\x00\x00\x00\x00\x00aa", 1).replace(b"a b", b"a a"))
    refused(specdec(*asked, "--proposers", f"draft:{other}"), "the draft's vocabulary of 259 tokens has 'aa' as token 256; expected 'ab'")


@pytest.mark.parametrize("done", [0, 2])
@pytest.mark.parametrize("json_", [False, True])
def test_an_interrupted_bench_shows_the_questions_that_it_has(
    specdec: Specdec, asked: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, done: int, json_: bool
) -> None:
    turns = importlib.import_module("specdec_fn.cli.bench.turns")
    contest, calls = turns.contest, []

    def until(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > done:
            raise KeyboardInterrupt
        return contest(*args, **kwargs)

    monkeypatch.setattr(turns, "contest", until)
    run = specdec(*asked, "--proposers", "ngram", *(["--json"] if json_ else []))
    assert run.code == 130
    assert f"interrupted after {done} of 3 questions" in run.err
    if not done:
        assert run.out == ""
    elif json_:
        found = json.loads(run.out)
        assert found["complete"] is False
        assert {row["questions"] for row in found["rows"]} == {done}
    else:
        assert "ngram" in run.out
