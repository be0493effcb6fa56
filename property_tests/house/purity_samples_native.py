"""Sample arguments for the C library's rooms: packed weights, products, attention, whole passes, and what a model lays out for them."""

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from specdec_fn import random
from specdec_fn.kv import dense, paged, store
from specdec_fn.kv.by_rows import by_rows
from specdec_fn.models import Model, importance, llama, rowwise, toy
from specdec_fn.models.native import Laid, Native
from specdec_fn.models.product import product
from specdec_fn.models.rope import frequencies, rotate, rotation
from specdec_fn.models.rowwise import Rowwise, Unit
from specdec_fn.weights import gguf, quantize
from specdec_kernels import native, row_attention, step
from specdec_kernels import packed as packing
from specdec_kernels.dispatch import untraced
from specdec_kernels.packed import Packed
from specdec_kernels.race_uniform import race_uniform
from specdec_kernels.rows import rounded, rows
from specdec_kernels.rows_native import fits, rows_native
from specdec_kernels.whole_pass import whole_pass

from .purity_samples import Call, Sample, call, gguf_file, ids, table

KINDS = ("int8", "q8_0", "q4_0", "q4_1")


def samples() -> Iterator[Sample]:
    assert native.wait(), native.status()
    yield from library()
    yield from packed_rooms()
    yield from products()
    yield from attention()
    yield from steps()
    yield from passes()


def library() -> Iterator[Sample]:
    for name in ("begin", "ready", "library", "wait", "status", "build"):
        yield Sample(getattr(native, name), call)
    yield Sample(native.loaded, call)
    yield Sample(native.build, lambda: call(target="vax"), ValueError)
    yield Sample(untraced, lambda: call(table(2)))
    for impl in ("torch", "native"):
        yield Sample(race_uniform, lambda impl=impl: call(ids(1, 2, 3, 4).reshape(2, 2), 5, impl=impl))


def small(kind: str, **more: Any) -> Packed:
    return packing.packed(table(3, 64), kind, **more)


def packed_rooms() -> Iterator[Sample]:
    for kind in KINDS:
        yield Sample(packing.packed, lambda kind=kind: call(table(3, 64), kind))
        yield Sample(packing.unpacked, lambda kind=kind: call(small(kind)))
        yield Sample(packing.taken, lambda kind=kind: call(small(kind), ids(2, 0)))
        yield Sample(packing.joined, lambda kind=kind: call([small(kind), small(kind)], torch.float32))
        yield Sample(packing.joined, lambda kind=kind: call([small(kind), table(2, 64)], torch.float32))
        yield Sample(Packed.shape.fget, lambda kind=kind: call(small(kind)))  # type: ignore[attr-defined]
        for way in ("float32", "int8"):
            yield Sample(rounded, lambda kind=kind, way=way: call(table(2, 64), small(kind, activations=way)))
    yield Sample(packing.packed, lambda: call(table(3, 33), "q4_0"), ValueError)
    yield Sample(quantize.checked_kind, lambda: call("file"))
    block = bytes(range(18)) * 2
    yield Sample(quantize.from_blocks, lambda: call(bytearray(block), gguf.Entry("Q4_0", (2, 32), 0, 36)))
    yield Sample(quantize.from_blocks, lambda: call(bytearray(block), gguf.Entry("Q4_0", (2, 32), 0, 36), interleaved=1))
    yield Sample(quantize.from_blocks, lambda: call(gguf_file(), gguf.parse(gguf_file()).entries["weight"]))
    yield Sample(gguf.raw, lambda: call(bytearray(block), gguf.Entry("Q4_0", (2, 32), 0, 36), 1))


def products() -> Iterator[Sample]:
    for kind in KINDS:
        for impl in ("torch", "native"):
            yield Sample(rows, lambda kind=kind, impl=impl: call(table(2, 64), small(kind), impl=impl))
        yield Sample(fits, lambda kind=kind: call(table(2, 64), small(kind)))
        yield Sample(rows_native, lambda kind=kind: call(table(2, 64), small(kind)))
        yield Sample(step.matrix, lambda kind=kind: call(small(kind)))
    for dtype in (torch.float32, torch.bfloat16):
        yield Sample(rows_native, lambda dtype=dtype: call(table(2, 40).to(dtype), table(3, 40).to(dtype)))
        yield Sample(step.matrix, lambda dtype=dtype: call(table(3, 40).to(dtype)))
    yield Sample(step.run, lambda: call(step.Step(threads=1), None))


def heads(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return table(count, 4, 16), table(count, 2, 16) + 1, table(count, 2, 16) - 1


def attention() -> Iterator[Sample]:
    yield Sample(row_attention.seen_up_to, lambda: call(3, 2))
    yield Sample(row_attention.fits, lambda: call(*heads(2)[:2], table(8, 2, 16)))
    yield Sample(row_attention.planned, lambda: call((table(8, 2, 8),), (table(8, 2, 8),), torch.float32, row_attention.seen_up_to(3, 2)))
    yield Sample(
        row_attention.attend,
        lambda: call(*heads(2), table(8, 2, 16), table(8, 2, 16), row_attention.seen_up_to(3, 2)),
        donated=("keys", "values"),
    )
    spans = [paged.Span([6, 7], 2), paged.Span([2], 1, torch.ones(1, 1, dtype=torch.bool))]
    build = functools.partial(by_rows, spans, paged_pure)
    yield Sample(by_rows, lambda: call(list(spans), paged_pure))
    yield Sample(build(), lambda: call(pool(), 0, *heads(3)))
    yield Sample(build().planned, lambda: call(pool(8), 3, torch.float32, False))  # type: ignore[attr-defined]


def paged_pure() -> dense.Attend:
    return paged.attend_pure([paged.Span([6, 7], 2), paged.Span([2], 1)])


def pool(size: int = 16) -> store.Store:
    made = store.init(SimpleNamespace(layers=1, kv_heads=2, head_dim=size), 4, 2, dtype=torch.float32)
    made.keys.copy_(table(*made.keys.shape)), made.values.copy_(table(*made.values.shape))
    return made


def steps() -> Iterator[Sample]:
    unit = Unit(torch.tensor(0.0), torch.tensor(0.01), 2.0)
    yield Sample(rowwise.norm, lambda: call(table(3, 4), table(4), unit))
    yield Sample(rowwise.gate, lambda: call(table(3, 4)))
    yield Sample(rowwise.each, lambda: call(rowwise.gate))
    yield Sample(rowwise.each(rowwise.gate), lambda: call(table(3, 4)))
    yield Sample(rowwise.embedded, lambda: call(table(5, 4), ids(3, 0)))
    yield Sample(rowwise.embedded, lambda: call(small("q4_0"), ids(2, 0)))
    config, params = model().config, model().params
    do = Rowwise(product, rowwise.norm, rotate, rowwise.gate, rotation)
    units = tuple(Unit(torch.tensor(0.0), torch.tensor(0.01), size**0.5) for size in (32, 16))
    sizes = (*units, frequencies(config.rope, 16), 1.0, torch.float32)
    yield Sample(rowwise.of_steps, lambda: call(config, do, *sizes))
    made = rowwise.of_steps(config, do, *sizes)
    turn = made.turn(ids(0, 1))
    yield Sample(llama.stepwise, lambda: call(config, model().params, do))
    yield Sample(importance.importance, lambda: call(model(), [1, 2, 3]))
    yield Sample(importance.spread, lambda: call(10, 4))
    yield Sample(made.turn, lambda: call(ids(0, 1)))
    yield Sample(made.begin, lambda: call(table(2, 32), params.layers[0], turn))
    yield Sample(made.between, lambda: call(table(2, 32), table(2, 2, 16), params.layers[0], params.layers[1], turn))
    yield Sample(made.head, lambda: call(table(2, 32), params))


def model() -> Model:
    return toy.llama(random.key(2), vocab_size=8, layers=2, width=32, heads=2, head_dim=16, ffn=32, dtype=torch.float32)


def cache() -> dense.DenseCache:
    return dense.init(model().config, 6, dtype=torch.float32)


def passes() -> Iterator[Sample]:
    made = model()
    form = Native(made.config, frequencies(made.config.rope, 16), 1.0, Laid(made.config, made.params))
    yield Sample(Laid.__reduce__, lambda: call(form.laid))
    yield Sample(Laid.of, lambda: call(form.laid, made.params))
    yield Sample(Laid.functions, lambda: call(form.laid, form))
    calls, layers = form.laid.functions(form), made.params.layers
    turn = calls.turn(ids(0, 1))
    yield Sample(calls.begin, lambda: call(table(2, 32), layers[0], turn))
    for following in (layers[1], None):
        yield Sample(calls.between, lambda following=following: call(table(2, 32), table(2, 2, 16), layers[0], following, turn))
    yield Sample(calls.head, lambda: call(table(2, 32), made.params))
    yield Sample(Native.turned, lambda: call(form, ids(0, 1)))
    yield Sample(Native.between, lambda: call(form, made.params, table(2, 32)))
    for more in ({}, {"wanted": ids(1)}, {"keys_only": True}):
        yield Sample(
            Native.whole,
            lambda more=more: call(form, made.params, ids(1, 2), ids(0, 1), cache(), dense.attend, **more),
            donated=("kv",),
        )
    held: list[Any] = []

    def planned() -> Call:
        given = cache()
        held.append(given)  # a plan holds addresses
        plan = row_attention.planned(given.keys, given.values, torch.float32, row_attention.seen_up_to(0, 2))
        laid = form.laid
        return call(laid.steps, plan, laid.embedding, ids(1, 2), form.turned(ids(0, 1)), vocab=8, wanted=None, keys_only=False)

    yield Sample(whole_pass, planned)
