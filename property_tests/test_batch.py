"""Offline batches in one process: the input is looked at first and read lazily, and an output cut at any byte is continued from its whole lines."""

import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn import batch, generate
from specdec_fn.batch import Line, Outcome, as_result, output, seed_of
from specdec_fn.engine import Config, Request, init
from specdec_fn.engine.generation import Generation, Stats
from specdec_fn.models import toy
from specdec_fn.random import key

SETTINGS = {"input": "a1", "model": "b2", "seed": 0, "stop": ["x"]}


def read(path: Path, check: Callable[[Line], Any] = lambda line: None) -> list[Line]:
    with batch.prompts(str(path), check) as found:
        lines = list(found)
        assert found.count == len(lines)
        assert list(found) == lines
    return lines


def write(path: Path, places: Iterable[int], settings: dict[str, Any] = SETTINGS, lines: int = 9) -> batch.Results:
    """Adds results for those of some lines that have none."""
    with batch.results(str(path), settings, lines) as kept:
        for index in places:
            if not kept.has(index):
                kept.write(result(index))
    return kept


def result(index: int) -> dict[str, Any]:
    return {"index": index, "text": "é\n" * index, "finish_reason": "stop", **({"error": "why"} if index == 3 else {})}


def found(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# The input


def test_lines_are_numbered_named_and_read_again(tmp_path: Path) -> None:
    """Blank lines count as lines; a line is what ends with a line feed, whatever Unicode says; null is as good as nothing."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"prompt": "a"}\r\n\n  \n{"id": "x", "prompt": [1], "k": null}\r\n{"id": 2.5, "messages": []}\n'
        + '{"prompt": "a\u2028b\x85c"}'.encode()
    )
    assert read(path) == [
        Line(0, 0, {"prompt": "a"}),
        Line(3, "x", {"prompt": [1]}),
        Line(4, 2.5, {"messages": []}),
        Line(5, 5, {"prompt": "a\u2028b\x85c"}),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"prompt": "a"', "this is not JSON (Expecting ',' delimiter); expected an object"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN is no number"),
        (b'{"prompt": ' + b"[" * 100_000, "not JSON"),
        (b'{"prompt": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'["a"]', "this is '[\"a\"]'; expected a JSON object"),
        (b'"a"', "expected a JSON object"),
        (b'{"id": true}', "the id is True; expected a string or a number"),
        (b'{"id": [1]}', "the id is [1]"),
        (b'{"id": 1e999}', "the id is inf"),
        (b'{"id": 0}', "the id is 0, as in line 1"),
        (b'{"id": 0.0}', "the id is 0.0, as in line 1"),
        (b'{"id": "b"}', "the id is 'b', as in line 2"),
        (b'{"prompt": 5}', "refused by the caller"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, line: bytes, words: str) -> None:
    def check(line: Line) -> None:
        if line.fields.get("prompt") == 5:
            raise TypeError("refused by the caller")

    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"id": "b"}\n\n' + line + b'\n{"prompt": "c"}\n')
    with pytest.raises(ValueError, match=r".") as refused:
        read(path, check)
    assert str(refused.value).startswith(f"{path}, line 4: ")
    assert words in str(refused.value)


def test_a_default_id_may_not_be_another_lines_own(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": 1}\n{}\n')
    with pytest.raises(ValueError, match="line 2: the id is 1, as in line 1"):
        read(path)
    path.write_text('{"id": "1"}\n{}\n')  # text is no number
    assert [line.id for line in read(path)] == ["1", 1]


def test_the_digest_is_of_every_byte(tmp_path: Path) -> None:
    path, digests = tmp_path / "prompts.jsonl", set()
    for content in (b"", b"\n", b'{"prompt": "a"}\n', b'{"prompt": "b"}\n', b'{"prompt": "a"}\n\n'):
        path.write_bytes(content)
        with batch.prompts(str(path), lambda line: None) as asked:
            assert asked.digest == hashlib.blake2b(content, digest_size=16).hexdigest()
            assert asked.lines == content.count(b"\n")
            digests.add(asked.digest)
    assert len(digests) == 5


@pytest.mark.parametrize("content", ['{"prompt": "a"}\n{"prompt": "c"}\n', '{"prompt": "a"}\n', '{"prompt": "a"}\n{"prompt": "b"', ""])
def test_a_line_that_changes_meanwhile_is_not_run(tmp_path: Path, content: str) -> None:
    """In place, since an editor that replaces the file leaves the old one to who has it open."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    with batch.prompts(str(path), lambda line: None) as asked:
        path.write_text(content)
        run = []
        with pytest.raises(ValueError, match=r"prompts\.jsonl has changed since it was first read"):
            run.extend(line for line in asked)
    assert all(line.fields == {"prompt": "a"} for line in run)


def test_lines_that_are_added_meanwhile_are_not_of_this_run(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    with batch.prompts(str(path), lambda line: None) as asked:
        path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "d"}\n')
        assert [line.fields["prompt"] for line in asked] == ["a", "b"]


def test_what_can_be_read_once_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input, and a pipe that has a name."""
    content = b'{"prompt": "a"}\n' * 3
    for by_name in (False, True):
        reader, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        if not by_name:
            monkeypatch.setattr(sys, "stdin", os.fdopen(reader))
        with batch.prompts(f"/dev/fd/{reader}" if by_name else "-", lambda line: None) as asked:
            assert [line.number for line in asked] == [line.number for line in asked] == [0, 1, 2]
        if by_name:
            os.close(reader)
        else:
            sys.stdin.close()


# The output


def test_an_output_cut_at_any_byte_goes_on_from_its_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that was killed inside a write leaves it: the torn line is computed again, whole ones are not, and nothing is there twice."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # hundreds of times
    path = tmp_path / "out.jsonl"
    write(path, (4, 0, 3, 1))
    whole = path.read_bytes()
    ends = [0, *(place + 1 for place, byte in enumerate(whole) if byte == ord("\n"))]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        intact = max(end for end in ends if end <= size)
        before = [json.loads(line)["index"] for line in whole[:intact].splitlines()]
        with batch.results(str(path), SETTINGS, 9) as kept:
            assert path.read_bytes() == whole[:intact]
            assert [index for index in range(9) if kept.has(index)] == sorted(before)
            assert (kept.skipped, kept.failed_before, kept.done, kept.failed) == (len(before), 3 in before, 0, 0)
            for index in range(5):
                if not kept.has(index):
                    kept.write(result(index))
            assert (kept.done + kept.failed, kept.failed) == (5 - len(before), 3 not in before)
        assert path.read_bytes().startswith(whole[:intact])
        assert sorted(found(path), key=lambda one: one["index"]) == [result(index) for index in range(5)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input": "zz"}, "a run with other input;"),
        ({"model": "zz"}, "a run with other model;"),
        ({"seed": 1}, "a run with seed 0, received 1;"),
        ({"stop": []}, 'a run with stop ["x"], received [];'),
        ({"new": True}, "a run with new null, received true;"),
    ],
)
def test_an_output_of_another_run_is_refused_and_left_alone(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "out.jsonl"
    write(path, (0, 1))
    with path.open("a") as file:
        file.write('{"index": 2')  # torn: not even that is touched
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r".") as refused:
        write(path, (2,), {**SETTINGS, **change})
    assert words in str(refused.value)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("about", [None, b"", b'{"input": "a1"', b"[]", b"\xff"])
def test_a_file_that_is_no_output_is_refused_and_left_alone(tmp_path: Path, about: bytes | None) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("my notes")
    if about is not None:
        (tmp_path / "out.jsonl.run.json").write_bytes(about)
    with pytest.raises(ValueError, match=r"without a whole .*out.jsonl.run.json beside it; expected a new file"):
        write(path, (0,))
    assert path.read_text() == "my notes"


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "5",
        "{}",
        '{"index": 1}',
        '{"index": 0, "finish_reason": "stop"}',
        '{"index": 9, "finish_reason": "stop"}',
        '{"index": -1, "finish_reason": "stop"}',
        '{"index": "1", "finish_reason": "stop"}',
        '{"index": true, "finish_reason": "stop"}',
        "",
        "\0\0\0",
    ],
)
def test_a_damaged_output_is_refused_and_left_alone(tmp_path: Path, line: str) -> None:
    path = tmp_path / "out.jsonl"
    write(path, (0,))
    with path.open("a") as file:
        file.write(f"{line}\n{json.dumps(result(1))}\n torn")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="line 2 is not a result of this run, or one that is there twice"):
        write(path, (2,))
    assert path.read_bytes() == before


def test_an_empty_output_belongs_to_nobody(tmp_path: Path) -> None:
    """A run that was killed before its first result leaves nothing to lose."""
    path, about = tmp_path / "out.jsonl", tmp_path / "out.jsonl.run.json"
    write(path, ())
    assert json.loads(about.read_text()) == {"format": output.FORMAT, **SETTINGS}
    write(path, (1,), {**SETTINGS, "seed": 5})
    assert json.loads(about.read_text())["seed"] == 5
    with pytest.raises(ValueError, match="seed 5, received 0"):
        write(path, ())
    path.unlink()
    about.write_text("half of i")
    write(path, (2,))
    assert [one["index"] for one in found(path)] == [2]


def test_one_output_has_one_run(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with batch.results(str(path), SETTINGS, 9) as kept:
        kept.write(result(1))
        with pytest.raises(ValueError, match="is being written by another process"):
            write(path, (2,))
    write(path, (2,))
    assert [one["index"] for one in found(path)] == [1, 2]


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_an_output_that_cannot_be_continued_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(ValueError, match="is no regular file; expected one, a new name, or - for standard output"):
        write(path, (0,))


@contextlib.contextmanager
def watched(name: str, call: Callable[..., Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, call)
        yield


def test_a_result_is_out_before_the_next_is_asked_for_and_in_one_write(tmp_path: Path) -> None:
    path, real, written = tmp_path / "out.jsonl", os.write, list[bytes]()

    def note(file: int, data: bytes) -> int:
        written.append(bytes(data))
        return real(file, data)

    long = {"index": 1, "finish_reason": "stop", "text": "x" * 1_000_000}
    with batch.results(str(path), SETTINGS, 9) as kept, watched("write", note):
        for place, one in enumerate((result(0), long), start=1):
            kept.write(one)
            assert path.read_bytes() == b"".join(written)
            assert len(written) == place


def test_a_write_that_takes_a_part_is_gone_on_with(tmp_path: Path) -> None:
    path, real = tmp_path / "out.jsonl", os.write
    with watched("write", lambda file, data: real(file, data[:3])):
        write(path, (0, 3))
    assert found(path) == [result(0), result(3)]
    assert json.loads((tmp_path / "out.jsonl.run.json").read_text())["input"] == "a1"


@pytest.mark.parametrize("often", [False, True])
def test_results_are_brought_to_the_disk(tmp_path: Path, often: bool) -> None:
    """At the end, however it ends, and every few seconds: before a write, so that who is interrupted meanwhile has not written yet."""
    path, synced = tmp_path / "out.jsonl", list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "SYNC", 0.0 if often else 1e9)
        with contextlib.suppress(KeyboardInterrupt), batch.results(str(path), SETTINGS, 9) as kept:
            patch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
            kept.write(result(0))
            kept.write(result(1))
            raise KeyboardInterrupt
    lengths = [len(line) for line in path.read_bytes().splitlines(keepends=True)]
    assert synced == ([0, lengths[0]] if often else []) + [sum(lengths)]


def test_standard_output_is_written_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with batch.results("-", SETTINGS, 9) as kept:
        kept.write(result(3))
        assert json.loads(sys.stdout.getvalue()) == result(3)  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())


# Between the two


def test_the_seed_of_a_line_is_the_one_that_jax_draws() -> None:
    """jax.random.bits(fold_in(key(seed), index), dtype=uint64) >> 11, in jax's own words."""
    assert seed_of(0, 7) == 1815156361871732
    assert seed_of(-1, 0) == 5362806200192864
    assert seed_of(5, 2**32 - 1) == 2959343811072874


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1))
def test_the_seed_of_a_line_is_a_number_that_json_keeps(seed: int, index: int) -> None:
    assert float(seed_of(seed, index)) == seed_of(seed, index)
    assert 0 <= seed_of(seed, index) < 2**53


LLAMA = toy.llama(key(3), vocab_size=12, layers=1, context=40)


def ask(line: Line) -> Request:
    return Request(line.fields["prompt"], line.fields["max_tokens"], seed=seed_of(4, line.number), proposer="ngram", k=3)


@settings(max_examples=12)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(0, 9)), max_size=9),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
)
def test_every_line_comes_to_what_it_comes_to_alone(asked: list[tuple[list[int], int]], ahead: int, max_batch: int, reverse: bool) -> None:
    """Whatever is refused beside it, in any order and batch; id 12 and max_tokens 0 are refused. Lines are read as they are needed."""
    lines = [Line(number, f"n{number}", {"prompt": prompt, "max_tokens": count}) for number, (prompt, count) in enumerate(asked)]
    pulled, ended = list[int](), dict[int, Outcome]()

    def coming() -> Iterator[Line]:
        for line in lines[::-1] if reverse else lines:
            assert len(pulled) - len(ended) < ahead
            pulled.append(line.number)
            yield line

    state = init(LLAMA, Config(page_size=4, num_pages=12, max_batch=max_batch, prefill_chunk=4, invariant=True))
    for _, outcomes in batch.served(LLAMA, state, coming(), ask, ahead=ahead):
        for one in outcomes:
            assert one.line.number not in ended
            ended[one.line.number] = one
    assert sorted(ended) == list(range(len(lines)))
    for line in lines:
        outcome, (prompt, count) = ended[line.number], asked[line.number]
        assert outcome.line == line
        if 12 in prompt or count == 0:
            assert (outcome.generation, outcome.seed) == (None, None)
            assert outcome.error is not None
            assert "expected" in outcome.error
        else:
            alone = generate(LLAMA, prompt, seed=seed_of(4, line.number), proposer="ngram", k=3, max_tokens=count, invariant=True)
            assert outcome.generation is not None
            assert (outcome.generation.tokens, outcome.generation.logprobs) == (alone.tokens, alone.logprobs)
            assert (outcome.seed, outcome.error) == (seed_of(4, line.number), None)


def test_the_state_that_is_shown_is_the_engines() -> None:
    lines = [Line(number, number, {"prompt": [1, 2], "max_tokens": 3}) for number in range(4)]
    states = [state for state, _ in batch.served(LLAMA, init(LLAMA, Config()), lines, ask, ahead=2)]
    assert [state.counters.steps for state in states] == list(range(1, len(states) + 1))
    assert states[-1].counters.emitted == 12
    assert not len(states[-1].records)


def test_a_fault_of_the_input_is_no_fault_of_a_line() -> None:
    """A file that changed ends the run; it is no result."""

    def broken() -> Iterator[Line]:
        yield Line(0, 0, {"prompt": [1], "max_tokens": 1})
        raise ValueError("has changed")

    with pytest.raises(ValueError, match="has changed"):
        list(batch.served(LLAMA, init(LLAMA, Config()), broken(), ask, ahead=2))


def test_a_result_says_what_became_of_a_line() -> None:
    done = Generation([5, 6], "ab", "stop", [-0.5, float("-inf")], Stats(passes=1, proposed=3, accepted=1, emitted=2))
    line = Line(4, "b", {"prompt": "a"})
    whole = {
        "id": "b",
        "index": 4,
        "text": "ab",
        "tokens": [5, 6],
        "finish_reason": "stop",
        "stats": {"passes": 1, "proposed": 3, "accepted": 1, "emitted": 2},
        "seed": 9,
    }
    assert as_result(Outcome(line, 9, done, None)) == whole
    assert as_result(Outcome(line, 9, done, None), logprobs=True) == {**whole, "logprobs": [-0.5, None]}
    failed = as_result(Outcome(line, 9, done._replace(finish_reason="error"), "NaN"))
    assert failed == {**whole, "finish_reason": "error", "error": "NaN"}
    refused = as_result(Outcome(line, None, None, "too long"), logprobs=True)
    assert refused.keys() == {*whole, "logprobs", "error"}
    assert (refused["finish_reason"], refused["tokens"], refused["error"]) == ("error", [], "too long")


def test_a_request_that_the_law_fails_is_a_result_with_an_error() -> None:
    """Row 1 of the table holds NaN once the model runs: that request ends with an error, its neighbours do not notice."""
    model = toy.bigram(torch.eye(3).roll(1, dims=1))
    params = model.params.clone()
    params[1] = float("nan")
    spoiled = model._replace(params=params)
    lines = [Line(number, number, {"prompt": [number], "max_tokens": 2}) for number in (1, 2)]
    ended = [one for _, outcomes in batch.served(spoiled, init(spoiled, Config()), lines, ask, ahead=2) for one in outcomes]
    results = {one.line.number: as_result(one) for one in ended}
    assert results[1]["finish_reason"] == "error"
    assert "NaN" in results[1]["error"]
    assert (results[2]["tokens"], results[2].get("error")) == ([0, 1], None)
