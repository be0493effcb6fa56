"""A model with its matrices in 8 or 4 bits: the same function of tokens, read from a fraction of the bytes."""

import dataclasses
from typing import Any

from specdec_fn.models import llama
from specdec_fn.models.importance import importance, spread
from specdec_fn.models.llama import Layer, Params
from specdec_fn.models.model import Model
from specdec_fn.typing import Tensor
from specdec_kernels.packed import Packed, packed

__all__ = ["quantized"]

MATRICES = ("qkv", "output", "gate_up", "down")
TOKENS = 192  # over which it is measured what matters


def quantized(model: Model, kind: str = "int4") -> Model:
    """The model whose matrices are rounded to a kind's grid; its norms and biases are shared, and what is packed already stays as it is.

    With "int4" the grid has groups of 64 with an offset, chosen so that the error that the inputs make of it is small (``importance`` over
    ``spread`` ids), and embedding and head are "int8": they make the law.

    Args:
        model: of the Llama family.
        kind: "int8", "int4", "q8_0", "q4_0" or "q4_1", as in ``specdec_kernels.packed``; all but "int8" need rows of a multiple of 32.

    Raises:
        TypeError: not a Model, or one without blocks. ValueError: an unknown kind, or a matrix that it cannot hold.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> quantized(toy.llama(key(0), width=32, heads=2, head_dim=16, ffn=32)).params.layers[0].down.kind
    'int4'
    """
    if not isinstance(model, Model):
        raise TypeError(f"model is {model!r:.80}; expected a Model, such as load(...)[0]")
    params = model.params
    if not isinstance(params, Params):
        raise TypeError(f"the model is a {model.config.architecture} model without blocks; expected one of the Llama family")
    matters = None
    if kind == "int4" and not any(isinstance(layer.qkv, Packed) for layer in params.layers):
        matters = importance(model, spread(model.config.vocab_size, min(TOKENS, model.config.context)))

    def small(weight: Tensor | Packed, kind: str, weights: Tensor | None = None) -> Packed:
        return weight if isinstance(weight, Packed) else packed(weight, kind, importance=weights)

    def block(index: int, layer: Layer) -> Layer:
        weights = {name: None if matters is None else getattr(matters, name)[index] for name in MATRICES}
        made: dict[str, Any] = {name: small(getattr(layer, name), kind, weights[name]) for name in MATRICES}
        return dataclasses.replace(layer, **made)

    edge = "int8" if kind == "int4" else kind
    head = None if params.head is None else small(params.head, edge)
    blocks = tuple(block(index, layer) for index, layer in enumerate(params.layers))
    return llama.model(model.config, Params(small(params.embedding, edge), blocks, params.norm, head))
