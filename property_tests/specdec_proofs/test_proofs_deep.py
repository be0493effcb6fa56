"""Long runs: the same counts whoever draws them, resumed where they stopped, refused where they do not belong, and wrong rules are seen."""

import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from specdec_fn import random
from specdec_fn.speculate import verifiers
from specdec_proofs import deep, deep_rows, deep_state, sequential
from specdec_proofs.chi2 import pearson
from specdec_proofs.deep_rows import BATCH, PLACES, Row, batch, law, place, rows
from specdec_proofs.deep_state import State, begin, fingerprint, from_json, lengthened, load, save, to_json
from specdec_proofs.mutants import catalogue
from specdec_proofs.power import pool
from specdec_proofs.sample import sample

FEW = (Row("token", "reference chain"), Row("greedy", "softmax at temperature 0"))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and repetitions of a size for tests."""
    monkeypatch.setattr(deep, "EACH", 2000)
    monkeypatch.setattr(deep, "REPEATS", 10)


def after(state: State, more: int, processes: int = 1) -> State:
    return list(deep.rounds(state, more, processes))[-1]


def comparable(state: State) -> dict[str, Any]:
    return {**to_json(state), "seconds": 0}


# Rows


def test_rows_are_those_that_the_registry_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows()
    assert {row.verifier for row in found} <= set(verifiers)
    assert {"token", "greedy"} <= {row.verifier for row in found}
    assert len(set(map(str, found))) == len(found), "a row's name is its key"
    monkeypatch.setattr(verifiers, "all", MappingProxyType({"token": verifiers["token"]}))
    assert {row.verifier for row in rows()} == {"token"}


@pytest.mark.parametrize("one", PLACES, ids=lambda one: one.name)
def test_laws_are_laws_of_whole_sequences(one: deep_rows.Place) -> None:
    world, p = one.world(), law(one.name)
    assert len(p) == world.vocab**one.length
    assert p.sum() == pytest.approx(1, abs=1e-12)
    first = p.reshape(world.vocab, -1).sum(1)
    assert first == pytest.approx([float(x) for x in world.target(())], abs=1e-12)


@pytest.mark.parametrize("row", rows(), ids=str)
def test_every_row_follows_its_law(row: Row) -> None:
    """By Pearson's test, on a batch that no run reaches."""
    n, p = 4000, law(row.world)
    counts = batch(row, 2**31, n)
    assert counts.sum() == n
    assert not counts[p == 0].any()
    cells = pool(p, n)
    assert cells.df < 1 or pearson(counts, p, cells).p_value > 1e-6


def test_batches_differ_by_row_and_number() -> None:
    first = batch(FEW[0], 0, 1000)
    assert (first == batch(FEW[0], 0, 1000)).all()
    assert (first != batch(FEW[0], 1, 1000)).any()
    assert (first != batch(Row("token", "reference chain, one-hot"), 0, 1000)).any()
    with pytest.raises(ValueError, match="no world is called 'nowhere'"):
        place("nowhere")


@pytest.mark.parametrize("lag", [1, 2])
def test_passes_of_a_row_are_independent(lag: int) -> None:
    """The first tokens of passes that follow each other, which a race at overlapping positions would tie together."""
    world = place("reference chain").world()
    drawn = sample(verifiers["coupled"].decide, world, random.key(5), 32_000, tape=verifiers["coupled"].tape, raced=True).tokens[:, 0].numpy()
    table = np.zeros((3, 3))
    np.add.at(table, (drawn[:-lag], drawn[lag:]), 1)
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    assert ((table - expected) ** 2 / expected).sum() < 33.4, "chi-squared at 1e-6, 4 degrees"


# Rounds


def test_the_number_of_processes_changes_nothing() -> None:
    """Two rounds in this process, and one here and one in two others; spawned ones do not see what tests change here."""
    whole = begin(FEW)._replace(p_values=(0.5,) * deep.REPETITIONS)
    one = after(whole, 2)
    two = after(after(whole, 1), 1, processes=2)
    assert comparable(one) == comparable(two)
    for track in one.tracks:
        assert (track.evidence.counts == batch(track.row, 0) + batch(track.row, 1)).all()
    assert [[n for n, _ in track.path] for track in one.tracks] == [[0, BATCH, 2 * BATCH]] * 2


def test_a_run_makes_its_claims() -> None:
    state = after(begin(FEW), 1)
    assert len(state.p_values) == 10
    found = deep.claims(state)
    assert [claim.passed for claim in found] == [True] * 4
    assert {claim.family for claim in found} == {"deep"}
    assert found[0].gate == "< 6.30", "log10 of 2 rows / 1e-6"
    assert "N 50,000" in found[0].detail
    assert "any other fails at once" in found[1].detail
    assert deep.claims(begin(FEW)) == []
    with pytest.raises(ValueError, match="expected at least 1"):
        next(deep.rounds(state, 1, processes=0))


def test_repetitions_go_on_where_they_stopped_and_end() -> None:
    first = after(begin(()), 1)
    second = after(first, 1)
    assert second.p_values[:10] == first.p_values
    assert len(set(second.p_values)) == 20
    done = begin(())._replace(p_values=(0.5,) * deep.REPETITIONS)
    assert len(after(done, 1).p_values) == deep.REPETITIONS


def wrong(monkeypatch: pytest.MonkeyPatch, name: str, decide: Any) -> None:
    monkeypatch.setattr(verifiers, "all", MappingProxyType({**verifiers.all, name: verifiers[name]._replace(decide=decide)}))


def test_a_wrong_rule_fails_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain mutant whose first token is right, and a greedy rule that is not greedy."""
    mutant = next(mutant for mutant in catalogue() if "residual of the previous" in mutant.name)
    wrong(monkeypatch, "token", mutant.decide())
    wrong(monkeypatch, "greedy", lambda tape, p, draft: verifiers.greedy.decide(tape, p.flip(-1), draft))
    found = deep.claims(after(begin(FEW), 1))
    assert [claim.passed for claim in found[:2]] == [False, False]
    assert found[0].p_value == pytest.approx(0, abs=1e-100)
    assert found[1].figure == math.inf
    assert "cannot produce" in found[1].detail


def test_repetitions_that_are_off_fail() -> None:
    state = begin(FEW[:1])._replace(rounds=1, p_values=(0.3,) * 40)
    assert [claim.passed for claim in deep.claims(state)[1:]] == [True, False]
    assert not deep.claims(state._replace(p_values=(1e-9, 0.4)))[1].passed


# Files


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = after(begin(FEW, "abc"), 1)
    state = state._replace(claims=tuple(deep.claims(state)), tracks=(state.tracks[0]._replace(path=((0, 0.0), (BATCH, math.inf))), state.tracks[1]))
    file = tmp_path / "run.json"
    save(state, file)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    back = load(file, FEW, "abc")
    assert to_json(back) == to_json(state)
    assert back.claims == state.claims
    assert back.tracks[0].path[-1][1] == math.inf
    assert comparable(after(back, 1)) == comparable(after(state, 1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: [], r"it has \[\]; expected a state"),
        (lambda value: {**value, "format": "other"}, "format 'other'"),
        (lambda value: {**value, "version": 0}, "of version 0 .* expected version 1"),
        (lambda value: {**value, "batch": 7}, "batches of 7"),
        (lambda value: {**value, "program": "old"}, "program 'old'; this one is 'abc'"),
        (lambda value: {**value, "rows": value["rows"][:1]}, "1 rows; expected these 2, and they differ in greedy on softmax"),
        (lambda value: {**value, "rows": value["rows"][::-1]}, "it has 2 rows; expected these 2"),
        (lambda value: {**value, "rows": 3}, "rows cannot be read"),
        (lambda value: {**value, "rounds": 1}, "0 counts in 27 cells after 1 rounds"),
        (lambda value: {**value, "rounds": True}, "rounds is True"),
        (lambda value: {**value, "p_values": [2.0]}, "outside"),
        (lambda value: {**value, "claims": [{"name": "x"}]}, "damaged"),
        (lambda value: {**value, "rows": [{**row, "counts": [-1, *row["counts"][1:]]} for row in value["rows"]]}, "a count is -1"),
        (lambda value: {key: value[key] for key in value if key != "seconds"}, "damaged .*seconds"),
    ],
)
def test_a_state_that_does_not_belong_is_refused(change: Any, said: str, tmp_path: Path) -> None:
    value = change(to_json(begin(FEW, "abc")))
    with pytest.raises(ValueError, match=said):
        from_json(value, FEW, "abc")
    (tmp_path / "run.json").write_text(json.dumps(value))
    with pytest.raises(ValueError, match=r"run.json' cannot be resumed: "):
        load(tmp_path / "run.json", FEW, "abc")


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"\x80\x04pickle")
    with pytest.raises(ValueError, match="is no JSON"):
        load(tmp_path / "run.json", FEW, "abc")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.json"
    save(begin(FEW, "old"), file)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(deep_state.json, "dump", full)
    with pytest.raises(OSError, match="No space"):
        save(begin(FEW, "new"), file)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert load(file, FEW, "old").program == "old"


def test_the_program_is_told_by_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    import specdec_kernels

    before = fingerprint()
    assert len(before) == 16
    monkeypatch.setattr(specdec_kernels, "__file__", str(Path(deep.__file__)))
    assert fingerprint() != before


def test_long_paths_are_thinned() -> None:
    path: tuple[tuple[int, float], ...] = ((0, 0.0),)
    for n in range(1, 3000):
        path = lengthened(path, n, float(n))
    assert 200 <= len(path) <= deep_state.POINTS
    assert path[0] == (0, 0.0)
    assert path[-1] == (2999, 2999.0)
    assert [n for n, _ in path] == sorted({n for n, _ in path})


# Sequential claims of a fixed length


def test_sequential_claims() -> None:
    """One of each kind; all of them are checked by the default level."""
    tasks = {name: (gate, measure) for name, gate, measure in sequential.claims()}
    assert sum(name.startswith("e-process: passes until") for name in tasks) >= 20
    track = sequential.walk(FEW[0], 3, n=1000)
    assert deep.judged(track, 2).passed
    mutant = next(name for name in tasks if "residual of the previous" in name)
    figure = tasks[mutant][1]()
    assert figure.passed
    assert figure.value <= 4000


def test_a_walk_of_the_correct_code_crosses_nothing() -> None:
    mutant = next(mutant for mutant in catalogue() if "residual of the previous" in mutant.name)
    found = sequential.crossing(mutant._replace(edits=()), 0, most=20_000)
    assert not found.crossed
    assert found.path[-1][0] == 20_000
    assert sequential.crossing(mutant, 0).crossed
