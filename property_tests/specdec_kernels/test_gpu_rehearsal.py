"""The GPU script runs from the repository alone, on a machine without a GPU as a rehearsal: every line of it that a CPU can run."""

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
# Without the packages that a GPU machine may lack; the script finds the repository by itself.
RUN = """
import runpy, sys
sys.modules.update(jaxtyping=None, rpds=None)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*arguments: str, program: str = RUN) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "PYTHONPATH")}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    code = program.replace("sys.argv[0]", repr(str(SCRIPT)), 1)
    command = [sys.executable, "-W", "error::SyntaxWarning", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict]:
    file = tmp_path_factory.mktemp("gpu") / "out.json"
    done = run("--rehearse", "--quick", "--json", str(file))
    return done, json.loads(file.read_text()) if file.exists() else {}


def test_a_rehearsal_passes_and_says_that_it_is_one(rehearsal: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    done, found = rehearsal
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:2] == [
        "This is a rehearsal on a CPU, with tiny sizes and interpreted kernels: no figure of it means anything.",
        "It captures no graph and judges no target.",
    ]
    assert found["rehearsal"] is True
    assert found["faults"] == []
    assert found["left_out"] == []
    assert found["figures"] == []  # nothing that the project promises is measured here
    assert "as a CUDA graph" not in done.stdout
    project = tomllib.loads((SCRIPT.parents[1] / "pyproject.toml").read_text())["project"]
    assert found["device"]["specdec_fn"] == project["version"]
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found["device"].get("commit", "0" * 40))


def test_every_part_has_rows_and_every_kernel_is_checked(rehearsal: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    done, found = rehearsal
    assert set(found["tables"]) == {"checks", "attention", "pass", "decide", "graph"}
    for name, table in found["tables"].items():
        assert table["rows"], name
        assert table["title"] in done.stdout
    checked = " ".join(row["kernel"] for row in found["tables"]["checks"]["rows"])
    rooms = {path.stem.removesuffix("_triton") for path in (SCRIPT.parents[1] / "kernels" / "specdec_kernels").glob("*_triton.py")}
    page = (SCRIPT.parents[1] / "docs" / "gpu.md").read_text()
    for name, start in re.findall(r"^\| \*\*(?:`(\w+)`: )?(.+?)\*\* \|", page, re.M):
        assert found["tables"][name]["title"].startswith(start) if name else start == "What the project promises"
    assert set(re.findall(r"\*\*`(\w+)`: ", page)) == set(found["tables"])
    parts = {"arrival", "draw", "truncation", "verify_choice", "verify_draw"}  # of kernels in other rooms
    missing = {room for room in rooms - parts if room not in checked}
    assert missing == set()
    assert all(row["passed"] for row in found["tables"]["checks"]["rows"])


WRONG = """
import runpy, sys
sys.modules.update(jaxtyping=None, rpds=None)
sys.path.insert(0, sys.argv[0].rsplit("/", 2)[0] + "/kernels")
import os
os.environ["TRITON_INTERPRET"] = "1"
from specdec_kernels import threefry_triton
right = threefry_triton.threefry2x32
threefry_triton.threefry2x32 = lambda *words: tuple(word ^ 1 for word in right(*words))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_wrong_kernel_and_a_time_that_is_up_fail() -> None:
    """One kernel is wrong; the time is up after the first few checks, and what was left out is said."""
    done = run("--rehearse", "--seconds", "0.3", program=WRONG.replace("sys.argv[0]", repr(str(SCRIPT))))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "threefry, word 0: the error is nan; expected at most 0" in done.stdout
    assert "checks were not run: the time was up" in done.stdout
    assert "Left out:" in done.stdout


def test_a_machine_without_a_gpu_is_told_so() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stderr.strip() == ("torch sees no GPU; expected one with CUDA, or --rehearse, which runs tiny sizes on a CPU and measures nothing")


BARE = """
import runpy, sys
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else found(name, *rest)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_machine_without_triton_is_told_so() -> None:
    done = run("--rehearse", program=BARE)
    assert done.returncode == 2
    assert done.stderr.strip() == "triton is not installed; expected torch and triton: pip install triton (3.7 or 3.8)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rehearse", "--json", "/nowhere/at/all.json"), "--json is /nowhere/at/all.json; expected a file in a folder that is there"),
        (("--rehearse", "--json", str(SCRIPT.parent)), "; expected a file in a folder that is there"),
        (("--rehearse", "--seconds", "nan"), "--seconds is nan; expected more than 0"),
    ],
)
def test_a_bad_option_is_refused_before_anything_runs(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_no_error_is_within_nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is exactly 0 may be allowed no error; then 0 passes, and anything else does not."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    close = importlib.import_module("gpu_compare").close
    zero = torch.zeros(2)
    assert close("", zero, zero, zero).passed
    assert not close("", zero + 1e-30, zero, zero).passed
    assert not close("", zero * torch.nan, zero, zero).passed
