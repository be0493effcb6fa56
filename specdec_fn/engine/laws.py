"""The laws of many requests at once: requests with the same controls share one vectorised ``distribution``, and no bit depends on who shares it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_fn.engine.law import Controls, prefixes
from specdec_fn.sampling import SamplingParams, distribution
from specdec_fn.typing import Bool, Float, Int, Tensor

__all__ = ["Ask", "laws"]

PLAIN = SamplingParams()


class Ask(NamedTuple):
    """The rows of one request in a pass.

    Attributes:
        logits: [R, V], R = 1 + the number of drafted ids.
        controls: the request's.
        generated, drafted: ids.
        parents: how the drafted ids hang together where they are no chain.
        allowed: Bool [R, V], what a constraint allows at each row; None allows all.
    """

    logits: Float[Tensor, "rows vocab"]
    controls: Controls
    generated: Sequence[int]
    drafted: Sequence[int]
    parents: Int[Tensor, "drafted"] | None = None
    allowed: Bool[Tensor, "rows vocab"] | None = None


def laws(asks: Sequence[Ask]) -> list[Float[Tensor, "rows vocab"]]:
    """The target laws of several requests, float64; the same bits that ``law`` gives each alone.

    Returns:
        for each request [R, V]; a row of NaN, or with nothing allowed, is zeros.

    >>> flat, steep = Controls(SamplingParams()), Controls(SamplingParams(temperature=0))
    >>> rows = torch.tensor([[1.0, 1.0]])
    >>> laws([Ask(rows, flat, [], []), Ask(rows, steep, [], []), Ask(rows, flat, [], [])])[1:]
    [tensor([[1., 0.]], dtype=torch.float64), tensor([[0.5000, 0.5000]], dtype=torch.float64)]
    """
    groups: dict[tuple[SamplingParams, tuple[int, ...], bool], list[int]] = {}
    for place, ask in enumerate(asks):
        masked = ask.controls.mask is not None or ask.allowed is not None
        groups.setdefault((ask.controls.params, ask.controls.ends, masked), []).append(place)
    made: dict[int, Tensor] = {}
    for (params, ends, masked), places in groups.items():
        group = [asks[place] for place in places]
        rows = [ask.logits.shape[0] for ask in group]
        made |= zip(places, _shared(params, ends, masked, group).split(rows), strict=True)
    return [made[place] for place in range(len(asks))]


def _shared(params: SamplingParams, ends: tuple[int, ...], masked: bool, group: Sequence[Ask]) -> Tensor:
    logits = group[0].logits if len(group) == 1 else torch.cat([ask.logits for ask in group])
    if params == PLAIN and not masked:  # bit for bit what ``distribution`` gives
        return logits.softmax(-1, dtype=torch.float64).nan_to_num_(0.0)
    nothing = torch.empty(logits.shape[0], 0, dtype=torch.int64)
    generated = _filled([prefixes(ask.generated, ask.drafted, ask.parents) for ask in group]) if params.history else nothing
    prompts = _filled([_repeated(ask.controls.prompt, ask.logits.shape[0]) for ask in group]) if params.history else nothing

    def one(row: Tensor, prompt: Tensor, before: Tensor, mask: Tensor | None) -> Tensor:
        return distribution(row, params, prompt=prompt, generated=before, eos_ids=ends, mask=mask)

    masks = torch.cat([_allowed(ask) for ask in group]) if masked else None
    over = torch.func.vmap(one, in_dims=(0, 0, 0, 0 if masked else None))
    return over(logits.to(torch.float64), prompts, generated, masks)


def _filled(rows: Sequence[Tensor]) -> Tensor:
    """Rows of ids under one another, filled up with -1."""
    width = max(part.shape[1] for part in rows)
    return torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1]), value=-1) for part in rows])


def _repeated(ids: Sequence[int], rows: int) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64).expand(rows, -1)


def _allowed(ask: Ask) -> Tensor:
    mask = torch.ones_like(ask.logits, dtype=torch.bool) if ask.controls.mask is None else ask.controls.mask.expand_as(ask.logits)
    return mask if ask.allowed is None else mask & ask.allowed
