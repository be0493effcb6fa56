"""Temperature, top-k, top-p and min-p of one row inside a kernel, without sorting the vocabulary.

A row is one program, which reads its logits a few times. A float's bits, with the sign turned inside out, order as the float does, so the least
logit that a truncation keeps is an integer key, found by narrowing an interval of keys: a sweep measures what lies at or above 7 keys between
its ends (tokens for top-k, float64 mass for top-p) and keeps an eighth of it. Half types have few keys: 6 sweeps for bfloat16, 7 for float16, at
most 11 for float32; top-k stops early where a key splits off exactly k tokens. Tokens as probable as the last one that top-p keeps are then
counted off by id. Min-p is a comparison with the largest weight, which is 1. A control that is off costs no sweep.

Weights are ``exp((logit - max) / temperature)`` in float64, unnormalised: each truncation acts on sums of them, and the last divides. The division
by the temperature is a product with its inverse.
"""

from typing import no_type_check

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

__all__ = ["kept", "law_of", "scores"]

ARMS = tl.constexpr(7)  # keys a sweep measures
LOWEST = tl.constexpr(-(2**31))  # below every key
SLACK = tl.constexpr(1e-9)  # forgiven where a sum or a ratio that should be equal to its limit falls short by rounding
COLDEST = tl.constexpr(2.0**-200)  # colder is the same: any two float32 numbers differ by 2**-149, and the weight of the lesser is 0
LEAST = tl.constexpr(1e-30)  # a mass to reach that the largest weight, 1, reaches alone


@triton.jit
@no_type_check
def scores(row, ids, vocab):
    """Logits as float32, with -0 as 0 and -inf past the end of the row.

    >>> type(scores).__name__ in ("InterpretedFunction", "JITFunction")
    True
    """
    x = tl.load(row + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
    return tl.where(x == 0, 0.0, x)


@triton.jit
@no_type_check
def ordered(x, SHIFT: tl.constexpr):
    """Integers that order as the floats do; SHIFT drops the bits that the stored type never sets."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
@no_type_check
def restored(key, SHIFT: tl.constexpr):
    """The float of a key."""
    bits = (key << SHIFT) | tl.where(key < 0, (1 << SHIFT) - 1, 0)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def lowest_key(SHIFT: tl.constexpr):
    """The key of -inf."""
    return ordered(tl.full((), float("-inf"), tl.float32), SHIFT)


@triton.jit
@no_type_check
def weighed(x, top, inverse):
    return tl.exp((x.to(tl.float64) - top.to(tl.float64)) * inverse)


@triton.jit
@no_type_check
def summit(row, vocab, BLOCK: tl.constexpr):
    """The largest logit, +inf where one is NaN, and its lowest id."""
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    first = tl.full([BLOCK], 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = scores(row, ids, vocab)
        x = tl.where(x == x, x, float("inf"))
        first = tl.where(x > best, ids, first)
        best = tl.maximum(best, x)
    top = tl.max(best, 0)
    return top, tl.min(tl.where(best == top, first, vocab), 0)


@triton.jit
@no_type_check
def kth(row, vocab, count, top, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """A key at or above which lie the ``count`` best tokens and those that tie with the last of them; ``count`` is under vocab."""
    low, high = lowest_key(SHIFT).to(tl.int64), ordered(top, SHIFT).to(tl.int64) + 1
    reached = vocab
    # Where exactly the count is reached, a larger key that reaches it as well splits off the same tokens.
    while (high - low > 1) & (reached != count):
        step = (high - low + ARMS) // (ARMS + 1)
        keys, found = (), ()
        for arm in tl.static_range(ARMS):
            keys = keys + (tl.minimum(low + step * (arm + 1), high).to(tl.int32),)  # noqa: RUF005
            found = found + (tl.full([BLOCK], 0, tl.int32),)  # noqa: RUF005
        for start in range(0, vocab, BLOCK):
            here = ordered(scores(row, start + tl.arange(0, BLOCK), vocab), SHIFT)
            more = ()
            for arm in tl.static_range(ARMS):
                more = more + (found[arm] + (here >= keys[arm]).to(tl.int32),)  # noqa: RUF005
            found = more
        passed = 0
        for arm in tl.static_range(ARMS):
            counted = tl.sum(found[arm], 0)
            enough = counted >= count
            passed += enough.to(tl.int32)
            reached = tl.where(enough, counted, reached)
        low, high = low + step * passed, tl.minimum(low + step * (passed + 1), high)
    return low.to(tl.int32)


@triton.jit
@no_type_check
def reaching(row, vocab, top_p, key_k, top, inverse, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key at or above which lies the mass that top-p keeps of what is at or above ``key_k``, and that mass."""
    # A vector of sums for each key, and not a matrix: a matrix would have the exponentials computed once a column.
    low, high = tl.maximum(key_k, lowest_key(SHIFT)).to(tl.int64), ordered(top, SHIFT).to(tl.int64) + 1
    goal = tl.full((), -1.0, tl.float64)
    while (high - low > 1) | (goal < 0):
        step = (high - low + ARMS) // (ARMS + 1)
        whole = tl.full([BLOCK], 0.0, tl.float64)
        keys, found = (), ()
        for arm in tl.static_range(ARMS):
            keys = keys + (tl.minimum(low + step * (arm + 1), high).to(tl.int32),)  # noqa: RUF005
            found = found + (tl.full([BLOCK], 0.0, tl.float64),)  # noqa: RUF005
        for start in range(0, vocab, BLOCK):
            x = scores(row, start + tl.arange(0, BLOCK), vocab)
            here, w = ordered(x, SHIFT), weighed(x, top, inverse)
            whole += tl.where(here >= key_k, w, 0.0)
            more = ()
            for arm in tl.static_range(ARMS):
                more = more + (found[arm] + tl.where(here >= keys[arm], w, 0.0),)  # noqa: RUF005
            found = more
        goal = tl.maximum((top_p - SLACK) * tl.sum(whole, 0), LEAST)
        passed = 0
        for arm in tl.static_range(ARMS):
            passed += (tl.sum(found[arm], 0) >= goal).to(tl.int32)
        low, high = low + step * passed, tl.minimum(low + step * (passed + 1), high)
    return low.to(tl.int32), goal


@triton.jit
@no_type_check
def edge_of(row, vocab, top_p, key_k, top, inverse, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """Where top-p cuts: the least and the largest key as probable as the last token that stays, and the id of that token.

    Keys apart may have one weight: a high temperature, or numbers so small that the maximum swallows them.
    """
    key, goal = reaching(row, vocab, top_p, key_k, top, inverse, SHIFT, BLOCK // 2)
    weight = weighed(restored(key, SHIFT), top, inverse)
    masses = tl.full([BLOCK], 0.0, tl.float64)
    counts = tl.full([BLOCK], 0, tl.int32)
    least, most = tl.full([BLOCK], 0, tl.int32) + key, tl.full([BLOCK], 0, tl.int32) + key
    for start in range(0, vocab, BLOCK):
        x = scores(row, start + tl.arange(0, BLOCK), vocab)
        w, here = weighed(x, top, inverse), ordered(x, SHIFT)
        tie = ((w == weight) | (here == key)) & (here >= key_k)
        masses += tl.where((here > key) & ~tie, w, 0.0)
        counts += tie.to(tl.int32)
        least, most = tl.where(tie, tl.minimum(least, here), least), tl.where(tie, tl.maximum(most, here), most)
    least, most, ties = tl.min(least, 0), tl.max(most, 0), tl.sum(counts, 0)
    needed = tl.ceil(tl.minimum((goal - tl.sum(masses, 0)) / weight, ties.to(tl.float64))).to(tl.int32)
    needed = tl.maximum(needed, 1)
    last = vocab
    if needed < ties:
        before = 0
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            here = ordered(scores(row, ids, vocab), SHIFT)
            tie = ((here >= least) & (here <= most)).to(tl.int32)
            count = tl.sum(tie, 0)
            if (before < needed) & (before + count >= needed):
                last = tl.min(tl.where(before + tl.cumsum(tie, 0) >= needed, ids, vocab), 0)
            before += count
    return least, most, last


@triton.jit
@no_type_check
def law_of(row, vocab, temperature, top_k, top_p, min_p, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """Whether the row has a law, and what ``kept`` needs to evaluate it.

    >>> type(law_of).__name__ in ("InterpretedFunction", "JITFunction")
    True
    """
    top, first = summit(row, vocab, BLOCK)
    usable = (top > float("-inf")) & (top < float("inf"))
    hot = temperature > 0
    inverse = 1.0 / tl.where(hot, tl.maximum(temperature, COLDEST), 1.0)
    key_k = tl.full((), LOWEST, tl.int32)
    if usable & hot & (top_k > 0) & (top_k < vocab):
        key_k = kth(row, vocab, top_k.to(tl.int32), top, SHIFT, BLOCK // 2)
    least, most, last = key_k, key_k, vocab
    if usable & hot & (top_p < 1):
        least, most, last = edge_of(row, vocab, top_p, key_k, top, inverse, SHIFT, BLOCK)
    return usable, (top, first, hot, inverse, least, most, last, min_p * (1 - SLACK))


@triton.jit
@no_type_check
def kept(x, ids, law, SHIFT: tl.constexpr):
    """The weights of what the truncations keep, float64; 0 elsewhere.

    >>> type(kept).__name__ in ("InterpretedFunction", "JITFunction")
    True
    """
    top, first, hot, inverse, least, most, last, floor = law
    w, here = weighed(x, top, inverse), ordered(x, SHIFT)
    stays = (here >= least) & ((here > most) | (ids <= last)) & (w >= floor)
    return tl.where(hot, tl.where(stays, w, 0.0), tl.where(ids == first, 1.0, 0.0).to(tl.float64))
