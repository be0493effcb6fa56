"""How much an error in each input of each matrix matters: the mean square of what a model multiplies it by, over some tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specdec_fn.models import llama
from specdec_fn.models.llama import Params
from specdec_fn.models.model import Model, causal, checked, parameter
from specdec_fn.models.product import product
from specdec_fn.models.rope import rotate, rotation
from specdec_fn.models.rowwise import Rowwise, gate, norm
from specdec_fn.typing import Float, Int, Tensor
from specdec_kernels.packed import Packed

__all__ = ["Importance", "importance", "spread"]

MATRICES = 4  # of a block, in the order in which a pass multiplies by them


class Importance(NamedTuple):
    """Mean squares, float32.

    Attributes:
        qkv, output, gate_up, down: one [inputs] for each block.
        head: [width].
    """

    qkv: tuple[Float[Tensor, "inputs"], ...]
    output: tuple[Float[Tensor, "inputs"], ...]
    gate_up: tuple[Float[Tensor, "inputs"], ...]
    down: tuple[Float[Tensor, "inputs"], ...]
    head: Float[Tensor, "width"]


@torch.no_grad()
def importance(model: Model, tokens: Tensor | Sequence[int]) -> Importance:
    """Measures over one cold forward.

    Args:
        model: of the Llama family.
        tokens: ids, such as ``spread`` or a text of the kind that the model is for.

    Raises:
        TypeError: a model without blocks. ValueError: as ``models.logits``.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> found = importance(toy.llama(key(0), layers=2), [1, 2, 3])
    >>> len(found.down), bool((found.head > 0).all())
    (2, True)
    """
    if not isinstance(model.params, Params):
        raise TypeError(f"the model is a {model.config.architecture} model without blocks; expected one of the Llama family")
    ids = checked(model.config, tokens).to(parameter(model).device)
    squares: list[Tensor] = []

    def noted(rows: Tensor, weight: Tensor | Packed) -> Tensor:
        squares.append(rows.to(torch.float32).square().mean(0))
        return product(rows, weight)

    steps = llama.stepwise(model.config, model.params, Rowwise(noted, norm, rotate, gate, rotation))
    steps.apply(model.params, ids, torch.arange(ids.shape[0], device=ids.device), None, causal)
    last = MATRICES * model.config.layers
    qkv, output, gate_up, down = (tuple(squares[place:last:MATRICES]) for place in range(MATRICES))
    return Importance(qkv, output, gate_up, down, squares[-1])


def spread(vocab_size: int, count: int = 192) -> Int[Tensor, "count"]:
    """Ids spread evenly over a vocabulary, in an order that repeats nothing: each a golden section of it past the last.

    They are no text, and serve nearly as well: a four-bit SmolLM2-135M weighed by them shares 0.843 of its law with the model, and weighed by a text
    or by what the model says itself 0.847 (prose at temperature 1; 0.77 where all inputs weigh alike).

    >>> spread(10, 4)
    tensor([0, 6, 2, 8])
    """
    return (torch.arange(count, dtype=torch.float64) * 0.6180339887498949).remainder(1.0).mul(vocab_size).long()
