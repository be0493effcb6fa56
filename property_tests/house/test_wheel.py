"""The wheel, built here, installed in a fresh environment, generates real text where no repository is near."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from specdec_kernels import native

ROOT = Path(__file__).parents[2]
PACKAGES = {"specdec_fn", "specdec_kernels", "specdec_proofs"}
FRANCE = [7042, 30, 198, 198]  # known faults, section 0: greedy after "The capital of France is"

WHERE = """
import json, specdec_fn, specdec_kernels, specdec_proofs
from specdec_fn import SamplingParams, generate, load
model, tokenizer = load("smollm2-135m")
done = generate(model, "The capital of France is", tokenizer=tokenizer, sampling=SamplingParams(0), proposer="ngram", max_tokens=4)
print(json.dumps([[package.__file__ for package in (specdec_fn, specdec_kernels, specdec_proofs)], done.tokens, done.text]))
"""


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints, run with nothing of this process's Python settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "COV"))}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel; hatchling is among the test dependencies, so that nothing is fetched."""
    folder = tmp_path_factory.mktemp("wheel")
    quiet = ("--disable-pip-version-check", "--no-index", "--no-deps", "--quiet")
    run(sys.executable, "-m", "pip", "wheel", *quiet, "--no-build-isolation", "--wheel-dir", folder, ROOT, cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name for name in names if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in inside} == PACKAGES
    assert {f"{package}/{file}" for package in PACKAGES for file in ("__init__.py", "py.typed")} <= inside
    assert {f"specdec_fn/cli/prompts/{name}.jsonl" for name in ("quoting", "prose")} <= inside
    assert not [name for name in inside if "test" in name or "conftest" in name or name.endswith((".pyc", ".gguf"))]
    sources = (ROOT / "specdec_fn", ROOT / "kernels" / "specdec_kernels", ROOT / "proofs" / "specdec_proofs")
    rooms = {path.relative_to(package.parent).as_posix() for package in sources for path in package.rglob("*.py")}
    assert rooms == {name for name in inside if name.endswith(".py")}
    written = {path.relative_to(ROOT / "kernels").as_posix() for path in (ROOT / "kernels" / "specdec_kernels" / "c").iterdir()}
    assert {f"specdec_kernels/c/{name}" for name in (*native.SOURCES, *native.HEADERS)} == written
    assert written == {name for name in inside if name.endswith((".c", ".h", ".so", ".o"))}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    (entries,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "specdec = specdec_fn.cli:main" in zipfile.ZipFile(wheel).read(entries).decode()


def test_an_archive_of_the_sources_holds_those_in_c(tmp_path: Path) -> None:
    program = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"
    made = run(sys.executable, "-c", program, tmp_path, cwd=ROOT).split()[-1]
    with tarfile.open(tmp_path / made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"kernels/specdec_kernels/c/{name}" for name in (*native.SOURCES, *native.HEADERS)} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "kernels/specdec_kernels/native.py"} <= names
    assert not [name for name in names if name.endswith((".so", ".o", ".gguf"))]


def test_the_installed_wheel_generates_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "fresh"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=tmp_path)
    python = home / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        wheel,
        cwd=tmp_path,
    )
    (packages,) = home.glob("lib/python*/site-packages")
    # The dependencies of this environment, but not its .pth files, which lead to the repository.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    files, tokens, text = json.loads(run(python, "-c", WHERE, cwd=tmp_path))
    assert [Path(file).parent for file in files] == [packages / name for name in sorted(PACKAGES)]
    assert (tokens, text) == (FRANCE, " Paris.\n\n")

    # F9: a chat ends by the end id that the file names, long before the limit.
    command = ("generate", "What is the capital of France?", "--chat", "--temperature", "0", "--max-tokens", "64", "--json")
    answer = json.loads(run(home / "bin" / "specdec", *command, cwd=tmp_path))
    assert (answer["text"], answer["finish_reason"], answer["tokens"][-1]) == ("The capital of France is Paris.", "stop", 2)
