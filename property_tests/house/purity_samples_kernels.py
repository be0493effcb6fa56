"""Sample arguments for the public functions of the kernels, of what decides between them and their references, and of captured steps.

Kernels are interpreted here, so the tensors are small: a program costs about a millisecond.
"""

import functools
import importlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from specdec_fn import random
from specdec_fn.engine import EngineState, Request, capture, decode, packing, running
from specdec_fn.engine.identity import identity
from specdec_fn.engine.propose import Proposal, proposed
from specdec_fn.engine.step import planned
from specdec_fn.kv import store
from specdec_fn.kv.layout import Layout, attend, layout
from specdec_fn.kv.table import Table
from specdec_fn.models import Model, fused
from specdec_fn.models.model import parameter
from specdec_fn.sampling import SamplingParams
from specdec_fn.sampling import rows as sampling_rows
from specdec_fn.speculate import Draft, Race, ragged, tree, verifiers
from specdec_kernels import (
    ahead,
    ahead_measure,
    ahead_table,
    arrival_triton,
    dispatch,
    draw_triton,
    gate_triton,
    laws_triton,
    paged_attention_triton,
    paged_write_triton,
    rms_norm_triton,
    rope_triton,
    rows_triton,
    sample_triton,
    threefry_triton,
    verify_choice_triton,
    verify_draw_triton,
    verify_triton,
)
from specdec_kernels.gate import gate
from specdec_kernels.paged_attention import paged_attention
from specdec_kernels.paged_write import copy_pages, paged_write, readable
from specdec_kernels.rms_norm import rms_norm
from specdec_kernels.rope import rope
from specdec_kernels.rows import rows
from specdec_kernels.threefry import threefry2x32
from specdec_kernels.variant import Variant

from .purity_samples import Call, Sample, bigram, call, chain_of, ids, laws, sizes, table
from .purity_samples_engine import engine, four_words, kinds

# A name of a package may be a function in place of the room.
graphs = importlib.import_module("specdec_fn.engine.graphs")

IMPLS = ("torch", "triton")
POOLS = ("key_pages", "value_pages")


def samples() -> Iterator[Sample]:
    return itertools.chain(
        page_kernels(),
        attention_kernels(),
        pointwise_kernels(),
        sampling_kernels(),
        verify_kernels(),
        gate_of_builds(),
        layouts(),
        decoding(),
        captures(),
    )


# Pages


def pools(pages: int = 4) -> list[Tensor]:
    """Pages of two slots, one head of sixteen numbers."""
    return [table(pages, 2, 1, 16), table(pages, 2, 1, 16) + 1]


def page_kernels() -> Iterator[Sample]:
    pair = lambda count: (table(count, 1, 16), table(count, 1, 16) - 1)  # noqa: E731
    for impl in IMPLS:
        for slots in ((5, -1, 0), (-1, -1, -1)):
            yield Sample(paged_write, lambda impl=impl, slots=slots: call(*pools(), *pair(3), ids(*slots), impl=impl), donated=POOLS)
        yield Sample(copy_pages, lambda impl=impl: call(*pools(), ids(0, 0), ids(1), layers=2, impl=impl), ValueError, donated=POOLS)
        yield Sample(copy_pages, lambda impl=impl: call(*pools(), ids(0), ids(1), layers=2, impl=impl), donated=POOLS)
    yield Sample(paged_write, lambda: call(*pools(), *pair(2), ids(3, 3)), ValueError, donated=POOLS)
    yield Sample(paged_write_triton.paged_write_triton, lambda: call(*pools(), *pair(3), ids(5, -1, 0)), donated=POOLS)
    yield Sample(paged_write_triton.copy_pages_triton, lambda: call(*pools(), ids(0), ids(1), 2), donated=POOLS)
    yield Sample(readable, lambda: call(table(2), ids(1)))
    for pages in (False, True):
        yield Sample(paged_write_triton.variant, lambda pages=pages: call(2, 24, pages=pages))
    yield Sample(paged_write_triton.variants, call)


# Attention: two sequences of five and two positions, with two query rows and one, and a row of padding


def asked() -> tuple[Tensor, ...]:
    return table(4, 2, 16), *pools(), torch.tensor([[2, 0, 3], [1, -1, -1]]), ids(0, 2, 3), ids(5, 2)


def launched(*, masked: bool, invariant: bool) -> Call:
    query, keys, values, *numbers = asked()
    pages, starts, contexts = (some.to(torch.int32) for some in numbers)
    mask = torch.ones(4, 2, dtype=torch.uint8) if masked else None
    places = (pages, starts, starts.diff(), contexts)
    return call(torch.full_like(query, torch.nan), query, keys, values, *places, mask=mask, scale=0.25, invariant=invariant)


def attention_kernels() -> Iterator[Sample]:
    for invariant in (False, True):
        for impl in IMPLS:
            given = functools.partial(lambda **more: call(*asked(), **more), impl=impl, invariant=invariant)
            yield Sample(paged_attention, given)
            yield Sample(paged_attention, lambda given=given: given(mask=table(4, 2) > 0, scale=0.5))
            yield Sample(paged_attention, lambda given=given: given(query_count=ids(1, 1), trusted=True))
        yield Sample(
            paged_attention_triton.paged_attention_triton,
            lambda invariant=invariant: call(*asked(), mask=table(4, 2) > 0, scale=0.5, invariant=invariant),
        )
        for masked in (False, True):
            make = functools.partial(launched, masked=masked, invariant=invariant)
            yield Sample(paged_attention_triton.launch, make, donated=("out",))
        sizes = (torch.bfloat16, 4, 2, 8, 2, 80, 4096)
        yield Sample(paged_attention_triton.plan, lambda sizes=sizes, invariant=invariant: call(*sizes, masked=True, invariant=invariant))
    yield Sample(paged_attention, lambda: call(*asked()[:5], ids(1, 2)), ValueError)
    yield Sample(paged_attention_triton.variant, lambda: call(torch.float16, 128, 16, True))
    yield Sample(paged_attention_triton.joining, lambda: call(torch.float16, 128))
    yield Sample(paged_attention_triton.variants, call)


# Products, norms, positions, gates, bits


def pointwise_kernels() -> Iterator[Sample]:
    for impl in IMPLS:
        for dtype in (torch.float32, torch.bfloat16):
            made = functools.partial(lambda dtype, *shape: table(*shape).to(dtype), dtype)
            yield Sample(rows, lambda made=made, impl=impl: call(made(3, 16), made(5, 16), impl=impl))
            for more in ({}, {"residual": made(2, 6)}):
                yield Sample(rms_norm, lambda made=made, impl=impl, more=more: call(made(2, 6), made(6), 1e-5, impl=impl, **more))
            for heads in (0, 2):
                yield Sample(
                    rope, lambda made=made, impl=impl, heads=heads: call(made(2, 3, 4), table(2, 2), table(2, 2) - 1, heads=heads, impl=impl)
                )
            yield Sample(gate, lambda made=made, impl=impl: call(made(2, 6), impl=impl))
        yield Sample(threefry2x32, lambda impl=impl: call(ids(1, 2), ids(3), ids(5, 6), ids(7, 8), impl=impl))
    yield Sample(rows, lambda: call(table(3, 16), table(5, 4)), ValueError)
    yield Sample(rms_norm, lambda: call(table(2, 6), table(5), 1e-5), ValueError)
    yield Sample(rope, lambda: call(table(2, 3, 4), table(2, 2), table(2, 2), heads=4), ValueError)
    yield Sample(gate, lambda: call(table(2, 5)), ValueError)
    yield Sample(fused.steps, lambda: call(sizes("llama")))
    for impl in IMPLS:
        steps = fused.steps(sizes("llama"), impl=impl)
        yield Sample(steps.norm, lambda: call(table(2, 3, 4), table(4), None))
        yield Sample(steps.rotate, lambda: call(table(2, 4, 4), table(2, 2), table(2, 2) - 1))
        yield Sample(steps.gate, lambda: call(table(2, 6)))
        yield Sample(steps.rotation, lambda: call(ids(0, 3), table(2).double(), 1.5, torch.float32, None))
    yield Sample(rows_triton.rows_triton, lambda: call(table(3, 16), table(5, 16)))
    for residual in (None, table(2, 6)):
        yield Sample(rms_norm_triton.rms_norm_triton, lambda residual=residual: call(table(2, 6), table(6), 1e-5, residual))
    yield Sample(rope_triton.rope_triton, lambda: call(table(2, 3, 4), table(2, 2), table(2, 2) - 1, 2))
    yield Sample(gate_triton.gate_triton, lambda: call(table(2, 6)))
    yield Sample(threefry_triton.threefry2x32, lambda: call(ids(1, 2), ids(3), ids(5, 6), ids(7, 8)))
    yield Sample(threefry_triton.threefry2x32, lambda: call(ids(1, 2), ids(3), ids(5, 6), table(2)), TypeError)
    yield Sample(rows_triton.variant, lambda: call(torch.float32, 577))
    yield Sample(rms_norm_triton.variant, lambda: call(torch.float16, 4096, True))
    yield Sample(rope_triton.variant, lambda: call(torch.float16, torch.float32, 80))
    yield Sample(gate_triton.variant, lambda: call(torch.bfloat16, 96))
    rooms = (rows_triton, rms_norm_triton, rope_triton, gate_triton, threefry_triton, arrival_triton, draw_triton, laws_triton, sample_triton)
    for room in rooms:
        yield Sample(room.variants, call)


# Laws and tokens


def controls() -> tuple[Tensor, ...]:
    """Of three rows: everything at once, greedy, plain."""
    return torch.tensor([0.7, 0.0, 1.0]), ids(3, 0, 0), torch.tensor([0.9, 1.0, 1.0]), torch.tensor([0.01, 0.0, 0.0])


def sampling_kernels() -> Iterator[Sample]:
    words = lambda: ids(2**62, -1, 12345)  # noqa: E731
    for logits in (table(3, 5), table(3, 5).bfloat16(), torch.full((3, 5), torch.nan)):
        yield Sample(sampling_rows.laws, lambda logits=logits: call(logits.clone(), *controls()))
        yield Sample(sampling_rows.sample, lambda logits=logits: call(logits.clone(), *controls(), words()))
        yield Sample(laws_triton.laws, lambda logits=logits: call(logits.clone(), *controls(), block=4))
        yield Sample(sample_triton.sample, lambda logits=logits: call(logits.clone(), *controls(), words(), block=4))
    yield Sample(sampling_rows.laws, lambda: call(table(3, 5), *controls(), impl="triton"))
    yield Sample(sampling_rows.sample, lambda: call(table(3, 5), *controls(), words(), impl="triton"))
    for function, more in ((sampling_rows.laws, ()), (sampling_rows.sample, (words(),)), (laws_triton.laws, ()), (sample_triton.sample, (words(),))):
        yield Sample(function, lambda more=more: call(table(2, 5), *controls(), *more), ValueError)
        yield Sample(function, lambda more=more: call(ids(1, 2, 3).view(3, 1), *controls(), *more), TypeError)


# Verification: two sequences with two drafted tokens at most


def drafts(*, soft: bool) -> Draft:
    return Draft(ids(1, 2, 3, -1).view(2, 2), laws(2, 2, 4) if soft else None, ids(2, 1))


def numbers(rule: str) -> tuple[Any, ...]:
    """Every kind of randomness that a rule takes, for these drafts."""
    keys, position = random.split(random.key(2), 2), ids(5, 7)
    if rule == "coupled":
        return ragged.races(keys, position), Race(table(2, 3, 4).double().abs() + 0.1)
    return (ragged.words(keys, 2, position),)


def verify_kernels() -> Iterator[Sample]:
    for rule in ("token", "block", "coupled", "greedy"):
        for soft in (False, True):
            for place in range(len(numbers(rule))):
                for impl in IMPLS if soft else IMPLS[:1]:
                    yield Sample(
                        ragged.decide_all,
                        lambda rule=rule, soft=soft, place=place, impl=impl: call(
                            verifiers[rule], numbers(rule)[place], laws(2, 3, 4), drafts(soft=soft), impl
                        ),
                    )
                yield Sample(verify_triton.verify, functools.partial(_verified, rule, place, soft=soft))
    branching = drafts(soft=False)._replace(parents=ids(-1, -1, -1, -1).view(2, 2))
    yield Sample(ragged.decide_all, lambda: call(verifiers["greedy"], numbers("greedy")[0], laws(2, 3, 4), branching))
    yield Sample(ragged.decide_all, lambda: call(verifiers["greedy"], numbers("greedy")[0], laws(2, 3, 4), branching, "triton"), ValueError)
    yield Sample(ragged.decide_all, lambda: call(verifiers["coupled"], numbers("token")[0], laws(2, 3, 4), drafts(soft=False)), TypeError)
    yield Sample(verify_triton.verify, lambda: call("typical", laws(2, 3, 4), ids(1, 2, 3, -1).view(2, 2), None, ids(2, 1)), ValueError)
    yield Sample(ragged.words, lambda: call(random.split(random.key(1), 2), 3, ids(5, 7)))
    yield Sample(ragged.races, lambda: call(random.split(random.key(1), 2), ids(5, 7)))
    yield Sample(ragged.tape, lambda: call(numbers("token")[0]))
    yield Sample(verify_choice_triton.variant, lambda: call("coupled", torch.float64, 50_000, keyed=True))
    yield Sample(verify_draw_triton.variant, lambda: call("block", torch.float32, 1000, soft=True))
    for room in (verify_choice_triton, verify_draw_triton):
        yield Sample(room.variants, call)


def _verified(rule: str, place: int, *, soft: bool) -> Call:
    given = drafts(soft=soft)
    named = {} if rule == "greedy" else numbers(rule)[place]._asdict()
    return call(rule, laws(2, 3, 4), given.tokens, given.probs, given.length, **named)


# Which implementation runs, and what is built


ROW = ahead_table.Row("add_triton", "add", "sm_80", 4, 2, 20, 0, 0, 512)


def gate_of_builds() -> Iterator[Sample]:
    for impl in ("auto", *IMPLS):
        yield Sample(dispatch.chosen, lambda impl=impl: call(impl, table(2), None, ids(1)))
    yield Sample(dispatch.chosen, lambda: call("cuda", table(2)), ValueError)
    yield Sample(dispatch.one_device, lambda: call(table(2), None, ids(1)))
    yield Sample(ahead.main, lambda: call(["--write", "--only", "threefry"]))  # which it refuses
    yield Sample(ahead_measure.rooms, lambda: call("specdec_kernels"))
    for package in ("specdec_kernels", "json"):
        yield Sample(ahead_measure.collected, lambda package=package: call(package))
    yield Sample(ahead_measure.measured, lambda: call("none_triton", Variant("none", None, {}, {}), "sm_75"), ValueError)
    yield Sample(ahead_measure.usage_of_cuda, lambda: call("Function k:\n  REG:168 STACK:64 SHARED:0 LOCAL:8 CONSTANT[0]:392"))
    yield Sample(ahead_measure.usage_of_cuda, lambda: call("no words"), ValueError)
    amd = ".vgpr_count: 40\n.vgpr_spill_count: 2\n.sgpr_spill_count: 1\n.private_segment_fixed_size: 16"
    yield Sample(ahead_measure.usage_of_amd, lambda: call(amd))
    yield Sample(ahead_measure.usage_of_amd, lambda: call("no words"), ValueError)
    for member in (ahead_table.Row.key.fget, ahead_table.Row.label.fget):
        yield Sample(member, lambda: call(ROW))
    yield Sample(ahead_table.text, lambda: call("3.7.1", [ROW]))
    yield Sample(ahead_table.parsed, lambda: call(ahead_table.text("3.7.1", [ROW])))
    yield Sample(ahead_table.parsed, lambda: call("{}"), ValueError)
    for before in (None, [], [ROW]):
        yield Sample(ahead_table.judged, lambda before=before: call([ROW._replace(registers=99, spilled=8)], before))
    yield Sample(ahead_table.shown, lambda: call([ROW]))


# Layouts and the step of tensors


def placed() -> Layout:
    """Two sequences in a bucket of three with two rows each."""
    return layout([Table((4, 2, 0), 3), Table((5,), 1)], [5, 2], page_size=2, sequences=3, rows=2, pages=3)


def layouts() -> Iterator[Sample]:
    bucket = {"page_size": 2, "sequences": 2, "rows": 2, "pages": 3}
    yield Sample(layout, lambda: call([Table((4, 2, 1), 3), Table((5,), 1)], [5, 2], **bucket))
    yield Sample(layout, lambda: call([], [], **bucket))
    yield Sample(layout, lambda: call([Table((4, 2), 1)], [4], **bucket), ValueError)
    yield Sample(Layout.rows.fget, lambda: call(placed()))
    for impl in IMPLS:
        yield Sample(attend, lambda impl=impl: call(placed(), page_size=2, impl=impl))
        made = lambda: (table(6, 2, 16), table(6, 1, 16), table(6, 1, 16) - 1)  # noqa: E731
        yield Sample(attend(placed(), page_size=2, impl=impl), lambda made=made: call(store.Store(*pools(12), 2, 6, 2), 1, *made()))


def batch(rule: str, *, soft: bool) -> decode.Batch:
    """Three sequences, the last a place that is not taken."""
    drafted = Draft(ids(1, 2, -1).view(3, 1), laws(3, 1, 4) if soft else None, ids(1, 1, 0))
    off, one = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    keys, position = random.split(random.key(2), 3), ids(4, 2, 1)
    drawn = ragged.races(keys, position) if rule == "coupled" else ragged.words(keys, 1, position)
    knobs = decode.Knobs(torch.tensor([0.7, 0.0, 1.0]).double(), ids(3, 0, 0), one, off)
    return decode.Batch(ids(0, 1, 3, 2, 0, 0).view(3, 2), ids(3, 4, 1, 2, 0, 0).view(3, 2), placed(), drafted, knobs, drawn)


def pool_of(model: Model) -> store.Store:
    return store.init(model.config, 6, 2, dtype=parameter(model).dtype)


def decoding() -> Iterator[Sample]:
    for rule, soft, impl in (("token", True, "torch"), ("coupled", False, "torch"), ("greedy", True, "torch"), ("block", True, "triton")):
        given = functools.partial(batch, rule, soft=soft)
        yield Sample(decode.decided, lambda rule=rule, given=given, impl=impl: call(verifiers[rule], table(6, 4), given(), impl=impl))
    for model in (bigram(), four_words()):
        yield Sample(decode.scored, lambda model=model: call(model, pool_of(model), batch("token", soft=False)))
        yield Sample(decode.decode, lambda model=model: call(model, verifiers["token"], pool_of(model), batch("token", soft=True)))


# Captured steps


MODEL = four_words()


def plain(rule: str = "token") -> list[Request]:
    """Requests that a captured step knows all of."""
    given = [1, 2, 3, 1, 2]
    settings = (SamplingParams(), SamplingParams(0.7, 3, 0.9, 0.01))
    return [Request(given[place:], 6, sampling=one, proposer="ngram", verifier=rule, k=2, seed=place) for place, one in enumerate(settings)]


def before_a_pass(*, requests: list[Request], steps: int = 3) -> tuple[EngineState, list[Proposal]]:
    return proposed(*planned(engine(MODEL, steps, requests)))


def eager(bucket: Any, *, whole: bool = True) -> Any:
    """The steps of a bucket without a capture."""
    rule = verifiers[bucket.verifier]
    if whole:
        return graphs.Graphs({bucket: lambda pool, given: decode.decode(MODEL, rule, pool, given)}, True, model=identity(MODEL))
    return graphs.Graphs({bucket: lambda logits, given: decode.decided(rule, logits, given)})


def captures() -> Iterator[Sample]:
    handed_on = capture.capture(lambda pair: {"pair": pair}, [table(2), ids(3)])
    yield Sample(capture.capture, lambda: call(lambda a, b: {"sum": a + b}, table(2), table(2)))
    yield Sample(capture.capture, lambda: call(lambda a: a, 3), ValueError)
    yield Sample(handed_on, lambda: call([table(2), ids(4)]))
    yield Sample(handed_on, lambda: call([table(3), ids(4)]), ValueError)
    yield Sample(capture.traced, lambda: call(lambda a: a + 1, table(2)))
    yield Sample(capture.traced, lambda: call(lambda a: a[a > 0], table(2)), ValueError)
    yield Sample(graphs.graphs, lambda: call(MODEL, engine(MODEL, 0, []), []))
    yield Sample(graphs.graphs, lambda: call(MODEL, engine(MODEL, 0, []), [graphs.Bucket(0, 1, 1)]), ValueError)
    for rule in ("token", "coupled"):
        wide = graphs.Bucket(3, 4, 8, rule)
        for steps in (3, 4):
            start = functools.partial(before_a_pass, requests=plain(rule), steps=steps)
            yield Sample(graphs.fitting, lambda start=start, wide=wide: call(eager(wide), *start()))
            yield Sample(packing.packed, lambda start=start, wide=wide: call(*start(), wide))
            for whole in (True, False):
                yield Sample(graphs.decoded, lambda start=start, wide=wide, whole=whole: call(MODEL, eager(wide, whole=whole), wide, *start()))
    yield Sample(packing.drafted_ids, lambda: call(before_a_pass(requests=plain())[1][0]))
    yield Sample(graphs.fitting, lambda: call(eager(graphs.Bucket(5, 4, 8)), *before_a_pass(requests=kinds(), steps=2)))
    yield Sample(packing.packed, lambda: call(engine(MODEL, 0, []), [], graphs.Bucket(2, 3, 2, "token", True)))
    start = running.Running(None, None, (4, 5), 2, 3, None, None, 9, (), None)
    for tried, emitted, last in (
        (chain_of(1, 2, k=2), [1, 2, 0], 1),
        (chain_of(1, 2, k=2), [1, 3], 0),
        (chain_of(1, 2, k=2), [1, -1], 0),
        (tree.merge([[1], [2]], 2), [2, 3], 1),
        (chain_of(k=0), [3], -1),
    ):
        yield Sample(running.settled, lambda tried=tried, emitted=emitted, last=last: call(start, tried, list(emitted), last, [-0.5] * len(emitted)))
