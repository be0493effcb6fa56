"""Everything public below the effects floor is a function of its arguments. Every public function is walked; there is no skip list.

Each is called on sample arguments. Afterwards its arguments, and whatever it closes over, are what they were; every tensor of its result is an
argument's own tensor handed on, or lies in memory of its own; and a second call gives the same, bit for bit. What a function marked
``@donates`` takes by those names is excepted from the first two. Functions that come out of a call (the parts of a Verifier, of a Proposer, of
a Model, of a Tokenizer) are walked as well.
"""

import copy
import dataclasses
import functools
import importlib
import inspect
import itertools
import pickle
import pkgutil
import struct
import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import specdec_fn.text
from specdec_fn import pytree, random
from specdec_fn.engine import attention, ending, generate, generation, job, law, running, together
from specdec_fn.kv import branching, dense, side_by_side
from specdec_fn.models import Config, RopeConfig, llama, model, product, rope, toy
from specdec_fn.sampling import SamplingParams, distribution, draw, narrow, params, processors, truncation
from specdec_fn.speculate import (
    Draft,
    Tape,
    draft,
    expected,
    follow,
    overlaps,
    proposers,
    race,
    recover,
    registry,
    rows,
    tape,
    tree,
    verdict,
    verifier,
    verifiers,
)
from specdec_fn.text import Tokenizer, chat, detokenizer, pieces, splits, stop
from specdec_fn.weights import gguf, gguf_quants, names, safetensors
from specdec_kernels import threefry

ROOTS = ("pytree", "random", "typing", "models", "kv", "weights", "text", "sampling", "speculate", "engine")
# ``specdec_fn.text.tokenizer`` is a room, but a wildcard of names here would hide it behind the fixture-like word.
tokenizers = specdec_fn.text.tokenizer


# What is looked at


class Call(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Sample(NamedTuple):
    """A function and a way to make arguments for it, fresh each time; ``raises``: the call is a refusal."""

    function: Callable[..., Any]
    make: Callable[[], Call]
    raises: type[Exception] | None = None


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


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


def parts(value: Any) -> Iterator[Any]:
    """What a container holds: of functions, what they close over, are bound to, or take by default."""
    if isinstance(value, Mapping) and not isinstance(value, types.ModuleType):
        yield from itertools.chain.from_iterable(value.items())
    elif isinstance(value, (Sequence, Set)) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        yield from value
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


def image(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """A picture of a value in plain immutable Python: equal pictures, equal values, bit for bit."""
    if id(value) in seen:
        return "again"
    seen = (*seen, id(value))
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
        inside = tuple(image(part, seen) for part in parts(value))
        return ("function", name_of(value), *inside) if isinstance(bare(value), types.FunctionType) else ("callable", type(value).__qualname__)
    if isinstance(value, Set):
        return type(value).__name__, tuple(sorted((image(item, seen) for item in value), key=repr))
    if value is None or isinstance(value, (bool, int, str, torch.dtype, torch.device)):
        return type(value).__name__, repr(value)
    inside = tuple(image(part, seen) for part in parts(value))
    if inside or isinstance(value, (Mapping, Sequence)) or dataclasses.is_dataclass(value):
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
        elif isinstance(leaf, (bytearray, memoryview)) and len(leaf):
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
    donated = set(getattr(function, "donated", ()))
    kept = _kept(function, given, donated)
    before = image(kept)
    result = _run(sample, given)
    faults = []
    if image(kept) != before:
        faults.append("an argument, or what the function closes over, has changed")
    held, taken = list(leaves(kept)), memory(kept)
    for leaf in (leaf for leaf in leaves(result) if not callable(leaf)):
        inside = any(start < other_end and other_start < end for start, end in memory([leaf]) for other_start, other_end in taken)
        if inside and not any(same(leaf, other) for other in held):
            faults.append(f"a result of shape {tuple(getattr(leaf, 'shape', ()))} lies in an argument's memory and is not that argument")
    first = image(result)
    if image(_run(sample, given if not donated else sample.make())) != first:
        faults.append("a second call gave another result")
    if image(_run(sample, sample.make())) != first:
        faults.append("a call on equal arguments gave another result")
    return Report(result, faults)


def _kept(function: Any, given: Call, donated: Set[str]) -> Any:
    """What a call must leave alone: its arguments but for the donated ones, and what the function closes over."""
    if not donated:
        return given.args, given.kwargs, function
    bound = inspect.signature(bare(function)).bind(*given.args, **given.kwargs)
    return {name: value for name, value in bound.arguments.items() if name not in donated}, function


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


# The samples


def table(*shape: int) -> Tensor:
    """Numbers that look like weights, the same each time."""
    count = int(np.prod(shape))
    return ((torch.arange(count, dtype=torch.float32) * 0.37).sin() * 0.5).reshape(shape)


def laws(*shape: int) -> Tensor:
    return table(*shape).double().softmax(-1)


def ids(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def cache(length: int = 2) -> dense.DenseCache:
    """A cache of two layers and six slots, with something in every slot."""
    made = dense.init(sizes("llama"), 6, dtype=torch.float32)
    for layer in range(2):
        made = dense.attend(made, layer, table(6, 2, 4), table(6, 1, 4) + layer, table(6, 1, 4) - layer)[1]
    return dense.truncate(dense.advance(made, 6), length)


def sizes(architecture: str, **more: Any) -> Config:
    fit = dict(vocab_size=5, context=16, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, ffn=6)  # noqa: C408
    return Config(architecture, **fit, qkv_bias=architecture == "qwen2", qk_norm=architecture == "qwen3", **more)


def weights_of(config: Config) -> llama.Params:
    shapes = llama.shapes(config)
    return llama.assemble(config, lambda name: table(*shapes[name]))


def tiny(architecture: str = "llama", **more: Any) -> model.Model:
    config = sizes(architecture, **more)
    return llama.model(config, weights_of(config))


def bigram() -> model.Model:
    return toy.bigram(laws(4, 4))


METADATA = types.MappingProxyType(
    {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<end>", "a", "b", "ab"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}<end>{% endfor %}",
    }
)
HF = types.MappingProxyType(
    {"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}
)
GGUF_SIZES = types.MappingProxyType(
    {
        "general.architecture": "qwen2",
        "qwen2.block_count": 1,
        "qwen2.context_length": 64,
        "qwen2.embedding_length": 4,
        "qwen2.feed_forward_length": 6,
        "qwen2.attention.head_count": 2,
        "qwen2.vocab_size": 8,
    }
)


def library_json(*, byte_level: bool) -> str:
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models

    library = Library(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    if byte_level:
        library.decoder = decoders.ByteLevel()
    return library.to_str()


def words() -> Tokenizer:
    return tokenizers.from_gguf(dict(METADATA))


def bytewise() -> Tokenizer:
    """A tokenizer that only decodes, so that the detokenizer's slower way is taken."""
    return Tokenizer(
        lambda text, special=False: list(text.encode()), lambda ids, skip_special=True: bytes(ids).decode("utf-8", "replace"), None, (), 256
    )


def said(text: str = "ab<end>a") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def gguf_file() -> bytearray:
    """One key and one F32 tensor of two numbers."""

    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a.key") + struct.pack("<II", 4, 7)
    head += text("weight") + struct.pack("<IQIQ", 1, 2, 0, 0)
    return bytearray(head.ljust(-(-len(head) // 32) * 32, b"\0") + struct.pack("<2f", 1.5, -2.0))


def blocks(kind: str) -> bytearray:
    form = gguf_quants.formats[kind]
    return bytearray((7 * i + 3) % 60 for i in range(2 * form.size * (32 // form.weights if form.weights == 1 else 1)))


def chain_of(*tokens: int, k: int = 3, soft: bool = False) -> Draft:
    return draft.chain(list(tokens), k, laws(len(tokens), 4) if soft else None)


def declared(size: int) -> Any:
    """``@state`` on a class of one's own: a declaration works on the class it stands at, so each call makes a new one."""
    box = type("Box", (), {"__annotations__": {"content": Tensor, "size": int}, "__module__": __name__})
    return pytree.state(static=("size",))(box)(table(2), size)


def put(pool: Tensor, value: float) -> Tensor:
    return pool.fill_(value)


def enforced(pool: Tensor) -> Tensor:
    """A donating call inside ``checking``: what it was given is freed, what it gives is new."""
    with pytree.checking():
        return pytree.donates("pool")(put)(pool, 7.0)


enforced.donated = ("pool",)  # type: ignore[attr-defined]
# A decorator of classes and a context manager are no functions of values; they are looked at through these.
STAND_INS = types.MappingProxyType({name_of(pytree.checking): enforced, name_of(pytree.state()): declared})

FIXED = SamplingParams(0.7, 3, 0.9, 0.01, 0.9, 1.2, 0.1, 0.2, {1: 0.5}, [2, (1, 0)], [0, 1, 2, 3], 1)


def alphabet() -> Iterator[Sample]:
    keys = random.split(random.key(3), 3)
    yield Sample(pytree.state, lambda: call(static=("size",)))
    yield Sample(declared, lambda: call(3))
    yield Sample(pytree.donates, lambda: call("pool"))
    yield Sample(pytree.donates("pool"), lambda: call(put))
    yield Sample(enforced, lambda: call(torch.zeros(2)))
    yield Sample(random.key, lambda: call(-5))
    yield Sample(random.key, lambda: call(2**63), ValueError)
    for given in (random.key(3), keys):
        yield Sample(random.key_data, lambda given=given: call(random.Key(given.words.clone())))
        yield Sample(random.split, lambda given=given: call(random.Key(given.words.clone()), 20))
        yield Sample(random.fold_in, lambda given=given: call(random.Key(given.words.clone()), 7))
        yield Sample(random.fold_in, lambda given=given: call(random.Key(given.words.clone()), ids(7)))
        yield Sample(random.bits, lambda given=given: call(random.Key(given.words.clone()), [4, 5], 64))
        for dtype in (torch.float64, torch.float32):
            yield Sample(random.uniform, lambda given=given, dtype=dtype: call(random.Key(given.words.clone()), [2], dtype=dtype))
    for member in (random.Key.shape.fget, random.Key.__len__, random.Key.__iter__):
        yield Sample(member, lambda: call(random.split(random.key(3), 3)))
    yield Sample(random.Key.__getitem__, lambda: call(random.split(random.key(3), 3), 1))
    yield Sample(random.Key.__getitem__, lambda: call(random.split(random.key(3), 3), slice(1, 3)))
    yield Sample(threefry.threefry2x32, lambda: call(ids(1, 2), ids(3, 4), ids(5, 6), ids(7, 8)))
    yield Sample(threefry.threefry2x32_words, lambda: call(1, 2, 3, 4))


def model_rooms() -> Iterator[Sample]:
    yield Sample(Config.from_hf, lambda: call({**HF, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}))
    yield Sample(Config.from_gguf, lambda: call(dict(GGUF_SIZES), tied=True, rope_divisors=[1.0]))
    for scaling in ("none", "linear", "llama3", "yarn"):
        given = RopeConfig(scaling=scaling, factor=4.0, original_context=8)
        yield Sample(rope.frequencies, lambda given=given: call(given, 8))
        yield Sample(rope.attention_factor, lambda given=given: call(given))
    for factor in (1.0, 1.5):
        yield Sample(rope.rotation, lambda factor=factor: call(ids(0, 3), table(4).double(), factor, torch.float64, (2, 1, 1)))
    yield Sample(rope.rotate, lambda: call(table(2, 3, 4), table(2, 3, 4), table(2, 3, 4)))
    for count in (1, 5, 8):
        yield Sample(product.product, lambda count=count: call(table(count, 4), table(32, 4)))
        yield Sample(product.tiled, lambda count=count: call(table(count, 4), table(32, 4)))
    yield Sample(llama.shapes, lambda: call(sizes("qwen2")))
    yield Sample(llama.assemble, lambda: call(sizes("qwen2"), lambda name: table(*llama.shapes(sizes("qwen2"))[name])))
    yield Sample(llama.assemble, lambda: call(sizes("qwen3", tied=True), one_of_each(sizes("qwen3", tied=True))))
    yield Sample(llama.model, lambda: call(sizes("llama"), weights_of(sizes("llama"))))
    yield Sample(model.causal, lambda: call(None, 0, table(3, 2, 4), table(3, 1, 4), table(3, 1, 4)))
    yield Sample(toy.bigram, lambda: call(laws(4, 4)))
    for made in (bigram(), tiny("llama"), tiny("qwen2", tied=True), tiny("qwen3")):
        yield Sample(model.invariant, lambda made=made: call(made))
        yield Sample(model.logits, lambda made=made: call(made, [1, 0, 3]))
        yield Sample(model.logits, lambda made=made: call(made, ids(1, 0, 3)))
        for form in (made, made.invariant):
            for step in (form.apply, form.prefill):
                yield Sample(step, lambda made=made: call(made.params, ids(1, 0, 3), ids(2, 3, 4), cache(), dense.attend_pure))
                yield Sample(step, lambda made=made: call(made.params, ids(1), ids(0), None, model.causal))


def one_of_each(config: Config) -> Callable[[str], Tensor]:
    """Hands out the same tensor each time it is asked for a name, as a mapped file does."""
    held = {name: table(*shape) for name, shape in llama.shapes(config).items()}
    return lambda name: held[name]


def cache_rooms() -> Iterator[Sample]:
    yield Sample(dense.init, lambda: call(sizes("llama"), 4, dtype=torch.float64))
    yield Sample(dense.advance, lambda: call(cache(), 2))
    yield Sample(dense.truncate, lambda: call(cache(), 1))
    yield Sample(dense.grow, lambda: call(cache(), 9))
    for attend in (dense.attend, dense.attend_invariant, dense.attend_pure):
        for count, length in ((1, 2), (3, 2), (3, 0)):
            rows = lambda count, heads: table(count, heads, 4)  # noqa: E731
            yield Sample(attend, lambda n=count, at=length, rows=rows: call(cache(length=at), 1, rows(n, 2), rows(n, 1), rows(n, 1)))
    seen = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    three = lambda: (table(3, 2, 4), table(3, 1, 4), table(3, 1, 4))  # noqa: E731
    for build in (branching.attend, branching.attend_invariant):
        yield Sample(build, lambda: call(seen.clone()))
        yield Sample(build(seen), lambda: call(cache(), 1, *three()))
    for kept in (ids(0, 2), ids(0, 1)):
        yield Sample(branching.keep, lambda kept=kept: call(cache(), kept))
    yield Sample(dense.write, lambda: call(cache(), 1, *three()[1:]))
    yield Sample(dense.over, lambda: call(cache(), 1, table(1, 2, 4), 2))
    yield Sample(dense.over, lambda: call(cache(), 1, table(3, 2, 4), 2, table(3, 2)))
    yield Sample(side_by_side.attend, lambda: call([dense.attend, dense.attend_invariant], [2, 1]))
    yield Sample(side_by_side.attend([dense.attend, dense.attend_invariant], [2, 1]), lambda: call((cache(), cache(length=1)), 1, *three()))


def weight_rooms() -> Iterator[Sample]:
    yield Sample(gguf.parse, lambda: call(gguf_file()))
    yield Sample(gguf.parse, lambda: call(gguf_file()[:40]), ValueError)
    yield Sample(gguf.tensor, lambda: call(gguf_file(), gguf.parse(gguf_file()).entries["weight"]))
    for heads in (2, 1):
        yield Sample(gguf.unpermute, lambda heads=heads: call(table(8, 3), heads))
        yield Sample(gguf.unpermute, lambda heads=heads: call(np.arange(8), heads))
    for kind, form in gguf_quants.formats.items():
        yield Sample(gguf_quants.byte_count, lambda form=form: call(form, (2, 256)))
        for dtype in (torch.float32, torch.bfloat16):
            yield Sample(
                gguf_quants.dequantize,
                lambda kind=kind, form=form, dtype=dtype: call(blocks(kind), kind, (2, max(form.weights, 32)), dtype),
            )
    yield Sample(names.from_gguf, lambda: call(["blk.3.attn_k.bias", "other"]))
    yield Sample(names.from_transformers, lambda: call(["model.norm.weight", "other"]))
    yield Sample(names.to_gguf, lambda: call("layers.3.q"))
    yield Sample(names.to_transformers, lambda: call("layers.3.q"))
    yield Sample(safetensors.single, lambda: call(["config.json", "a.safetensors"]))
    yield Sample(safetensors.shards, lambda: call({"weight_map": {"x": "a.safetensors"}}, ["a.safetensors"]))
    yield Sample(safetensors.check_number, lambda: call("x", "BF16"))


def text_rooms() -> Iterator[Sample]:
    template = METADATA["tokenizer.chat_template"]
    yield Sample(chat.compile_template, lambda: call(template, {"bos_token": "<s>"}))
    yield Sample(chat.compile_template(template, {}), lambda: call(said()))
    yield Sample(chat.compile_template(None, {}), lambda: call(said()), ValueError)
    controls = [chat.Control("<end>", 0)]
    yield Sample(chat.encoder, lambda: call(chat.compile_template(template, {}), controls, lambda text: [1], lambda texts, ids: [2, *ids]))
    yield Sample(chat.shield, lambda: call(said(), ["<end>"]))
    yield Sample(chat.unused, lambda: call(["a", "\U000f0000"]))
    yield Sample(tokenizers.from_gguf, lambda: call(dict(METADATA)))
    for byte_level in (True, False):
        settings = {"tokenizer_config": {"eos_token": "ab", "chat_template": template}, "model_config": {"eos_token_id": [0]}}
        yield Sample(tokenizers.from_json, lambda byte_level=byte_level, settings=settings: call(library_json(byte_level=byte_level), **settings))
        made = tokenizers.from_json(library_json(byte_level=byte_level))
        yield Sample(made.encode, lambda: call("abba", special=True))
        yield Sample(made.decode, lambda: call([2, 0]))
    made = words()
    yield Sample(made.encode, lambda: call("abba<end>"))
    yield Sample(made.decode, lambda: call([3, 0, 1], skip_special=False))
    yield Sample(made.chat, lambda: call(said("ab")))
    yield Sample(made.chat, lambda: call(said()))
    yield Sample(made.token_bytes, lambda: call(3))
    yield Sample(splits.build, lambda: call(splits.SPLITS["qwen2"]))
    yield Sample(pieces.byte_level, lambda: call("ĠcafÃ©"))
    yield Sample(pieces.check, lambda: call([1, 2], 3))
    yield Sample(pieces.decoder, lambda: call(pieces.Pieces((b"a", b"\xc3"), frozenset({0}))))
    yield Sample(pieces.from_decoder, lambda: call({"type": "ByteLevel"}, ["Ġa", "é"], frozenset({1}), frozenset()))
    for spelled, given in ((words(), [3, 1]), (bytewise(), [0xC3, 0xA9, 0xF0])):
        yield Sample(detokenizer.init, lambda spelled=spelled, given=given: call(spelled, given))
        yield Sample(detokenizer.feed, lambda spelled=spelled, given=given: call(detokenizer.init(spelled, given[:1]), given))
        yield Sample(detokenizer.finish, lambda spelled=spelled, given=given: call(detokenizer.feed(detokenizer.init(spelled), given)[0]))
    yield Sample(stop.init, lambda: call(["</s>", "User:"]))
    yield Sample(stop.feed, lambda: call(stop.init(["abc", "bd"]), "xab"))
    yield Sample(stop.finish, lambda: call(stop.feed(stop.init(["abc"]), "xab")[0]))


def sampling_rooms() -> Iterator[Sample]:
    none = ids()
    for settings in (SamplingParams(), FIXED, SamplingParams(0.0), SamplingParams(top_k=2), SamplingParams(min_tokens=9)):
        for member in (SamplingParams.greedy.fget, SamplingParams.history.fget):
            yield Sample(member, lambda settings=settings: call(settings))
        for row in (table(6), table(6).double().requires_grad_(), torch.full((6,), torch.nan)):
            yield Sample(
                distribution,
                lambda row=row, settings=settings: call(row, settings, prompt=ids(1, -1), generated=ids(0, 0), eos_ids=[5], mask=torch.ones(6) > 0),
            )
        yield Sample(processors.biased, lambda settings=settings: call(table(6), settings))
        yield Sample(processors.checked_ids, lambda settings=settings: call(settings, 6))
        yield Sample(processors.penalised, lambda settings=settings: call(table(6), settings, ids(1, -1), ids(0, 0)))
        yield Sample(processors.forbidden, lambda settings=settings: call(6, settings, ids(1), none, [5], torch.ones(6) > 0))
        for wide in (4096, 2):
            yield Sample(truncation.truncated, lambda settings=settings, wide=wide: call(table(6), warm(settings), wide))
    yield Sample(truncation.one_hot, lambda: call(table(6)))
    for temperature in (1.0, 0.3, 1e-38):
        yield Sample(truncation.tempered, lambda temperature=temperature: call(table(6), temperature))
    yield Sample(draw, lambda: call(torch.tensor(0.5), table(6).softmax(0)))
    yield Sample(narrow.at_least_kth, lambda: call(table(100), 2))
    yield Sample(narrow.shortest_prefix, lambda: call(table(100).softmax(0), table(100).softmax(0), 0.7, descending=True))
    yield Sample(params.ids_of, lambda: call("eos_ids", [2, 0]))


def warm(settings: SamplingParams) -> SamplingParams:
    return settings if settings.temperature > 0 else dataclasses.replace(settings, temperature=0.5)


def speculation_rooms() -> Iterator[Sample]:
    yield Sample(draft.chain, lambda: call([5, 7], 3, laws(2, 9)))
    yield Sample(draft.chain, lambda: call([5, 7], 2, laws(2, 9)))
    for count in (3, 2, 0):
        yield Sample(draft.first, lambda count=count: call(chain_of(1, 2, 3, soft=True)._replace(parents=ids(-1, 0, 0)), count))
    yield Sample(recover.residual, lambda: call(laws(4), laws(2, 4)[1]))
    yield Sample(recover.residual, lambda: call(laws(4), laws(4)))
    yield Sample(recover.without, lambda: call(laws(4), torch.tensor(1)))
    yield Sample(tape.address, lambda: call(random.key(1), tape.ACCEPT, 12))
    yield Sample(tape.tape, lambda: call(random.key(1), 3, 100, position=12, dtype=torch.float32))
    yield Sample(verdict.of_chain, lambda: call(chain_of(1, 2, k=2), torch.tensor(1), torch.tensor(3)))
    yield Sample(verifier.check, lambda: call(laws(4, 4), chain_of(1, 2, 3, soft=True)))
    yield Sample(verifier.check, lambda: call(laws(4, 4) * 2, chain_of(1, 2, 3)), ValueError)
    yield Sample(verifier.check_draft, lambda: call(chain_of(1, 2, 3, soft=True), 4, chain=True))
    yield Sample(verifier.check_draft, lambda: call(chain_of(1, 2, 3), 3), ValueError)
    for rule in verifiers.values():
        yield Sample(rule.tape, lambda: call(random.key(1), 3, 4, position=5))
        yield Sample(verifier.batched, lambda rule=rule: call(rule.decide))
        yield Sample(verifier.door, lambda rule=rule: call(rule.tape, rule.decide, trees=rule.trees))
        branching = chain_of(1, 2, 3, soft=True)._replace(parents=ids(-1, -1, 0))
        for given in (chain_of(1, 2, 3), chain_of(1, soft=True), chain_of(2, 1, 0, soft=True), chain_of(k=0), *([branching] if rule.trees else [])):
            k = given.tokens.shape[0]
            numbers = functools.partial(rule.tape, random.key(2), k, 4)
            yield Sample(rule.decide, lambda k=k, given=given, numbers=numbers: call(numbers(), laws(k + 1, 4), given))
            yield Sample(rule.verify, lambda k=k, given=given: call(random.key(1), laws(k + 1, 4), given, position=7))
        if rule.bias is not None:
            yield Sample(rule.bias, lambda: call(laws(4), laws(2, 4)[1]))
        yield Sample(
            verifier.batched(rule.decide),
            lambda rule=rule: call(
                torch.func.vmap(lambda key: rule.tape(key, 3, 4))(random.split(random.key(2))),
                laws(2, 4, 4),
                Draft(ids(1, 2, 3, 0, 1, 2).view(2, 3), None, ids(3, 2)),
            ),
        )
    for seen in (ids(1, 2, 0), ids(1, -1, 0)):
        yield Sample(follow.follow, lambda seen=seen: call(seen, chain_of(1, 2, k=2)))
        yield Sample(follow.follow, lambda seen=seen: call(seen, chain_of(1, 2, k=2)._replace(parents=ids(-1, -1))))
    yield Sample(verdict.of_path, lambda: call(chain_of(1, 2, k=2)._replace(parents=ids(-1, -1)), torch.tensor([False, True]), torch.tensor(3)))
    yield Sample(race.noise, lambda: call(random.key(1), ids(3, 4), 5))
    yield Sample(race.tape, lambda: call(random.key(1), 2, 5, position=3, dtype=torch.float32))
    yield Sample(race.exponential, lambda: call(ids(3, 4)))
    yield Sample(race.winner, lambda: call(laws(4), laws(2, 4)[1]))
    for shape in (ids(-1, -1, 0, 2), ids()):
        for function in (tree.ancestors, tree.depths, tree.mask):
            yield Sample(function, lambda shape=shape: call(shape))
        yield Sample(tree.positions, lambda shape=shape: call(shape, 7))
        yield Sample(verifiers.traversal.postorder, lambda shape=shape: call(shape, shape < 2))
    yield Sample(tree.parents_of, lambda: call(chain_of(1, 2, k=2)))
    yield Sample(tree.parents_of, lambda: call(chain_of(1, 2, k=2)._replace(parents=ids(-1, -1))))
    yield Sample(tree.merge, lambda: call([[1, 2], [1, 3]], 4))
    for function in (verifiers.tree.descend, verifiers.tree.decide, verifiers.multi_draft.decide, verifiers.multi_draft.decide_without_replacement):
        yield Sample(function, lambda: call(Tape(laws(3), laws(1)[0]), laws(4, 4), chain_of(1, 2, 3, soft=True)._replace(parents=ids(-1, -1, 0))))
    yield Sample(verifiers.k_seq.scale, lambda: call(laws(4), laws(2, 4)[1], torch.tensor(2), 3))
    yield Sample(verifiers.lossy.typical, lambda: call(0.1, 0.2))
    yield Sample(verifiers.lossy.lenient, lambda: call(0.9))
    yield Sample(verifiers.lossy.lenient, lambda: call(2.0), ValueError)
    yield Sample(registry.Registry.__getitem__, lambda: call(verifiers, "token"))
    yield Sample(registry.Registry.__getitem__, lambda: call(verifiers, "blok"), KeyError)
    yield Sample(registry.Registry.__iter__, lambda: call(verifiers))
    yield Sample(registry.Registry.__len__, lambda: call(verifiers))
    yield Sample(proposers.named, lambda: call("ngram"))
    yield Sample(proposers.ngram.match, lambda: call([1, 2, 3, 1, 2], k=2))
    yield Sample(proposers.ngram.proposer, lambda: call(3, 1))
    yield Sample(proposers.paying.proposer, lambda: call(proposers.ngram.proposer()))
    yield Sample(proposers.scripted.proposer, lambda: call(lambda context: [context[-1]] * 9))
    yield Sample(proposers.ngram.matches, lambda: call([1, 2, 3, 1, 2, 1, 2], k=2))
    yield Sample(proposers.ngram_tree.candidates, lambda: call([1, 2, 3, 1, 2, 1, 2], 2, 1, 2, 3))
    yield Sample(proposers.ngram_tree.proposer, lambda: call(3, 1, 2))
    ngram, scripted = proposers.ngram.proposer(), proposers.scripted.proposer(lambda context: [context[-1]] * 9)
    for guess in (ngram, scripted, proposers.paying.proposer(scripted), proposers.named("ngram"), proposers.ngram_tree.proposer()):
        yield Sample(guess.init, lambda: call([1, 2, 1]))
        yield Sample(guess.propose, lambda guess=guess: call(random.key(0), guess.init([1, 2, 1]), [1, 2, 1], 3, position=3))
    watched = proposers.paying.proposer(scripted)
    later = watched.propose(random.key(0), watched.init([1]), [1], 3, position=1)[0]
    yield Sample(watched.propose, lambda: call(random.key(0), later, [1, 2, 2], 3, position=3))


def estimator_rooms() -> Iterator[Sample]:
    half = torch.tensor([0.5, 0.5])
    for q in (laws(2, 3, 4).flip(-1), None):
        yield Sample(expected.of_draft, lambda q=q: call(laws(2, 4, 4), q, ids(1, 2, 3, 0, 1, 2).view(2, 3), ids(3, 1)))
        yield Sample(overlaps.of_siblings, lambda q=q: call(laws(2, 4), None if q is None else q[:, 0].clone(), ids(1, 2, 0, -1).view(2, 2)))
    yield Sample(expected.of_draft, lambda: call(laws(3, 4), laws(2, 4), ids(1, 4)), ValueError)
    for k in (1, 2):
        yield Sample(expected.of_tables, lambda k=k: call([laws(4), laws(4, 4)], [laws(4).flip(0), laws(4, 4).flip(1)][:k]))
    for function in (overlaps.overlap, overlaps.coupled_overlap, overlaps.same_winner):
        yield Sample(function, lambda: call(laws(2, 4), laws(2, 4).flip(-1)))
    for function in (overlaps.multi_draft, overlaps.multi_draft_without_replacement, overlaps.k_seq, overlaps.transport):
        yield Sample(function, lambda: call(laws(2, 4), laws(2, 4).flip(-1), 2))
        yield Sample(function, lambda: call(laws(4), laws(4), 1))
    yield Sample(rows.divide, lambda: call(half, torch.tensor([2.0, 0.0])))
    for weights in (half, torch.zeros(2)):
        yield Sample(rows.normalised, lambda weights=weights: call(weights, half))
        yield Sample(rows.check_laws, lambda weights=weights: call("p", weights), None if weights is half else ValueError)
    yield Sample(rows.traced, lambda: call(half, None))
    yield Sample(rows.check_floats, lambda: call(p=half, q=None))
    yield Sample(rows.check_ids, lambda: call("tokens", ids(0, 1), 2))
    yield Sample(rows.check_ids, lambda: call("tokens", ids(0, -1), 2), ValueError)


def engine_rooms() -> Iterator[Sample]:
    prompt = [1, 0, 3, 1]
    yield Sample(ending.init, lambda: call(words(), [1], count=3, stop_ids=[0], stop_strings=["bb"]))
    yield Sample(ending.feed, lambda: call(ending.init(words(), [1], count=3, stop_ids=[0], stop_strings=["bb"]), [1, 2]))
    yield Sample(generation.add_pass, lambda: call(generation.Stats(), generation.Pass([4, 5], ["accepted", "recovered"], [-1.0, -1.0], 3)))
    for member in (generation.Stats.tokens_per_pass.fget, generation.Stats.acceptance_rate.fget):
        yield Sample(member, lambda: call(generation.Stats(2, 3, 1, 3)))
    yield Sample(law.law, lambda: call(FIXED, [1, 0], ends=[3], mask=torch.ones(4) > 0))
    for settings in (FIXED, SamplingParams()):
        yield Sample(law.law(settings, prompt, ends=[3]), lambda: call(table(3, 4), [1, 2], [0, 1]))
    rule = law.law(SamplingParams(), prompt)
    guess = proposers.scripted.proposer(lambda context: [context[-1]] * 9)
    for made in (bigram(), tiny("llama")):
        for loop in (generate.naive, generate.cached):
            yield Sample(loop, lambda made=made: call(made, random.key(1), rule, list(prompt), 3))
        yield Sample(generate.prefill, lambda made=made: call(made, list(prompt), 3))
        yield Sample(generate.begin, lambda made=made: call(made, random.key(1), rule, list(prompt), 5, guess, verifiers["token"], 2))
        for way in (attention.CAUSAL, attention.INVARIANT):
            for name, drafting in (("token", guess), ("tree", proposers.ngram_tree.proposer())):
                parts = random.key(1), rule, list(prompt), 5, drafting, verifiers[name], 2
                yield Sample(generate.speculative, lambda made=made, way=way, parts=parts: call(made, *parts, attention=way))
                start = functools.partial(generate.begin, made, *parts, attention=way)
                yield Sample(together.together, lambda made=made, way=way, start=start: call(made, [start(), start()], way))
                yield Sample(running.drafted, lambda start=start: call(start(), 4))
                yield Sample(running.no_law, lambda start=start: call(start()))
                yield Sample(running.Running.left.fget, lambda start=start: call(start()))
                tried = tree.merge([[1], [2]], 2) if name == "tree" else chain_of(1, 2, k=2)
                yield Sample(running.rows, lambda start=start, tried=tried: call(start(), tried))
                yield Sample(running.judged, lambda start=start, tried=tried: _after_a_forward(start(), tried))
    for tried in (chain_of(1, 2, k=2), tree.merge([[1], [2]], 2)):
        yield Sample(attention.of_draft, lambda tried=tried: call(attention.CAUSAL, tried))
    for made in (bigram(), tiny("llama")):
        for settings in (("ngram", None), (None, None), (None, lambda context: [1])):
            yield Sample(
                job.settle,
                lambda made=made, settings=settings: call(
                    made, list(prompt), words(), 7, FIXED, settings[0], "token", 2, 9, [2], ["bb"], False, settings[1] is None, settings[1]
                ),
            )
    silent = job.SILENT
    yield Sample(silent.init, lambda: call([1]))
    yield Sample(silent.propose, lambda: call(random.key(0), (), [1], 2, position=1))


def _after_a_forward(run: running.Running, tried: Draft) -> Call:
    return call(run, tried, table(3, 4), run.kv)


SAMPLES = list(
    itertools.chain(
        alphabet(),
        model_rooms(),
        cache_rooms(),
        weight_rooms(),
        text_rooms(),
        sampling_rooms(),
        speculation_rooms(),
        estimator_rooms(),
        engine_rooms(),
    )
)


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
        (draws, (AGAIN,)),
        (counting(), (CHANGED,)),
        (keeping(), (INSIDE,)),
        (remembers, (CHANGED, AGAIN)),
        (pytree.donates("pool")(writes), ()),
        (pytree.donates("pool")(slices), ()),
        (pytree.donates("pool")(eats), (CHANGED,)),
        (pytree.donates("amount")(slices), (INSIDE,)),
    ],
)
def test_the_checker_finds_what_is_impure(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], found: tuple[str, ...]) -> None:
    """A function that mutates, aliases, remembers or draws is found, by the fault it has; pure and donating ones pass."""
    monkeypatch.setitem(globals(), "ours", lambda value: isinstance(bare(value), types.FunctionType))  # these functions are not the house's
    pool = {views_a_buffer: bytearray(b"abcd"), views_an_array: np.ones(3)}.get(bare(function), torch.ones(2))
    faults = examine(Sample(function, lambda: call(copy.deepcopy(pool), [1.0, 2.0, 2.0, 2.0]))).faults
    for fault in (CHANGED, INSIDE, AGAIN):
        assert any(fault in line for line in faults) == (fault in found), faults


def test_a_public_function_without_a_sample_is_missed() -> None:
    module = types.ModuleType("room")
    module.rule, module.__all__ = verifiers["token"]._replace(tape=random.bits), ["rule"]  # type: ignore[attr-defined]
    names_missed = missing(public(module), [sample for sample in SAMPLES if sample.function is not random.bits])
    assert names_missed == ["specdec_fn.random:bits"]


VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.floats(width=32)).map(torch.tensor),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@hypothesis.given(VALUES, st.lists(st.floats(width=32), min_size=1), st.integers(0))
def test_a_picture_is_of_every_bit(value: Any, numbers: list[float], place: int) -> None:
    """A copy has the same picture; one bit flipped, however deep, gives another."""
    whole = {"a": [value, (torch.tensor(numbers), value)]}
    flipped = copy.deepcopy(whole)
    assert image(flipped) == image(whole)
    words = flipped["a"][1][0].view(torch.int32)
    words[place % len(numbers)] ^= 1
    assert image(flipped) != image(whole)
