"""Verification of a ragged batch of drafts in one launch: which drafted tokens are kept, and the token that follows them.

The laws are the ``decide`` of ``specdec_fn.speculate.verifiers``: token, block, coupled and greedy, over chains. Randomness comes as raw 64-bit
words, whose top 53 bits are the uniforms, or as the noise of a race, or as the keys that it is made from. Everything is decided in float64, whatever
the laws are stored in. What stands at or past a sequence's ``length`` is not read.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from specdec_kernels import verify_choice_triton, verify_draw_triton
from specdec_kernels.dispatch import chosen
from specdec_kernels.verify_draw_triton import BLOCK, MANY, ROWS

__all__ = ["MAX_DRAFT", "MAX_VOCAB", "verify"]

MAX_DRAFT = ROWS - 1
MAX_VOCAB = BLOCK * MANY
allocated = torch.empty  # what tests fill with a pattern


def verify(
    rule: str,
    target_probs: Tensor,
    tokens: Tensor,
    probs: Tensor | None,
    length: Tensor,
    *,
    accept: Tensor | None = None,
    final: Tensor | None = None,
    noise: Tensor | None = None,
    keys: Tensor | None = None,
    position: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Verifies one chain for each sequence of a batch.

    Args:
        rule: "token", "block", "coupled" or "greedy".
        target_probs: float32 or float64 [B, K + 1, V], K at most 31 and V at most 524,288; row 0 the law after the context, row i + 1 after node i.
        tokens: int64 [B, K], the drafted ids; one outside the vocabulary is rejected, and nothing is read for it.
        probs: [B, K, V], dtype of ``target_probs``, the laws that the tokens were drawn from; None for one-hot. coupled and greedy read none.
        length: int64 [B], in [0, K]: nodes at or past it are padding. A length outside is taken as the nearer end.
        accept: int64 [B, K], random words, for token and block.
        final: int64 [B], random words, for token and block.
        noise: float64 [B, K + 1, V], exponential numbers, for coupled; or, instead,
        keys: int64 [B, 2], the two words of each request's key, and
        position: int64 [B], the base of each pass: row i then races with the noise of position + i, which is made in the kernel.

    Returns:
        tokens int64 [B, K + 1], the kept tokens, then the recovered or bonus token (-1 where the deciding row is no law), then -1; and
        accepted int64 [B].

    Raises:
        TypeError: a tensor of another dtype.
        ValueError: another rule, shapes that do not fit, randomness that the rule needs and lacks, tensors on several devices,
            or on a CPU in a process that does not interpret kernels.

    >>> p = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])
    >>> q = torch.tensor([[[0.5, 0.5]]])
    >>> word = torch.tensor([[2**62]])  # a uniform of 1/4
    >>> verify("token", p, torch.tensor([[0]]), q, torch.tensor([1]), accept=word, final=word[0])
    (tensor([[0, 0]]), tensor([1]))
    """
    given = {"accept": accept, "final": final, "noise": noise, "keys": keys, "position": position}
    _check(rule, target_probs, tokens, probs, length, given)
    chosen("triton", target_probs)
    (batch, rows, vocab), k = target_probs.shape, tokens.shape[1]
    out = (
        allocated((batch, rows), dtype=torch.int64, device=tokens.device),
        allocated((batch,), dtype=torch.int64, device=tokens.device),
    )
    if not batch:
        return out
    target = target_probs.contiguous()
    tokens, length = tokens.contiguous(), length.contiguous()
    if rule in ("token", "block"):
        variant = verify_draw_triton.variant(rule, target.dtype, vocab, soft=probs is not None)
    else:
        variant = verify_choice_triton.variant(rule, target.dtype, vocab, keyed=keys is not None)
    blocks = triton.cdiv(vocab, BLOCK)
    counter = torch.zeros(batch, dtype=torch.int32, device=target.device)
    partial = allocated((batch, blocks, rows, 2), dtype=torch.float64, device=target.device)
    launch: Any = variant.kernel[(blocks, batch)]
    options = {**variant.constants, "num_warps": variant.warps, "num_stages": variant.stages}
    if rule in ("token", "block"):
        assert accept is not None
        assert final is not None
        laws = target if probs is None else probs.contiguous()  # a pointer that nothing is read from
        launch(*out, target, tokens, laws, length, accept.contiguous(), final.contiguous(), partial, counter, k, vocab, blocks, **options)
    else:
        places = allocated((batch, blocks, rows), dtype=torch.int32, device=target.device)
        noise = partial if noise is None else noise.contiguous()
        keys, position = (length if words is None else words.contiguous() for words in (keys, position))
        launch(*out, target, tokens, length, noise, keys, position, partial, places, counter, k, vocab, blocks, **options)
    return out


def _check(rule: str, target: Tensor, tokens: Tensor, probs: Tensor | None, length: Tensor, given: dict[str, Tensor | None]) -> None:
    if rule not in ("token", "block", "coupled", "greedy"):
        raise ValueError(f"rule is {rule!r}; expected 'token', 'block', 'coupled' or 'greedy'")
    if target.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"target_probs has dtype {target.dtype}; expected float32 or float64")
    if target.dim() != 3 or not 1 <= target.shape[1] <= ROWS or not 1 <= target.shape[2] <= MAX_VOCAB:
        raise ValueError(f"target_probs has shape {list(target.shape)}; expected [B, K + 1, V] with K in [0, {MAX_DRAFT}], V in [1, {MAX_VOCAB}]")
    batch, rows, vocab = target.shape
    k = rows - 1
    needed = {"token": ("accept", "final"), "block": ("accept", "final"), "greedy": ()}.get(
        rule, ("noise",) if given["noise"] is not None else ("keys", "position")
    )
    integers, floats = torch.int64, target.dtype
    expected = {
        "tokens": ((batch, k), integers),
        "probs": ((batch, k, vocab), floats),
        "length": ((batch,), integers),
        "accept": ((batch, k), integers),
        "final": ((batch,), integers),
        "noise": ((batch, rows, vocab), torch.float64),
        "keys": ((batch, 2), integers),
        "position": ((batch,), integers),
    }
    for name, value in {"tokens": tokens, "probs": probs, "length": length, **given}.items():
        shape, dtype = expected[name]
        if value is None:
            if name in needed:
                raise ValueError(f"{name} is None; expected what {rule} reads: {' and '.join(needed)}" + (", or noise" if rule == "coupled" else ""))
            continue
        if value.dtype is not dtype:
            raise TypeError(f"{name} has dtype {value.dtype}; expected {dtype}")
        if tuple(value.shape) != shape:
            raise ValueError(f"{name} has shape {list(value.shape)}; expected {list(shape)}")
        if value.device != target.device:
            raise ValueError(f"{name} is on {value.device} and target_probs on {target.device}; expected one device")
