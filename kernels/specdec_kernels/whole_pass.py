"""A whole pass of a Llama as one call of the C library: see ``c/pass.c``."""

import ctypes
from ctypes import addressof, byref, c_int32, c_void_p

import torch
from torch import Tensor

from specdec_kernels import native
from specdec_kernels.row_attention import Attention, Plan
from specdec_kernels.step import Matrix, Step

__all__ = ["whole_pass"]


OUTSIDE = 2  # what the library returns for a token that the embedding has no row for


class _Pass(ctypes.Structure):
    """``pass`` of ``c/pass.c``."""

    _fields_ = (
        *((name, c_void_p) for name in ("steps", "like", "keys", "values")),
        *((name, c_int32) for name in ("layers", "rows", "threads", "wanted")),
        *((name, c_void_p) for name in ("embedding", "tokens", "cos", "sin", "places", "logits")),
    )


def whole_pass(
    steps: "ctypes.Array[Step]",
    plan: Plan,
    embedding: Matrix,
    tokens: Tensor,
    turned: tuple[Tensor, Tensor],
    *,
    vocab: int,
    wanted: Tensor | None,
    keys_only: bool,
) -> Tensor | None:
    """Runs all blocks, and the head for the rows that are wanted. DONATES the cache that the plan points to.

    Args:
        steps: layers + 2 of them, as ``specdec_fn.models.native`` lays them out.
        plan: what the rows write and see.
        embedding: the matrix whose rows are the tokens'.
        tokens: int64 [rows], contiguous; ids of the vocabulary.
        turned: cos and sin, float32 [rows, head_dim / 2].
        vocab: columns of the logits.
        wanted: int64, the rows whose logits are wanted; None: all.
        keys_only: no logits, and the last block ends once its keys are written.

    Returns:
        float32 [wanted, vocab]; None with ``keys_only``.

    Raises:
        IndexError: a token outside the vocabulary; nothing is written then. MemoryError: no memory for what lies between.

    >>> whole_pass.__defaults__ is None  # ``specdec_fn.models.native`` says every argument
    True
    """
    first, layers, rows = steps[0], len(steps) - 2, tokens.shape[0]
    count = -1 if keys_only else rows if wanted is None else wanted.shape[0]
    logits = torch.empty((max(count, 0), vocab), dtype=torch.float32)
    seen, size = plan.rows, first.head_dim
    like = Attention(rows, first.heads, first.kv_heads, size, 0, first.type, size**-0.5, not seen.slots.shape[0])
    like.written, like.slots, like.starts, like.counts = (part.data_ptr() for part in seen)
    keys, values = ((c_void_p * layers)(*places[:layers]) for places in (plan.keys, plan.values))
    made = _Pass(addressof(steps), addressof(like), addressof(keys), addressof(values), layers, rows, torch.get_num_threads(), count)
    made.embedding = addressof(embedding)
    made.tokens, made.cos, made.sin, made.logits = (part.data_ptr() for part in (tokens, *turned, logits))
    made.places = None if wanted is None else wanted.data_ptr()
    library = native.library()
    assert library is not None, "the library is not there"
    failed = library.specdec_pass(byref(made))
    if failed == OUTSIDE:
        raise IndexError(f"token ids span {int(tokens.min())} to {int(tokens.max())}; expected ids in [0, {embedding.outputs})")
    if failed:
        raise MemoryError("no memory for the activations of a pass")
    return None if keys_only else logits
