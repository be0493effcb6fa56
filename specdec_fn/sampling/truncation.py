"""From processed logits to a law: temperature, then the four truncations, each on the renormalised law that the ones before it left.

A law is a pair (probs, ids): ``probs`` over ``ids``, or over the whole vocabulary where ids is None. Ids are ascending and padded with -1,
whose probability is 0. See `narrow` for why.
"""

import torch

from specdec_fn.sampling.narrow import at_least_kth, shortest_prefix
from specdec_fn.sampling.params import SamplingParams
from specdec_fn.typing import Bool, Float, Int, Tensor

__all__ = ["one_hot", "tempered", "truncated"]

WIDE = 4096  # vocabularies over this size are narrowed before they are sorted
SLACK = 1e-9  # forgiven where a sum or a ratio that should be equal to its limit falls short by rounding


def one_hot(logits: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows vocab"]:
    """All mass of a row on its largest logit, the lowest id among equals; zeros if a logit is NaN or +inf, or all are -inf.

    >>> one_hot(torch.tensor([1.0, 3.0, 3.0]))
    tensor([0., 1., 0.])
    """
    usable = torch.isfinite(logits.amax(-1, keepdim=True)).to(logits.dtype)
    return torch.zeros_like(logits).scatter_add_(-1, logits.argmax(-1, keepdim=True), usable)


def tempered(logits: Float[Tensor, "vocab"], temperature: float) -> Float[Tensor, "vocab"]:
    """``softmax((logits - max) / temperature)``, whatever the temperature above 0; zeros if a logit is NaN or +inf, or all are -inf.

    >>> tempered(torch.tensor([200.0, 100.0, 200.0]), 1e-38)
    tensor([0.5000, 0.0000, 0.5000])
    """
    scaled = logits if temperature == 1 else _scaled(logits, logits.amax(0), temperature)
    # A NaN, an infinity among finite numbers and a maximum of -inf all make the sum NaN, hence every entry.
    return scaled.softmax(0).nan_to_num(0.0)


def truncated(logits: Float[Tensor, "vocab"], params: SamplingParams, wide: int = WIDE) -> Float[Tensor, "vocab"]:
    """The law after temperature (above 0), top_k, top_p, min_p and typical_p; equal in every bit whether or not it is narrowed first.

    >>> truncated(torch.tensor([0.4, 0.3, 0.3]).log(), SamplingParams(top_k=1, top_p=0.8))
    tensor([1., 0., 0.])
    """
    vocab, ids = logits.shape[0], None
    narrow = vocab > wide and not torch.compiler.is_compiling()  # a graph has no room for a number of ids that depends on the data
    if 0 < params.top_k < vocab:
        kept = logits
        if narrow:
            ids = at_least_kth(logits.detach(), params.top_k)
            kept = _take(logits, ids, -torch.inf)
        # Taken on the logits: dividing by the temperature keeps their order, but may round two of them into one.
        least = kept.detach().topk(min(params.top_k, kept.shape[0])).values[-1]
        kept = kept.masked_fill(kept < least, -torch.inf)
        weights = _scaled(kept, logits.amax(0), params.temperature).exp()
        probs = _normalised(weights).nan_to_num(0.0)
    else:
        probs = tempered(logits, params.temperature)
    if params.top_p < 1:
        order = probs.detach()
        if ids is None and narrow:
            ids = shortest_prefix(order, order, params.top_p, descending=True)
            probs, order = _take(probs, ids, 0.0), _take(order, ids, 0.0)
        probs = _cut(probs, _prefix(order, order, params.top_p, descending=True))
    if params.min_p > 0:
        probs = _cut(probs, probs >= params.min_p * (1 - SLACK) * probs.detach().amax(0))
    if params.typical_p < 1:
        mass = probs.detach()
        surprise = -mass.log()
        entropy = _total(torch.where(mass > 0, mass * surprise, 0.0))
        order = torch.where(mass > 0, (surprise - entropy).abs(), torch.inf)
        if ids is None and narrow:
            ids = shortest_prefix(order, mass, params.typical_p, descending=False)
            probs, mass, order = _take(probs, ids, 0.0), _take(mass, ids, 0.0), _take(order, ids, torch.inf)
        probs = _cut(probs, _prefix(order, mass, params.typical_p, descending=False))
    return probs if ids is None else torch.zeros_like(logits).scatter_add_(0, ids.clamp(min=0), probs)


def _scaled(logits: Float[Tensor, "n"], best: Float[Tensor, ""], temperature: float) -> Float[Tensor, "n"]:
    scaled = logits - best
    while temperature < 2.0**-100:  # a number that a narrower dtype would round to 0
        scaled, temperature = scaled * 2.0**100, temperature * 2.0**100
    return scaled if temperature == 1 else scaled / min(temperature, torch.finfo(logits.dtype).max)


def _take(values: Float[Tensor, "vocab"], ids: Int[Tensor, "n"], padding: float) -> Float[Tensor, "n"]:
    return torch.where(ids >= 0, values.gather(0, ids.clamp(min=0)), padding)


def _prefix(order: Float[Tensor, "n"], mass: Float[Tensor, "n"], goal: float, *, descending: bool) -> Bool[Tensor, "n"]:
    """The shortest prefix, at least one token, in this order and then by id, whose mass reaches the goal; the sums are float64 for any dtype."""
    rank = order.sort(dim=0, descending=descending, stable=True).indices
    short = mass.gather(0, rank).cumsum(0, dtype=torch.float64) < goal - SLACK
    last = short.sum()
    return torch.zeros_like(short).scatter(0, rank, torch.arange(order.shape[0], device=order.device) <= last)


def _cut(probs: Float[Tensor, "n"], keep: Bool[Tensor, "n"]) -> Float[Tensor, "n"]:
    return _normalised(torch.where(keep, probs, 0.0))


def _normalised(weights: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    total = _total(weights)
    return weights / torch.where(total == 0, 1.0, total)


def _total(weights: Float[Tensor, "n"]) -> Float[Tensor, ""]:
    return weights.cumsum(0)[-1]  # in order of id: unlike sum, not changed by padding, batch or threads
