"""``specdec trace``: the tokens of ``specdec generate``, a page that appears whole or not at all, and one line for whatever is wrong."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_fn import trace as tracing
from specdec_fn.trace import passes

PROMPT = "abababab and abababab and abab"
Specdec = Callable[..., Any]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--proposer", "none"),
        ("--verifier", "block", "--proposer", "suffix", "--k", "3"),
        ("--verifier", "coupled", "--temperature", "0.7"),
        ("--verifier", "tree", "--proposer", "ngram_tree", "--top-k", "5"),
        ("--verifier", "greedy", "--temperature", "0"),
        ("--verifier", "typical", "--lossy", "--min-p", "0.01"),
        ("--chat", "--invariant", "--stop", "b", "--presence-penalty", "0.5"),
        ("--proposer", "suffix+ngram", "--logit-bias", "97=2", "--ignore-eos", "--min-tokens", "3"),
    ],
    ids=" ".join,
)
def test_its_tokens_are_those_of_generate(specdec: Specdec, tiny: Path, options: tuple[str, ...]) -> None:
    common = (PROMPT, "--model", tiny, "--seed", 7, "--max-tokens", 20, *options, "--json")
    made, wanted = (json.loads(specdec(command, *common).out) for command in ("trace", "generate"))
    for name in ("tokens", "text", "finish_reason"):
        assert made[name] == wanted[name]
    for name in ("passes", "proposed", "accepted", "emitted", "per_position"):
        assert made["stats"][name] == wanted["stats"][name]
    assert [kind for one in made["passes"] for kind in one["kinds"]] == wanted["kinds"]


def test_it_writes_a_page_and_says_where(specdec: Specdec, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = specdec("trace", PROMPT, "--model", tiny, "--seed", 3, "--max-tokens", 12)
    assert run.code == 0
    first, second = run.out.splitlines()
    assert first.startswith("12 tokens in ")
    assert second == "seed 3 · the page is trace.html"
    text = Path("trace.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert text.count('<tr role="row" id="pass-') == int(first.split()[3])
    for said in (str(tiny), "ngram", "token", "temperature 1.0"):
        assert f">{said}<" in text
    assert os.listdir(tmp_path) == ["trace.html"]


def test_a_page_goes_where_it_is_told_to(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    place = tmp_path / "a.html"
    place.write_text("what was there before")
    common = ("--model", tiny, "--max-tokens", 8)
    told = specdec("trace", "-", *common, "--output", place, "--json", stdin=PROMPT)
    shown = specdec("trace", PROMPT, *common, "--output", "-")
    assert (told.code, shown.code) == (0, 0)
    assert shown.out == place.read_text("utf-8")
    assert shown.err.count("\n") == 2
    assert len(json.loads(told.out)["tokens"]) == 8


def test_a_page_that_cannot_be_made_leaves_what_was_there(specdec: Specdec, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a.html"
    place.write_text("what was there before")
    monkeypatch.setattr(Path, "replace", lambda beside, path: (_ for _ in ()).throw(OSError(28, "No space left on device", str(path))))
    run = specdec("trace", PROMPT, "--model", tiny, "--max-tokens", 4, "--output", place)
    assert (run.code, run.err) == (2, f"specdec: '{place}': No space left on device\n")
    assert place.read_text() == "what was there before"
    assert os.listdir(tmp_path) == ["a.html"]


def test_an_interrupted_trace_shows_what_there_is(specdec: Specdec, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def called_off(job: Any) -> Any:
        for number, event in enumerate(passes.traced(job)):
            if number == 2:
                raise KeyboardInterrupt
            yield event

    monkeypatch.setattr(tracing, "traced", called_off)
    place = tmp_path / "a.html"
    run = specdec("trace", PROMPT, "--model", tiny, "--max-tokens", 30, "--output", place, "--json")
    assert run.code == 130
    assert (len(json.loads(run.out)["passes"]), json.loads(run.out)["finish_reason"]) == (2, "abort")
    assert place.read_text("utf-8").count('id="pass-') == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--verifier", "blok"), "blok"),
        (("--verifier", "lenient"), "expected a lossless one, or --lossy as well"),
        (("--proposer", "oracle"), "proposer is 'oracle'; expected one of"),
        (("--verifier", "greedy"), "verifier 'greedy' with temperature 1.0"),
        (("--k", "few"), "--k is 'few'; expected a whole number"),
        (("--k", "-1"), "k is -1"),
        (("--max-tokens", "0"), "max_tokens is 0"),
        (("--temperature", "-1"), "temperature"),
        (("--output", "-", "--json"), "--output is '-' with --json; expected a file"),
        (("--output", "."), "--output is '.', a folder; expected a file"),
        (("--output", "no/such/folder.html"), "expected a file in a folder that is there"),
        (("--model", "no-such-model"), "no-such-model"),
        (("--seed", "x"), "received 'x'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_line(
    specdec: Specdec, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = specdec("trace", PROMPT, *(() if "--model" in options else ("--model", tiny)), *options)
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("specdec: ")
    assert run.err.count("\n") == 1
    assert words in run.err
    assert os.listdir(tmp_path) == []


def test_an_empty_prompt_is_refused_and_a_missing_one_too(specdec: Specdec, tiny: Path) -> None:
    for arguments in (("trace", "", "--model", tiny), ("trace", "--model", tiny)):
        run = specdec(*arguments)
        assert (run.code, run.out, run.err.count("\n")) == (2, "", 1)
