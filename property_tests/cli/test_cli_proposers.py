"""Proposers by name, and a second model that drafts: the tokens of the doors in Python, and one line for what cannot be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_fn import SamplingParams, load
from specdec_fn import generate as door
from specdec_fn.speculate.proposers import named, paying

Specdec = Callable[..., Any]
HOW = ("--max-tokens", 24, "--k", 3, "--seed", 4, "--json")


def refused(run: Any, *words: str) -> None:
    assert (run.code, run.out) == (2, ""), run
    assert run.err.startswith("specdec: ")
    assert run.err.count("\n") == 1, run.err
    for word in words:
        assert word in run.err


def changed(tiny: Path, path: Path, old: bytes, new: bytes) -> Path:
    """The tiny model's file with something written over, at the same length."""
    data = tiny.read_bytes()
    assert old in data
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))
    return path


def with_context(tiny: Path, path: Path, context: int) -> Path:
    name = b"llama.context_length" + (4).to_bytes(4, "little")
    return changed(tiny, path, name + (512).to_bytes(4, "little"), name + context.to_bytes(4, "little"))


def tokens(run: Any) -> list[int]:
    assert run.code == 0, run
    found: list[int] = json.loads(run.out.splitlines()[-1])["tokens"]
    return found


@pytest.mark.parametrize("name", ["suffix", "early_exit", "ngram+early_exit", "suffix+ngram"])
@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_a_name_drafts_as_in_python(specdec: Specdec, tiny: Path, name: str, heat: float) -> None:
    model, tokenizer = load(tiny)
    sampling = SamplingParams(temperature=heat)
    done = door(model, "abcabcab", tokenizer=tokenizer, proposer=name, sampling=sampling, k=3, max_tokens=24, seed=4)
    run = specdec("generate", "abcabcab", "--model", tiny, "--proposer", name, "--temperature", heat, *HOW)
    assert tokens(run) == done.tokens
    assert json.loads(run.out)["stats"]["proposed"] == done.stats.proposed


@pytest.mark.parametrize(("option", "parts"), [((), "draft_model"), (("--proposer", "ngram+draft_model"), "ngram+draft_model")])
def test_a_second_model_drafts(specdec: Specdec, tiny: Path, tmp_path: Path, option: tuple[str, ...], parts: str) -> None:
    """It is the target's file with a shorter context: right as long as it goes, and the text goes on behind it."""
    small = with_context(tiny, tmp_path / "small.gguf", 24)
    (model, tokenizer), (draft, _) = load(tiny), load(small)
    greedy = SamplingParams(temperature=0)
    guess = named(parts, model, greedy, made={"draft_model": draft})
    done = door(model, "abcabcab", tokenizer=tokenizer, proposer=guess, sampling=greedy, k=3, max_tokens=24, seed=4, ignore_eos=True)
    run = specdec("generate", "abcabcab", "--model", tiny, "--draft-model", small, *option, "--temperature", 0, "--ignore-eos", *HOW)
    assert tokens(run) == done.tokens == door(model, "abcabcab", tokenizer=tokenizer, sampling=greedy, max_tokens=24, ignore_eos=True).tokens
    stats = json.loads(run.out)["stats"]
    assert stats["proposed"] == done.stats.proposed > 0
    if parts == "draft_model":
        assert stats["proposed"] == stats["accepted"]


def test_chat_takes_a_second_model_too(specdec: Specdec, tiny: Path) -> None:
    plain = specdec("chat", "--model", tiny, "--proposer", "none", "--temperature", 0, *HOW, stdin="Hi\n")
    drafted = specdec("chat", "--model", tiny, "--draft-model", tiny, "--temperature", 0, *HOW, stdin="Hi\n")
    assert tokens(drafted) == tokens(plain)
    assert json.loads(drafted.out)["stats"]["accepted"] > 0 == json.loads(plain.out)["stats"]["accepted"]


def test_a_file_of_prompts_drafts_by_name_and_with_a_second_model(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    """Each line with its own controls; in invariant mode the tokens are those of the door, whoever drafts beside whom."""
    asked, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    names = ("draft_model", "ngram+draft_model", "suffix", "early_exit", "none", "ngram+early_exit")
    lines = [{"prompt": "abcabcab"[i:], "proposer": name, "temperature": 0.5 + 0.1 * i, "seed": i} for i, name in enumerate(names)]
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = "generate", "--input", asked, "--output", out, "--model", tiny, "--draft-model", tiny, "--invariant", *HOW
    assert specdec(*command).code == 0
    model, tokenizer = load(tiny)
    for result in map(json.loads, out.read_text().splitlines()):
        line = lines[result["index"]]
        sampling = SamplingParams(temperature=line["temperature"])
        name = line["proposer"] if "draft_model" in line["proposer"] else "draft_model"
        guess = named(name, model, sampling, made={"draft_model": model})
        done = door(
            model, line["prompt"], tokenizer=tokenizer, proposer=guess, sampling=sampling, k=3, max_tokens=24, seed=line["seed"], invariant=True
        )
        assert result["tokens"] == done.tokens
    assert specdec(*command).code == 0  # nothing is left to do
    refused(specdec(*command[: -len(HOW) - 3], "--invariant", *HOW), "draft")


def test_by_default_a_second_model_rests_where_it_does_not_pay(tiny: Path) -> None:
    model, _ = load(tiny)
    made = named("draft_model", model, made={"draft_model": model})
    assert made.drafter.model is model
    assert isinstance(made.init([1]), paying.Record)


def test_what_cannot_draft_is_refused(specdec: Specdec, tiny: Path, tmp_path: Path) -> None:
    start = "generate", "Hello", "--model", tiny
    refused(specdec(*start, "--proposer", "draft_model"), "'draft_model' without a model", "--draft-model as well")
    refused(specdec(*start, "--proposer", "ngram+psychic"), "'ngram+psychic'", "ngram, ngram_tree, suffix, early_exit, quantized")
    for name in ("psychic", "adaptive", "ngram+adaptive"):
        run = specdec(*start, "--proposer", name)
        hint = "--k auto" if "adaptive" in name else "quantized, draft_model (with --draft-model), or some of them joined by +, or none"
        refused(run, f"proposer is {name!r}", hint)
    refused(specdec(*start, "--draft-model", "nothing.gguf"), "nothing.gguf")
    other = changed(tiny, tmp_path / "other.gguf", b"<|im_end|>", b"<|im_fin|>")
    for command in (start, ("chat", "--model", tiny)):
        refused(
            specdec(*command, "--draft-model", other, stdin="Hi\n"),
            "of 259 tokens has '<|im_fin|>' as token 258; expected '<|im_end|>'",
            "target's of 259 tokens",
        )
    asked = tmp_path / "prompts.jsonl"
    asked.write_text('{"prompt": "a"}\n')
    out = tmp_path / "out.jsonl"
    refused(specdec("generate", "--input", asked, "--output", out, "--model", tiny, "--draft-model", other), "'<|im_fin|>' as token 258")
    refused(specdec("generate", "--input", asked, "--output", out, "--model", tiny, "--proposer", "ngram+draft_model"), "--draft-model as well")
    assert not out.exists()
