"""Pieces load lightly: who takes the verifiers into another engine does not bring a tokenizer, a command line and scipy along."""

import json
import subprocess
import sys

WATCHED = ("torch", "jaxtyping", "gguf", "hypothesis", "jinja2", "rich", "rpds", "safetensors", "scipy", "tokenizers", "transformers", "typer")

STEPS = """
import importlib, json, sys
seen = {}
for name in sys.argv[1:]:
    importlib.import_module(name)
    seen[name] = sorted(sys.modules)
print(json.dumps(seen))
"""

HELP = """
import contextlib, io, json, sys
from specdec_fn.cli import main
seen = {}
for line in sys.argv[1:]:
    sys.argv = ["specdec", *line.split()]
    out, code = io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main()
        except SystemExit as end:
            code = end.code
    seen[line] = [code, out.getvalue(), sorted(sys.modules)]
print(json.dumps(seen))
"""


def ask(program: str, *arguments: str) -> dict:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_rooms_bring_only_what_they_need() -> None:
    """In one process, step by step, since what is loaded only grows."""
    engine = ("specdec_fn.engine.generate", "specdec_fn.engine.job", "specdec_fn.engine", "specdec_fn.doors")
    steps = ("specdec_fn", "specdec_fn.text", "specdec_fn.speculate", *engine)
    loaded = {name: set(modules) for name, modules in ask(STEPS, *steps).items()}
    found = {name: modules & set(WATCHED) for name, modules in loaded.items()}
    assert found["specdec_fn"] == set()
    assert found["specdec_fn.text"] == set()
    assert found["specdec_fn.speculate"] == {"torch", "jaxtyping"}
    for name in engine:
        assert found[name] == {"torch", "jaxtyping", "rpds"}, name
    speculation = loaded["specdec_fn.speculate"]
    assert "specdec_fn.speculate.verifiers.token" in speculation
    assert not {f"specdec_fn.{other}" for other in ("models", "kv", "weights", "schedule", "engine", "doors", "load", "measure", "cli")} & speculation
    assert "specdec_proofs" not in speculation


def test_the_scheduler_and_its_pages_come_without_torch() -> None:
    loaded = ask(STEPS, "specdec_fn.kv", "specdec_fn.kv.pages", "specdec_fn.kv.table", "specdec_fn.kv.prefix", "specdec_fn.schedule")
    for name, modules in loaded.items():
        assert set(modules) & {*WATCHED, "numpy"} <= {"rpds"}, name
    rooms = {name for name in loaded["specdec_fn.schedule"] if name.startswith("specdec_fn.") and not name.startswith("specdec_fn.schedule")}
    assert rooms == {"specdec_fn.kv", "specdec_fn.kv.pages", "specdec_fn.kv.table", "specdec_fn.kv.prefix"}


NAMES = """
import json
import specdec_fn.kv, specdec_fn.speculate
from specdec_fn.speculate import proposers
wrong = []
for module in (specdec_fn.kv, proposers):
    try:
        module.nothing
    except AttributeError as error:
        wrong.append(str(error))
attend = specdec_fn.kv.dense.attend
from specdec_fn.kv import *
print(json.dumps([wrong, attend is dense.attend, DenseCache is dense.DenseCache, callable(proposers.draft_model.proposer)]))
"""


def test_what_is_loaded_on_first_use_is_there_by_its_name() -> None:
    wrong, *there = ask(NAMES)
    assert wrong == [f"module 'specdec_fn.{name}' has no attribute 'nothing'" for name in ("kv", "speculate.proposers")]
    assert there == [True, True, True]


def test_help_comes_without_torch() -> None:
    lines = (
        "--help",
        "generate --help",
        "chat --help",
        "prove --help",
        "demo --help",
        "bench --help",
        "bench quoting --help",
        "generate",
        "generate --tmperature 1 x",
    )
    for line, (code, text, modules) in ask(HELP, *lines).items():
        assert code == (0 if line.endswith("--help") else 2), (line, text)
        assert ("Usage" if line.endswith("--help") else "specdec: ") in text
        assert "torch" not in modules, line
