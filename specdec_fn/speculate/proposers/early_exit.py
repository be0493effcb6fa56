"""Drafting with the first layers of the target itself, its final norm and its head: no second model, no second cache.

The keys and values of the first layers are the target's own, number for number. A loop or an engine that has them lets the draft read them and
write the drafted rows behind them, where the target's pass over the draft writes the same numbers again. Source: arXiv 2404.16710 (LayerSkip),
arXiv 2309.08168 (self-speculative decoding). A model that was not trained to be left early is hardly ever right before its end: of SmolLM2-135M's
drafts on prose at temperature 0, 6 % are kept from 20 of its 30 layers, 20 % from 26 and 39 % from 29, so no number of layers pays there.
"""

from specdec_fn.models import Model
from specdec_fn.models.truncate import first_layers
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate.proposer import Proposer
from specdec_fn.speculate.proposers import draft_model

__all__ = ["drafting", "proposer"]


def drafting(model: Model, layers: int | None = None) -> Model:
    """The model that drafts: the first layers, two thirds of them unless it is said how many.

    Raises:
        TypeError, ValueError: as ``models.truncate.first_layers``.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> drafting(toy.llama(key(0), layers=6)).config.layers
    4
    """
    if layers is None and isinstance(model, Model):
        layers = max(round(2 * model.config.layers / 3), 1)
    return first_layers(model, 0 if layers is None else layers)


def proposer(
    model: Model,
    layers: int | None = None,
    *,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    race: bool = False,
) -> Proposer:
    """A proposer that draws its tokens from the laws of the target's first layers, and hands those laws over.

    Args:
        model: the target, of the Llama family; the one whose tokens are drafted for.
        layers: how many of its layers draft; two thirds of them unless given. More are right more often, and cost more.
        sampling: the controls of the drafts, best those of the request. Any are lossless.
        race: whether drafts are winners of the race that ``coupled`` runs; as for ``draft_model.proposer``.

    Returns:
        a proposer whose drafter shares the target's cache where a loop or an engine runs it; ``propose`` itself keeps a cache of its own. The
        laws are the same either way, to the last bit in invariant mode.

    Raises:
        TypeError, ValueError: a model without layers, a number of layers out of range, or controls that name an id outside the vocabulary.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> half = proposer(toy.llama(key(0), layers=2), 1)
    >>> half.name, half.propose(key(0), half.init([3]), [3], 2, position=1)[1].tokens.shape
    ('early_exit', torch.Size([2]))
    """
    return draft_model.sharing("early_exit", drafting(model, layers), sampling=sampling, race=race)
