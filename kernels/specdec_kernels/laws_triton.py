"""Rows of probabilities from rows of logits: temperature, top-k, top-p and min-p in one launch, without sorting the vocabulary.

The truncations are `truncation_triton`; this is the pass that divides by what they keep, and the launch.
"""

from types import MappingProxyType
from typing import no_type_check

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from specdec_kernels.dispatch import chosen
from specdec_kernels.truncation_triton import kept, law_of, scores
from specdec_kernels.variant import Variant

__all__ = ["laws", "variants"]

BLOCK = 2048  # tokens read at a time, and half as many where sums for every arm are held
WARPS = 16
GRAIN = 16  # rows whose length and distance are multiples of this are read in wide loads
STORED = MappingProxyType({torch.float32: ("fp32", 0), torch.float16: ("fp16", 13), torch.bfloat16: ("bf16", 16)})  # with the empty bits of a key


@triton.jit(do_not_specialize=("grains", "stride"))
@no_type_check
def _laws(
    probs,
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
):
    index = tl.program_id(0).to(tl.int64)
    vocab = grains * UNIT
    row, out = logits + index * stride * UNIT, probs + index * vocab
    controls = tl.load(temperature + index), tl.load(top_k + index), tl.load(top_p + index), tl.load(min_p + index)
    usable, law = law_of(row, vocab, controls[0], controls[1], controls[2], controls[3], SHIFT, BLOCK)
    if usable:
        sums = tl.full([BLOCK], 0.0, tl.float64)
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            sums += kept(scores(row, ids, vocab), ids, law, SHIFT)
        total = tl.sum(sums, 0)
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            share = kept(scores(row, ids, vocab), ids, law, SHIFT) / total
            tl.store(out + ids, share.to(probs.dtype.element_ty), mask=ids < vocab)
    else:
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            tl.store(out + ids, tl.full([BLOCK], 0, probs.dtype.element_ty), mask=ids < vocab)


def laws(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, *, dtype: torch.dtype = torch.float32, block: int = BLOCK
) -> Tensor:
    """Turns rows of logits into the probabilities that sampling draws from.

    In this order, as ``specdec_fn.sampling.distribution`` does for one row: the temperature, after subtracting the maximum; top_k (the tokens that
    tie with the k-th stay); top_p (the shortest prefix, probability descending and then id ascending, whose sum reaches top_p - 1e-9); min_p (at
    least min_p times the largest, a billionth of that forgiven). Each acts on the renormalised law that the ones before it left. Temperature 0
    puts all mass on the largest logit, the lowest id among equals. Masses are float64.

    Args:
        logits: [rows, vocab], float32, float16 or bfloat16; -inf forbids a token. The rows may lie apart.
        temperature: [rows], float64 or float32, at least 0.
        top_k: [rows], int64 or int32; 0 keeps all.
        top_p: [rows], float64 or float32, in (0, 1]; 1 keeps all. A float32 is taken at its exact value, which may miss the decimal by 3e-8.
        min_p: [rows], float64 or float32, in [0, 1]; 0 keeps all.
        dtype: of the result, float32 or float64.
        block: tokens read at a time, a power of two.

    Returns:
        [rows, vocab]; a row with a NaN or +inf, or in which nothing is allowed, is zeros.

    Raises:
        TypeError: a tensor of another dtype.
        ValueError: a shape that does not fit; tensors on several devices, or on a CPU in a process that does not interpret kernels.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> logits = torch.tensor([[0.3, 0.1, 0.1, 0.5]]).log()
    >>> laws(logits, one, torch.tensor([2]), one, 0 * one)
    tensor([[0.3750, 0.0000, 0.0000, 0.6250]])
    """
    logits, controls = checked(logits, temperature, top_k, top_p, min_p)
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype is {dtype}; expected torch.float32 or torch.float64")
    rows, vocab = logits.shape
    probs = torch.empty(rows, vocab, dtype=dtype, device=logits.device)
    unit = unit_of(logits)
    made = _variant(logits.dtype, unit, dtype, block)
    if rows:
        grid = (rows,)
        launch = made.kernel[grid]
        launch(probs, logits, *controls, vocab // unit, logits.stride(0) // unit, **made.constants, num_warps=made.warps, num_stages=made.stages)
    return probs


def checked(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Validates what can be seen without looking at values; returns rows without gaps inside, and controls in float64 and int64."""
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits has shape {list(logits.shape)}; expected [rows, vocab], with a vocabulary of at least one token")
    if logits.dtype not in STORED:
        raise TypeError(f"logits is {logits.dtype}; expected torch.float32, torch.float16 or torch.bfloat16")
    controls = (("temperature", temperature), ("top_k", top_k), ("top_p", top_p), ("min_p", min_p))
    for name, control in controls:
        kinds = (torch.int64, torch.int32) if name == "top_k" else (torch.float64, torch.float32)
        if control.dtype not in kinds:
            raise TypeError(f"{name} is {control.dtype}; expected {kinds[0]} or {kinds[1]}")
        if control.shape != logits.shape[:1]:
            raise ValueError(f"{name} has shape {list(control.shape)}; expected one value for each of the {logits.shape[0]} rows of logits")
    chosen("triton", logits, temperature, top_k, top_p, min_p)
    whole = logits if logits.stride(1) == 1 else logits.contiguous()
    wide = (torch.int64 if name == "top_k" else torch.float64 for name, _ in controls)
    return whole, tuple(control.to(dtype).contiguous() for (_, control), dtype in zip(controls, wide, strict=True))


def unit_of(logits: Tensor) -> int:
    """What divides the length and the stride of the rows: GRAIN where that does, or 1."""
    return 1 if logits.shape[1] % GRAIN or logits.stride(0) % GRAIN else GRAIN


def _variant(stored: torch.dtype, unit: int, out: torch.dtype, block: int = BLOCK) -> Variant:
    word, shift = STORED[stored]
    result = {torch.float32: "fp32", torch.float64: "fp64"}[out]
    signature = {"probs": f"*{result}", "logits": f"*{word}", "temperature": "*fp64", "top_k": "*i64", "top_p": "*fp64", "min_p": "*fp64"}
    signature |= {"grains": "i32", "stride": "i32", "UNIT": "constexpr", "SHIFT": "constexpr", "BLOCK": "constexpr"}
    return Variant(f"laws, {word}, {unit}, {result}", _laws, signature, {"UNIT": unit, "SHIFT": shift, "BLOCK": block}, WARPS, 1)


def variants() -> tuple[Variant, ...]:
    """Lists every way in which ``laws`` builds its kernel.

    >>> len(variants())
    12
    """
    return tuple(_variant(stored, unit, out) for stored in STORED for unit in (1, GRAIN) for out in (torch.float32, torch.float64))
