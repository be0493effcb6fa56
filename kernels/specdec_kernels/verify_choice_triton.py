"""The kernel of the rules whose token at every row is fixed before the draft is looked at: coupled and greedy, for a ragged batch, in one launch.

The laws are ``specdec_fn.speculate.verifiers.coupled`` and ``greedy``, decided in float64. A program takes one block of the vocabulary of one
sequence, finds the best of it for every row (the largest p / E, or the largest p) and stores it; the last program of a sequence to arrive has the
best of all blocks, lowest id first, and follows the draft while it agrees.

The noise E is read, or made where it is used, so that it passes through no memory: the words of ``specdec_fn.speculate.race.noise``, which are
threefry at (token) under the key folded with RACE and with position + row. ``-log1p(-u)`` is then within a few units of the last place of the
reference's, which another token wins with a probability of about 1e-15.
"""

from types import MappingProxyType
from typing import no_type_check

import torch
import triton
import triton.language as tl

from specdec_kernels.arrival_triton import fetched, is_last
from specdec_kernels.threefry_triton import rounds
from specdec_kernels.variant import Variant

__all__ = ["variant", "variants"]

ROWS = 32  # rows of a pass at most: 31 drafted tokens
NAMES = MappingProxyType({torch.float32: "fp32", torch.float64: "fp64"})
BLOCK = 1024  # tokens
FEW, MANY = 8, 512  # blocks of a vocabulary at most
RACE = tl.constexpr(3)  # as in specdec_fn.speculate.tape


@triton.jit
@no_type_check
def _race_keys(keys, sequence, positions):
    """The keys of the races for some positions: the request's key, folded with RACE and with each position."""
    zero = tl.zeros_like(positions).to(tl.uint32)
    key0 = tl.load(keys + sequence * 2 + tl.zeros_like(positions)).to(tl.uint32)
    key1 = tl.load(keys + sequence * 2 + 1 + tl.zeros_like(positions)).to(tl.uint32)
    key0, key1 = rounds(key0, key1, zero, zero + tl.full((), RACE, tl.uint32))
    return rounds(key0, key1, zero, positions.to(tl.uint32))


@triton.jit
@no_type_check
def _exponential(high, low):
    """-log1p(-u) with u = (k + 1/2) 2**-64, k of two 32-bit words; log1p x = log(1 + x) x / ((1 + x) - 1), right near 0 too."""
    u = high.to(tl.float64) * 2.3283064365386963e-10 + (low.to(tl.float64) + 0.5) * 5.421010862427522e-20
    near = 1.0 - u
    lost = 1.0 - near
    return tl.where(lost == 0, u, -tl.log(near) * (u / tl.where(lost == 0, 1.0, lost)))


@triton.jit
@no_type_check
def _best(speeds, places, vocab):
    """The largest of some numbers, of at least -1, and the lowest place among its equals; NaN where one is NaN."""
    wrong = tl.max((speeds != speeds).to(tl.int32), 0) > 0
    most = tl.max(tl.where(speeds == speeds, speeds, -1.0), 0)
    return tl.where(wrong, float("nan"), most), tl.min(tl.where(speeds == most, places, vocab), 0)


@triton.jit(do_not_specialize=["k", "vocab", "blocks"])
@no_type_check
def _kernel(
    out_tokens,
    out_accepted,
    target,
    tokens,
    length,
    noise,
    keys,
    position,
    partial,
    places,
    counter,
    k,
    vocab,
    blocks,
    RULE: tl.constexpr,
    KEYED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (blocks, batch); partial, places: float64 and int32 [batch, blocks, k + 1], the best and its token; counter: int32 [batch], zeros."""
    part = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    rows = k + 1
    lanes = tl.arange(0, ROWS)
    count = tl.minimum(tl.maximum(tl.load(length + sequence), 0), k).to(tl.int32)
    at = part * BLOCK + tl.arange(0, BLOCK)
    here = at < vocab
    mine = (sequence * blocks + part) * rows
    if KEYED:
        keys0, keys1 = _race_keys(keys, sequence, tl.load(position + sequence) + lanes)
    for i in range(count + 1):
        row = (sequence * rows + i) * vocab
        p = tl.load(target + row + at, mask=here, other=0.0).to(tl.float64)
        speed = p
        if RULE == "coupled":
            if KEYED:
                key0 = tl.sum(tl.where(lanes == i, keys0, 0), 0)
                key1 = tl.sum(tl.where(lanes == i, keys1, 0), 0)
                high, low = rounds(key0, key1, tl.zeros((BLOCK,), tl.uint32), at.to(tl.uint32))
                time = _exponential(high, low)
            else:
                time = tl.load(noise + row + at, mask=here, other=1.0)
            speed = tl.where(p > 0, p / time, -1.0)
        most, place = _best(tl.where(here, speed, -1.0), at, vocab)
        tl.store(partial + mine + i, most)
        tl.store(places + mine + i, place)

    if is_last(counter + sequence, blocks):
        parts = tl.arange(0, BLOCKS)
        choice = tl.full((ROWS,), -1, tl.int64)
        for i in range(count + 1):
            stored = (sequence * blocks + parts) * rows + i
            speeds = fetched(partial + stored, parts < blocks, -1.0)
            most, place = _best(speeds, fetched(places + stored, parts < blocks, vocab), vocab)
            # Greedy takes the argmax of p where it is positive; a race may be won at speed 0, where p / E underflows.
            place = tl.where(most > 0, place, -1) if RULE == "greedy" else tl.where(most >= 0, place, -1)
            choice = tl.where(lanes == i, place.to(tl.int64), choice)
        token = tl.load(tokens + sequence * k + lanes, mask=lanes < count, other=-1)
        kept = tl.min(tl.where((lanes < count) & (token == choice) & (choice >= 0), ROWS, lanes), 0)
        emitted = tl.where(lanes < kept, token, tl.where(lanes == kept, choice, -1))
        tl.store(out_tokens + sequence * rows + lanes, emitted, mask=lanes < rows)
        tl.store(out_accepted + sequence, kept.to(tl.int64))


def variant(rule: str, dtype: torch.dtype, vocab: int, *, keyed: bool = False) -> Variant:
    """The kernel for a rule, the dtype of the laws, whether it makes its noise from keys, and a vocabulary: only whether it is a large one matters.

    Args:
        rule: "coupled" or "greedy".
        dtype: float32 or float64.
        vocab: at most 524,288.

    >>> variant("greedy", torch.float32, 1000).constants["BLOCKS"]
    8
    """
    blocks = FEW if vocab <= BLOCK * FEW else MANY
    name = NAMES[dtype]
    pointers = {"out_tokens": "*i64", "out_accepted": "*i64", "target": f"*{name}", "tokens": "*i64", "length": "*i64", "noise": "*fp64"}
    words = {"keys": "*i64", "position": "*i64", "partial": "*fp64", "places": "*i32", "counter": "*i32"}
    constants = {"RULE": rule, "KEYED": keyed, "ROWS": ROWS, "BLOCKS": blocks, "BLOCK": BLOCK}
    signature = {**pointers, **words, **dict.fromkeys(("k", "vocab", "blocks"), "i32"), **dict.fromkeys(constants, "constexpr")}
    label = f"verify {rule}, {name}, {'keyed, ' if keyed else ''}up to {blocks} blocks"
    return Variant(label, _kernel, MappingProxyType(signature), MappingProxyType(constants), warps=8, stages=1)


def variants() -> tuple[Variant, ...]:
    """Every variant that a launch can ask for.

    >>> len(variants())
    12
    """
    kinds = (("coupled", True), ("coupled", False), ("greedy", False))
    vocabularies = (BLOCK * FEW, BLOCK * MANY)
    return tuple(variant(rule, dtype, vocab, keyed=keyed) for rule, keyed in kinds for dtype in NAMES for vocab in vocabularies)
