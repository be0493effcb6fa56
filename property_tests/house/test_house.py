"""The house rules that a reader relies on: how rooms are named, how long they are, what they export and how it is documented."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "specdec_fn", ROOT / "kernels" / "specdec_kernels", ROOT / "proofs" / "specdec_proofs")
ROOMS = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
LONGEST = 400
NAMELESS = frozenset({"base", "common", "core", "helper", "helpers", "lib", "misc", "util", "utils"})
# Functions that do nothing shorter than a doctest may take; the rooms' tests call them instead.
TOO_LONG = {"proofs/specdec_proofs/claims.py": ["quick (no doctest)"]}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


rooms = pytest.mark.parametrize("room", ROOMS, ids=name)


def exported(tree: ast.Module) -> list[str] | None:
    """The names in ``__all__``, or None where it is not stated."""
    for statement in tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if isinstance(target, ast.Name) and target.id == "__all__":
            return list(ast.literal_eval(statement.value))  # type: ignore[attr-defined]
    return None


def defined(tree: ast.Module) -> Iterator[Function | ast.ClassDef]:
    """The public functions and classes that are written in this room; what it passes on is looked at where it is written."""
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and statement.name in (exported(tree) or ()):
            yield statement


def undocumented(source: str, *, doctests: bool) -> list[str]:
    """Public names without a docstring, and public functions without a doctest in it."""
    found = []
    for node in defined(ast.parse(source)):
        text = ast.get_docstring(node) or ""
        if not text.strip():
            found.append(node.name)
        elif doctests and isinstance(node, ast.FunctionDef) and ">>>" not in text:
            found.append(f"{node.name} (no doctest)")
        if isinstance(node, ast.ClassDef):
            inside = (part for part in node.body if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"))
            found += [f"{node.name}.{part.name}" for part in inside if not (ast.get_docstring(part) or "").strip() and not _is_protocol(node)]
    return found


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


def test_the_rooms_are_found() -> None:
    assert {"specdec_fn/random.py", "kernels/specdec_kernels/threefry.py", "proofs/specdec_proofs/worlds.py"} <= set(map(name, ROOMS))


def test_source_roots_and_tests_are_no_packages() -> None:
    """A regular package of the name ``kernels`` in the working directory breaks transformers; tests are imported by their files."""
    here = [ROOT / root / "__init__.py" for root in ("kernels", "proofs")]
    assert [name(path) for path in (*here, *(ROOT / "property_tests").rglob("__init__.py")) if path.exists()] == []


def test_test_files_have_names_of_their_own() -> None:
    """Importlib mode takes equal names, but reports and editors do not tell them apart."""
    names = [path.name for path in (ROOT / "property_tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


@rooms
def test_a_room_says_what_it_is_and_what_it_exports(room: Path) -> None:
    tree = ast.parse(room.read_text("utf-8"))
    assert (ast.get_docstring(tree) or "").strip(), "no docstring"
    only_words = len(tree.body) == 1
    assert only_words or room.name == "__main__.py" or exported(tree) is not None, "no __all__"


@rooms
def test_public_names_are_documented(room: Path) -> None:
    """Every public function shows itself at work in a doctest; the commands of the command line are shown by ``--help`` instead."""
    doctests = "cli" not in room.relative_to(ROOT).parts
    assert undocumented(room.read_text("utf-8"), doctests=doctests) == TOO_LONG.get(name(room), [])


@rooms
def test_a_room_is_short_and_has_a_name(room: Path) -> None:
    assert len(room.read_text("utf-8").splitlines()) <= LONGEST
    assert NAMELESS.isdisjoint(part.removesuffix(".py") for part in room.relative_to(ROOT).parts)


# Wherever the tests run, no file may name that place: neither the checkout nor the home folder, nor a package index or an address of a network
# (but for the one by which every machine calls itself, where a server listens).
HERE = "|".join(re.escape(f"{place}/") for place in (ROOT, Path.home()) if place != place.parent)
PLACES = re.compile(
    rf"(?<![\w.])(?:{HERE}|/home/\w+/)|(?:extra-)?index-url|find-links|\b(?!127\.0\.0\.1\b)(?:10|127|192\.168)\.\d+\.\d+\.\d+\b", re.I
)


def tracked() -> list[Path]:
    """The files that git has, and those it would take; in a copy without git, all but what starts with a dot."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in ROOT.rglob("*") if not any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)]
    else:
        found = [ROOT / line for line in done.stdout.decode().split("\0") if line]
    return [path for path in found if path.is_file()]


def places(text: str) -> list[str]:
    return sorted({found[0] for found in PLACES.finditer(text)})


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    here = Path(__file__).resolve()
    found = {}
    assert here in [path.resolve() for path in tracked()]
    for path in tracked():
        content = path.read_bytes()
        if b"\0" not in content and path.resolve() != here and (words := places(content.decode("utf-8", "replace"))):
            found[name(path)] = words
    assert found == {}


@pytest.mark.parametrize("text", [f"see {ROOT}/x", f"'{Path.home()}/.cache'", "/home/someone/x", "--EXTRA-INDEX-URL", "at 127.0.0.53:80"])
def test_a_place_is_found(text: str) -> None:
    assert places(text)


@pytest.mark.parametrize("text", ["a/home/b/c", "network/", "pip install numpy", "/roots/", "tokens/pass", "version 1.10.2.1"])
def test_plain_words_are_no_places(text: str) -> None:
    assert not places(text)


def test_what_is_undocumented_is_found() -> None:
    source = '''
__all__ = ["A", "b", "c", "d", "e"]
from x import e
class A:
    """Words."""
    def shown(self):
        """Words."""
    def silent(self): pass
    def _own(self): pass
def b():
    """Words."""
def c(): pass
def d():
    """Words.

    >>> d()
    """
def _f(): pass
'''
    assert undocumented(source, doctests=True) == ["A.silent", "b (no doctest)", "c"]
    assert undocumented(source, doctests=False) == ["A.silent", "c"]
