"""The kernel of the rules that reject and repair: token and block verification of a ragged batch of chains, in one launch.

The laws are ``specdec_fn.speculate.verifiers.token`` and ``block``, decided in float64. A program takes one block of the vocabulary of one sequence:
it sums p and the residual max(w p - q, 0) over it, for every row that the rule may need, and stores the sums. The last program of a sequence to
arrive has the sums of all blocks: it decides how many tokens are kept, picks the block of the final token, and reads that block once more.

Token verification needs one row, which every program finds for itself from K numbers of p and q; block verification needs all.
"""

from types import MappingProxyType
from typing import no_type_check

import torch
import triton
import triton.language as tl

from specdec_kernels.arrival_triton import fetched, is_last
from specdec_kernels.draw_triton import pick_block, pick_lane, uniform
from specdec_kernels.variant import Variant

__all__ = ["variant", "variants"]

ROWS = 32  # rows of a pass at most: 31 drafted tokens
NAMES = MappingProxyType({torch.float32: "fp32", torch.float64: "fp64"})
BLOCK = 1024  # tokens
FEW, MANY = 8, 512  # blocks of a vocabulary at most


@triton.jit
@no_type_check
def _laws(target, probs, row, drafted, token, weight, at, vocab, RULE: tl.constexpr, SOFT: tl.constexpr):
    """p of row ``row[0]`` and the unnormalised residual against q of row ``row[1]``, at some tokens, in float64; 0 past the vocabulary."""
    here = at < vocab
    p = tl.load(target + row[0] * vocab + at, mask=here, other=0.0).to(tl.float64)
    if SOFT:
        q = tl.load(probs + row[1] * vocab + at, mask=here & drafted, other=0.0).to(tl.float64)
        rest = weight * p - q
    elif RULE == "token":
        rest = tl.where(at == token, 0.0, p)
    else:
        rest = weight * p - tl.where(at == token, 1.0, 0.0)
    return p, tl.where(rest < 0, 0.0, rest)  # NaN stays


@triton.jit(do_not_specialize=["k", "vocab", "blocks"])
@no_type_check
def _kernel(
    out_tokens,
    out_accepted,
    target,
    tokens,
    probs,
    length,
    accept,
    final,
    partial,
    counter,
    k,
    vocab,
    blocks,
    RULE: tl.constexpr,
    SOFT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (blocks, batch); partial: float64 [batch, blocks, k + 1, 2], sums of p and of the residual; counter: int32 [batch], zeros."""
    part = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    rows = k + 1
    lanes = tl.arange(0, ROWS)
    count = tl.minimum(tl.maximum(tl.load(length + sequence), 0), k).to(tl.int32)
    drafted = lanes < count
    token = tl.load(tokens + sequence * k + lanes, mask=drafted, other=-1)
    known = drafted & (token >= 0) & (token < vocab)
    p_at = tl.load(target + (sequence * rows + lanes) * vocab + token, mask=known, other=0.0).to(tl.float64)
    q_at = tl.where(drafted, 1.0, 0.0).to(tl.float64)
    if SOFT:
        q_at = tl.load(probs + (sequence * k + lanes) * vocab + token, mask=known, other=0.0).to(tl.float64)
    u = uniform(tl.load(accept + sequence * k + lanes, mask=lanes < k, other=0))

    weights = tl.full((ROWS,), 1.0, tl.float64)
    first = 0
    last = count
    if RULE == "token":
        kept = tl.min(tl.where(drafted & (u * q_at < p_at), ROWS, lanes), 0)
        first = kept
        last = kept
    else:
        weight = tl.full((), 1.0, tl.float64)
        for i in range(count):
            reached = weight * tl.sum(tl.where(lanes == i, p_at, 0.0), 0)
            q_here = tl.sum(tl.where(lanes == i, q_at, 0.0), 0)
            below = reached < q_here
            weight = tl.where(below, reached / tl.where(below, q_here, 1.0), tl.where(reached > 0, 1.0, 0.0))
            weights = tl.where(lanes == i + 1, weight, weights)

    at = part.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mine = partial + (sequence * blocks + part) * rows * 2
    for i in range(first, last + 1):
        token_i = tl.load(tokens + sequence * k + i, mask=i < count, other=-1)
        weight_i = tl.full((), 1.0, tl.float64)
        if RULE == "block":
            weight_i = tl.sum(tl.where(lanes == i, weights, 0.0), 0)
        p, rest = _laws(target, probs, (sequence * rows + i, sequence * k + i), i < count, token_i, weight_i, at, vocab, RULE, SOFT)
        tl.store(mine + 2 * i, tl.sum(p, 0))
        tl.store(mine + 2 * i + 1, tl.sum(rest, 0))

    if is_last(counter + sequence, blocks):
        parts = tl.arange(0, BLOCKS)
        sums = partial + sequence * blocks * rows * 2
        if RULE == "block":
            whole = tl.full((ROWS,), 1.0, tl.float64)
            excess = tl.full((ROWS,), 0.0, tl.float64)
            for i in range(count):
                stored = sums + (parts * rows + i) * 2
                whole = tl.where(lanes == i, tl.sum(fetched(stored, parts < blocks, 0.0), 0), whole)
                excess = tl.where(lanes == i, tl.sum(fetched(stored + 1, parts < blocks, 0.0), 0), excess)
            # Behind a row that is no law nothing can be judged: the draft ends there.
            count = tl.min(tl.where(drafted & ~(whole > 0), lanes, count), 0)
            room = excess + 1 - weights
            inner = tl.where(room > 0, excess / tl.where(room > 0, room, 1.0), 1.0)
            # Lane i holds h_i; its uniform is number i - 1.
            chance = tl.where(lanes == count, weights, inner)
            bar = uniform(tl.load(accept + sequence * k + lanes - 1, mask=(lanes >= 1) & (lanes <= count), other=0))
            kept = tl.max(tl.where((lanes >= 1) & (lanes <= count) & (bar < chance), lanes, 0), 0)
        weight_k = tl.full((), 1.0, tl.float64)
        if RULE == "block":
            weight_k = tl.sum(tl.where(lanes == kept, weights, 0.0), 0)
        token_k = tl.load(tokens + sequence * k + kept, mask=kept < count, other=-1)
        ours = fetched(sums + (parts * rows + kept) * 2, parts < blocks, 0.0)
        repair = fetched(sums + (parts * rows + kept) * 2 + 1, parts < blocks, 0.0)
        rejected = (kept < count) & (tl.sum(repair, 0) > 0)  # a residual of 0 is rounding, and p then stands in for it
        block, level, drawn = pick_block(tl.where(rejected, repair, ours), uniform(tl.load(final + sequence)), BLOCKS)
        at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        p, rest = _laws(target, probs, (sequence * rows + kept, sequence * k + kept), kept < count, token_k, weight_k, at, vocab, RULE, SOFT)
        lane = pick_lane(tl.where(rejected, rest, p), level, BLOCK)
        chosen = tl.where(drawn, block.to(tl.int64) * BLOCK + lane, -1)
        emitted = tl.where(lanes < kept, token, tl.where(lanes == kept, chosen, -1))
        tl.store(out_tokens + sequence * rows + lanes, emitted, mask=lanes < rows)
        tl.store(out_accepted + sequence, kept.to(tl.int64))


def variant(rule: str, dtype: torch.dtype, vocab: int, *, soft: bool) -> Variant:
    """The kernel for a rule, the dtype of the laws, whether the draft has laws, and a vocabulary: only whether it is a large one matters.

    Args:
        rule: "token" or "block".
        dtype: float32 or float64.
        vocab: at most 524,288.

    >>> variant("token", torch.float32, 151_936, soft=True).constants["BLOCKS"]
    512
    """
    blocks = FEW if vocab <= BLOCK * FEW else MANY
    name = NAMES[dtype]
    pointers = {"out_tokens": "*i64", "out_accepted": "*i64", "target": f"*{name}", "tokens": "*i64", "probs": f"*{name}", "length": "*i64"}
    words = {"accept": "*i64", "final": "*i64", "partial": "*fp64", "counter": "*i32"}
    constants = {"RULE": rule, "SOFT": soft, "ROWS": ROWS, "BLOCKS": blocks, "BLOCK": BLOCK}
    signature = {**pointers, **words, **dict.fromkeys(("k", "vocab", "blocks"), "i32"), **dict.fromkeys(constants, "constexpr")}
    label = f"verify {rule}, {name}, {'soft' if soft else 'one-hot'}, up to {blocks} blocks"
    return Variant(label, _kernel, MappingProxyType(signature), MappingProxyType(constants), warps=4, stages=1)


def variants() -> tuple[Variant, ...]:
    """Every variant that a launch can ask for.

    >>> len(variants())
    16
    """
    vocabularies = (BLOCK * FEW, BLOCK * MANY)
    return tuple(
        variant(rule, dtype, vocab, soft=soft) for rule in ("token", "block") for dtype in NAMES for vocab in vocabularies for soft in (True, False)
    )
