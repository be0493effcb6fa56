"""``specdec bench`` rows, peers, lookup, selfdraft, spec, startup and the decoding of invariant, with a model that takes milliseconds."""

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_fn.load import load
from specdec_fn.models import toy
from specdec_fn.random import key

Specdec = Callable[..., Any]


def room(name: str) -> Any:
    """A module of the bench, whose name is also that of its command."""
    return importlib.import_module(f"specdec_fn.cli.bench.{name}")


def refused(run: Any, *words: str) -> None:
    assert (run.code, run.out) == (2, ""), run
    assert run.err.count("\n") == 1, run.err
    assert all(word in run.err for word in words), run.err


def times(slow: list[float], fast: list[float]) -> Any:
    return pytest.approx([a / b for a, b in zip(slow, fast, strict=True)])


# rows


def test_rows(specdec: Specdec, tiny: Path) -> None:
    command = ("bench", "rows", "--model", tiny, "--variants", "float32,bfloat16", "--rows", "3,5", "--repeats", "2", "--context", "7")
    run = specdec(*command, "--json")
    found = json.loads(run.out)
    assert (run.code, found["figures"]) == (0, [])  # they are of another model
    full, half = found["variants"]
    assert (full["variant"], half["variant"], full["bytes"]) == ("float32", "bfloat16", 2 * half["bytes"])
    assert full["bytes"] == sum(part.numel() * 4 for part in torch.utils._pytree.tree_leaves(load(tiny)[0].params))
    for one in (full, half):
        assert one["ms"].keys() == {"1", "3", "5"}
        assert one["ratios"]["5"] == times(one["ms"]["5"], one["ms"]["1"])
        way = min(one["reading_ms"], key=lambda name: statistics.median(one["reading_ms"][name]))
        assert one["read_by"] == way
        assert one["share_of_bound"] == times(one["reading_ms"][way], one["ms"]["1"])
        assert one["gigabytes_per_second"] == pytest.approx(one["bytes"] / 1e9 / (statistics.median(one["reading_ms"][way]) / 1e3))
    assert "share of the bound" in specdec(*command).out


def test_rows_hold_their_figures(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room("rows"), "GATED", str(tiny))
    monkeypatch.setattr(room("rows"), "SHARE", (("float32", 0.0),))
    command = ("bench", "rows", "--model", tiny, "--variants", "float32", "--rows", "5", "--repeats", "1", "--context", "7")
    for limit, code in ((0.0, 1), (1e9, 0)):
        monkeypatch.setattr(room("rows"), "RATIO", (("float32", limit),))
        run = specdec(*command)
        assert (run.code, "FAILED" in run.out) == (code, bool(code))


def test_the_milliseconds_of_another_machine_are_stated_and_decide_nothing(specdec: Specdec, monkeypatch: pytest.MonkeyPatch) -> None:
    """134 MB that are read in 10 ms and passed over in 12: far from 6 ms, and within what the machine can do."""
    module = room("rows")
    slow = module.Found("int8", 134_000_000, {1: [12.0], 5: [13.0]}, {"one": [10.0], "other": [11.0]})
    monkeypatch.setattr(module, "_measured", lambda *_: [slow])
    command = ("bench", "rows", "--variants", "int8", "--rows", "5")
    run = specdec(*command)
    wanted = "of 1 row is 12, reading the bytes alone 10 (6 ms is what we aim at where memory gives 26 GB/s; this machine reads 13.4 GB/s)"
    assert run.code == 0
    assert wanted in run.out
    assert run.out.count("gate: ") == 1
    found = json.loads(specdec(*command, "--json").out)
    assert [figure["what"] for figure in found["figures"]] == ["int8: 5 rows / 1 row"]
    (one,) = found["stated"]
    assert (one["value"], one["bound"], one["stated"]) == (12.0, 10.0, 6.0)


# peers


def test_transformers(specdec: Specdec, tiny: Path) -> None:
    command = ("bench", "transformers", "--model", tiny, "--max-tokens", "6", "--repeats", "2", "--dtype", "bfloat16")
    run = specdec(*command, "--json")
    (one,) = json.loads(run.out)["variants"]
    assert (run.code, one["variant"], one["same_tokens"]) == (0, "bfloat16", {"transformers": True})
    assert one["ratios"]["transformers"] == times(one["ms"]["transformers"], one["ms"]["specdec_fn"])


FAKE = '''
"""Counts up: the token after t is t + 1, modulo 50. What it was fed goes to a file."""

import json

__version__ = "fake"
SEEN = r"{seen}"


class Llama:
    n_batch = 16

    def __init__(self, path, **settings):
        open(path).close()
        print("a word that is no answer")
        self.ctx = self
        self.fed = []
        self.settings = {{name: value for name, value in settings.items() if name != "draft_model"}}
        self.draft = settings["draft_model"]

    def reset(self):
        self.fed = []

    def generate(self, ids, temp):
        assert temp == 0.0 and self.draft.num_pred_tokens == 3
        token = ids[-1]
        while True:
            token = (token + 1) % 50
            yield token


class _Token(int):
    def __mul__(self, count):
        return lambda *ids: list(ids)


llama_token = _Token()


def llama_get_memory(context):
    return context


def llama_memory_clear(memory, data):
    memory.fed = []


def llama_sampler_init_greedy():
    return "greedy"


def llama_sampler_free(sampler):
    assert sampler == "greedy"


def llama_batch_get_one(tokens, count):
    assert len(tokens) == count <= Llama.n_batch
    return tokens


def llama_decode(context, batch):
    context.fed += batch
    return 0


def llama_sampler_sample(sampler, context, place):
    with open(SEEN, "w") as file:
        json.dump({{"fed": context.fed, "settings": context.settings}}, file)
    return (context.fed[-1] + 1) % 50
'''
SPECULATIVE = """
class LlamaPromptLookupDecoding:
    def __init__(self, num_pred_tokens):
        self.num_pred_tokens = num_pred_tokens
"""


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Path, Path]:
    """A Python that has a llama_cpp of ours, and the file where that writes what it was fed."""
    seen, package = tmp_path / "seen.json", tmp_path / "their" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE.format(seen=seen))
    (package / "llama_speculative.py").write_text(SPECULATIVE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{package.parent}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python, seen


def test_peers_with_llama(specdec: Specdec, tiny: Path, tmp_path: Path, llama: tuple[Path, Path]) -> None:
    python, seen = llama
    command = ("bench", "peers", "--model", tiny, "--variants", "float32", "--max-tokens", "6", "--repeats", "2", "--llama-python", python)
    run = specdec(*command, "--gguf-folder", tmp_path / "files", "--json")
    found = json.loads(run.out)
    (one,) = found["variants"]
    assert (run.code, found["left_out"], one["llama_file"]) == (0, None, "tiny.F32.gguf")
    assert one["ms"].keys() == {"specdec_fn", "transformers", "llama.cpp"}
    assert one["same_tokens"] == {"transformers": True, "llama.cpp": False}
    assert one["ratios"]["llama.cpp"] == times(one["ms"]["llama.cpp"], one["ms"]["specdec_fn"])
    written = json.loads(seen.read_text())
    ids = load(tiny)[1].chat([{"role": "user", "content": room("peers").PROMPT}])
    assert written["fed"] == ids + [(ids[-1] + 1 + place) % 50 for place in range(5)]  # in pieces of 16, then one by one
    assert written["settings"] == {
        "n_threads": torch.get_num_threads(),
        "n_threads_batch": torch.get_num_threads(),
        "n_ctx": len(ids) + 6,
        "verbose": False,
    }


def test_the_worker_looks_up_and_tells_of_faults(tiny: Path, llama: tuple[Path, Path]) -> None:
    with room("llama").Llama(str(llama[0]), tiny, threads=1, context=64, lookup=3) as worker:
        assert worker.version == "fake"
        assert worker.decoder([1, 48], 4)().tokens == [49, 0, 1, 2]
        assert worker.decoder([1, 48], 1)().tokens == [49]
    with pytest.raises(ValueError, match=r"llama-cpp-python failed to load: FileNotFoundError"):
        room("llama").Llama(str(llama[0]), tiny.with_name("nothing"), threads=1, context=64)


def test_peers_without_llama(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room("llama").importlib.util, "find_spec", lambda name: None)
    run = specdec("bench", "peers", "--model", tiny, "--variants", "float32", "--max-tokens", "3", "--repeats", "1")
    assert run.code == 0
    assert run.out.count("llama-cpp-python is not installed: left out") == 1
    assert "llama.cpp" not in run.out


# lookup


def prompts(folder: Path) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"name": name, "text": text}) + "\n" for name, text in (("a", "abababab"), ("b", "the cat, the cat"))))
    return path


def test_lookup(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    command = (
        "bench",
        "lookup",
        "--model",
        tiny,
        "--prompts",
        prompts(tmp_path),
        "--peer-k",
        "2,4",
        "--max-tokens",
        "12",
        "--repeats",
        "2",
        "--k",
        "3",
    )
    run = specdec(*command, "--dtype", "float32", "--json")
    found = json.loads(run.out)
    assert (run.code, found["figures"], found["weights"], len(found["rows"])) == (0, [], "float32", 2)
    total, peers = found["set"], ("transformers, K = 2", "transformers, K = 4")
    for row in found["rows"]:
        assert all(row["same_tokens"].values())
        assert row["ratios"]["suffix"] == times(row["ms"]["plain"], row["ms"]["suffix"])

    def over(slow: str, fast: str) -> float:
        pairs = (zip(row["ms"][slow], row["ms"][fast], strict=True) for row in found["rows"])
        return statistics.median(statistics.median(a / b for a, b in pair) for pair in pairs)

    best = min(peers, key=lambda name: over(name, "plain"))
    assert total["transformers_best"] == best
    for name in ("ngram", "suffix"):
        assert total["proposers"][name]["over_plain"] == pytest.approx(over("plain", name))
        assert total["proposers"][name]["over_transformers"] == pytest.approx(over(best, name))
    assert "median of the prompts" in specdec(*command, "--repeats", "1", "--peer-k", "none").out


# selfdraft


def test_selfdraft(specdec: Specdec, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load(tiny)[1]

    def packable(name: str, variant: str) -> Any:
        sizes = {"vocab_size": tokenizer.size, "width": 32, "heads": 2, "head_dim": 16, "ffn": 64, "context": 512}
        return toy.llama(key(1), dtype=getattr(torch, variant), **sizes), tokenizer

    monkeypatch.setattr(room("variants"), "load_variant", packable)
    command = ("bench", "selfdraft", "--model", tiny, "--prompts", prompts(tmp_path), "--max-tokens", "8", "--repeats", "1", "--k", "3")
    run = specdec(*command, "--weights", "float32,bfloat16", "--json")
    found = json.loads(run.out)
    assert (run.code, found["kind"], found["sentence"]) == (0, "int4", room("selfdraft").SENTENCE)
    assert "not the grid of the file" in found["grid"]
    assert [(one["weights"], one["temperature"]) for one in found["targets"]] == [("float32", 0), ("float32", 1), ("bfloat16", 0), ("bfloat16", 1)]
    for one in found["targets"]:
        assert one["ms"].keys() == {"plain", "self-draft", "the draft alone"}
        assert one["over_plain"] == pytest.approx(statistics.median(statistics.median(row["ratios"]) for row in one["rows"]))
        assert one["interval"][0] <= one["over_plain"] <= one["interval"][1]
        assert 0 < one["acceptance_rate"] <= 1
    assert all(row["same_tokens"] for row in found["targets"][0]["rows"])  # at temperature 0 the text is the target's
    out = specdec(*command, "--weights", "float32", "--temperatures", "0").out
    assert room("selfdraft").SENTENCE in out
    assert room("selfdraft").GRIDS["int4"] in out


# spec


def folder_of(tmp_path: Path) -> Path:
    asked = ((1, "copy", "abab abab"), (2, "copy", "xyxyxyxy"), (5, "talk", "hello you"), (7, "talk", "z" * 2000))
    lines = (json.dumps({"question_id": number, "category": category, "turns": [text, "more"]}) for number, category, text in asked)
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_spec_goes_on(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    command = ("bench", "spec", "--prompts", folder_of(tmp_path), "--model", tiny, "--max-tokens", "10", "--resume", path)
    command = (*command, "--proposers", "ngram,adaptive:suffix,early_exit")
    first = json.loads(specdec(*command, "--limit", "1", "--json").out)
    assert {(row["category"], row["who"]) for row in first["rows"]} == {
        (category, who) for category in ("copy", "talk", "all") for who in ("ngram", "adaptive:suffix", "early_exit")
    }
    begun = path.read_text()
    run = specdec(*command, "--json")
    found = json.loads(run.out)
    assert path.read_text().startswith(begun)
    records = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [record["question_id"] for record in records] == [1, 5, 2]
    assert found["left_out"] == ["question 7 has 2009 tokens and does not fit into the context: left out"]
    assert found["note"] == first["note"]
    for record in records:
        for counts in record["counts"].values():
            assert sum(counts["by_rows"].values()) == counts["passes"]
            assert sum((int(rows) - 1) * count for rows, count in counts["by_rows"].items()) == counts["proposed"]
    assert [(row["questions"], row["category"]) for row in found["rows"] if row["who"] == "ngram"] == [(2, "copy"), (1, "talk"), (3, "all")]
    assert len(found["figures"]) == 2 * 3  # for the one that chooses K, in two categories and in all
    assert all("adaptive:suffix" in figure["what"] for figure in found["figures"])
    assert run.code == int(not all(figure["met"] for figure in found["figures"]))
    refused(specdec(*command, "--k", "3"), "was begun with k 5", "expected the same")
    assert "early_exit" in specdec(*command).out


def test_spec_beside_others(specdec: Specdec, tiny: Path, tmp_path: Path, llama: tuple[Path, Path]) -> None:
    command = ("bench", "spec", "--prompts", folder_of(tmp_path), "--model", tiny, "--max-tokens", "5", "--limit", "1", "--temperature", "0")
    more = ("--peers", "transformers,llama", "--llama-python", llama[0], "--peer-k", "3", "--proposers", "ngram")
    found = json.loads(specdec(*command, *more, "--json").out)
    others = {"transformers", "transformers lookup 3", "llama.cpp", "llama.cpp lookup 3"}
    assert {row["who"] for row in found["rows"]} == {"ngram", *others}
    assert all((row["predicted"] is None) == (row["who"] in others) for row in found["rows"])
    assert all(row["entropy"] == 0 < row["softmax"] for row in found["rows"])


# startup


def test_startup(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def once(model: str, weights: str, folder: Path) -> dict[str, Any]:
        cold = not folder.exists()
        folder.mkdir(exist_ok=True)
        folders.append(folder)
        assert (model, weights) == (str(tiny), "bfloat16")
        return {"imported": 1.0, "loaded": 2.0, "first": 3.9 if cold else 3.0, "ready": 9.0 if cold else 1.5, "status": "fine"}

    monkeypatch.setattr(room("startup"), "once", once)
    command = ("bench", "startup", "--model", tiny, "--dtype", "bfloat16", "--repeats", "2")
    run = specdec(*command, "--json")
    found = json.loads(run.out)
    assert run.code == 0
    assert found["first_ratios"] == [pytest.approx(1.3)] * 2
    assert [figure["value"] for figure in found["figures"]] == [pytest.approx(1.3), 7.0, 0.0]
    assert len(set(folders)) == 3  # a filled one, and an empty one for each cold start
    monkeypatch.setattr(room("startup"), "COLD", 6.0)
    run = specdec(*command)
    assert (run.code, run.out.count("FAILED")) == (1, 1)


def test_a_start_is_timed(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = time.time()
    room("startup_once").main(str(tiny), "float32", before)
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["imported"] <= found["loaded"] <= found["first"]
    assert found["ready"] is None or found["loaded"] <= found["ready"] <= time.time() - before
    assert found["status"]


def test_a_start_that_fails_is_told(specdec: Specdec, tmp_path: Path) -> None:
    refused(specdec("bench", "startup", "--model", tmp_path / "nothing.gguf", "--repeats", "1"), "a start ended with 1", "nothing.gguf")


# invariant


def test_invariant_decodes(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("bench", "invariant", "--model", tiny, "--rows", "2", "--repeats", "2", "--k", "3", "--max-tokens", "8")
    found = json.loads(specdec(*command, "--json").out)
    decode = found["decode"]
    assert (decode["k"], decode["same_tokens"], found["figures"]) == (3, True, [])
    assert decode["ratios"] == times(decode["ms"]["default"], decode["ms"]["invariant"])
    assert decode["tokens_per_pass"]["default"] == decode["tokens_per_pass"]["invariant"] > 1
    monkeypatch.setattr(room("invariant"), "GATED", str(tiny))
    for limit, code in ((1e9, 1), (0.0, 0)):
        monkeypatch.setattr(room("invariant"), "LEAST", limit)
        run = specdec(*command)
        assert (run.code, "FAILED" in run.out) == (code, bool(code))


# what is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rows", "--variants", "float32,int9"), ("'int9'", "float32, bfloat16, int8")),
        (("rows", "--rows", "0,1"), ("'0,1'", "such as 1,2,4")),
        (("rows", "--variants", "float32", "--rows", "512", "--repeats", "1"), ("512 rows", "context")),
        (("peers", "--variants", "f32"), ("'f32'", "bfloat16")),
        (("peers", "--llama-python", "/no/python"), ("'/no/python'", "does not run")),
        (("peers", "--llama-python", "false"), ("'false'", "cannot import llama_cpp")),
        (("transformers", "--dtype", "float16"), ("'float16'", "float32, bfloat16")),
        (("transformers", "--max-tokens", "512"), ("--max-tokens is 512", "context leaves")),
        (("lookup", "--peer-k", "2,x"), ("'2,x'", "such as 2,3,5")),
        (("lookup", "--peer-k", "0"), ("'0'", "such as 2,3,5")),
        (("lookup", "--proposers", "ngrm"), ("'ngrm'", "ngram")),
        (("lookup", "--quantize", "q2"), ("'q2'", "q4_0")),
        (("lookup", "--prompts", "nothing.jsonl"), ("nothing.jsonl",)),
        (("selfdraft", "--kind", "q2"), ("'q2'", "int4, q4_0, q4_1")),
        (("selfdraft", "--weights", "int8"), ("'int8'", "float32, bfloat16")),
        (("selfdraft", "--temperatures", "hot"), ("'hot'", "such as 0,1")),
        (("spec", "--prompts", "nowhere"), ("nowhere", "questions.jsonl")),
        (("spec",), ("--prompts",)),
        (("invariant", "--rows", "2", "--dtype", "half"), ("'half'", "float32, bfloat16")),
    ],
)
def test_bad_arguments_are_refused_in_a_line(specdec: Specdec, tiny: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(specdec("bench", *arguments, "--model", tiny), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--peers", "vllm"), ("'vllm'", "transformers, llama")),
        (("--peers", "transformers"), ("temperature 1", "temperature 0")),
        (("--proposers", " , "), ("' , '", "ngram,suffix")),
        (("--proposers", "adaptive:nobody"), ("'nobody'", "ngram")),
        (("--proposers", "draft:nothing.gguf"), ("'nothing.gguf'", "does not exist")),
        (("--max-tokens", "600"), ("none of the 4 questions fits",)),
    ],
)
def test_bad_arguments_of_spec_are_refused(specdec: Specdec, tiny: Path, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(specdec("bench", "spec", "--prompts", folder_of(tmp_path), "--model", tiny, *arguments), *words)
