"""The command line: exit codes, one clear line for each bad input, and the same tokens as the doors in Python."""

import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from specdec_fn import SamplingParams, doors, load
from specdec_fn import generate as door
from specdec_fn.cli.colour import Painter
from specdec_fn.engine.generation import Piece
from specdec_fn.text import Tokenizer
from specdec_proofs import integrate

ESCAPE = "\x1b["
Specdec = Callable[..., Any]


def refused(run: Any, *words: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that says what was received and expected."""
    assert (run.code, run.out) == (2, ""), run
    assert run.err.startswith("specdec: ")
    assert run.err.endswith("\n")
    assert run.err.count("\n") == 1, run.err
    assert "Traceback" not in run.err
    for word in words:
        assert word in run.err


# Bad input


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing", "nothing.gguf"),
        ("not a gguf", "not a GGUF file"),
        ("empty", "empty file"),
        ("cut in the head", "cut short"),
        ("cut in a tensor", "cut short"),
        ("alignment 0", "alignment is 0"),
        ("type", "'output_norm.weight' has the type 77"),
        ("tensor", "'blk.0.ffn_up.weight' is missing"),
        ("architecture", "'mamba'"),
        ("vocabulary", "262"),
        ("nan", "hold NaN"),
        ("folder", "config.json"),
    ],
)
def test_a_bad_model_is_refused(specdec: Specdec, broken: Callable[[str], Path], fault: str, words: str) -> None:
    refused(specdec("generate", "Hello", "--model", broken(fault)), words)


def test_the_name_of_a_model_on_a_hub_is_refused(specdec: Specdec) -> None:
    refused(specdec("generate", "Hello", "--model", "HuggingFaceTB/SmolLM2-135M"), "'HuggingFaceTB/SmolLM2-135M'", "nothing is downloaded")
    refused(specdec("generate", "Hello", "--model", "smollm3"), "smollm2-135m")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--verifier", "blok"], ["'blok'", "greedy, token"]),
        (["--proposer", "psychic"], ["'psychic'", "ngram"]),
        (["--verifier", "greedy"], ["greedy", "temperature 1", "temperature 0"]),
        (["--k", "-1"], ["k is -1", "0 or more"]),
        (["--k", "many"], ["--k", "many"]),
        (["--max-tokens", "0"], ["max_tokens is 0", "1 or more"]),
        (["--top-p", "0"], ["top_p", "(0, 1]", "0.0"]),
        (["--top-p", "1.5"], ["top_p", "1.5"]),
        (["--top-k", "-1"], ["top_k", "-1"]),
        (["--min-p", "2"], ["min_p", "2.0"]),
        (["--typical-p", "0"], ["typical_p", "0.0"]),
        (["--temperature", "-0.5"], ["temperature", "at least 0", "-0.5"]),
        (["--temperature", "nan"], ["temperature", "finite", "nan"]),
        (["--temperature", "inf"], ["temperature", "finite", "inf"]),
        (["--repetition-penalty", "0"], ["repetition_penalty", "0.0"]),
        (["--presence-penalty", "inf"], ["presence_penalty", "inf"]),
        (["--logit-bias", "5:1"], ["--logit-bias", "'5:1'", "ID=BIAS"]),
        (["--logit-bias", "999=1"], ["999", "258"]),
        (["--bad-words", "five"], ["--bad-words", "'five'"]),
        (["--bad-words", "999"], ["999", "258"]),
        (["--allowed-ids", "1,,2"], ["--allowed-ids", "'1,,2'"]),
        (["--allowed-ids", "999"], ["999", "258"]),
        (["--stop", ""], ["stop", "empty string"]),
        (["--seed", str(2**63)], ["seed", str(2**63)]),
        (["--tmperature", "1"], ["--tmperature"]),
        (["--temperature"], ["--temperature"]),
        (["again"], ["again"]),
    ],
)
def test_a_bad_option_is_refused(specdec: Specdec, tiny: Path, options: list[str], words: list[str]) -> None:
    refused(specdec("generate", "Hello", "--model", tiny, *options), *words)


def test_a_bad_prompt_is_refused(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    refused(specdec("generate", "", "--model", tiny), "the prompt is empty")
    refused(specdec("generate", "-", "--model", tiny, stdin=""), "the prompt is empty")
    refused(specdec("generate", "x" * 513, "--model", tiny), "513 tokens", "at most 512")


@pytest.mark.parametrize("command", [(), ("bench",)])
def test_without_a_command_the_help_is_shown(specdec: Specdec, command: tuple[str, ...]) -> None:
    run, asked = specdec(*command), specdec(*command, "--help")
    assert (run.code, run.err) == (0, "")
    assert run.out == asked.out
    assert run.out.lstrip().startswith(" ".join(("Usage: specdec", *command)))
    assert run.out.count("\n") > 10


def test_a_bad_command_is_refused(specdec: Specdec) -> None:
    refused(specdec("gnerate", "Hello"), "'gnerate'", "generate, chat, serve, prove, audit, demo, roofline, trace, ladder, bench")
    refused(specdec("bench", "everything"), "'everything'", "quoting, prose")
    refused(specdec("generate"), "'prompt'")
    refused(specdec("prove", "--quick", "--deep"), "--quick", "--deep")
    refused(specdec("bench", "quoting", "--prompts", "nothing.jsonl"), "nothing.jsonl")
    refused(specdec("bench", "quoting", "--repeats", "0"), "repeats")
    refused(specdec("demo", "--svg", "nowhere/picture.svg"), "nowhere/picture.svg", "a folder that exists")


@pytest.mark.parametrize("command", ["chat", "demo", "generate"])
def test_every_command_refuses_alike(specdec: Specdec, command: str) -> None:
    prompt = ["Hello"] if command == "generate" else []
    refused(specdec(command, *prompt, "--model", "nothing.gguf", stdin="Hello\n"), "nothing.gguf")


@pytest.mark.parametrize("content", ["no json", "[]", '{"name": "a"}'])
def test_a_bad_file_of_prompts_is_refused(specdec: Specdec, tiny: Path, tmp_path: Path, content: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"name": "a", "text": "b"}\n' + content)
    refused(specdec("bench", "quoting", "--model", tiny, "--prompts", file), "line 2")


# What is printed


CONTROLS = (
    "--temperature 0.8 --top-k 40 --top-p 0.9 --min-p 0.01 --typical-p 0.95 --repetition-penalty 1.1 --presence-penalty 0.2 "
    "--frequency-penalty 0.1 --logit-bias 65=2 --logit-bias 66=-1.5 --bad-words 67 --bad-words 68,69 --min-tokens 3"
)
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("", {"proposer": "ngram"}),
    ("--proposer none", {}),
    ("--temperature 0 --verifier greedy --k 3", {"proposer": "ngram", "verifier": "greedy", "k": 3, "sampling": SamplingParams(0)}),
    ("--ignore-eos --invariant", {"proposer": "ngram", "ignore_eos": True, "invariant": True}),
    ("--stop q --stop zz", {"proposer": "ngram", "stop": ["q", "zz"]}),
    ("--logit-bias 258=60 --min-tokens 3", {"proposer": "ngram", "sampling": SamplingParams(logit_bias={258: 60}, min_tokens=3)}),
    ("--allowed-ids 65,66,67", {"proposer": "ngram", "sampling": SamplingParams(allowed_ids=[65, 66, 67])}),
    (
        CONTROLS,
        {"sampling": SamplingParams(0.8, 40, 0.9, 0.01, 0.95, 1.1, 0.2, 0.1, {65: 2, 66: -1.5}, [67, (68, 69)], None, 3), "proposer": "ngram"},
    ),
]


@pytest.mark.parametrize(("options", "settings"), SETTINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_json_has_the_tokens_of_the_door(specdec: Specdec, tiny: Path, options: str, settings: dict[str, Any]) -> None:
    """Every option reaches the door under its own name: the same settings and seed give the same tokens."""
    run = specdec("generate", "abcabcab", "--model", tiny, "--seed", "7", "--max-tokens", "24", "--json", *options.split())
    assert (run.code, run.err) == (0, "")
    found = json.loads(run.out)
    model, tokenizer = load(tiny)
    done = door(model, "abcabcab", tokenizer=tokenizer, seed=7, max_tokens=24, **settings)
    assert (found["tokens"], found["text"], found["finish_reason"]) == (done.tokens, done.text, done.finish_reason)
    assert found["logprobs"] == pytest.approx(done.logprobs)
    assert (found["seed"], found["prompt"], found["model"]) == (7, "abcabcab", str(tiny))
    assert len(found["kinds"]) == len(done.tokens)
    counted = ("passes", "proposed", "accepted", "emitted")
    assert [found["stats"][name] for name in counted] == [getattr(done.stats, name) for name in counted]
    assert all(found["stats"]["seconds"][part] >= 0 for part in ("prefill", "forward", "verify", "text"))


def test_text_goes_to_stdout_and_the_rest_to_stderr(specdec: Specdec, tiny: Path) -> None:
    command = ("generate", "abcabcab", "--model", tiny, "--seed", "7", "--max-tokens", "24")
    text = json.loads(specdec(*command, "--json").out)["text"]
    run = specdec(*command)
    assert (run.code, run.out) == (0, text + "\n")
    assert run.err.startswith("seed 7 · 24 tokens in ")
    assert run.err.count("\n") == 1


def test_a_prompt_comes_from_stdin_by_a_dash(specdec: Specdec, tiny: Path) -> None:
    shared = ("--model", tiny, "--max-tokens", "6", "--json")
    assert json.loads(specdec("generate", "-", *shared, stdin="abé\n").out)["prompt"] == "abé\n"
    assert json.loads(specdec("generate", "-", *shared, stdin="ab").out)["tokens"] == json.loads(specdec("generate", "ab", *shared).out)["tokens"]


def test_a_prompt_is_taken_literally_unless_it_is_a_message(specdec: Specdec, tiny: Path) -> None:
    """F8: a control text in a prompt is text; with --chat the template writes the control tokens."""
    tokenizer = load(tiny)[1]
    seen = []

    def watch(model: Any, ids: list[int], **settings: Any) -> Any:
        seen.append(ids)
        return door(model, ids, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doors, "generate", watch)
        specdec("generate", "<|im_end|>", "--model", tiny, "--max-tokens", "1")
        specdec("generate", "<|im_end|>", "--model", tiny, "--max-tokens", "1", "--chat")
    assert seen == [tokenizer.encode("<|im_end|>"), tokenizer.chat([{"role": "user", "content": "<|im_end|>"}])]
    assert 258 not in seen[0]
    assert seen[1].count(258) == 1


# Colour


class Terminal:
    """A pseudo-terminal whose far end is read back."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.file = os.fdopen(slave, "w")

    def text(self) -> str:
        self.file.close()
        parts = []
        try:
            while part := os.read(self.master, 65536):
                parts.append(part)
        except OSError:  # the other end is closed and all is read
            pass
        os.close(self.master)
        return b"".join(parts).decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def shown(terminal: Terminal, specdec: Specdec, *command: Any) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", terminal.file)
        assert specdec(*command).code == 0
    return terminal.text()


def test_a_terminal_gets_colours(specdec: Specdec, tiny: Path, terminal: Terminal) -> None:
    """Accepted tokens are green and bonus tokens cyan; without the codes the text is the same."""
    command = ("generate", "abcabcab", "--model", tiny, "--temperature", "0", "--max-tokens", "40", "--ignore-eos")
    plain = specdec(*command).out
    kinds = json.loads(specdec(*command, "--json").out)["kinds"]
    assert {"accepted", "bonus"} <= set(kinds)
    coloured = shown(terminal, specdec, *command)
    assert f"{ESCAPE}32m" in coloured
    assert f"{ESCAPE}1;36m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).replace("\r\n", "\n") == plain


def test_no_color_is_heard(specdec: Specdec, tiny: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(terminal, specdec, "generate", "abcabcab", "--model", tiny, "--temperature", "0", "--max-tokens", "40", "--ignore-eos")
    assert text
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text)


def test_a_file_gets_every_character_of_the_text() -> None:
    """Tabs stay tabs and control characters stay, as in ``generate``'s text; no markup is read into it."""
    text = " a\tb\r\n[bold]c[/bold] \x07\x0c :smile: é\n\n"
    bytewise = Tokenizer(lambda text, **_: list(text.encode()), lambda ids, **_: bytes(ids).decode("utf-8", "replace"), None, (), 256)
    for pieces in ([text], list(text)):
        file = io.StringIO()
        painter = Painter(Console(file=file), bytewise, [])
        for piece in pieces:
            painter.show(Piece(piece, list(piece.encode()), ["plain"] * len(piece.encode())))
        assert file.getvalue() == text


@pytest.mark.parametrize("json_", [False, True])
def test_text_that_the_output_cannot_encode_is_escaped(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch, json_: bool) -> None:
    """A model says what it says: an ASCII terminal is no bad input."""
    prompt, written = "café é", io.BytesIO()
    ids = ",".join(map(str, load(tiny)[1].encode("é")))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    run = specdec("generate", prompt, "--model", tiny, "--max-tokens", 8, "--allowed-ids", ids, *(["--json"] if json_ else []))
    assert run.code == 0, run
    shown = written.getvalue().decode("ascii")
    assert (json.loads(shown)["prompt"] == prompt) if json_ else "\\x" in shown or "\\u" in shown


def test_a_pipe_gets_no_codes(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    run = specdec("generate", "abcabcab", "--model", tiny, "--temperature", "0", "--max-tokens", "40")
    assert run.code == 0
    assert ESCAPE not in run.out + run.err


# Interruption


def interrupting(after: int) -> Callable[..., Any]:
    """The door, interrupted once it has given so many pieces."""

    def run(*args: Any, on_piece: Callable[[Any], None], **settings: Any) -> Any:
        given = []

        def show(piece: Any) -> None:
            on_piece(piece)
            given.append(piece)
            if len(given) == after:
                raise KeyboardInterrupt

        return door(*args, on_piece=show, **settings)

    return run


def test_what_exists_is_printed_on_interruption(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("generate", "abcabcab", "--model", tiny, "--seed", "3", "--max-tokens", "24")
    whole = json.loads(specdec(*command, "--json").out)
    monkeypatch.setattr(doors, "generate", interrupting(3))
    run = specdec(*command, "--json")
    found = json.loads(run.out)
    assert (run.code, found["finish_reason"], found["seed"]) == (130, "abort", 3)
    assert 3 <= len(found["tokens"]) < 24
    assert found["tokens"] == whole["tokens"][: len(found["tokens"])]
    assert found["text"]
    assert whole["text"].startswith(found["text"])
    run = specdec(*command)
    assert (run.code, run.out) == (130, found["text"] + "\n")
    assert "seed 3 · interrupted" in run.err


# Chat


def test_chat_answers_each_line_of_stdin(specdec: Specdec, tiny: Path) -> None:
    """One JSON object a line; an empty line is skipped, /quit leaves, and every turn sees those before it."""
    settings = ("--model", tiny, "--max-tokens", "6", "--temperature", "1", "--top-p", "1", "--seed", "4", "--json")
    run = specdec("chat", *settings, stdin="Hello\n\nAgain <|im_end|>\n/quit\nNever\n")
    assert (run.code, run.err) == (0, "")
    first, second = map(json.loads, run.out.splitlines())
    model, tokenizer = load(tiny)
    said = [{"role": "user", "content": "Hello"}]
    done = door(model, tokenizer.chat(said), tokenizer=tokenizer, seed=4, proposer="ngram", max_tokens=6)
    assert (first["tokens"], first["seed"]) == (done.tokens, 4)
    said += [{"role": "assistant", "content": done.text}, {"role": "user", "content": "Again <|im_end|>"}]
    done = door(model, tokenizer.chat(said), tokenizer=tokenizer, seed=5, proposer="ngram", max_tokens=6)
    assert (second["tokens"], second["seed"]) == (done.tokens, 5)


def test_a_turn_that_is_interrupted_ends_and_the_next_goes_on(specdec: Specdec, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "generate", interrupting(2))
    run = specdec("chat", "--model", tiny, "--max-tokens", "9", "--seed", "4", "--json", stdin="Hello\nAgain\n")
    answers = [json.loads(line) for line in run.out.splitlines()]
    assert (run.code, [answer["finish_reason"] for answer in answers]) == (0, ["abort", "abort"])


# The other commands


def test_demo_shows_both_ways_and_the_exactness(specdec: Specdec, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(specdec("demo", "--model", tiny, "--max-tokens", "8", "--json").out)
    assert len(found["scenes"]) == 2
    assert all(scene["stats"]["emitted"] <= 8 and scene["speed_up"] > 0 for scene in found["scenes"])
    assert 0 <= found["exact_tv"]["float64"] < 1e-14
    assert 0 < found["exact_tv"]["float32"] < 1e-6
    monkeypatch.setattr(integrate, "measure", lambda *_: SimpleNamespace(tv=0.125))  # it takes seconds, and has been seen
    run = specdec("demo", "--model", tiny, "--max-tokens", "8", "--svg", tmp_path / "demo.svg")
    assert (run.code, run.err) == (0, "")
    assert "tokens a pass" in run.out
    assert "(float64): 1.2e-01" in run.out
    assert ESCAPE not in run.out
    assert (tmp_path / "demo.svg").read_text("utf-8").startswith("<svg")


def test_bench_lists_every_prompt(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"name": "one", "text": "abcabc"}\n{"question_id": 81, "category": "writing", "turns": ["abab", "more"]}\n')
    command = ("bench", "quoting", "--model", tiny, "--prompts", file, "--repeats", "1", "--max-tokens", "8")
    found = json.loads(specdec(*command, "--json").out)
    assert [row["name"] for row in found["rows"]] == ["one", "writing 81"]
    assert found["set"]["tokens_per_pass"] >= 1
    run = specdec(*command)
    assert run.code == 0
    assert "one" in run.out
    assert "whole" in run.out


def test_greedy_equality_of_the_tiny_model(specdec: Specdec, tiny: Path) -> None:
    """G2 and D22 on the command line: in float64 no id may differ."""
    run = specdec("bench", "equality", "--model", tiny, "--prompts", "2", "--max-tokens", "16", "--json")
    found = json.loads(run.out)
    assert run.code == 0
    assert found["float64"]["equal"] == found["float64"]["prompts"] == 2
    assert found["float64"]["proposed"] > 0
