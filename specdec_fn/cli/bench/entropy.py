"""The entropy of the target's laws along a text: how much there is to guess at each token."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

__all__ = ["Entropies", "entropies"]

ROWS = 64  # laws at once, in float64


class Entropies(NamedTuple):
    """Mean entropies of the laws that a text was drawn from, in nats.

    Attributes:
        law: of p, after all processors; 0 at temperature 0.
        softmax: of the softmax of the logits as they are.
    """

    law: float
    softmax: float


@torch.inference_mode()
def entropies(model: Any, prompt: Sequence[int], tokens: Sequence[int], sampling: Any, ends: Sequence[int] = ()) -> Entropies:
    """Means over the emitted tokens, from one pass over prompt and output: entropy = -sum p log p, at each token's own prefix.

    Args:
        model: the target.
        prompt, tokens: ids; at least one of each.
        sampling: the controls that made the laws.
        ends: ids that end the request, which ``min_tokens`` forbids for a while.

    Raises:
        ValueError: nothing was emitted.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.sampling import SamplingParams
    >>> fair = toy.bigram(torch.full((2, 2), 0.5))
    >>> [round(value, 4) for value in entropies(fair, [0], [1, 0], SamplingParams(0.0))]
    [0.0, 0.6931]
    """
    from specdec_fn.engine.law import law
    from specdec_fn.models.model import causal, parameter

    if not tokens:
        raise ValueError("the entropy along 0 tokens; expected at least one")
    line = [*prompt, *tokens[:-1]]
    ids = torch.tensor(line, device=parameter(model).device)
    places = torch.arange(len(line), device=ids.device)
    wanted = places[len(prompt) - 1 :]
    if model.apply_at is None:
        logits = model.apply(model.params, ids, places, None, causal)[0][wanted]
    else:
        logits = model.apply_at(model.params, ids, places, None, causal, wanted)[0]
    laws_of = law(sampling, prompt, ends)
    processed = plain = 0.0
    for start in range(0, len(tokens), ROWS):
        rows = logits[start : start + ROWS].cpu()
        following = tokens[start : start + rows.shape[0] - 1]  # row i is the law after the first i of these
        processed += float(torch.special.entr(laws_of(rows, tokens[:start], following)).sum())
        plain += float(torch.special.entr(rows.softmax(-1, dtype=torch.float64)).sum())
    return Entropies(processed / len(tokens), plain / len(tokens))
