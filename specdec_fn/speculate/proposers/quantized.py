"""Drafting with the target's own weights in 4 or 8 bits: a fraction of the bytes, and right most of the time.

q is exactly the law that was drawn from, so the target stays exact whatever the rounding does. Where a loop or an engine runs the draft it reads
the target's own keys and values, which are those of the whole weights; the rows that it writes for drafted tokens come from the rounded ones, and
the target's pass over the draft overwrites every one that is kept.

A grid that is the file's own reproduces a quantised file exactly: drafting with it is then always right, and faster only by as much as plain
decoding with those weights already is. A self-draft says something where its grid is not the one that the target's weights lie on.
"""

from specdec_fn.models import Model
from specdec_fn.models.quantized import quantized
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate.proposer import Proposer
from specdec_fn.speculate.proposers import draft_model

__all__ = ["drafting", "proposer"]


def drafting(model: Model, kind: str = "int4") -> Model:
    """The model that drafts: the target with its matrices packed.

    Raises:
        TypeError, ValueError: as ``models.quantized.quantized``.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> drafting(toy.llama(key(0), width=32, heads=2, head_dim=16, ffn=32, dtype=torch.float32)).config.width
    32
    """
    return quantized(model, kind)


def proposer(
    model: Model,
    kind: str = "int4",
    *,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    race: bool = False,
) -> Proposer:
    """A proposer that draws its tokens from the laws of the target's own weights in fewer bits, and hands those laws over.

    Args:
        model: the target; its weights are packed here, once: keep the proposer, or give its ``drafter`` on, rather than build another.
        kind: how they are packed: "int4", "int8", "q4_0", "q4_1" or "q8_0".
        sampling: the controls of the drafts, best those of the request. Any are lossless.
        race: whether drafts are winners of the race that ``coupled`` runs; as for ``draft_model.proposer``.

    Returns:
        a proposer whose drafter shares the target's cache where a loop or an engine runs it: each drafted token is then one row of one forward.
        ``propose`` itself keeps a cache of its own, filled by the packed weights, so its laws are others (and as lossless).

    Raises:
        TypeError, ValueError: a model that cannot be packed, an unknown kind, or controls that name an id outside the vocabulary.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> packed = proposer(toy.llama(key(0), width=32, heads=2, head_dim=16, ffn=32, dtype=torch.float32))
    >>> packed.name, packed.drafter.shares
    ('quantized', True)
    """
    return draft_model.sharing("quantized", drafting(model, kind), sampling=sampling, race=race)
