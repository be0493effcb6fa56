"""Tokens from rows of logits: the law of `truncation_triton`, drawn from without writing a probability.

The draw has two levels. Sums of the weights of blocks of tokens, float64 and added up in order of id, choose a block, and sums inside that block
choose a token: the inverse of the cumulative distribution, as ``specdec_fn.sampling.draw`` has it. A float32 cumulative sum over 151,936 tokens would
be off by 9e-4 in total variation.
"""

from typing import no_type_check

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from specdec_kernels.dispatch import chosen
from specdec_kernels.laws_triton import BLOCK, GRAIN, STORED, WARPS, checked, unit_of
from specdec_kernels.truncation_triton import kept, law_of, scores
from specdec_kernels.variant import Variant

__all__ = ["sample", "variants"]

BLOCKS = 512  # sums of blocks that a program holds


@triton.jit(do_not_specialize=("grains", "stride"))
@no_type_check
def _sample(
    tokens,
    words,
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    grains,
    stride,
    UNIT: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    vocab = grains * UNIT
    row = logits + index * stride * UNIT
    controls = tl.load(temperature + index), tl.load(top_k + index), tl.load(top_p + index), tl.load(min_p + index)
    usable, law = law_of(row, vocab, controls[0], controls[1], controls[2], controls[3], SHIFT, BLOCK)
    token = tl.full((), -1, tl.int32)
    if usable:
        slots = tl.arange(0, BLOCKS)
        total = tl.full((), 0.0, tl.float64)
        heights = tl.full([BLOCKS], 0.0, tl.float64)
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            total += tl.sum(kept(scores(row, ids, vocab), ids, law, SHIFT), 0)
            heights = tl.where(slots >= start // BLOCK, total, heights)
        uniform = ((tl.load(words + index) >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) * 1.1102230246251565e-16
        # Just under the total at most, which some block then exceeds, even if the product rounds up to the total.
        height = tl.minimum(uniform * total, (total.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True))
        block = tl.sum((heights <= height).to(tl.int32), 0)
        before = tl.max(tl.where(slots < block, heights, 0.0), 0)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        w = kept(scores(row, ids, vocab), ids, law, SHIFT)
        # A sum inside the block may round to less than the sum of the block: then it is the last token that has mass.
        found = tl.min(tl.where((w > 0) & (before + tl.cumsum(w, 0) > height), ids, vocab), 0)
        token = tl.where(found < vocab, found, tl.max(tl.where(w > 0, ids, -1), 0))
    tl.store(tokens + index, token.to(tl.int64))


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, words: Tensor, *, block: int = BLOCK) -> Tensor:
    """Draws a token from the law of each row (``laws_triton.laws``).

    The token is the first whose cumulative probability exceeds u, by id; u is the upper 53 bits of a word, times 2**-53.

    Args:
        logits: [rows, vocab], float32, float16 or bfloat16; -inf forbids a token. The rows may lie apart.
        temperature: [rows], float64 or float32, at least 0; 0 takes the largest logit, the lowest id among equals.
        top_k: [rows], int64 or int32; 0 keeps all.
        top_p: [rows], float64 or float32, in (0, 1]; 1 keeps all.
        min_p: [rows], float64 or float32, in [0, 1]; 0 keeps all.
        words: [rows], int64, 64 random bits each.
        block: tokens read at a time, a power of two.

    Returns:
        [rows], int64; -1 for a row with a NaN or +inf, or in which nothing is allowed.

    Raises:
        TypeError: a tensor of another dtype.
        ValueError: a shape that does not fit; a vocabulary over 512 blocks; tensors on several devices, or on a CPU in a process that does not
            interpret kernels.

    >>> one = torch.ones(2, dtype=torch.float64)
    >>> logits = torch.tensor([[0.3, 0.1, 0.1, 0.5]]).log().expand(2, 4)
    >>> sample(logits, one, torch.tensor([2, 2]), one, 0 * one, torch.tensor([0, 2**62 + 2**61]))  # u = 0 and 3/8
    tensor([0, 3])
    """
    logits, controls = checked(logits, temperature, top_k, top_p, min_p)
    rows, vocab = logits.shape
    if words.dtype != torch.int64:
        raise TypeError(f"words is {words.dtype}; expected torch.int64")
    if words.shape != (rows,):
        raise ValueError(f"words has shape {list(words.shape)}; expected one word for each of the {rows} rows of logits")
    chosen("triton", logits, words)
    if vocab > block * BLOCKS:
        raise ValueError(f"logits has a vocabulary of {vocab} tokens; expected at most {block * BLOCKS}")
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    unit = unit_of(logits)
    made = _variant(logits.dtype, unit, block)
    if rows:
        grid = (rows,)
        launch, sizes = made.kernel[grid], (vocab // unit, logits.stride(0) // unit)
        launch(tokens, words.contiguous(), logits, *controls, *sizes, **made.constants, num_warps=made.warps, num_stages=made.stages)
    return tokens


def _variant(stored: torch.dtype, unit: int, block: int = BLOCK) -> Variant:
    word, shift = STORED[stored]
    signature = {"tokens": "*i64", "words": "*i64", "logits": f"*{word}", "temperature": "*fp64", "top_k": "*i64", "top_p": "*fp64", "min_p": "*fp64"}
    signature |= {"grains": "i32", "stride": "i32", "UNIT": "constexpr", "SHIFT": "constexpr", "BLOCK": "constexpr", "BLOCKS": "constexpr"}
    constants = {"UNIT": unit, "SHIFT": shift, "BLOCK": block, "BLOCKS": BLOCKS}
    return Variant(f"sample, {word}, {unit}", _sample, signature, constants, WARPS, 1)


def variants() -> tuple[Variant, ...]:
    """Lists every way in which ``sample`` builds its kernel.

    >>> len(variants())
    6
    """
    return tuple(_variant(stored, unit) for stored in STORED for unit in (1, GRAIN))
