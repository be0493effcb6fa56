"""Answers that can be read again: there is room for so many, and nobody takes that of others."""

import random

import pytest

from specdec_fn.serve import results as room
from specdec_fn.serve.results import Result, Results

A, B, C = b"a", b"b", b"c"


def keep(results: Results, id: str, owner: bytes, size: int = 2) -> None:
    results.keep(Result(id, owner, 0, "finished", bytes(size)))


def kept(results: Results, owner: bytes, ids: list[str]) -> list[str]:
    return [id for id in ids if results.find(id, owner) is not None]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 80 bytes."""
    monkeypatch.setattr(room, "BYTES", 80)


def test_an_answer_that_is_too_large_is_not_kept_and_costs_nobody_theirs(small: None) -> None:
    results = Results(100)
    for id, owner, size in (("1", A, 10), ("2", B, 10), ("3", A, 11), ("4", B, 1000)):
        keep(results, id, owner, size)
    assert kept(results, A, ["1", "2", "3", "4"]) == ["1"]
    assert kept(results, B, ["1", "2", "3", "4"]) == ["2"]


def test_who_holds_most_bytes_lets_go_of_the_oldest(small: None) -> None:
    results, ids = Results(100), [str(i) for i in range(50)]
    for id in ("x", "y", "z"):
        keep(results, id, B, 10)
    for id in ids:
        keep(results, id, A, 10)
    assert kept(results, B, ["x", "y", "z"]) == ["x", "y", "z"]
    assert kept(results, A, ids) == ids[-5:]
    keep(results, "new", C, 10)
    assert (kept(results, C, ["new"]), kept(results, A, ids), len(kept(results, B, ["x", "y", "z"]))) == (["new"], ids[-4:], 3)


def test_who_holds_most_answers_lets_go_of_the_oldest() -> None:
    results, ids = Results(10), [str(i) for i in range(50)]
    keep(results, "x", B, 1000)  # few, and most of the bytes
    for id in ids:
        keep(results, id, A)
    assert kept(results, B, ["x"]) == ["x"]
    assert kept(results, A, ids) == ids[-9:]


def test_the_newest_is_always_kept_and_the_limits_hold(small: None) -> None:
    draws, results, sizes = random.Random(3), Results(12), {}
    for i in range(2000):
        owner, size = draws.choice((A, A, A, B, C)), draws.randrange(11)
        keep(results, str(i), owner, size)
        sizes[str(i)] = (owner, size)
        assert results.find(str(i), owner) is not None
        there = [size for id, (owner, size) in sizes.items() if results.find(id, owner)]
        sizes = {id: one for id, one in sizes.items() if results.find(id, one[0])}
        assert len(there) <= 12
        assert sum(there) <= 80
        assert len(there) == 12 or sum(there) > 80 - 2 * 10 or i < 12  # and no room is lost


def test_a_result_that_comes_again_takes_the_place_of_the_first(small: None) -> None:
    results = Results(2)
    keep(results, "other", B, 10)
    for size in (1, 2, 3) * 20:
        keep(results, "same", A, size)
    found = results.find("same", A)
    assert found is not None
    assert len(found.body) == 3
    assert kept(results, B, ["other"]) == ["other"]


def test_none_are_kept_where_none_are_to_be() -> None:
    results = Results(0)
    keep(results, "1", A)
    assert results.find("1", A) is None


def test_nobody_reads_what_belongs_to_others() -> None:
    results = Results(5)
    keep(results, "1", A)
    assert kept(results, A, ["1"]) == ["1"]
    assert kept(results, B, ["1"]) == kept(results, b"", ["1"]) == []
