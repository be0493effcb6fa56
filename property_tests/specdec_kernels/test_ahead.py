"""The gate of kernels compiled ahead of time: what it judges, what it finds, and that it fails on kernels that are made to fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_kernels import ahead
from specdec_kernels.ahead_measure import TARGETS, collected, rooms, usage_of_amd, usage_of_cuda
from specdec_kernels.ahead_table import SHARED_LIMIT, Row, judged, parsed, shown, text

KERNELS = Path(__file__).parents[2] / "kernels"
ROW = Row("add_triton", "add, bf16", "sm_90", 4, 2, 100, 0, 0, 10_000)


# The table and the budget


def test_the_table_is_read_as_it_was_written() -> None:
    rows = (ROW, ROW._replace(target="sm_80"), ROW._replace(name='a "name"', registers=3))
    written = text("3.7.1", rows)
    assert parsed(written) == ("3.7.1", tuple(sorted(rows)))
    assert text(*parsed(written)) == written == text("3.7.1", reversed(rows))
    assert len(written.splitlines()) == len(rows) + 5  # one line a row


@pytest.mark.parametrize(
    "written", ["", "[]", "{}", '{"triton": 3, "rows": []}', '{"triton": "3", "rows": [{}]}', text("3", [ROW]).replace("100", '"100"')]
)
def test_another_file_is_no_table(written: str) -> None:
    with pytest.raises(ValueError, match=r"^the table .*; expected what --write makes$"):
        parsed(written)


@pytest.mark.parametrize(
    ("field", "most"),
    [("registers", 100 + 10 + 8), ("shared", 10_000 + 1_000 + 1_024)],
)
def test_a_row_may_grow_to_its_budget_and_no_further(field: str, most: int) -> None:
    assert judged([ROW._replace(**{field: most})], [ROW]) == []
    (sentence,) = judged([ROW._replace(**{field: most + 1})], [ROW])
    assert sentence.startswith("add, bf16 (add_triton) on sm_90 takes ")
    assert f"{most + 1} " in sentence
    assert f"at most {most} " in sentence
    assert judged([ROW._replace(**{field: 0})], [ROW]) == []  # less is no fault


@pytest.mark.parametrize("table", [None, [ROW]])
@pytest.mark.parametrize(("field", "value"), [("spilled", 8), ("shared", SHARED_LIMIT["sm_90"] + 1)])
def test_a_spill_and_more_memory_than_there_is_fail_whatever_the_table_says(field: str, value: int, table: list[Row] | None) -> None:
    row = ROW._replace(**{field: value})
    (sentence,) = judged([row], None if table is None else [row])
    assert "add, bf16 (add_triton) on sm_90" in sentence


def test_rows_that_are_missing_stale_or_named_twice_are_faults() -> None:
    other = ROW._replace(name="other")
    assert judged([ROW, other], [ROW]) == ["other (add_triton) on sm_90 is not in the table; expected a row (--write makes it)"]
    (stale,) = judged([ROW], [ROW, other])
    assert stale.startswith("other (add_triton) on sm_90 is in the table and is no longer compiled")
    assert judged([ROW], [ROW, other], whole=False) == []
    assert judged([ROW, ROW], [ROW]) == ["add_triton has 2 variants of the name 'add, bf16'; expected one"]
    (changed,) = judged([ROW._replace(warps=8)], [ROW])
    assert "8 warps and 2 stages" in changed
    assert judged([ROW._replace(registers=1000)], None) == []  # another version of triton: no budget


def test_every_target_has_a_limit_and_a_column() -> None:
    assert set(TARGETS) == set(SHARED_LIMIT)
    lines = shown(ROW._replace(target=target) for target in TARGETS).splitlines()
    assert lines[0].split()[-4:] == list(TARGETS)
    assert len(lines) == 2


# What it finds


def test_the_walk_finds_every_room() -> None:
    """By the names of the files, not by imports of them."""
    files = sorted(path for path in (KERNELS / "specdec_kernels").rglob("*_triton.py"))
    assert list(rooms("specdec_kernels")) == [".".join(path.relative_to(KERNELS).with_suffix("").parts) for path in files]
    assert "specdec_kernels.threefry_triton" in rooms("specdec_kernels")


def test_every_kernel_of_the_package_has_its_variants() -> None:
    found, said = collected("specdec_kernels")
    assert said == []
    names = [(room, variant.name) for room, variant in found]
    assert len(set(names)) == len(names)
    for _, variant in found:
        assert list(variant.signature) == list(variant.kernel.arg_names), variant.name
        assert {name for name, kind in variant.signature.items() if kind == "constexpr"} == set(variant.constants), variant.name


def test_the_table_of_the_repository_has_a_row_for_each() -> None:
    """What CI compiles is looked at there; that no row was forgotten is seen here at once."""
    _, rows = parsed((KERNELS / "compiled.json").read_text("utf-8"))
    wanted = {(room, variant.name, target) for room, variant in collected("specdec_kernels")[0] for target in TARGETS}
    assert {row.key for row in rows} == wanted
    assert judged(rows, rows) == []


def test_what_a_binary_takes_is_read_from_what_the_tools_say() -> None:
    printed = "Resource usage:\n Common:\n  GLOBAL:0\n Function k:\n  REG:18 STACK:16 SHARED:1024 LOCAL:4 CONSTANT[0]:568 TEXTURE:0\n"
    assert usage_of_cuda(printed) == (18, 20, 0)
    with pytest.raises(ValueError, match="expected REG"):
        usage_of_cuda("cuobjdump: no such file")
    metadata = ".private_segment_fixed_size: 8\n    .sgpr_spill_count: 3\n    .vgpr_count:     288\n    .vgpr_spill_count: 5\n"
    assert usage_of_amd(metadata) == (288, 20, 3)
    assert usage_of_amd(metadata.replace("_size: 8", "_size: 24")) == (288, 24, 3)
    with pytest.raises(ValueError, match="does not state vgpr_spill_count"):
        usage_of_amd(metadata.replace(".vgpr_spill_count", ".none"))


# The command


def test_questions_that_cannot_be_answered_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ahead.main(["--write", "--only", "x"]) == 2
    assert ahead.main(["--check", "--table", str(tmp_path / "none.json")]) == 2
    (tmp_path / "bad.json").write_text("{}")
    assert ahead.main(["--check", "--table", str(tmp_path / "bad.json")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert all("; expected " in line or "expected one" in line for line in said)


MADE = """
import os
import triton
import triton.language as tl
from specdec_kernels.variant import Variant

@triton.jit
def good(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), tl.load(x + tl.arange(0, N)) + 1.0)

@triton.jit
def spills(x, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + at)
    tl.store(x + at, tl.dot(a, tl.trans(a) + tl.sum(a, 1)[:, None]) + a)

@triton.jit
def wrong(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), tl.load(x + tl.arange(0, N + 1)))

@triton.jit
def forgotten(x):
    tl.store(x, 1.0)

def variants():
    kernels = {"good": good, "spills": spills, "wrong": wrong}
    return tuple(Variant(name, kernel, {"x": "*fp32", "N": "constexpr"}, {"N": 64}, 1, 1) for name, kernel in kernels.items())
"""


def compiled(tmp_path: Path, *arguments: str) -> tuple[int, dict, str]:
    """The command on a package of made-up kernels, as it is run: in a process of its own, whose environment still asks for the interpreter."""
    room = tmp_path / "made_up"
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "kernels_triton.py").write_text(MADE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(KERNELS))), "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "specdec_kernels.ahead", "--package", "made_up", "--json", "--jobs", "1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_kernels_that_spill_or_do_not_compile_or_are_forgotten_fail(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.write_text(text("0.0.0", [ROW]))
    code, found, words = compiled(tmp_path, "--only", "sm_80", "--check", "--table", str(table))
    assert code == 1
    assert {row["name"]: row["spilled"] > 0 for row in found["rows"]} == {"good": False, "spills": True}
    for start in (
        "made_up.kernels_triton has the kernel forgotten, which no variants() names",
        "spills (kernels_triton) on sm_80 spills ",
        "wrong (kernels_triton) on sm_80 does not compile: ",
    ):
        (sentence,) = (sentence for sentence in found["faults"] if sentence.startswith(start))
        assert sentence in words
    assert len(found["faults"]) == 3
    assert "the table was made with 0.0.0: only spills and limits are judged" in words


def test_the_table_is_written_and_held_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a compiler: what it says is put in its place."""
    table = tmp_path / "table.json"

    def run(rows: list[Row], *arguments: str, said: tuple[str, ...] = ()) -> tuple[int, str]:
        monkeypatch.setattr(ahead, "_compiled", lambda package, words, jobs: ahead._Done(list(rows), list(said), {}))
        code = ahead.main([*arguments, "--table", str(table)])
        return code, capsys.readouterr().err

    assert run([ROW], "--write", said=("x does not compile: y",))[0] == 1
    assert run([ROW._replace(spilled=4)], "--write")[0] == 1
    assert not table.exists()
    assert run([ROW], "--write")[0] == 0
    assert parsed(table.read_text())[1] == (ROW,)
    assert run([ROW], "--check")[0] == 0
    assert run([], "--check", "--only", "x")[0] == 0
    for rows, words in (
        ([], "no longer compiled"),
        ([ROW, ROW._replace(name="b")], "not in the table"),
        ([ROW._replace(registers=200)], "at most 118"),
    ):
        code, said = run(rows, "--check")
        assert code == 1
        assert words in said
    table.write_text(text("0.0.0", [ROW]))
    code, said = run([ROW._replace(registers=200)], "--check")
    assert code == 0
    assert "made with 0.0.0" in said
