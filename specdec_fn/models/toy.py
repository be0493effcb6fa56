"""Models whose law is known: a bigram table needs no weights, and whatever decides tokens can be checked against the table itself."""

from typing import Any

import torch

from specdec_fn.models.config import Config
from specdec_fn.models.model import Forward, Model
from specdec_fn.typing import Float, Int, Tensor

__all__ = ["bigram"]


def bigram(table: Tensor, *, context: int = 2**20) -> Model:
    """Builds a model whose law after a token is that token's row of a table, whatever came before.

    Its params are the logarithm of the table, in the table's dtype (-inf where the table is 0); logits = params[token]. It keeps no keys
    and hands ``kv`` on, and it is its own invariant form.

    Args:
        table: [vocab, vocab]; row t is the law of the token after t.
        context: most positions it accepts.

    Raises:
        TypeError: the table is not floating point.
        ValueError: the table is not square, has an entry that is negative or not finite, or a row whose sum is off 1 by more than 1e-6.

    >>> model = bigram(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    >>> model.apply(model.params, torch.tensor([1]), torch.tensor([0]), None, None)
    (tensor([[-inf, 0.]]), None)
    """
    if not isinstance(table, torch.Tensor) or not table.is_floating_point():
        raise TypeError(f"a bigram table must be a floating point tensor, received {getattr(table, 'dtype', type(table).__name__)}")
    if table.dim() != 2 or table.shape[0] != table.shape[1] or not table.shape[0]:
        raise ValueError(f"a bigram table must be square with at least one row, received shape {tuple(table.shape)}")
    if not bool(table.isfinite().all()) or bool((table < 0).any()):
        raise ValueError("a bigram table must hold finite numbers of at least 0, received a negative or non-finite entry")
    worst = float((table.to(torch.float64).sum(-1) - 1).abs().max())
    if worst > 1e-6:
        raise ValueError(f"every row of a bigram table must sum to 1 within 1e-6, received a row that is off by {worst:.3g}")
    config = Config("toy", vocab_size=table.shape[0], context=context)
    return Model(config, table.log(), _apply, _prefill, Forward(_apply, _prefill))


def _apply(
    params: Float[Tensor, "vocab vocab"], tokens: Int[Tensor, "tokens"], positions: Int[Tensor, "tokens"], kv: Any, attend: Any
) -> tuple[Float[Tensor, "tokens vocab"], Any]:
    return params[tokens], kv


def _prefill(params: Float[Tensor, "vocab vocab"], tokens: Int[Tensor, "tokens"], positions: Int[Tensor, "tokens"], kv: Any, attend: Any) -> Any:
    return kv
