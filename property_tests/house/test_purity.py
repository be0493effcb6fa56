"""Everything public below the effects floor is a function of its arguments. Every public function is walked; there is no skip list.

Each is called on sample arguments. Afterwards its arguments, and whatever it closes over, are what they were; every tensor of its result is an
argument's own tensor handed on, or lies in memory of its own; and a second call gives the same, bit for bit. What a function marked
``@donates`` takes by those names may lose the contents of its tensors, and nothing else of it may change; so may what a kernel takes, which has no
such mark, where its sample names it and its docstring says DONATES. Functions that come out of a call (the
parts of a Verifier, of a Proposer, of a Model, of a Tokenizer) are walked as well. The samples are in the files ``purity_samples*`` beside this one.
"""

import copy
import dataclasses
import functools
import importlib
import inspect
import itertools
import pickle
import pkgutil
import re
import struct
import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
import rpds
import torch
from hypothesis import strategies as st
from torch import Tensor

from specdec_fn import pytree, random
from specdec_fn.speculate import verifiers

from . import (
    purity_samples,
    purity_samples_engine,
    purity_samples_explain,
    purity_samples_kernels,
    purity_samples_native,
    purity_samples_proposers,
    purity_samples_roofline,
)
from .purity_samples import Call, Sample, call, declared, put_while_checking

ROOTS = ("pytree", "random", "typing", "models", "kv", "weights", "cost", "text", "sampling", "speculate", "schedule", "engine")


# What is looked at


def bare(function: Any) -> Any:
    """The function itself, under wrappers, partial arguments and bindings."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, (staticmethod, classmethod, types.MethodType)):
            function = function.__func__
        elif isinstance(function, property):
            function = function.fget
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return function


def name_of(function: Any) -> str:
    """Where a function is written; lambdas are told apart by their parameters."""
    inner = bare(function)
    parameters = ", ".join(inner.__code__.co_varnames[: inner.__code__.co_argcount]) if inner.__name__ == "<lambda>" else ""
    return f"{inner.__module__}:{inner.__qualname__}" + (f"({parameters})" if parameters else "")


def ours(function: Any) -> bool:
    inner = bare(function)
    return isinstance(inner, types.FunctionType) and inner.__module__.split(".")[0] in ("specdec_fn", "specdec_kernels")


CHAINS = (rpds.List, rpds.Queue, rpds.Stack)  # persistent, and no Sequences; the persistent map is a Mapping, in an order of chance


def parts(value: Any) -> Iterator[Any]:
    """What a container holds: of functions, what they close over, are bound to, or take by default."""
    if isinstance(value, Mapping) and not isinstance(value, types.ModuleType):
        yield from itertools.chain.from_iterable(value.items())
    elif isinstance(value, (Sequence, Set, *CHAINS)) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        yield from value
        yield from getattr(value, "__dict__", {}).values()  # a named tuple may have attributes beside its items
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, field.name) for field in dataclasses.fields(value))
    elif isinstance(value, functools.partial):
        yield from (*value.args, value.keywords, value.func)
    elif isinstance(value, types.MethodType):
        yield value.__self__
    elif callable(value) and ours(value):
        inner = bare(value)
        yield from (cell.cell_contents for cell in inner.__closure__ or () if not _empty(cell))
        yield from (inner.__defaults__ or (), inner.__kwdefaults__ or {})


def _empty(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


def leaves(value: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Everything inside a value that holds nothing itself, and the functions on the way."""
    seen = set() if seen is None else seen
    if id(value) in seen and not isinstance(value, Tensor):
        return
    seen.add(id(value))
    if callable(value) and not isinstance(value, type):
        yield value
    inside = list(parts(value))
    if not inside and not callable(value):
        yield value
    for part in inside:
        yield from leaves(part, seen)


def image(value: Any, seen: tuple[int, ...] = (), bits: bool = True) -> Any:
    """A picture of a value in plain immutable Python: equal pictures, equal values, bit for bit; without ``bits``, but for what tensors hold."""
    if id(value) in seen:
        return "again"
    seen = (*seen, id(value))
    if isinstance(value, Tensor) and not bits:
        return "tensor", str(value.dtype), tuple(value.shape)
    if isinstance(value, Tensor):
        raw = value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return "tensor", str(value.dtype), tuple(value.shape), value.requires_grad, raw
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return type(value).__name__, bytes(value)
    if isinstance(value, types.ModuleType):
        return "module", value.__name__
    if isinstance(value, type):
        return "type", value.__module__, value.__qualname__, tuple(getattr(value, "__dataclass_fields__", ()))
    if callable(value) and not isinstance(value, tuple):
        inside = tuple(image(part, seen, bits) for part in parts(value))
        return ("function", name_of(value), *inside) if isinstance(bare(value), types.FunctionType) else ("callable", type(value).__qualname__)
    if isinstance(value, Set):
        return type(value).__name__, tuple(sorted((image(item, seen, bits) for item in value), key=repr))
    if isinstance(value, rpds.HashTrieMap):
        return "HashTrieMap", tuple(sorted((image(pair, seen, bits) for pair in value.items()), key=repr))
    if value is None or isinstance(value, (bool, int, str, torch.dtype, torch.device)):
        return type(value).__name__, repr(value)
    inside = tuple(image(part, seen, bits) for part in parts(value))
    if inside or isinstance(value, (Mapping, Sequence, *CHAINS)) or dataclasses.is_dataclass(value):
        return (type(value).__qualname__, *inside)
    if type(value).__module__.startswith("tokenizers"):  # the library's own objects: words of Rust, which pickle as what they do
        return type(value).__qualname__, _pickled(value)
    return "opaque", type(value).__qualname__


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value)
    except Exception:
        return None


def memory(value: Any) -> list[tuple[int, int]]:
    """The address ranges that the tensors and buffers of a value lie in."""
    ranges = []
    for leaf in leaves(value):
        if isinstance(leaf, Tensor):
            storage = leaf.untyped_storage()
            ranges.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        elif isinstance(leaf, np.ndarray):
            ranges.append(np.lib.array_utils.byte_bounds(leaf))
        elif isinstance(leaf, (bytes, bytearray, memoryview)) and len(leaf):
            ranges.append(np.lib.array_utils.byte_bounds(np.frombuffer(leaf, np.uint8)))
    return [(start, end) for start, end in ranges if end > start]


def same(a: Any, b: Any) -> bool:
    """Whether b is a handed on: the same object, or one of the same place and layout."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (a.data_ptr(), a.dtype, a.shape, a.stride()) == (b.data_ptr(), b.dtype, b.shape, b.stride())
    return a is b


# The checks


class Report(NamedTuple):
    result: Any
    faults: list[str]


def examine(sample: Sample) -> Report:
    """Calls a function twice and says what a pure one would not have done."""
    function, given = sample.function, sample.make()
    donated = {*getattr(function, "donated", ()), *sample.donated}
    kept, lent = _kept(function, given, donated)
    before = image(kept), image(lent, bits=False)
    result = _run(sample, given)
    faults = [f"its docstring does not say DONATES ``{name}``" for name in sample.donated if name not in promised(function)]
    if (image(kept), image(lent, bits=False)) != before:
        faults.append("an argument, or what the function closes over, has changed")
    held, taken = list(leaves(kept)), memory(kept)
    for leaf in (leaf for leaf in leaves(result) if not callable(leaf)):
        inside = any(start < other_end and other_start < end for start, end in memory([leaf]) for other_start, other_end in taken)
        if inside and not any(same(leaf, other) for other in held):
            faults.append(f"a result of shape {tuple(getattr(leaf, 'shape', ()))} lies in an argument's memory and is not that argument")
    first = image((result, lent if sample.donated else ()))  # a kernel may give all that it gives through what was donated
    for again, words in ((given if not donated else sample.make(), "a second call"), (sample.make(), "a call on equal arguments")):
        outcome = _run(sample, again)
        if image((outcome, _kept(function, again, donated)[1] if sample.donated else ())) != first:
            faults.append(f"{words} gave another result")
    return Report(result, faults)


def promised(function: Any) -> set[str]:
    """The arguments that a docstring names in a sentence with DONATES."""
    return {name for sentence in re.findall(r"DONATES ([^.]*)\.", bare(function).__doc__ or "") for name in re.findall(r"``(\w+)``", sentence)}


def _kept(function: Any, given: Call, donated: Set[str]) -> tuple[Any, Any]:
    """What a call must leave alone: its arguments, and what the function closes over; and the donated ones, of which only tensors may change."""
    if not donated:
        return (given.args, given.kwargs, function), ()
    bound = inspect.signature(bare(function)).bind(*given.args, **given.kwargs)
    kept = {name: value for name, value in bound.arguments.items() if name not in donated}
    return (kept, function), [value for name, value in bound.arguments.items() if name in donated]


def _run(sample: Sample, given: Call) -> Any:
    if sample.raises is not None:
        with pytest.raises(sample.raises) as caught:
            sample.function(*given.args, **given.kwargs)
        return str(caught.value)
    result = sample.function(*given.args, **given.kwargs)
    return list(itertools.islice(result, 1000)) if isinstance(result, Iterator) else result


def rooms() -> Iterator[types.ModuleType]:
    for root in (*(f"specdec_fn.{name}" for name in ROOTS), "specdec_kernels"):
        module = importlib.import_module(root)
        yield module
        for found in pkgutil.walk_packages(getattr(module, "__path__", []), root + "."):
            yield importlib.import_module(found.name)


def public(module: types.ModuleType) -> Iterator[Any]:
    """The functions among a room's public names: themselves, as methods of classes, as parts of values."""
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if isinstance(value, type) and value.__module__.startswith("specdec_"):
            yield from () if getattr(value, "_is_protocol", False) else methods(value)
        elif not isinstance(value, (type, types.ModuleType)):
            yield from (part for part in open_parts(value) if ours(part))


def open_parts(value: Any) -> Iterator[Any]:
    """What a value holds openly: fields, items, not closures."""
    if callable(value) and not isinstance(value, (Mapping, Sequence)):
        yield value
        return
    yield value
    for part in parts(value):
        yield from open_parts(part)


GENERATED = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__", "__new__", "__getnewargs__", "__post_init__")


def methods(cls: type) -> Iterator[Any]:
    """A class's own functions, its operators among them; not what dataclass and NamedTuple write."""
    for name, value in vars(cls).items():
        if name in GENERATED or (name.startswith("_") and not name.startswith("__")):
            continue
        if isinstance(value, (types.FunctionType, classmethod, staticmethod, property)) and ours(value):
            yield value


# A decorator of classes and a context manager are no functions of values; they are looked at through these.
STAND_INS = types.MappingProxyType({name_of(pytree.checking): put_while_checking, name_of(pytree.state()): declared})
FILES = (
    purity_samples,
    purity_samples_engine,
    purity_samples_explain,
    purity_samples_kernels,
    purity_samples_native,
    purity_samples_proposers,
    purity_samples_roofline,
)
SAMPLES = [sample for file in FILES for sample in file.samples()]


def missing(wanted: Iterator[Any], samples: Sequence[Sample]) -> list[str]:
    """The functions for which no sample speaks."""
    spoken = {name_of(sample.function) for sample in samples}
    return sorted({name for function in wanted if (name := name_of(function)) not in spoken and name not in STAND_INS})


# The tests


@pytest.mark.parametrize("sample", SAMPLES, ids=[f"{i}-{name_of(sample.function)}" for i, sample in enumerate(SAMPLES)])
def test_a_function_depends_on_its_arguments_and_touches_nothing_else(sample: Sample) -> None:
    assert not examine(sample).faults


@pytest.mark.parametrize("module", list(rooms()), ids=lambda module: module.__name__)
def test_every_public_function_has_samples(module: types.ModuleType) -> None:
    assert not missing(public(module), SAMPLES)


def test_every_function_that_comes_out_of_a_call_has_samples() -> None:
    results = [_run(sample, sample.make()) for sample in SAMPLES]
    found = [part for result in results for part in open_parts(result) if ours(part)]
    assert {"specdec_fn.models.toy:_apply", "specdec_fn.speculate.proposers.ngram:proposer.<locals>.propose"} <= {name_of(part) for part in found}
    assert not missing(iter(found), SAMPLES)


# The checker itself: what it must find, and what it must let pass


def adds(pool: Tensor, amount: list[float]) -> Tensor:
    return pool + amount[0]


def writes(pool: Tensor, amount: list[float]) -> Tensor:
    return pool.add_(amount[0]).clone()


def eats(pool: Tensor, amount: list[float]) -> Tensor:
    return pool + amount.pop()


def reshapes(pool: Tensor, amount: list[float]) -> Tensor:
    return pool.unsqueeze_(0).clone()


def slices(pool: Tensor, amount: list[float]) -> dict[str, Tensor]:
    return {"rest": pool[1:]}


def views_a_buffer(pool: bytearray, amount: list[float]) -> Tensor:
    return torch.frombuffer(pool, dtype=torch.uint8)


def hands_on(pool: Tensor, amount: list[float]) -> tuple[Tensor, Tensor]:
    return pool, pool.view(pool.shape)


def draws(pool: Tensor, amount: list[float]) -> Tensor:
    return pool + torch.rand(())


def counting() -> Callable[[Tensor, list[float]], Tensor]:
    calls: list[int] = []

    def counts(pool: Tensor, amount: list[float]) -> Tensor:
        calls.append(1)
        return pool + 1

    return counts


def views_an_array(pool: np.ndarray, amount: list[float]) -> tuple[np.ndarray, Tensor]:
    return pool[1:], torch.from_numpy(pool)


def views_bytes(pool: bytes, amount: list[float]) -> np.ndarray:
    return np.frombuffer(pool, np.uint8)


def keeping() -> Callable[[Tensor, list[float]], Tensor]:
    kept = torch.zeros(3)

    def keeps(pool: Tensor, amount: list[float]) -> Tensor:
        return kept[:2]

    return keeps


def remembers(pool: Tensor, amount: list[float], seen: list[Tensor] = []) -> Tensor:  # noqa: B006
    seen.append(pool)
    return pool + len(seen)


CHANGED, INSIDE, AGAIN = "has changed", "lies in an argument's memory", "gave another result"


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (adds, ()),
        (hands_on, ()),
        (writes, (CHANGED, AGAIN)),
        (eats, (CHANGED,)),
        (slices, (INSIDE,)),
        (views_a_buffer, (INSIDE,)),
        (views_an_array, (INSIDE,)),
        (views_bytes, (INSIDE,)),
        (draws, (AGAIN,)),
        (counting(), (CHANGED,)),
        (keeping(), (INSIDE,)),
        (remembers, (CHANGED, AGAIN)),
        (pytree.donates("pool")(writes), ()),
        (pytree.donates("pool")(slices), ()),
        (pytree.donates("pool")(eats), (CHANGED,)),
        (pytree.donates("amount")(slices), (INSIDE,)),
        (pytree.donates("amount")(eats), (CHANGED,)),
        (pytree.donates("pool")(reshapes), (CHANGED,)),
    ],
)
def test_the_checker_finds_what_is_impure(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], found: tuple[str, ...]) -> None:
    """A function that mutates, aliases, remembers or draws is found, by the fault it has; pure and donating ones pass."""
    monkeypatch.setitem(globals(), "ours", lambda value: isinstance(bare(value), types.FunctionType))  # these functions are not the house's
    pool = {views_a_buffer: bytearray(b"abcd"), views_an_array: np.ones(3), views_bytes: b"abcd"}.get(bare(function), torch.ones(2))
    faults = examine(Sample(function, lambda: call(copy.deepcopy(pool), [1.0, 2.0, 2.0, 2.0]))).faults
    for fault in (CHANGED, INSIDE, AGAIN):
        assert any(fault in line for line in faults) == (fault in found), faults


def fills(pool: Tensor, amount: list[float]) -> None:
    """Fills a pool. DONATES ``pool``."""
    pool.fill_(amount[0])


def fills_by_chance(pool: Tensor, amount: list[float]) -> None:
    """Fills a pool. DONATES ``pool``."""
    pool.fill_(float(torch.rand(())))


@pytest.mark.parametrize(
    ("function", "donated", "found"),
    [
        (fills, ("pool",), ""),
        (fills, (), CHANGED),
        (fills, ("pool", "amount"), "does not say DONATES ``amount``"),
        (writes, ("pool",), "does not say DONATES ``pool``"),
        (fills_by_chance, ("pool",), AGAIN),
    ],
)
def test_what_a_sample_says_is_donated_is_promised(function: Callable[..., Any], donated: tuple[str, ...], found: str) -> None:
    faults = examine(Sample(function, lambda: call(torch.ones(2), [2.0]), donated=donated)).faults
    assert any(found in line for line in faults) if found else faults == []


def test_a_public_function_without_a_sample_is_missed() -> None:
    module = types.ModuleType("room")
    module.rule, module.__all__ = verifiers["token"]._replace(tape=random.bits), ["rule"]  # type: ignore[attr-defined]
    names_missed = missing(public(module), [sample for sample in SAMPLES if sample.function is not random.bits])
    assert names_missed == ["specdec_fn.random:bits"]


def persistent(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.text(), inner).map(rpds.HashTrieMap) | st.lists(inner).map(rpds.List) | st.lists(inner).map(rpds.Queue)


VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.floats(width=32)).map(torch.tensor),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | persistent(inner),
    max_leaves=8,
)


def copied(value: Any) -> Any:
    """A deep copy, with maps whose items come in other orders."""
    if isinstance(value, rpds.HashTrieMap):
        return rpds.HashTrieMap({key: copied(item) for key, item in value.items()})
    if isinstance(value, (rpds.List, rpds.Queue, list, tuple)):
        return type(value)([copied(item) for item in value])
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return copy.deepcopy(value)


@hypothesis.given(VALUES, st.lists(st.floats(width=32), min_size=1), st.integers(0))
def test_a_picture_is_of_every_bit(value: Any, numbers: list[float], place: int) -> None:
    """A copy has the same picture; one bit flipped, however deep, gives another."""
    whole = {"a": [value, rpds.List([rpds.Queue([(rpds.HashTrieMap({"b": torch.tensor(numbers)}), value)])])]}
    flipped = copied(whole)
    assert image(flipped) == image(whole)
    words = next(iter(next(iter(flipped["a"][1]))))[0]["b"].view(torch.int32)
    words[place % len(numbers)] ^= 1
    assert image(flipped) != image(whole)
    assert image(flipped, bits=False) == image(whole, bits=False)


def test_attributes_of_a_tuple_are_in_the_picture() -> None:
    pair = type("Pair", (tuple,), {})
    one, other = pair((1, 2)), pair((1, 2))
    one.text, other.text = "a", "b"
    assert image(one) != image(other)
