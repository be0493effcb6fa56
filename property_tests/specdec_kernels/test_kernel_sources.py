"""What a kernel's source may not say, read line by line; each rule is one that a GPU breaks in silence and an interpreter does not show.

1. No product has a factor that is a 32-bit id: what ``tl.program_id``, ``range`` or a load gives is cast, at the latest where it is multiplied. A row
   times its stride is past 2**31 numbers in a pool of a few gigabytes, and wraps.
2. No ``break``, no ``continue``; no decorator that tunes.
3. What is loaded through a pointer that can be one to a half type is cast where it is loaded, or stored as it is.
4. Integers that a launch passes are not specialised: a count of 1, or a multiple of 16, would compile anew while requests wait.
5. Kernels are written in files whose names end in ``_triton``: the walk of the gate finds no others.
"""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec_kernels.ahead_measure import collected, rooms

PACKAGE = Path(__file__).parents[2] / "kernels" / "specdec_kernels"
SOURCES = sorted(PACKAGE.rglob("*_triton.py"))
WIDE = frozenset({"*i64", "*u64", "*fp64", "*fp32", "*fp16", "*bf16"})
NARROW = frozenset({"int8", "int16", "int32", "uint8", "uint16", "uint32", "int1"})
LAUNCHED = "at most a row of what one launch passes, whose width is a 32-bit number"
# Products of 32-bit ids that cannot wrap, as "room: product", each with what it is.
BOUNDED = {
    "gate_triton: tl.program_id(1) * BLOCK": LAUNCHED,
    "paged_attention_triton: (tile - (start // each + sequence)) * each": "a row of a pass",
    "paged_attention_triton: split * stretch": "a position of a context",
    "paged_attention_triton: part * share": "a query head",
    "paged_write_triton: tl.program_id(1) * BLOCK": LAUNCHED,
    "rope_triton: tl.program_id(1) * GROUP": "a head",
    "rows_triton: tl.program_id(0) * OUTPUTS": LAUNCHED,
    "rows_triton: tl.program_id(1) * ROWS": "a row of a product, and a tile",
    "verify_choice_triton: part * BLOCK": "a token of the vocabulary, and a block",
    "verify_draw_triton: 2 * i": "twice a row of a draft",
    "verify_draw_triton: (parts * rows + i) * 2": "two sums for each row and block of one sequence",
}
# Loads through pointers to half types that are no arithmetic, as "room: load", each with the reason.
UNCAST = {
    "arrival_triton: tl.load(pointer, mask=mask, other=other, cache_modifier='.cg')": "sums in float64 and whole numbers",
    "paged_attention_triton: tl.load(starts + middle)": "whole numbers",
    "paged_attention_triton: tl.load(starts + sequence)": "whole numbers",
    "paged_attention_triton: tl.load(contexts + sequence, mask=inside, other=0)": "whole numbers",
    "paged_attention_triton: tl.load(counts + sequence, mask=inside, other=0)": "whole numbers",
}

Kinds = dict[str, str]
Types = dict[tuple[str, str], dict[str, set[str]]]  # of each launched kernel, by module and name, the types of its parameters in all variants

each = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def kernels(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The functions under ``triton.jit``, called by kernels or launched."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(decorator) for decorator in node.decorator_list):
            yield node


def is_call(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in names


def kind(node: ast.expr, known: Kinds, wide: set[str]) -> str:
    """What an expression holds: "id", a 32-bit number that counts programs, rows, pages; "wide", int64 or a float; "" for anything else.

    Args:
        known: what the names of the function hold.
        wide: the pointers through which int64 or floats are loaded.
    """

    def of(*parts: ast.expr) -> str:
        kinds = {kind(part, known, wide) for part in parts}
        return "wide" if "wide" in kinds else "id" if "id" in kinds else ""

    match node:
        case ast.Name(name):
            return known.get(name, "")
        case ast.Constant(value):
            return "wide" if isinstance(value, float) else ""
        case ast.Call(ast.Attribute(inner, "to"), [to, *_]):
            return of(inner) if ast.unparse(to).removeprefix("tl.") in NARROW and of(inner) == "id" else "wide"
        case ast.Call(_, arguments) if is_call(node, "tl.load"):
            return "wide" if names_of(arguments[0]) & wide else "id"
        case ast.Call() if is_call(node, "tl.program_id"):
            return "id"
        case ast.Call(_, arguments) if any(word.startswith(("float", "int64")) for word in map(_type, arguments)):
            return "wide"
        case ast.Call(ast.Attribute(inner, _), arguments) if not (isinstance(inner, ast.Name) and inner.id == "tl"):
            return of(inner, *arguments)
        case ast.Call(_, arguments):
            # A condition and an axis are no numbers of the result; comparisons are "" by themselves.
            return of(*arguments)
        case ast.BinOp(left, operator, right):
            return "wide" if isinstance(operator, ast.Div) else of(left, right)
        case ast.Subscript(inner, _) | ast.UnaryOp(_, inner) | ast.Starred(inner):
            return of(inner)
        case ast.IfExp(_, body, orelse):
            kinds = {of(body), of(orelse)}
            return "id" if "id" in kinds else "wide" if kinds == {"wide"} else ""
        case ast.Tuple(parts):
            return of(*parts)
    return ""


def _type(node: ast.expr) -> str:
    return ast.unparse(node).removeprefix("tl.") if isinstance(node, ast.Attribute) else ""


def names_of(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def given(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned to what, item by item where both sides are tuples."""
    for node in ast.walk(function):
        match node:
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                yield from zip(targets, values, strict=True)
            case ast.Assign(targets, value):
                yield from ((target, value) for target in targets)
            case ast.AugAssign(target, operator, value):
                yield target, ast.BinOp(target, operator, value)
            case ast.AnnAssign(target, _, value) if value is not None:
                yield target, value


def wrapping(function: ast.FunctionDef, wide: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    """The products of a kernel that have a 32-bit id as a factor, and no other that makes them wide."""
    loops = {name for node in ast.walk(function) if isinstance(node, ast.For) for name in names_of(node.target)}
    pointers = _reckoned(function, set(wide))
    known: Kinds = {}
    for _ in range(10):  # what is assigned is known once what it is reckoned from is
        kinds: dict[str, set[str]] = {name: {"id"} for name in loops}
        for target, value in given(function):
            for name in names_of(target):
                kinds.setdefault(name, set()).add(kind(value, known, pointers))
        before, known = known, {name: next((word for word in ("id", "wide") if word in held), "") for name, held in kinds.items()}
        if known == before:
            break
    products = (node for node in ast.walk(function) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult))
    return [ast.unparse(node) for node in products if kind(node, known, pointers) == "id"]


def uncast(function: ast.FunctionDef, halves: set[str]) -> list[str]:
    """Loads through these pointers, or what is reckoned from them, that are neither cast at once nor stored at once."""
    pointers = _reckoned(function, halves)
    cast = {
        node.func.value
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to"
    }
    stored = {node.args[1] for node in ast.walk(function) if is_call(node, "tl.store") and len(node.args) > 1}  # type: ignore[attr-defined]
    loads = (node for node in ast.walk(function) if is_call(node, "tl.load") and node not in cast | stored)
    return [ast.unparse(node) for node in loads if names_of(node.args[0]) & pointers]  # type: ignore[attr-defined]


def _reckoned(function: ast.FunctionDef, pointers: set[str]) -> set[str]:
    """These pointers, and the names of what is reckoned from them."""
    found, before = set(pointers), -1
    while len(found) != before:
        before = len(found)
        found |= {name for target, value in given(function) if _points(value, found) for name in names_of(target)}
    return found


def _points(value: ast.expr, pointers: set[str]) -> bool:
    """Whether a value is reckoned from pointers without reading through them."""
    if is_call(value, "tl.load") or isinstance(value, (ast.Compare, ast.Attribute)):
        return False
    if isinstance(value, ast.Name):
        return value.id in pointers
    return any(_points(part, pointers) for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr))


def unspecialised(function: ast.FunctionDef, module: Any) -> set[str]:
    """The parameters that a kernel's decorator names under ``do_not_specialize``."""
    for decorator in function.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == "do_not_specialize":
                return set(eval(compile(ast.Expression(keyword.value), "<decorator>", "eval"), dict(vars(module))))
    return set()


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    return {name.rsplit(".", 1)[1]: importlib.import_module(name) for name in rooms("specdec_kernels")}


@pytest.fixture(scope="module")
def types() -> Types:
    found: Types = {}
    for _, variant in collected("specdec_kernels")[0]:
        kinds = found.setdefault((variant.kernel.fn.__module__.rsplit(".", 1)[1], variant.kernel.fn.__name__), {})
        for name, kind in variant.signature.items():
            kinds.setdefault(name, set()).add(kind)
    return found


def products(source: Path, types: Types) -> list[str]:
    said = []
    for function in kernels(ast.parse(source.read_text("utf-8"))):
        kinds = types.get((source.stem, function.name), {})
        said += [f"{source.stem}: {product}" for product in wrapping(function, {name for name, of in kinds.items() if of <= WIDE})]
    return said


@each
def test_no_id_is_multiplied_in_32_bits(source: Path, types: Types) -> None:
    assert [line for line in products(source, types) if line not in BOUNDED] == []


def test_the_lists_of_exceptions_name_what_is_there(types: Types) -> None:
    assert set(BOUNDED) <= {line for source in SOURCES for line in products(source, types)}
    trees = {source.stem: ast.parse(source.read_text("utf-8")) for source in SOURCES}
    lines = {f"{stem}: {ast.unparse(node)}" for stem, tree in trees.items() for node in ast.walk(tree) if is_call(node, "tl.load")}
    assert set(UNCAST) <= lines


@each
def test_a_kernel_neither_breaks_nor_continues_nor_tunes(source: Path) -> None:
    for function in kernels(ast.parse(source.read_text("utf-8"))):
        assert not [node for node in ast.walk(function) if isinstance(node, (ast.Break, ast.Continue))], function.name
        assert not [text for text in map(ast.unparse, function.decorator_list) if "autotune" in text or "heuristics" in text], function.name


@each
def test_half_types_are_cast_where_they_are_loaded(source: Path, types: Types) -> None:
    said = []
    for function in kernels(ast.parse(source.read_text("utf-8"))):
        arguments = [argument for argument in function.args.args if "constexpr" not in ast.unparse(argument)]
        kinds = types.get((source.stem, function.name))
        # A function that kernels call is handed pointers of any type.
        halves = {a.arg for a in arguments if kinds is None or kinds.get(a.arg, set()) & {"*bf16", "*fp16"}}
        said += [f"{source.stem}: {load}" for load in uncast(function, halves)]
    assert [line for line in said if line not in UNCAST] == []


@each
def test_integers_of_a_launch_are_not_specialised(source: Path, types: Types, modules: dict[str, Any]) -> None:
    for function in kernels(ast.parse(source.read_text("utf-8"))):
        kinds = types.get((source.stem, function.name), {})
        integers = {name for name, of in kinds.items() if of & {"i1", "i8", "i16", "i32", "i64", "u32", "u64"}}
        assert integers - unspecialised(function, modules[source.stem]) == set(), function.name


def test_kernels_are_only_in_files_that_the_gate_finds() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path not in SOURCES:
            assert not list(kernels(ast.parse(path.read_text("utf-8")))), path.name


def function(body: str) -> ast.FunctionDef:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return next(kernels(ast.parse(f"@triton.jit\ndef f(x, y, n, stride, N: tl.constexpr):\n{lines}")))


@pytest.mark.parametrize(
    "body",
    [
        "at = tl.program_id(0) * N",
        "row = tl.program_id(0)\nat = x + row * stride",
        "page = tl.load(x + 3, mask=n > 3, other=0)\nat = page * N",
        "page = tl.load(x).to(tl.int32)\nat = N * page",
        "page = tl.load(x)\nplace = tl.maximum(page, 0) + 1\nat = place[:, None] * stride",
        "page, last = tl.load(x), 0\nat = page * stride",
        "for i in range(n):\n    at = i * stride",
        "row = tl.program_id(0)\nrow += 1\nat = row * stride",
        "at = (tl.program_id(0) * N).to(tl.int64)",
    ],
)
def test_a_product_that_may_wrap_is_found(body: str) -> None:
    assert len(wrapping(function(body))) == 1


@pytest.mark.parametrize(
    "body",
    [
        "at = tl.program_id(0).to(tl.int64) * N",
        "page = tl.load(x).to(tl.int64)\nat = page * stride",
        "page = tl.load(x)\nat = tl.maximum(page, 0).to(tl.int64) * stride",
        "value = tl.load(x).to(tl.float32) * 2.0",
        "page, last = tl.load(x), 0\nat = last * stride",
        "wide = tl.load(x).to(tl.int64)\nat = (wide + tl.program_id(0)) * stride",
        "at = stride.to(tl.int64) * tl.program_id(0)",
        "total = tl.zeros((N,), tl.float32)\nfor i in range(n):\n    total = total * 0.5 + i",
        "for i in range(n):\n    at = i.to(tl.int64) * stride",
        "seen = tl.load(x) > 0\nat = tl.where(seen, 1.0, 0.0) * 2.0",
    ],
)
def test_a_product_that_cannot_wrap_is_passed(body: str) -> None:
    assert wrapping(function(body)) == []


@pytest.mark.parametrize("body", ["v = tl.load(x + n)", "at = x + n * 2\nv = tl.load(at, mask=n > 0)\nw = v.to(tl.float32)"])
def test_a_half_that_is_not_cast_is_found(body: str) -> None:
    assert len(uncast(function(body), {"x"})) == 1


@pytest.mark.parametrize(
    "body",
    ["v = tl.load(x + n).to(tl.float32)", "tl.store(y, tl.load(x + n))", "v = tl.load(y)", "n = tl.load(y + n)\nv = tl.load(x).to(tl.float32)"],
)
def test_a_half_that_is_cast_or_copied_is_passed(body: str) -> None:
    assert uncast(function(body), {"x"}) == []


def test_what_is_not_specialised_is_read_from_the_decorator() -> None:
    source = "@triton.jit(do_not_specialize=['n', *MORE])\ndef f(n, m): pass"
    module = type("module", (), {"MORE": ("m",)})
    assert unspecialised(next(kernels(ast.parse(source))), module) == {"n", "m"}
    assert unspecialised(next(kernels(ast.parse("@triton.jit\ndef f(n): pass"))), module) == set()
