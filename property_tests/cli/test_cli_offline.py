"""``specdec generate --input``: killed before and inside every effect it has on files, and at other moments, it goes on to the same results."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specdec_fn import SamplingParams, generate, load
from specdec_fn.batch import seed_of
from specdec_fn.cli import offline
from specdec_fn.engine import PassError

Specdec = Callable[..., Any]
LINES: list[dict[str, Any] | None] = [
    {"prompt": "abcabcab"},
    {"id": "b", "prompt": [1, 2, 3, 1, 2], "max_tokens": 5, "temperature": 0, "k": 2},
    None,
    {"messages": [{"role": "user", "content": "Hi <|im_end|>"}], "seed": 9, "stop": ["zz", "q"], "top_p": 0.9},
    {"id": 2.5, "prompt": "x" * 70, "proposer": "none", "verifier": "block", "logit_bias": {"65": 2, "66": -1.5}, "bad_words": [67, [68, 69]]},
    {"prompt": "abab", "ignore_eos": True, "allowed_ids": [65, 66, 258], "min_tokens": 2, "max_tokens": 9, "repetition_penalty": 1.1},
]
FEW = LINES[:4]


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    return written(tmp_path / "prompts.jsonl", LINES)


def written(path: Path, lines: list[dict[str, Any] | None]) -> Path:
    path.write_text("".join("\n" if line is None else f"{json.dumps(line)}\n" for line in lines))
    return path


def found(path: Path) -> dict[Any, dict[str, Any]]:
    """The results by id; none may be there twice."""
    results = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert len({result["index"] for result in results}) == len({result["id"] for result in results}) == len(results)
    return {result["id"]: result for result in results}


def read_or_end(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed and all is read
        return b""


def command(asked: Path, out: Path | str, model: Path, *options: Any) -> list[str]:
    return list(map(str, ("generate", "--input", asked, "--output", out, "--model", model, "--max-tokens", 8, "--seed", 5, "--json", *options)))


def refused(run: Any, *words: str) -> None:
    assert (run.code, run.out) == (2, ""), run
    assert run.err.startswith("specdec: ")
    assert run.err.count("\n") == 1, run.err
    for word in words:
        assert word in run.err


# What comes out


def test_every_line_has_the_result_it_has_alone(specdec: Specdec, tiny: Path, asked: Path, tmp_path: Path) -> None:
    """A line's own options go before the command's, under the same names; its text is that of the same request by the door."""
    out = tmp_path / "out.jsonl"
    run = specdec(*command(asked, out, tiny, "--invariant", "--batch", 2, "--logprobs"))
    assert (run.code, run.err) == (0, "")
    model, tokenizer = load(tiny)
    common = {"tokenizer": tokenizer, "invariant": True, "proposer": "ngram", "max_tokens": 8}
    alone = {
        0: generate(model, "abcabcab", seed=seed_of(5, 0), **common),
        "b": generate(model, [1, 2, 3, 1, 2], seed=seed_of(5, 1), **{**common, "max_tokens": 5}, sampling=SamplingParams(0), k=2),
        3: generate(
            model,
            tokenizer.chat([{"role": "user", "content": "Hi <|im_end|>"}]),
            seed=9,
            stop=["zz", "q"],
            sampling=SamplingParams(top_p=0.9),
            **common,
        ),
        2.5: generate(
            model,
            "x" * 70,
            seed=seed_of(5, 4),
            verifier="block",
            sampling=SamplingParams(logit_bias={65: 2, 66: -1.5}, bad_words=[67, (68, 69)]),
            **{**common, "proposer": None},
        ),
        5: generate(
            model,
            "abab",
            seed=seed_of(5, 5),
            ignore_eos=True,
            sampling=SamplingParams(allowed_ids=[65, 66, 258], min_tokens=2, repetition_penalty=1.1),
            **{**common, "max_tokens": 9},
        ),
    }
    results = found(out)
    assert results.keys() == alone.keys()
    for name, index in ((0, 0), ("b", 1), (3, 3), (2.5, 4), (5, 5)):
        done = alone[name]
        assert results[name] == {
            "id": name,
            "index": index,
            "text": done.text,
            "tokens": done.tokens,
            "finish_reason": done.finish_reason,
            "stats": {part: getattr(done.stats, part) for part in ("passes", "proposed", "accepted", "emitted")},
            "seed": 9 if name == 3 else seed_of(5, index),
            "logprobs": done.logprobs,
        }
    told = json.loads(run.out)
    counted = sum(len(done.tokens) for done in alone.values())
    assert (told["prompts"], told["done"], told["failed"], told["skipped"], told["left"], told["tokens"]) == (5, 5, 0, 0, 0, counted)
    assert told["tokens_per_second"] == pytest.approx(counted / told["seconds"])
    assert (told["model"], told["input"], told["output"], told["seed"], told["interrupted"]) == (str(tiny), str(asked), str(out), 5, False)


def test_what_decides_only_the_speed_decides_no_bit(specdec: Specdec, tiny: Path, asked: Path, tmp_path: Path) -> None:
    """In invariant mode, and an output may be continued with other such settings."""
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    assert specdec(*command(asked, one, tiny, "--invariant")).code == 0
    first = one.read_bytes().splitlines(keepends=True)[0]
    assert specdec(*command(written(tmp_path / "same.jsonl", LINES), other, tiny, "--invariant", "--batch", 1)).code == 0
    assert sorted(other.read_bytes().splitlines()) == sorted(one.read_bytes().splitlines())
    other.write_bytes(first)
    run = specdec(*command(asked, other, tiny, "--invariant", "--batch", 3, "--page-size", 3, "--pages", 30, "--chunk", 5))
    assert [json.loads(run.out)[name] for name in ("done", "skipped")] == [4, 1]
    assert other.read_bytes().startswith(first)
    assert sorted(other.read_bytes().splitlines()) == sorted(one.read_bytes().splitlines())


def test_a_line_that_the_engine_refuses_is_a_result_with_an_error(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    """Exit code 1, the others as without it; it counts as there on the next run, whose exit code says the same."""
    out = tmp_path / "out.jsonl"
    bad = {"x" * 513: "513 tokens", "": "the prompt is empty"}
    lines = [
        {"prompt": "ab"},
        *({"prompt": prompt} for prompt in bad),
        {"prompt": [7, 999]},
        {"prompt": "ab", "verifier": "greedy"},
        {"prompt": "cd"},
    ]
    asked = written(tmp_path / "prompts.jsonl", lines)
    run = specdec(*command(asked, out, tiny, "--invariant"))
    assert run.code == 1
    results = found(out)
    for index, words in enumerate([*bad.values(), "prompt[1] is 999", "greedy"], start=1):
        assert words in results[index]["error"]
        assert (results[index]["finish_reason"], results[index]["tokens"], results[index]["text"]) == ("error", [], "")
    model, tokenizer = load(tiny)
    for index, prompt in ((0, "ab"), (5, "cd")):
        alone = generate(model, prompt, tokenizer=tokenizer, seed=seed_of(5, index), proposer="ngram", max_tokens=8, invariant=True)
        assert (results[index]["tokens"], "error" in results[index]) == (alone.tokens, False)
    assert [json.loads(run.out)[name] for name in ("done", "failed", "skipped", "failed_before")] == [2, 4, 0, 0]
    before = out.read_bytes()
    run = specdec(*command(asked, out, tiny, "--invariant"))
    assert (run.code, out.read_bytes()) == (1, before)
    assert [json.loads(run.out)[name] for name in ("done", "failed", "skipped", "failed_before", "tokens")] == [0, 0, 6, 4, 0]


def test_a_request_that_would_not_fit_the_pages_can_have_another_try(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    """Pages decide no result but this one; without its line the output is continued."""
    out, asked = tmp_path / "out.jsonl", written(tmp_path / "prompts.jsonl", [{"prompt": "ab"}, {"prompt": "x" * 60}])
    assert specdec(*command(asked, out, tiny, "--pages", 2)).code == 1
    assert "expected at most 2 pages" in found(out)[1]["error"] or "expected at most the 2 pages" in found(out)[1]["error"]
    out.write_text("".join(line for line in out.read_text().splitlines(keepends=True) if '"error"' not in line))
    assert specdec(*command(asked, out, tiny, "--pages", 20)).code == 0
    assert [len(result["tokens"]) for result in found(out).values()] == [8, 8]


def test_messages_and_prompts_as_messages(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    """--chat takes texts as users' messages, and leaves ids and messages as they are."""
    lines = [{"prompt": "Hi"}, {"messages": [{"role": "user", "content": "Hi"}]}, {"prompt": load(tiny)[1].chat([{"role": "user", "content": "Hi"}])}]
    asked, out = written(tmp_path / "prompts.jsonl", [{**line, "seed": 3} for line in lines]), tmp_path / "out.jsonl"
    assert specdec(*command(asked, out, tiny, "--chat", "--invariant")).code == 0
    first, second, third = found(out).values()
    assert first["tokens"] == second["tokens"] == third["tokens"]
    assert specdec(*command(asked, tmp_path / "plain.jsonl", tiny, "--invariant")).code == 0
    assert found(tmp_path / "plain.jsonl")[0]["tokens"] != first["tokens"]


def test_text_says_how_it_went_on_stderr(specdec: Specdec, tiny: Path, asked: Path, tmp_path: Path) -> None:
    arguments = [word for word in command(asked, tmp_path / "out.jsonl", tiny) if word != "--json"]
    run = specdec(*arguments)
    assert (run.code, run.out, run.err.count("\n")) == (0, "", 1)
    assert run.err.startswith("seed 5 · 5 of 5 prompts done · ")
    assert "tokens a second" in run.err
    run = specdec(*arguments)
    assert run.err.startswith("seed 5 · nothing left to do, 5 were there · ")


def test_results_on_standard_output(specdec: Specdec, tiny: Path, asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of it is a result, the summary is on stderr, and no file is left."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    run = specdec(*command(asked, "-", tiny, "--invariant"))
    assert run.code == 0
    assert json.loads(run.err)["done"] == 5
    specdec(*command(asked, "out.jsonl", tiny, "--invariant"))
    assert run.out == Path("out.jsonl").read_text()
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "out.jsonl", tmp_path / "out.jsonl.run.json"])


def test_a_bar_leaves_standard_output_to_the_results(specdec: Specdec, tiny: Path, few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the terminal on stderr alone, as with ``--output - | jq``."""
    for name, value in {"TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    terminal, slave = os.openpty()
    with os.fdopen(slave, "w") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        run = specdec(*command(few, "-", tiny))
    shown = b"".join(iter(lambda: read_or_end(terminal), b"")).decode()
    os.close(terminal)
    assert sorted(json.loads(line)["index"] for line in run.out.splitlines()) == [0, 1, 3]
    assert "/3 prompts" in shown


def test_no_prompts_are_no_results(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run = specdec(*command(written(tmp_path / "prompts.jsonl", [None]), out, tiny))
    assert (run.code, out.read_bytes(), json.loads(run.out)["prompts"]) == (0, b"", 0)


def test_pages_are_enough_for_the_batch_or_for_the_memory(tiny: Path) -> None:
    """The tiny model: context 512 and 64 bytes a slot (1 layer, 1 head of 8, keys and values in float32)."""
    model, _ = load(tiny)
    assert offline.pages_for(model, 16, 16) == 16 * 512 // 16
    assert offline.pages_for(model, 2, 10) == 2 * 52
    big = model._replace(config=model.config.__class__(**{**vars(model.config), "context": 2**30}))
    assert offline.pages_for(big, 16, 16) * 16 * 64 == 2**30


# What is refused, before anything runs


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"prompt": "a", "temprature": 1}, ["the field 'temprature' is unknown", "max_tokens, seed, k"]),
        ({"prompt": "a", "model": "b"}, ["the field 'model' is unknown"]),
        ({"prompt": "a", "messages": []}, ["a prompt beside messages"]),
        ({"id": "a"}, ["neither a prompt nor messages"]),
        ({"prompt": 5}, ["the prompt is 5", "text or a list of ids"]),
        ({"prompt": [1, True]}, ["the prompt is [1, True]"]),
        ({"prompt": [1, "a"]}, ["the prompt is [1, 'a']"]),
        ({"messages": "Hi"}, ["messages is 'Hi'", "role and content"]),
        ({"messages": [{"role": "user"}]}, ["messages is [{'role': 'user'}]"]),
        ({"prompt": "a", "max_tokens": 0}, ["max_tokens is 0", "1 or more"]),
        ({"prompt": "a", "max_tokens": "5"}, ["max_tokens is '5'"]),
        ({"prompt": "a", "k": -1}, ["k is -1"]),
        ({"prompt": "a", "seed": 2**63}, ["seed is 9223372036854775808"]),
        ({"prompt": "a", "temperature": -1}, ["temperature", "-1"]),
        ({"prompt": "a", "temperature": "hot"}, ["temperature", "'hot'"]),
        ({"prompt": "a", "top_k": 1.5}, ["top_k", "1.5"]),
        ({"prompt": "a", "stop": 5}, ["stop is 5"]),
        ({"prompt": "a", "stop": [""]}, ["stop", "empty string"]),
        ({"prompt": "a", "stop": [5]}, ["stop", "5"]),
        ({"prompt": "a", "ignore_eos": 1}, ["ignore_eos is 1"]),
        ({"prompt": "a", "proposer": "psychic"}, ["'psychic'", "ngram"]),
        ({"prompt": "a", "proposer": ["ngram"]}, ["['ngram']"]),
        ({"prompt": "a", "verifier": "blok"}, ["'blok'", "greedy, token"]),
        ({"prompt": "a", "verifier": ["token"]}, ["['token']"]),
        ({"prompt": "a", "verifier": "typical"}, ["'typical'", "--lossy"]),
        ({"prompt": "a", "logit_bias": {"a": 1}}, ["logit_bias", "'a'"]),
        ({"prompt": "a", "logit_bias": [[1, 2, 3]]}, ["logit_bias", "[1, 2, 3]"]),
        ({"prompt": "a", "bad_words": "abc"}, ["bad_words", "'abc'"]),
        ({"prompt": "a", "id": 0}, ["the id is 0, as in line 1"]),
    ],
)
def test_a_bad_line_is_refused_before_anything_runs(specdec: Specdec, tmp_path: Path, line: dict[str, Any], words: list[str]) -> None:
    """Before the model is loaded even: there is none."""
    asked, out = written(tmp_path / "prompts.jsonl", [{"prompt": "a"}, None, line]), tmp_path / "out.jsonl"
    refused(specdec(*command(asked, out, tmp_path / "no.gguf")), f"{asked}, line 3: ", *words)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Hello", "--input", "a", "--output", "b"], ["the prompt is 'Hello' and --input is given too"]),
        (["Hello", "--output", "b"], ["the prompt is 'Hello' and --output is given too"]),
        (["--input", "a"], ["--input is given alone", "--input and --output"]),
        (["--output", "a"], ["--output is given alone"]),
        ([], ["there is no 'prompt'", "--input and --output"]),
        (["Hello", "--batch", "2"], ["--batch is given with a single prompt"]),
        (["Hello", "--pages", "2"], ["--pages is given with a single prompt"]),
        (["Hello", "--page-size", "2"], ["--page-size is given with a single prompt"]),
        (["Hello", "--chunk", "2"], ["--chunk is given with a single prompt"]),
        (["Hello", "--logprobs"], ["--logprobs is given with a single prompt"]),
        (["--input", "a", "--output", "b", "--batch", "0"], ["--batch", "0"]),
        (["--input", "a", "--output", "b", "--pages", "many"], ["--pages", "many"]),
        (["--input", "a", "--output", "b", "--stop", ""], ["stop", "empty string"]),
        (["--input", "a", "--output", "b", "--verifier", "blok"], ["'blok'", "greedy, token"]),
        (["--input", "a", "--output", "b", "--seed", str(2**63)], ["seed", str(2**63)]),
        (["--input", "nothing.jsonl", "--output", "b"], ["nothing.jsonl"]),
    ],
)
def test_a_bad_command_is_refused(specdec: Specdec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text('{"prompt": "a"}\n')
    refused(specdec("generate", "--model", "no.gguf", *arguments), *words)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--logit-bias", "999=1"], ["999", "258"]),
        (["--verifier", "greedy"], ["greedy", "temperature 1"]),
        (["--page-size", "4", "--pages", "1", "--temperature", "nan"], ["temperature", "nan"]),
    ],
)
def test_an_option_that_would_fail_every_line_is_refused_once(
    specdec: Specdec, tiny: Path, asked: Path, tmp_path: Path, options: list[str], words: list[str]
) -> None:
    refused(specdec(*command(asked, tmp_path / "out.jsonl", tiny, *options)), *words)
    assert not (tmp_path / "out.jsonl").exists()


def test_greedy_is_a_verifier_of_files_too(specdec: Specdec, tiny: Path, asked: Path, tmp_path: Path) -> None:
    run = specdec(*command(written(tmp_path / "one.jsonl", LINES[:2]), tmp_path / "out.jsonl", tiny, "--verifier", "greedy", "--temperature", 0))
    assert (run.code, json.loads(run.out)["done"]) == (0, 2)


def test_other_settings_or_input_are_refused_and_leave_the_output_alone(specdec: Specdec, tiny: Path, asked: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert specdec(*command(asked, out, tiny)).code == 0
    before = out.read_bytes()
    refused(specdec(*command(asked, out, tiny, "--temperature", 0.5)), f"{out} belongs to a run with temperature 1.0, received 0.5")
    refused(specdec(*command(asked, out, tiny, "--stop", "x")), 'with stop [], received ["x"]')
    refused(specdec(*command(asked, out, tiny, "--invariant")), "with invariant false, received true")
    refused(specdec(*command(written(tmp_path / "other.jsonl", LINES[:4]), out, tiny)), "a run with other input")
    refused(specdec(*command(asked, asked, tiny)), f"without a whole {asked}.run.json beside it")
    refused(specdec(*command(asked, tmp_path / "nowhere" / "out.jsonl", tiny)), "nowhere")
    assert out.read_bytes() == before
    assert asked.read_bytes() == written(tmp_path / "again.jsonl", LINES).read_bytes()


def test_a_forward_that_fails_ends_the_run_in_one_sentence(
    specdec: Specdec, tiny: Path, asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specdec_fn import batch

    def failing(*_: Any, **__: Any) -> Iterator[Any]:
        raise PassError("the forward failed with RuntimeError: no memory", None)  # type: ignore[arg-type]
        yield

    monkeypatch.setattr(batch, "served", failing)
    refused(specdec(*command(asked, tmp_path / "out.jsonl", tiny)), "no memory; results that were written stay")


# Killed

NURSERY = """
import json, os, signal, sys
from specdec_fn.cli import main

def mortal(name, fatal, torn):
    real = getattr(os, name)
    def call(*arguments):
        seen.append(name)
        if len(seen) == fatal:
            if torn:
                real(arguments[0], arguments[1][: len(arguments[1]) * 2 // 3])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    setattr(os, name, call)

def run(arguments):
    sys.argv = ["specdec", *arguments]
    main()

replies = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
try:
    run(json.loads(sys.stdin.readline()))  # everything is imported and used once, before the first child
except SystemExit:
    pass
for line in iter(sys.stdin.readline, ""):
    arguments, fatal, torn = json.loads(line)
    child = os.fork()
    if not child:
        seen = []
        for name in ("write",) if torn else ("write", "fsync"):
            mortal(name, fatal, torn)
        run(arguments)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=replies, flush=True)
"""


@pytest.fixture(scope="module")
def nursery(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., int]]:
    """Runs ``specdec`` in a process of its own, forked from one that has imported everything, and gives its exit code.

    The process kills itself with SIGKILL when it is about to have its n-th effect on a file; or when two thirds of its n-th write are through.
    """
    warm = command(written(tmp_path_factory.mktemp("warm") / "prompts.jsonl", FEW), "-", tiny, "--invariant")
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "bufsize": 1}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", NURSERY], env=environment, **pipes) as process:
        given, replies = process.stdin, process.stdout
        assert given is not None
        assert replies is not None
        given.write(json.dumps(warm) + "\n")

        def run(arguments: list[str], fatal: int, *, torn: bool = False) -> int:
            given.write(json.dumps([arguments, fatal, torn]) + "\n")
            return int(replies.readline())

        yield run


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return written(tmp_path / "few.jsonl", FEW)


@pytest.fixture
def whole(specdec: Specdec, tiny: Path, few: Path, tmp_path: Path) -> list[bytes]:
    """The lines of a run that was left alone, sorted."""
    assert specdec(*command(few, tmp_path / "whole.jsonl", tiny, "--invariant")).code == 0
    return sorted((tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True))


@pytest.mark.parametrize("torn", [False, True])
def test_killed_at_any_effect_it_goes_on(
    specdec: Specdec, nursery: Callable[..., int], tiny: Path, few: Path, tmp_path: Path, whole: list[bytes], torn: bool
) -> None:
    """Before each write and wait for the disk, or inside each write. What was whole stays as it is and is not computed again."""
    kills = 0
    while True:
        out = tmp_path / f"out{kills}.jsonl"
        code = nursery(command(few, out, tiny, "--invariant", "--batch", 2), kills + 1, torn=torn)
        if code != -signal.SIGKILL:
            break
        kills += 1
        lines = out.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n")]
        assert len(lines) - len(kept) == (torn and kills > 1)
        assert set(kept) <= set(whole)
        run = specdec(*command(few, out, tiny, "--invariant"))
        assert (run.code, run.err) == (0, "")
        told = json.loads(run.out)
        assert (told["skipped"], told["done"]) == (len(kept), len(whole) - len(kept))
        assert out.read_bytes().startswith(b"".join(kept))
        assert sorted(out.read_bytes().splitlines(keepends=True)) == whole
    # The file beside it is a write, two waits for the disk; then each result is a write, and the end a wait.
    assert (code, kills) == (0, 1 + len(whole) if torn else 3 + len(whole) + 1)


def test_killed_again_and_again_it_gets_there(nursery: Callable[..., int], tiny: Path, few: Path, tmp_path: Path, whole: list[bytes]) -> None:
    """Each life writes one result and is killed inside the next."""
    out, lives = tmp_path / "out.jsonl", 1
    assert nursery(command(few, out, tiny, "--invariant"), 3, torn=True) == -signal.SIGKILL
    while nursery(command(few, out, tiny, "--invariant"), 2, torn=True) == -signal.SIGKILL:
        lives += 1
    assert lives == len(whole) - 1
    assert sorted(out.read_bytes().splitlines(keepends=True)) == whole


class Watched:
    """``specdec`` with a terminal on stderr, whose bar is read."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process, self._terminal, self.shown = process, terminal, ""

    def until(self, count: int) -> None:
        """Waits until the bar has come to more than ``count`` prompts."""
        while not any(int(done) > count for done in re.findall(r"(\d+)/\d+ prompts", self.shown)):
            assert self._read(), self.shown

    def end(self, sent: signal.Signals) -> tuple[int, str]:
        """Sends a signal, and gives the exit code and what is on stdout."""
        self.process.send_signal(sent)
        out = self.process.communicate(timeout=60)[0]
        while self._read():
            pass
        return self.process.returncode, out.decode()

    def _read(self) -> bool:
        """Some more of what is shown, without its codes; False at the end."""
        part = read_or_end(self._terminal)
        self.shown = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", self.shown + part.decode("utf-8", "ignore"))
        return bool(part)


@contextmanager
def watched(arguments: list[str]) -> Iterator[Watched]:
    terminal, slave = os.openpty()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "120"}
    # SIGINT as a terminal leaves it: a shell's background jobs ignore it.
    restored = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": slave}
    with subprocess.Popen([sys.executable, "-m", "specdec_fn", *arguments], env=environment, preexec_fn=restored, **pipes) as process:
        os.close(slave)
        try:
            yield Watched(process, terminal)
        finally:
            process.kill()
            os.close(terminal)


def test_interrupted_and_killed_in_the_middle_of_computing(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    """The command as people start it, with its bar: Ctrl-C gives a summary and 130, kill -9 nothing; then it is finished."""
    lines = [{"prompt": "abc" * (1 + number % 5), "max_tokens": 6 + 3 * number} for number in range(24)]
    asked, out = written(tmp_path / "prompts.jsonl", lines), tmp_path / "out.jsonl"
    arguments = command(asked, out, tiny, "--batch", 4, "--ignore-eos")
    with watched(arguments) as first:
        first.until(0)
        code, text = first.end(signal.SIGINT)
    assert code == 130, first.shown
    told = json.loads(text)
    assert told["interrupted"]
    assert (told["done"] + told["left"], told["failed"]) == (24, 0)
    assert len(found(out)) == told["done"] < 24
    assert "Traceback" not in first.shown
    assert "pages free" in first.shown
    with watched(arguments) as second:
        second.until(told["done"])
        assert second.end(signal.SIGKILL) == (-signal.SIGKILL, "")
    kept = [line for line in out.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert told["done"] < len(kept) < 24
    run = specdec(*arguments)
    assert (run.code, json.loads(run.out)["skipped"]) == (0, len(kept))
    assert out.read_bytes().startswith(b"".join(kept))
    assert [len(result["tokens"]) for _, result in sorted(found(out).items())] == [6 + 3 * number for number in range(24)]


def test_an_interrupt_is_told_in_words(specdec: Specdec, tiny: Path, asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specdec_fn import batch

    real = batch.served

    def interrupted(*given: Any, **settings: Any) -> Iterator[Any]:
        for one in real(*given, **settings):
            yield one
            if one[1]:
                raise KeyboardInterrupt

    monkeypatch.setattr(batch, "served", interrupted)
    for output, end in ((str(tmp_path / "out.jsonl"), "interrupted; the same command goes on from here\n"), ("-", "interrupted\n")):
        run = specdec(*(word for word in command(asked, output, tiny, "--batch", 1) if word != "--json"))
        assert (run.code, run.err.count("\n")) == (130, 1)
        assert run.err.startswith("seed 5 · 1 of 5 prompts done · ")
        assert run.err.endswith(end)
