"""The law that a token is drawn from: every control of `SamplingParams`, in one fixed order, as a function of one row of logits."""

from collections.abc import Sequence

import torch

from specdec_fn.sampling import processors, truncation
from specdec_fn.sampling.params import SamplingParams, ids_of
from specdec_fn.typing import Bool, Float, Int, Tensor

__all__ = ["distribution"]

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def distribution(
    logits: Float[Tensor, "vocab"],
    params: SamplingParams,
    *,
    prompt: Int[Tensor, "prompt"],
    generated: Int[Tensor, "generated"],
    eos_ids: Sequence[int] = (),
    mask: Bool[Tensor, "vocab"] | None = None,
) -> Float[Tensor, "vocab"]:
    """Turns one row of logits into the probabilities that sampling draws from.

    In this order: logit_bias; the repetition penalty, over prompt and generated; the presence and frequency penalties, over generated;
    bad_words, allowed_ids, mask and min_tokens, as logits of -inf; the temperature, after subtracting the maximum; then top_k (the tokens
    that tie with the k-th stay), top_p (the shortest prefix, probability descending and then id ascending, whose sum reaches top_p - 1e-9),
    min_p (at least min_p times the largest, a billionth of that forgiven) and typical_p (the shortest prefix, ordered by
    ``|-log p - entropy|`` ascending and then by id, whose sum reaches typical_p - 1e-9; arXiv 2202.00666). Each of these four acts on the
    renormalised law that the ones before it left, and keeps one token at least. Temperature 0 puts all mass on the largest logit, the lowest
    id among equals, and the four have nothing to cut.

    Single row, no batch axis, and no batch changes a bit: lift it with ``torch.func.vmap`` over any of the tensors. Differentiable in the
    logits, with the kept set held fixed. Float32 and float64 are computed as they come, half types in float32.

    Args:
        logits: one row, any floating dtype; -inf forbids a token.
        params: the controls. Those at their defaults cost nothing.
        prompt: ids of the prompt; -1 is padding, anywhere. May be empty.
        generated: ids generated so far, likewise. Under speculation row i sees the i drafted tokens before it.
        eos_ids: ids that end the text, forbidden while fewer than ``params.min_tokens`` real tokens were generated. Those past the
            vocabulary have no row here and are passed over.
        mask: True where a token is allowed, e.g. by a grammar.

    Returns:
        Probabilities, dtype of the logits (float32 for half types); forbidden and cut tokens have exactly 0. A row that holds NaN or +inf,
        or in which nothing is allowed, gives zeros: no token can be drawn from it, which `draw` reports as -1.

    Raises:
        TypeError: an argument of another kind or dtype.
        ValueError: a shape that does not fit; an id in params, or one in prompt or generated that a penalty looks up, past the vocabulary.

    >>> none = torch.tensor([], dtype=torch.int64)
    >>> distribution(torch.tensor([0.3, 0.1, 0.1, 0.5]).log(), SamplingParams(top_k=2), prompt=none, generated=none)
    tensor([0.3750, 0.0000, 0.0000, 0.6250])
    """
    eos = _checked(logits, params, prompt, generated, eos_ids, mask)
    scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    scores = processors.penalised(processors.biased(scores, params), params, prompt, generated)
    forbidden = processors.forbidden(logits.shape[0], params, prompt, generated, eos, mask)
    if forbidden is not None:
        scores = scores.masked_fill(forbidden, -torch.inf)
    if params.greedy:
        return truncation.one_hot(scores)
    return truncation.truncated(scores, params)


def _checked(
    logits: Tensor, params: SamplingParams, prompt: Tensor, generated: Tensor, eos_ids: Sequence[int], mask: Tensor | None
) -> tuple[int, ...]:
    """Validates what can be seen without looking at values, and returns the end ids that lie in the vocabulary."""
    if not isinstance(params, SamplingParams):
        raise TypeError(f"params must be SamplingParams, received {type(params).__name__}")
    if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
        raise TypeError(f"logits must be a floating tensor, received {_kind(logits)}")
    if logits.dim() != 1 or logits.shape[0] == 0:
        raise ValueError(f"logits must be one row of shape [vocab], received {list(logits.shape)}; use torch.func.vmap for more rows")
    for name, history in (("prompt", prompt), ("generated", generated)):
        if not isinstance(history, torch.Tensor) or history.dtype not in INTEGERS:
            raise TypeError(f"{name} must be an integer tensor of ids, received {_kind(history)}")
        if history.dim() != 1:
            raise ValueError(f"{name} must have the shape [{name}], received {list(history.shape)}")
    if mask is not None:
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
            raise TypeError(f"mask must be a bool tensor, True where a token is allowed, received {_kind(mask)}")
        if mask.shape != logits.shape:
            raise ValueError(f"mask must have the shape of the logits, {list(logits.shape)}, received {list(mask.shape)}")
    processors.checked_ids(params, logits.shape[0])
    return tuple(token for token in ids_of("eos_ids", eos_ids) if token < logits.shape[0])


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
