"""What a room below the effects floor may not even say: clocks, environment, files, generators of other people, caches, global state.

``test_purity`` calls every public function; this reads every line, so that a branch which no sample takes is held to the same rule.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EFFECTS = (
    "batch",
    "doors.py",
    "load.py",
    "measure",
    "__init__.py",
    "__main__.py",
    "cli",
    "stages",
    "serve",
    "adapters",
    "grammar",
    "trace",
)  # floors 4 and up
# The doors of the kernels' own source root: rooms of a command, ``python -m specdec_kernels.ahead``. It compiles every kernel in processes of its
# own, whose environment it chooses, and prints what it finds. No other room imports them, so no function of values has effects through them.
DOORS = ("ahead.py", "ahead_measure.py")
# The one effect below floor 4: this room compiles the C library into a folder, behind dispatch, and remembers that it has. It alone may name these.
BUILDER = "kernels/specdec_kernels/native.py"
BUILDING = frozenset(
    {"import os", "import shutil", "import subprocess", "import tempfile", "import threading", "open()", ".mkdir()", ".read_bytes()", ".read_text()"}
)
ROOMS = sorted(
    path
    for package, above in ((ROOT / "specdec_fn", EFFECTS), (ROOT / "kernels" / "specdec_kernels", DOORS))
    for path in package.rglob("*.py")
    if path.relative_to(package).parts[0] not in above
)

MODULES = frozenset({"datetime", "os", "random", "secrets", "shutil", "socket", "subprocess", "tempfile", "threading", "time", "uuid"})
CALLED = frozenset({"breakpoint", "eval", "exec", "globals", "input", "open", "print"})
DRAWN = frozenset(
    re.findall(
        r"\w+",
        """Generator bernoulli bernoulli_ cauchy_ default_generator default_rng exponential_ geometric_ initial_seed log_normal_ manual_seed
        multinomial normal normal_ rand rand_like randint randint_like randn randn_like random_ randperm rrelu seed set_rng_state uniform_""",
    )
)
FILES = frozenset({"fromfile", "mkdir", "open", "read_bytes", "read_text", "tofile", "unlink", "write_bytes", "write_text"})
CACHES = frozenset({"cache", "cached_property", "lru_cache"})
FIELDS = frozenset({"cache", "seed"})  # words for a part of a value as well: a fault where they are called, decorate, or belong to something imported
CONTAINERS = frozenset({"Counter", "OrderedDict", "bytearray", "defaultdict", "deque", "dict", "list", "set"})


def said(source: str) -> Iterator[str]:
    """What a source says that it may not, each with its line."""
    tree = ast.parse(source)
    parts = _parts_of_values(tree)
    for node in ast.walk(tree):
        for what in _faults(node) if node not in parts else ():
            yield f"line {node.lineno}: {what}"
    for statement in _lasting(tree.body):
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and statement.value is not None and _changeable(statement.value):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
            if names != ["__all__"]:
                yield f"line {statement.lineno}: a container that can change, {', '.join(names)}"


def _parts_of_values(tree: ast.Module) -> set[ast.AST]:
    """Attributes like ``state.cache`` and ``request.seed`` that read a part of a value and name no function of a module or of a generator."""
    nodes = list(ast.walk(tree))
    imported = {
        (alias.asname or alias.name).split(".")[0] for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names
    }
    functions = {node.func for node in nodes if isinstance(node, ast.Call)}
    functions |= {decorator for node in nodes for decorator in getattr(node, "decorator_list", ())}
    read = (node for node in nodes if isinstance(node, ast.Attribute) and node.attr in FIELDS and isinstance(node.ctx, ast.Load))
    return {node for node in read if node not in functions and _root(node) not in imported}


def _root(node: ast.expr) -> str | None:
    """The name that a chain of attributes, items and calls starts from."""
    while not isinstance(node, ast.Name):
        inner = getattr(node, "value", None) or getattr(node, "func", None)
        if not isinstance(inner, ast.expr):
            return None
        node = inner
    return node.id


def _lasting(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements whose names last as long as the module: its own and its classes', also under conditions."""
    for statement in body:
        yield statement
        for field in () if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) else ("body", "orelse", "finalbody"):
            yield from _lasting(getattr(statement, field, []))


def _faults(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names):
            yield from (f"import {alias.name}" for alias in names if alias.name.split(".")[0] in MODULES or alias.name == "numpy.random")
        case ast.ImportFrom(module, names, level):
            if level == 0 and (module or "").split(".")[0] in MODULES:
                yield f"import from {module}"
            if module in ("torch", "numpy", "torch.random", "functools", "builtins", "io"):
                yield from (f"import of {module}.{alias.name}" for alias in names if alias.name in DRAWN | CACHES | CALLED)
        case ast.Global(names) | ast.Nonlocal(names):
            yield f"a variable of an outer scope is set: {', '.join(names)}"
        case ast.Call(ast.Name(name)) if name in CALLED:
            yield f"{name}()"
        case ast.Call(ast.Attribute(_, name)) if name in FILES:
            yield f".{name}()"
        case ast.Attribute(ast.Name("np" | "numpy" | "torch"), "random"):
            yield "a global generator"
        case ast.Attribute(_, name) if name in DRAWN | CACHES:
            yield f".{name}"


def _changeable(value: ast.expr) -> bool:
    match value:
        case ast.List() | ast.Dict() | ast.Set() | ast.ListComp() | ast.DictComp() | ast.SetComp():
            return True
        case ast.Call(ast.Name(name)) | ast.Call(ast.Attribute(_, name)):
            return name in CONTAINERS or name == "fromkeys"
        case ast.BinOp(left, _, right):
            return _changeable(left) or _changeable(right)
        case ast.IfExp(_, body, orelse):
            return _changeable(body) or _changeable(orelse)
    return False


def test_the_rooms_are_found() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in ROOMS}
    assert {"specdec_fn/random.py", "specdec_fn/engine/generate.py", "specdec_fn/speculate/verifiers/token.py"} <= found
    assert {"specdec_fn/schedule/commit.py", "specdec_fn/kv/pages.py", "specdec_fn/engine/step.py"} <= found
    assert {"kernels/specdec_kernels/threefry.py", "kernels/specdec_kernels/__init__.py"} <= found
    assert not any("cli" in name or "load" in name for name in found)


def test_the_doors_of_the_kernels_are_a_command_that_no_room_imports() -> None:
    names = {f"specdec_kernels.{door.removesuffix('.py')}" for door in DOORS}
    command, *others = (ast.parse((ROOT / "kernels" / "specdec_kernels" / door).read_text("utf-8")) for door in DOORS)
    assert any("__main__" in ast.unparse(statement) for statement in command.body)
    assert names - {"specdec_kernels.ahead"} <= imported(command)
    assert not names & set().union(*(imported(ast.parse(room.read_text("utf-8"))) for room in ROOMS))
    assert not {"specdec_kernels.ahead"} & set().union(*map(imported, others))


def imported(tree: ast.Module) -> set[str]:
    """What a source imports, modules and their names alike."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_room_says_nothing_impure(room: Path) -> None:
    allowed = BUILDING if room.relative_to(ROOT).as_posix() == BUILDER else ()
    assert not [line for line in said(room.read_text("utf-8")) if line.partition(": ")[2] not in allowed]


def test_what_the_building_room_may_do_it_does() -> None:
    """A licence that nothing uses is taken back."""
    assert {line.partition(": ")[2] for line in said((ROOT / BUILDER).read_text("utf-8"))} == BUILDING


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import os.path",
        "import numpy.random",
        "from datetime import datetime",
        "from random import random",
        "from torch import multinomial",
        "from functools import cache",
        "def f():\n    import secrets",
        "def f():\n    return open('x')",
        "def f(path):\n    return path.read_text()",
        "def f():\n    print(1)",
        "def f(x):\n    return torch.rand_like(x)",
        "def f(p):\n    return p.multinomial(1)",
        "g = torch.Generator()",
        "def f():\n    torch.manual_seed(0)",
        "def f():\n    return np.random.choice(3)",
        "count = 0\ndef f():\n    global count\n    count += 1",
        "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n    return g",
        "@functools.lru_cache\ndef f(): pass",
        "import functools\n@functools.cache\ndef f(): pass",
        "import functools as tools\nremember = tools.cache",
        "from room import tools\ndef f(g):\n    return tools.inner.cache",
        "def f(tools):\n    @tools.cache\n    def g(): pass",
        "def f(tools, g):\n    return tools.cache(g)",
        "def f(generator):\n    return generator.seed()",
        "import torch\ndef f():\n    return map(torch.seed, ())",
        "import torch\nanew = torch.cuda.seed",
        "def f(state):\n    state.cache = 1",
        "SEEN = []",
        "SEEN: dict[int, int] = {}",
        "SEEN = {1} | {2}",
        "SEEN = [] if True else ()",
        "SEEN = collections.defaultdict(int)",
        "SEEN = {x: x for x in range(3)}",
        "SEEN = other.SEEN = []",
        "if True:\n    SEEN = []",
        "class Room:\n    seen = set()",
    ],
)
def test_an_impure_line_is_found(line: str) -> None:
    assert len(list(said(line))) == 1


def test_a_pure_source_is_passed() -> None:
    source = """
import math
import specdec_fn.random
from specdec_fn.random import key, uniform
from types import MappingProxyType
__all__ = ["f"]
TABLE = MappingProxyType({"a": 1})
PAIR, SIZES = (1, 2), tuple([*range(3)])
class Room:
    sizes: dict[str, int]
    def f(self, key, sizes):
        made = [uniform(key)]
        made.append(specdec_fn.random.key(0))
        made += [self.cache, sizes["a"].request.seed, key(self.config.seed)]
        class Tag(Foreign):
            tags = {"a"}
        return {"made": made}
"""
    assert not list(said(source))
