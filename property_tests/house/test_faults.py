"""FAULTS.md keeps its word: every reported fault has a test that exists, or waits for a room that does not."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "FAULTS.md").read_text("utf-8")
# How many kinds of fault each section of the collected reports has.
COUNTS = {"D": 23, "G": 4, "S": 8, "L": 16, "K": 10, "N": 9, "P": 11, "C": 7, "T": 9, "F": 9, "R": 8}
KNOWN = [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]


@cache
def named_in(file: str) -> frozenset[str]:
    """The names of the tests that a file has."""
    path = TESTS / file
    if not path.is_file():
        return frozenset()
    return frozenset(
        node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_"
    )


def rows(page: str) -> Iterator[tuple[str, str, str]]:
    """Row, fault and tests of each line of the tables."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and not set(cells[0]) <= {"-"} and cells[0] != "row":
            yield cells[0], cells[1], cells[2]


def faults(page: str, tests_in: Callable[[str], frozenset[str]], exists: Callable[[str], bool]) -> list[str]:
    """What is wrong with the page."""
    found = list(rows(page))
    names = [name for name, _, _ in found]
    wrong = [f"{name} has no row" for name in KNOWN if name not in names]
    wrong += [f"{name} is no known row" for name in names if name not in KNOWN]
    wrong += [f"{name} stands {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1]
    for name, words, cell in found:
        named = re.findall(r"([\w/]+\.py)::(\w+)", cell)
        awaited = re.findall(r"waits? for ([\w/.]+)", cell)
        wrong += [f"{name} names no test and waits for nothing"] if not named and not awaited else []
        wrong += [f"{name} does not say what the fault is"] if len(words.split()) < 3 else []
        wrong += [f"{name} names {file}::{test}, which does not exist" for file, test in named if test not in tests_in(file)]
        wrong += [f"{name} waits for {room}, which exists" for room in awaited if exists(room)]
    return wrong


def test_every_fault_is_kept_out_or_waits_for_its_room() -> None:
    assert faults(PAGE, named_in, lambda room: (TESTS.parent / room).exists()) == []


def test_a_row_reads_as_written() -> None:
    table = {name: cell for name, _, cell in rows(PAGE)}
    assert table["L5"] == "engine/test_reported_faults.py::test_no_count_goes_past_the_stop"
    assert "test_seeds_decide" in named_in("engine/test_generate.py")
    assert named_in("engine/no_such_file.py") == frozenset()


TESTED, WAITING = "a/test_b.py::test_c, a/test_b.py::test_d", "the rest waits for specdec_fn/x.py"
GOOD = "\n".join(f"| {name} | some fault or other | {TESTED}; {WAITING} |" for name in KNOWN)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (f"| D77 | some fault or other | {TESTED} |", ["D7 has no row", "D77 is no known row"]),
        (f"| D8 | some fault or other | {TESTED} |", ["D7 has no row", "D8 stands 2 times"]),
        ("| D7 | some fault or other | soon |", ["D7 names no test and waits for nothing"]),
        ("| D7 | some fault or other | |", ["D7 names no test and waits for nothing"]),
        (f"| D7 | | {TESTED} |", ["D7 does not say what the fault is"]),
        ("| D7 | some fault or other | a/test_b.py::test_e |", ["D7 names a/test_b.py::test_e, which does not exist"]),
        ("| D7 | some fault or other | b/test_b.py::test_c |", ["D7 names b/test_b.py::test_c, which does not exist"]),
        ("| D7 | some fault or other | waits for specdec_fn/kv |", ["D7 waits for specdec_fn/kv, which exists"]),
        (f"| D7 | some fault or other | {TESTED}; batches wait for specdec_fn/kv |", ["D7 waits for specdec_fn/kv, which exists"]),
    ],
)
def test_what_is_wrong_with_the_page_is_found(row: str, complaint: list[str]) -> None:
    def tests_in(file: str) -> frozenset[str]:
        return frozenset({"test_c", "test_d"} if file == "a/test_b.py" else ())

    good = f"| D7 | some fault or other | {TESTED}; {WAITING} |"
    assert good in GOOD
    assert faults(GOOD, tests_in, lambda room: room != "specdec_fn/x.py") == []
    assert faults(GOOD.replace(good, row), tests_in, lambda room: room != "specdec_fn/x.py") == complaint
