"""The GPU script runs from the repository alone, on a machine without a GPU as a rehearsal: every line of it that a CPU can run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert done.stdout.splitlines()[0] == "This is a rehearsal on a CPU, with tiny sizes and interpreted kernels: no figure of it means anything."
    assert found["rehearsal"] is True
    assert found["faults"] == []
    assert found["left_out"] == []
    assert found["figures"] == []  # nothing that the project promises is measured here


def test_every_part_has_rows_and_every_kernel_is_checked(rehearsal: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    done, found = rehearsal
    assert set(found["tables"]) == {"checks", "attention", "pass", "decide", "graph"}
    for name, table in found["tables"].items():
        assert table["rows"], name
        assert table["title"] in done.stdout
    checked = " ".join(row["kernel"] for row in found["tables"]["checks"]["rows"])
    rooms = {path.stem.removesuffix("_triton") for path in (SCRIPT.parents[1] / "kernels" / "specdec_kernels").glob("*_triton.py")}
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
    assert done.returncode == 1
    assert done.stderr.strip() == ("torch sees no GPU; expected one with CUDA, or --rehearse, which runs tiny sizes on a CPU and measures nothing")
