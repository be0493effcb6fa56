"""``specdec roofline``, and ``--k auto`` of generate and chat."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_fn import measure
from specdec_fn.cost import chapter
from specdec_fn.cost.curve import Curve, to_json
from specdec_fn.cost.machines import Machine

Specdec = Callable[..., Any]
FLAT = Curve(tuple(0.01 + 0.0002 * rows for rows in range(9)))
FAKE = Machine("this", 1e9, (("float32", 2e10), ("bfloat16", 2e10)))


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Measurements that give the same each time, and what was asked of them."""
    asked: list[dict[str, Any]] = []

    def curve(model: Any, **settings: Any) -> Curve:
        asked.append(settings)
        return Curve(tuple(0.01 + 0.001 * row for row in range(settings.get("rows", 9))))

    monkeypatch.setattr(measure, "curve", curve)
    monkeypatch.setattr(measure, "machine", lambda size: asked.append({"size": size}) or FAKE)
    return asked


def test_the_chapter_is_what_is_shown_without_a_machine(specdec: Specdec) -> None:
    run = specdec("roofline")
    assert run.code == 0
    for words in ("2.352938", "5 or 6", "7.179", "unstable", "speculate, batch, launch overhead, page"):
        assert words in run.out
    assert len(json.loads(specdec("roofline", "--json").out)["figures"]) == len(chapter.figures())


def test_check_passes_and_prints_every_figure(specdec: Specdec) -> None:
    run = specdec("roofline", "--check")
    assert (run.code, run.err) == (0, "")
    assert run.out.count("as stated") == len(chapter.figures()) + 1
    found = json.loads(specdec("roofline", "--check", "--json").out)
    assert found["wrong"] == 0
    assert {"section": "best K", "name": "a = 0.7, c = 0.05", "value": [5, 6], "stated": [5, 6], "holds": True} in found["figures"]


def test_another_acceptance_or_cost_without_a_machine(specdec: Specdec) -> None:
    run = specdec("roofline", "--acceptance", "0.9")
    assert "best K at acceptance 0.9, a drafted token costing 0.05 of a pass: 13, speed-up 4.67 (extra rows free)" in run.out
    assert "2.352938" not in run.out
    found = json.loads(specdec("roofline", "--cost", "0.1", "--k", "6", "--json").out)
    assert [one["speed_up"] for one in found["yields"]] == pytest.approx([sum(0.7**i for i in range(k + 1)) / (1 + 0.1 * k) for k in range(7)])
    assert (found["acceptance"], found["best"]["k"], found["best"]["capped"]) == (0.7, [4], False)
    assert "of a pass: 16 (capped by --k), speed-up" in specdec("roofline", "--acceptance", "0.9", "--cost", "0").out


def test_a_best_k_that_is_only_the_cap_is_called_so(specdec: Specdec) -> None:
    """At batch 32 and no context the ridge of an H200 lets 5 drafted tokens be free: a cap of 4 binds, one of 5 does not."""
    command = ("roofline", "--machine", "H200", "--batch", "32", "--context", "0", "--k")
    assert ": 4 (capped by --k), speed-up" in specdec(*command, "4").out
    assert ": 5, speed-up" in specdec(*command, "5").out
    assert [json.loads(specdec(*command, k, "--json").out)["best"]["capped"] for k in ("4", "5", "8")] == [True, False, False]


def test_check_fails_where_a_figure_is_off(specdec: Specdec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chapter, "COST", 0.051)
    run = specdec("roofline", "--check")
    assert run.code == 1
    assert "OFF" in run.out
    assert json.loads(specdec("roofline", "--check", "--json").out)["wrong"] > 5


def test_a_named_machine(specdec: Specdec) -> None:
    found = json.loads(specdec("roofline", "--machine", "H200", "--batch", "32", "--context", "0", "--k", "8", "--json").out)
    assert found["machine"]["bandwidth"] == 4.8e12
    assert found["ridge"] == pytest.approx(989e12 / 4.8e12)
    assert found["free_rows"] == 206
    assert [one["bound"] for one in found["passes"]] == ["memory"] * 6 + ["compute"] * 3
    assert found["passes"][5]["least"] == pytest.approx(14e9 / 4.8e12)
    assert found["passes"][8]["least"] == pytest.approx(32 * 9 * 14e9 / 989e12)
    assert found["best"]["k"] == 5
    assert found["curve"] is None
    run = specdec("roofline", "--machine", "H200", "--batch", "32", "--context", "0", "--k", "8")
    assert "free rows of a pass: 206; at batch 32 K up to 5 is free" in run.out
    assert "4800 GB/s, 989 TFLOP/s, ridge 206.0 FLOP a byte" in run.out


def test_a_model_by_name(specdec: Specdec, tiny: Path) -> None:
    found = json.loads(specdec("roofline", "--machine", "A100", "--model", tiny, "--dtype", "float32", "--k", "1", "--json").out)
    matrices = 259 * 16 + 16 * 16 * 2 + 8 * 16 * 2 + 3 * 16 * 24
    assert found["passes"][0]["bytes"] == 4 * matrices + 256 * 2 * 8 * 4


def test_this_machine_is_measured(specdec: Specdec, tiny: Path, still: list[dict[str, Any]]) -> None:
    found = json.loads(specdec("roofline", "--machine", "this", "--model", tiny, "--k", "4", "--json").out)
    assert still == [{"size": 4 * 6064}, {"rows": 5, "context": 256, "bare": True}]
    assert [one["measured"] for one in found["passes"]] == pytest.approx([0.01, 0.011, 0.012, 0.013, 0.014])
    assert found["curve"]["seconds"] == [one["measured"] for one in found["passes"]]
    assert (found["best"]["k"], found["best"]["capped"]) == (4, True)
    run = specdec("roofline", "--machine", "this", "--model", tiny, "--k", "4")
    assert "by the measured times" in run.out
    assert "14.00" in run.out


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture(specdec: Specdec, tiny: Path, still: list[dict[str, Any]], tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"curve.{ending}"
    assert specdec("roofline", "--machine", "this", "--model", tiny, "--k", "16", "--plot", path).code == 0
    if ending == "png":
        assert path.read_bytes().startswith(b"\x89PNG")
    else:
        text = " ".join(ET.parse(path).getroot().itertext())
        assert all(words in text for words in ("measured", "predicted, they do not", "ridge: 28.5 rows", "time of a pass, ms"))


REFUSED: list[tuple[list[str], list[str]]] = [
    (["--machine", "B200"], ["'B200'", "A100, H100, H200", "this"]),
    (["--machine", "A100", "--dtype", "int3"], ["'int3'", "float32"]),
    (["--machine", "A100", "--batch", "0"], ["batch is 0"]),
    (["--machine", "A100", "--context", "-1"], ["context is -1"]),
    (["--machine", "A100", "--k", "-1"], ["--k is -1"]),
    (["--machine", "A100", "--acceptance", "2"], ["acceptance is 2"]),
    (["--machine", "A100", "--cost", "-1"], ["cost -1"]),
    (["--acceptance", "2"], ["acceptance is 2"]),
    (["--cost", "0.1", "--k", "-1"], ["--k is -1"]),
    (["--check", "--cost", "0.1"], ["--check", "--cost"]),
    (["--plot", "x.png"], ["--plot", "--machine"]),
    (["--machine", "A100", "--plot", "x.gif"], ["x.gif", ".png or .svg"]),
    (["--machine", "A100", "--plot", "nowhere/x.png"], ["nowhere/x.png", "exists"]),
]


def refused(run: Any, *words: str) -> None:
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("specdec: ")
    assert run.err.count("\n") == 1
    assert all(word in run.err for word in words), run.err


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[" ".join(options) for options, _ in REFUSED])
def test_bad_input_is_refused_in_one_line(specdec: Specdec, options: list[str], words: list[str]) -> None:
    refused(specdec("roofline", *options), *words)


def test_without_matplotlib_the_picture_is_refused(specdec: Specdec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(specdec("roofline", "--machine", "A100", "--plot", tmp_path / "x.png"), "matplotlib", "pip install -c constraints/pins.txt -e '.[plots]'")


# --k auto


TEXT = ("generate", "abcabcabcabcabc", "--temperature", "0", "--max-tokens", "40", "--ignore-eos")


def test_auto_measures_and_says_so(specdec: Specdec, tiny: Path, still: list[dict[str, Any]]) -> None:
    run = specdec(*TEXT, "--model", tiny, "--k", "auto", "--json")
    assert run.code == 0
    assert run.err.startswith("measured in ")
    assert "1 row 10.0 ms, 2 rows 11.0 ms, 5 rows 14.0 ms" in run.err
    found, plain = json.loads(run.out), json.loads(specdec(*TEXT, "--model", tiny, "--proposer", "none", "--json").out)
    assert found["tokens"] == plain["tokens"]
    assert found["curve"] == {"seconds": [0.01 + 0.001 * row for row in range(9)], "draft": 0.0}
    assert still[0]["proposer"].name == "ngram"


def test_a_recorded_curve_measures_nothing_and_repeats_the_run(specdec: Specdec, tiny: Path, still: list[dict[str, Any]], tmp_path: Path) -> None:
    """The file may be a curve, or what a run with one printed."""
    bare, whole = tmp_path / "curve.json", tmp_path / "run.json"
    bare.write_text(json.dumps(to_json(FLAT)))
    command = (*TEXT, "--model", tiny, "--k", "auto", "--seed", "3", "--json", "--curve")
    first = specdec(*command, bare)
    assert (first.code, first.err, still) == (0, "", [])
    whole.write_text(first.out)
    one, other = json.loads(first.out), json.loads(specdec(*command, whole).out)
    assert one["curve"] == to_json(FLAT)
    for result in (one, other):
        result["stats"].pop("seconds")
    assert one == other
    assert one["stats"]["proposed"] > 0


def test_a_steep_curve_lets_nothing_be_drafted_for_long(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "steep.json"
    path.write_text(json.dumps({"seconds": [0.01 * rows for rows in range(1, 9)]}))
    found = json.loads(specdec(*TEXT, "--model", tiny, "--k", "auto", "--curve", path, "--json").out)
    assert found["stats"]["proposed"] <= 3


def test_plain_decoding_needs_no_curve(specdec: Specdec, tiny: Path, still: list[dict[str, Any]]) -> None:
    run = specdec(*TEXT, "--model", tiny, "--k", "auto", "--proposer", "none", "--json")
    assert (run.code, run.err, still) == (0, "", [])
    assert "curve" not in json.loads(run.out)


def test_a_number_is_what_it_was(specdec: Specdec, tiny: Path, still: list[dict[str, Any]]) -> None:
    one, other = (json.loads(specdec(*TEXT, "--model", tiny, *options, "--json").out) for options in ((), ("--k", "5")))
    assert one["stats"]["proposed"] == other["stats"]["proposed"]
    assert "curve" not in one
    assert still == []


def test_chat_measures_once(specdec: Specdec, tiny: Path, still: list[dict[str, Any]]) -> None:
    run = specdec("chat", "--model", tiny, "--k", "auto", "--json", "--max-tokens", "8", stdin="abab\nabab\n")
    assert run.code == 0
    assert len(still) == 1
    assert [json.loads(line)["curve"]["draft"] for line in run.out.splitlines()] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--k", "many"], ["--k is 'many'", "auto"]),
        (["--k", "1.5"], ["--k is '1.5'"]),
        (["--curve", "x.json"], ["--curve", "--k auto"]),
        (["--k", "auto", "--curve", "x.json"], ["x.json", "No such file"]),
        (["--k", "auto", "--curve", "list.json"], ["the curve is [1, 2]", "expected"]),
        (["--k", "auto", "--curve", "no.json"], ["no.json", "no JSON"]),
        (["--k", "auto", "--curve", "bytes.json"], ["bytes.json", "no text"]),
    ],
)
def test_what_is_no_k_and_no_curve_is_refused(
    specdec: Specdec, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text("[1, 2]")
    Path("no.json").write_text("{")
    Path("bytes.json").write_bytes(b"\xff\xfe\x00")
    refused(specdec("generate", "ab", "--model", tiny, *options), *words)
    refused(specdec("chat", "--model", tiny, *options), *words)


def test_a_file_of_prompts_takes_a_number(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "ab"}\n')
    run = specdec("generate", "--model", tiny, "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", "--k", "auto")
    refused(run, "--k is 'auto' with --input")
