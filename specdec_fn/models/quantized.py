"""A model with its matrices in 8 or 4 bits: the same function of tokens, read from a fraction of the bytes."""

import dataclasses
from typing import Any

from specdec_fn.models import llama
from specdec_fn.models.llama import Layer, Params
from specdec_fn.models.model import Model
from specdec_fn.typing import Tensor
from specdec_kernels.packed import Packed, packed

__all__ = ["quantized"]

MATRICES = ("qkv", "output", "gate_up", "down")


def quantized(model: Model, kind: str = "q4_0") -> Model:
    """The model whose matrices are rounded to a kind's grid; its norms and biases are shared, and what is packed already stays as it is.

    Args:
        model: of the Llama family.
        kind: "int8", "q8_0", "q4_0" or "q4_1", as in ``specdec_kernels.packed``; all but the first need rows of a multiple of 32.

    Raises:
        TypeError: not a Model, or one without blocks. ValueError: an unknown kind, or a matrix that it cannot hold.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> quantized(toy.llama(key(0), width=32, heads=2, head_dim=16, ffn=32)).params.layers[0].down.kind
    'q4_0'
    """
    if not isinstance(model, Model):
        raise TypeError(f"model is {model!r:.80}; expected a Model, such as load(...)[0]")
    params = model.params
    if not isinstance(params, Params):
        raise TypeError(f"the model is a {model.config.architecture} model without blocks; expected one of the Llama family")

    def small(weight: Tensor | Packed) -> Packed:
        return weight if isinstance(weight, Packed) else packed(weight, kind)

    def block(layer: Layer) -> Layer:
        made: dict[str, Any] = {name: small(getattr(layer, name)) for name in MATRICES}
        return dataclasses.replace(layer, **made)

    head = None if params.head is None else small(params.head)
    made = Params(small(params.embedding), tuple(map(block, params.layers)), params.norm, head)
    return llama.model(model.config, made)
