"""What the figures of ``specdec bench`` are made of: intervals, counts and predictions, entropies, questions and their records, files for others."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import scipy.stats
import torch

from specdec_fn import models
from specdec_fn.cli.bench import figures
from specdec_fn.cli.bench.bandwidth import best, readers
from specdec_fn.cli.bench.categories import ALL, summary
from specdec_fn.cli.bench.counted import by_rows, predicted_seconds
from specdec_fn.cli.bench.entropy import entropies
from specdec_fn.cli.bench.gguf_files import file_of, rewritten
from specdec_fn.cli.bench.intervals import interval
from specdec_fn.cli.bench.questions import Kept, Question, limited, read
from specdec_fn.cli.bench.turns import Contest, Decoded, contest, ours, speedups, together
from specdec_fn.cli.bench.variants import weight_bytes
from specdec_fn.cost import Curve
from specdec_fn.doors import generate
from specdec_fn.engine.generation import Stats
from specdec_fn.load import load
from specdec_fn.models import toy
from specdec_fn.random import key
from specdec_fn.sampling import SamplingParams, distribution

# intervals


@pytest.mark.parametrize("count", [5, 9, 13])
def test_the_interval_is_that_of_the_exact_bootstrap(count: int) -> None:
    """A resampled median of an odd number is at most the r-th value if at least half the draws are: a binomial tail."""
    half = (count + 1) // 2
    at_most = [scipy.stats.binom.sf(half - 1, count, r / count) for r in range(1, count + 1)]
    low, high = (next(r for r, tail in enumerate(at_most) if tail >= share) for share in (0.025, 0.975))
    assert min(abs(tail - share) for tail in at_most for share in (0.025, 0.975)) > 0.003  # 10,000 draws tell them apart
    values = [2.0**place for place in range(count)]
    assert interval(values[::-1]) == (values[low], values[high])


def test_the_interval_of_one_value_is_that_value() -> None:
    assert interval([1.25]) == (1.25, 1.25)
    with pytest.raises(ValueError, match=r"0 values; expected at least 1"):
        interval([])


# counts and predictions


def test_rows_of_passes_are_counted() -> None:
    """A dictated draft may have any length: the counts give back how many passes had how many rows."""
    drafted: list[int] = []
    circle = toy.bigram(torch.eye(3).roll(1, dims=1))

    def dictated(context: list[int]) -> list[int]:
        length = (0, 3, 1, 4, 3)[len(drafted) % 5]
        tokens = [(context[-1] + 1 + place + (place == 2)) % 3 for place in range(length)]  # the third one is wrong
        drafted.append(min(length, 40 - len(context)))  # the last ones are cut to what is left
        return tokens

    made = generate(circle, [0], draft_fn=dictated, k=4, max_tokens=40)
    left = made.stats.passes - sum(Counter(drafted).values())
    assert left <= 1  # nobody is asked when one token is left
    expected = Counter(1 + length for length in drafted) + Counter({1: left})
    assert by_rows(made.stats) == dict(expected)
    assert sum(rows * count for rows, count in expected.items()) == made.stats.passes + made.stats.proposed


def test_predicted_seconds() -> None:
    curve = Curve((2.0, 2.5, 4.0), draft=0.5)
    assert predicted_seconds({1: 3, 2: 2, 3: 1}, curve) == 3 * 2.0 + 2 * (2.5 + 0.5) + (4.0 + 1.0)
    assert predicted_seconds({}, curve) == 0


def record(category: str, number: int, tokens: int, ms: dict[str, list[float]], entropy: float, **counts: Any) -> dict[str, Any]:
    return {
        "question_id": number,
        "category": category,
        "tokens": tokens,
        "ms": ms,
        "counts": {"ngram": counts},
        "entropy": {"law": entropy, "softmax": 2 * entropy},
    }


def test_categories_are_summed_up() -> None:
    first = {"plain": [10.0, 12.0, 11.0], "ngram": [5.0, 4.0, 11.0], "llama.cpp": [20.0, 24.0, 22.0]}  # times 2, 3, 1
    known = [
        record("copy", 1, 10, first, 1.0, passes=4, proposed=8, accepted=6, emitted=10, by_rows={"1": 1, "3": 3}),
        record(
            "copy",
            2,
            30,
            {"plain": [8.0], "ngram": [2.0], "llama.cpp": [16.0]},
            3.0,
            passes=10,
            proposed=2,
            accepted=1,
            emitted=11,
            by_rows={"2": 2, "1": 8},
        ),
        record(
            "talk", 3, 10, {"plain": [6.0], "ngram": [6.0], "llama.cpp": [3.0]}, 5.0, passes=9, proposed=0, accepted=0, emitted=9, by_rows={"1": 9}
        ),
    ]
    rows = {(row.category, row.who): row for row in summary(known, {"ngram": Curve((1.0, 1.5, 2.0), draft=0.25)})}
    assert rows.keys() == {(category, who) for category in ("copy", "talk", ALL) for who in ("ngram", "llama.cpp")}
    copy = rows["copy", "ngram"]
    assert (copy.questions, copy.ratio, copy.plain_ms, copy.ms) == (2, 3.0, 9.5, 3.5)  # medians of 2 and 4, of 11 and 8, of 5 and 2
    assert copy.predicted == 21 * 1.0 / (9 * 1.0 + 2 * (1.5 + 0.25) + 3 * (2.0 + 0.5))
    assert (copy.tokens_per_pass, copy.acceptance_rate) == (21 / 14, 7 / 10)
    assert (copy.entropy, copy.softmax) == (2.5, 5.0)  # weighted by tokens
    assert copy.interval == interval([2.0, 4.0])
    talk = rows["talk", "ngram"]
    assert (talk.predicted, talk.acceptance_rate) == (1.0, 0.0)
    other = rows[ALL, "llama.cpp"]
    assert (other.ratio, other.predicted, other.tokens_per_pass) == (0.5, None, None)


def test_a_way_that_a_record_lacks_is_left_out() -> None:
    counts = {"passes": 1, "proposed": 0, "accepted": 0, "emitted": 1, "by_rows": {"1": 1}}
    known = [
        record("a", 1, 1, {"plain": [1.0], "ngram": [1.0], "extra": [1.0]}, 0.0, **counts),
        record("a", 2, 1, {"plain": [1.0], "ngram": [1.0]}, 0.0, **counts),
    ]
    assert [row.who for row in summary(known, {"ngram": Curve((1.0,))})] == ["ngram"]
    assert summary([], {}) == []


# entropies


@pytest.mark.parametrize(
    "sampling", [SamplingParams(0.7, top_k=9, presence_penalty=1.5, repetition_penalty=1.2), SamplingParams(), SamplingParams(0.0)]
)
@pytest.mark.parametrize("rows", [64, 3])
def test_entropies_are_those_of_each_law(sampling: SamplingParams, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_fn.cli.bench.entropy.ROWS", rows)
    model = toy.llama(key(3))
    prompt = [3, 1, 4]
    tokens = generate(model, prompt, sampling=sampling, max_tokens=8).tokens
    found = entropies(model, prompt, tokens, sampling)
    laws, plain = [], []
    for place in range(len(tokens)):
        line = torch.tensor(prompt + tokens[:place])
        logits = models.logits(model, line)[-1]
        laws.append(scipy.stats.entropy(distribution(logits, sampling, prompt=line[:3], generated=line[3:]).numpy()))
        plain.append(scipy.stats.entropy(logits.softmax(-1).numpy()))
    assert found.law == pytest.approx(sum(laws) / len(laws), abs=1e-9)
    assert found.softmax == pytest.approx(sum(plain) / len(plain), abs=1e-9)


def test_the_entropy_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0 tokens; expected at least one"):
        entropies(toy.llama(key(3)), [1], [], SamplingParams())


# turns


def test_a_contest_alternates_and_keeps_pairs() -> None:
    order: list[str] = []

    def decoder(name: str, ms: list[float]) -> Callable[[], Decoded]:
        def decode() -> Decoded:
            order.append(name)
            return Decoded([len(order)], ms[order.count(name) - 1], Stats(2, 3, 1, len(order)))

        return decode

    found = contest({"a": decoder("a", [9.0, 4.0, 6.0]), "b": decoder("b", [9.0, 2.0, 2.0])}, 2)
    assert "".join(order) == "baabba"
    assert found.ratios("a", "b") == [2.0, 3.0]
    assert (found.median("a", "b"), found.same("a", "b"), found.last["a"].tokens) == (2.5, False, [6])
    assert speedups([found, found], "a", "b") == [2.5, 2.5]
    assert together([found, found], "a") == Stats(4, 6, 2, 12)
    assert contest({"a": decoder("c", [1.0])}, 1, warm=False).ms == {"a": [1.0]}


def test_our_own_decoder_counts_what_it_emits() -> None:
    circle = toy.bigram(torch.eye(3).roll(1, dims=1))
    decoded = ours(circle, [0, 1, 2, 0], proposer="ngram", max_tokens=6)()
    assert decoded.tokens == [1, 2, 0, 1, 2, 0]
    assert decoded.ms > 0
    assert decoded.stats is not None
    assert decoded.stats.passes < 6


# bytes


def test_readers_read_all_of_their_bytes() -> None:
    found = readers(3 * 4096 * 4 - 5)
    assert {name: float(read()) for name, read in found.items() if name != "product"} == {
        "sum": 12288.0,
        "norm": pytest.approx(math.sqrt(12288)),
        "dot": 12288.0,
    }
    assert best({"a": [2.0, 2.0, 9.0], "b": [3.0, 1.0, 3.0]}) == "a"


def test_weight_bytes_leave_an_embedding_beside_a_head_out() -> None:
    model = toy.llama(key(0), vocab_size=32, width=16, dtype=torch.float32)
    assert model.params.head is not None
    leaves = [*model.params.layers[0].__dict__.values(), *model.params.layers[1].__dict__.values(), model.params.norm, model.params.head]
    expected = sum(leaf.numel() * 4 for leaf in leaves if leaf is not None)
    assert weight_bytes(model) == expected
    tied = model._replace(params=type(model.params)(model.params.embedding, model.params.layers, model.params.norm, None))
    assert weight_bytes(tied) == expected


# figures


def test_figures() -> None:
    held = [figures.at_most("a", 1.2, 1.2), figures.at_least("b", 0.7, 0.75)]
    assert [one.met for one in held] == [True, False]
    assert (figures.code(held), figures.code(held[:1]), figures.code([])) == (1, 0, 0)
    assert figures.lines(held) == ["gate: a is 1.2, at most 1.2: passed", "gate: b is 0.7, at least 0.75: FAILED"]
    assert [row["at_least"] for row in figures.as_rows(held)] == [False, True]
    assert not figures.at_least("nan", math.nan, 0.0).met


# questions


def questions(folder: Path, *lines: Any) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "questions.jsonl").write_text(text, "utf-8")
    return folder


def asked(number: Any, category: Any = "qa", turns: Any = ("first", "second")) -> dict[str, Any]:
    return {"question_id": number, "category": category, "turns": turns}


def test_questions_are_read(tmp_path: Path) -> None:
    folder = questions(tmp_path, asked(4), "", asked(7, "math", ["one"]), asked(9))
    assert read(folder) == [Question(4, "qa", ("first", "second")), Question(7, "math", ("one",)), Question(9, "qa", ("first", "second"))]
    assert [one.number for one in limited(read(folder), 1)] == [4, 7]
    assert len(limited(read(folder), None)) == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ("line 2", "not JSON")),
        ("[1]", ("line 2", "list")),
        (asked("4"), ("line 2", "'4'")),
        (asked(5, None), ("line 2", "None")),
        (asked(5, turns=[]), ("line 2", "turns")),
        (asked(5, turns=[3]), ("line 2", "turns")),
        (asked(4), ("question_id 4 twice",)),
    ],
)
def test_broken_questions_are_refused(tmp_path: Path, line: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="expected") as refused:
        read(questions(tmp_path, asked(4), line))
    assert all(word in str(refused.value) for word in words)


def test_a_folder_without_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read .*expected a folder with questions\.jsonl"):
        read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no question"):
        read(questions(tmp_path))


def test_records_are_kept_and_gone_on_with(tmp_path: Path) -> None:
    path, notes = tmp_path / "kept.jsonl", iter([{"curve": 1}, {"curve": 2}])
    kept = Kept(path, {"k": 5, "entries": ("a",)}, lambda: next(notes))
    kept.add({"question_id": 1, "by_rows": {1: 2}})
    kept.add({"question_id": 2})
    with open(path, "a") as file:
        file.write('{"question_id": 3, "cu')  # killed
    again = Kept(path, {"k": 5, "entries": ("a",)}, lambda: next(notes))
    assert again.note == {"curve": 1}  # not measured again
    assert (1 in again, 2 in again, 3 in again) == (True, True, False)
    again.add({"question_id": 3})
    assert [one["question_id"] for one in Kept(path, {"k": 5, "entries": ("a",)}, dict)] == [1, 2, 3]
    assert list(kept) == [{"question_id": 1, "by_rows": {"1": 2}}, {"question_id": 2}]  # as a later run reads them
    with pytest.raises(ValueError, match=r"begun with k 5; this run has 6: expected the same"):
        Kept(path, {"k": 6, "entries": ("a",)}, dict)


def test_records_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"id": 1}\n')
    with pytest.raises(ValueError, match="no file of an earlier run"):
        Kept(path, {}, dict)


def test_records_may_stay_in_memory() -> None:
    kept = Kept(None, {}, lambda: {"a": 1})
    kept.add({"question_id": 4})
    assert (kept.note, list(kept)) == ({"a": 1}, [{"question_id": 4}])


# files for llama.cpp


def fields(path: Path) -> dict[str, tuple[Any, Any]]:
    """Metadata with types, by the gguf package."""
    found = {name: (field.contents(), list(field.types)) for name, field in gguf.GGUFReader(path).fields.items()}
    return {name: value for name, value in found.items() if not name.startswith("GGUF.") and name != "general.file_type"}


def test_a_rewritten_file_is_the_same_model(tiny: Path, tmp_path: Path) -> None:
    path = rewritten(tiny, tmp_path / "new" / "folder", "F32")
    assert path.name == "tiny.F32.gguf"
    assert fields(path) == fields(tiny)
    (before, words), (after, others) = load(tiny), load(path)
    ids = words.encode("abab, and so on")
    assert others.encode("abab, and so on") == ids
    assert torch.equal(models.logits(before, ids), models.logits(after, ids))
    assert {entry.tensor_type.name for entry in gguf.GGUFReader(path).tensors} == {"F32"}


def test_a_rewritten_file_rounds_matrices_to_bfloat16(tiny: Path, tmp_path: Path) -> None:
    path = rewritten(tiny, tmp_path, "BF16")
    kinds = {entry.name: entry.tensor_type.name for entry in gguf.GGUFReader(path).tensors}
    assert {kind for name, kind in kinds.items() if "norm" in name} == {"F32"}
    assert {kind for name, kind in kinds.items() if "norm" not in name} == {"BF16"}
    rounded, ours_ = load(path)[0], load(tiny, dtype="bfloat16")[0]
    assert torch.equal(rounded.params.layers[0].qkv, ours_.params.layers[0].qkv.float())
    stamp = path.stat().st_mtime_ns
    assert rewritten(tiny, tmp_path, "BF16").stat().st_mtime_ns == stamp  # it stays


def test_what_is_no_file_is_refused(tmp_path: Path, tiny: Path) -> None:
    with pytest.raises(ValueError, match="is no file; expected an embedded name or a GGUF file"):
        file_of(str(tmp_path))
    with pytest.raises(ValueError, match="'Q4_0'; expected one of F32, BF16"):
        rewritten(tiny, tmp_path, "Q4_0")
    assert file_of(str(tiny)) == tiny
    assert file_of("smollm2-135m").suffix == ".gguf"


def test_turns_of_a_contest_are_paired() -> None:
    with pytest.raises(ValueError, match="zip"):
        Contest({"a": [1.0], "b": [1.0, 2.0]}, {}).ratios("a", "b")
