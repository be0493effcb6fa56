"""Changes to the logits that come before temperature: bias, penalties, and what is forbidden.

Every function takes one row without a batch axis, returns a new row, and does nothing (and costs nothing) for a control left at its default:
the settings are Python values, so this is decided before any tensor is touched. ``-1`` in a history is padding.
"""

from collections.abc import Sequence
from typing import cast

import torch

from specdec_fn.sampling.params import SamplingParams
from specdec_fn.typing import Bool, Float, Int, Tensor

__all__ = ["biased", "checked_ids", "forbidden", "penalised"]

Pairs = tuple[tuple[int, float], ...]
LONGEST = 2**62  # more tokens than any text has; a larger integer would not fit the comparison with a tensor


def checked_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raises ValueError for an id in ``params`` that has no place in the vocabulary.

    >>> checked_ids(SamplingParams(bad_words=[(1, 7)]), 6)
    Traceback (most recent call last):
    ...
    ValueError: bad_words names id 7, but the logits cover ids 0 to 5
    """
    named = {
        "logit_bias": [token for token, _ in cast(Pairs, params.logit_bias)],
        "bad_words": [token for word in _words(params) for token in word],
        "allowed_ids": tuple(params.allowed_ids or ()),
    }
    for name, ids in named.items():
        largest = max(ids, default=-1)
        if largest >= vocab_size:
            raise ValueError(f"{name} names id {largest}, but the logits cover ids 0 to {vocab_size - 1}")


def biased(logits: Float[Tensor, "vocab"], params: SamplingParams) -> Float[Tensor, "vocab"]:
    """Adds ``params.logit_bias``.

    >>> biased(torch.zeros(3), SamplingParams(logit_bias={1: 2.5}))
    tensor([0.0000, 2.5000, 0.0000])
    """
    if not params.logit_bias:
        return logits
    ids, biases = zip(*cast(Pairs, params.logit_bias), strict=True)
    bias = torch.tensor(biases, dtype=logits.dtype, device=logits.device)
    return logits.scatter_add(0, torch.tensor(ids, device=logits.device), bias)


def penalised(
    logits: Float[Tensor, "vocab"], params: SamplingParams, prompt: Int[Tensor, "prompt"], generated: Int[Tensor, "generated"]
) -> Float[Tensor, "vocab"]:
    """Applies the repetition penalty r (x / r for x > 0, else x * r; arXiv 1909.05858), then the presence and frequency penalties.

    >>> penalised(torch.tensor([-1.0, 2.0]), SamplingParams(repetition_penalty=2), torch.tensor([0, 0]), torch.tensor([0]))
    tensor([-2.,  2.])
    """
    if params.repetition_penalty != 1:
        ids, count = _occurrences(torch.cat([prompt, generated]), logits.shape[-1])
        x = logits.gather(0, ids)
        lowered = torch.where(x > 0, x / params.repetition_penalty, x * params.repetition_penalty)
        logits = logits.scatter(0, ids, torch.where(count > 0, lowered, x))
    if params.presence_penalty != 0 or params.frequency_penalty != 0:
        ids, count = _occurrences(generated, logits.shape[-1])
        count = count.to(logits.dtype)
        cost = params.presence_penalty * count.clamp(max=1) + params.frequency_penalty * count
        logits = logits.scatter(0, ids, logits.gather(0, ids) - cost)
    return logits


def _occurrences(history: Int[Tensor, "tokens"], vocab_size: int) -> tuple[Int[Tensor, "tokens"], Int[Tensor, "tokens"]]:
    """The ids of a history, and how often each occurs in it; padding stands as one more mention of id 0 that is not counted.

    So whoever writes a function of (id, count) back by ``scatter`` writes the same value for every mention of an id, padding included.
    """
    ids = history.long().clamp(min=0)
    try:
        counts = torch.zeros(vocab_size, dtype=torch.int64, device=ids.device).scatter_add(0, ids, (history >= 0).long())
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"prompt and generated must hold ids below the vocabulary size {vocab_size} (or -1 as padding): {error}") from error
    return ids, counts.gather(0, ids)


def forbidden(
    vocab_size: int,
    params: SamplingParams,
    prompt: Int[Tensor, "prompt"],
    generated: Int[Tensor, "generated"],
    eos_ids: Sequence[int] = (),
    mask: Bool[Tensor, "vocab"] | None = None,
) -> Bool[Tensor, "vocab"] | None:
    """True where a token may not be drawn: bad words, ids not allowed, ids outside the mask, and the end ids while the text is too short.

    None stands for nothing forbidden. A bad word of several ids forbids the last of them if prompt and generated, read as one text, end with
    the others.

    >>> none = torch.tensor([], dtype=torch.int64)
    >>> forbidden(4, SamplingParams(bad_words=[3], min_tokens=1), none, none, eos_ids=[0])
    tensor([ True, False, False,  True])
    """
    device = generated.device
    bans = [] if mask is None else [~mask]
    words = _words(params)
    singles = [word[0] for word in words if len(word) == 1]
    sequences = [word for word in words if len(word) > 1]
    if singles:
        bans.append(_flags(singles, vocab_size, device))
    if params.allowed_ids is not None:
        bans.append(~_flags(tuple(params.allowed_ids), vocab_size, device))
    if sequences:
        last = torch.tensor([word[-1] for word in sequences], device=device)
        met = _ends_with([word[:-1] for word in sequences], torch.cat([prompt, generated]).long())
        bans.append(torch.zeros(vocab_size, dtype=torch.int64, device=device).scatter_add(0, last, met.long()) > 0)
    if params.min_tokens and eos_ids:
        bans.append(_flags(eos_ids, vocab_size, device) & ((generated >= 0).sum() < min(params.min_tokens, LONGEST)))
    if not bans:
        return None
    found = bans[0]
    for ban in bans[1:]:
        found = found | ban
    return found


def _flags(ids: Sequence[int], vocab_size: int, device: torch.device) -> Bool[Tensor, "vocab"]:
    return torch.zeros(vocab_size, dtype=torch.bool, device=device).index_fill(0, torch.tensor(ids, device=device), True)


def _ends_with(beginnings: Sequence[tuple[int, ...]], text: Int[Tensor, "tokens"]) -> Bool[Tensor, "words"]:
    """Whether the text, without its padding, ends with each of the given sequences."""
    reach = max(len(beginning) for beginning in beginnings)
    place = (text >= 0).flip(0).cumsum(0).flip(0)  # 1 from the last real token on, 2 from the one before it, ...
    wanted = torch.arange(reach, 0, -1, device=text.device)
    # Padding adds 0 to the one token that stands at each place; a place that no token takes gives -1.
    tail = torch.where(place == wanted[:, None], text.clamp(min=-1) + 1, 0).sum(-1) - 1
    anything = -2
    pattern = torch.tensor([(anything,) * (reach - len(beginning)) + beginning for beginning in beginnings], device=text.device)
    return ((pattern == tail) | (pattern == anything)).all(-1)


def _words(params: SamplingParams) -> list[tuple[int, ...]]:
    return [word if isinstance(word, tuple) else (word,) for word in cast(tuple[int | tuple[int, ...], ...], params.bad_words)]
