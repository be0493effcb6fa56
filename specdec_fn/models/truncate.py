"""The first layers of a model as a model: a cheap guess at what the whole would say, without a parameter of its own."""

import dataclasses
import operator
from typing import Any

from specdec_fn.models import llama
from specdec_fn.models.llama import Params
from specdec_fn.models.model import Model

__all__ = ["first_layers"]


def first_layers(model: Any, count: Any) -> Model:
    """The model of the first ``count`` blocks, with the whole model's final norm and head (early exit, arXiv 2404.16710).

    The parameters are shared, not copied. What the first blocks hand to ``attend`` is what those of the whole model hand to it, so the keys and
    values of both are the same numbers, layer by layer.

    Args:
        model: of the Llama family.
        count: blocks, from 1 to those of the model.

    Raises:
        TypeError: not a Model, a count that is no integer, or a model that has no blocks to take.
        ValueError: a count out of range.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> whole = toy.llama(key(0), layers=3)
    >>> short = first_layers(whole, 2)
    >>> short.config.layers, short.params.layers[1] is whole.params.layers[1]
    (2, True)
    """
    if not isinstance(model, Model):
        raise TypeError(f"model is {model!r:.80}; expected a Model, such as load(...)[0]")
    if not isinstance(model.params, Params):
        raise TypeError(f"the model is a {model.config.architecture} model without blocks; expected one of the Llama family")
    try:
        number = operator.index(count)
    except TypeError:
        raise TypeError(f"the number of layers is {count!r:.80}; expected a whole number from 1 to {model.config.layers}") from None
    if not 1 <= number <= model.config.layers:
        raise ValueError(f"the number of layers is {number}; expected a whole number from 1 to {model.config.layers}")
    params = dataclasses.replace(model.params, layers=model.params.layers[:number])
    return llama.model(dataclasses.replace(model.config, layers=number), params)
