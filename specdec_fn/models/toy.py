"""Small models for checks: a bigram table, whose law is known, and a Llama of random weights, which keeps keys and values as a real one does.

A bigram table needs no weights, and whatever decides tokens can be checked against the table itself. It looks at one token and keeps no cache,
so whatever holds caches is checked with the random Llama, whose laws hang on every token before them.
"""

from typing import Any

import torch

from specdec_fn.models.config import Config
from specdec_fn.models.llama import assemble, shapes
from specdec_fn.models.llama import model as built
from specdec_fn.models.model import Forward, Model
from specdec_fn.random import Key, fold_in, uniform
from specdec_fn.typing import Float, Int, Tensor

__all__ = ["bigram", "llama"]

SPREAD = 1.5  # standard deviation of the random Llama's logits: its laws are then neither flat nor one-hot


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


def llama(
    key: Key,
    *,
    vocab_size: int = 32,
    layers: int = 2,
    width: int = 16,
    heads: int = 2,
    kv_heads: int = 1,
    head_dim: int = 8,
    ffn: int = 32,
    context: int = 256,
    dtype: torch.dtype = torch.float64,
) -> Model:
    """Builds a small Llama with random weights: the same key and sizes always give the same model.

    Norms weigh 1. The other weights are uniform around 0, drawn in float64 and then rounded to ``dtype``, so that one key gives the same model
    at several precisions. A matrix keeps the mean square of its rows' input, the embedding has mean square 1, and the logits spread by about
    1.5 around their mean.

    Args:
        key: one key; tensor i of ``models.llama.shapes`` is drawn under ``fold_in(key, i)``.
        vocab_size, layers, width, heads, kv_heads, head_dim, ffn, context: as in ``Config``.
        dtype: of the weights, and so of keys, values and logits.

    Raises:
        TypeError: the key is not one key, or the dtype is not floating point.
        ValueError: sizes that ``Config`` refuses.

    >>> from specdec_fn.random import key
    >>> model = llama(key(0), layers=1)
    >>> model.apply(model.params, torch.tensor([3, 1]), torch.tensor([0, 1]), None, lambda kv, layer, q, k, v: (q, kv))[0].shape
    torch.Size([2, 32])
    """
    if not isinstance(key, Key) or key.shape:
        received = f"keys of shape {list(key.shape)}" if isinstance(key, Key) else f"{key!r:.40}"
        raise TypeError(f"the key is {received}; expected one key, such as key(0)")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype is {dtype!r:.40}; expected a floating-point dtype, such as torch.float64")
    config = Config("llama", vocab_size, context, width, layers, heads, kv_heads, head_dim, ffn)
    named = shapes(config)
    keys = {name: fold_in(key, i) for i, name in enumerate(named)}

    def weight(name: str) -> Tensor:
        shape = named[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=dtype)
        spread = {"embedding": 1.0, "head": SPREAD / shape[1] ** 0.5}.get(name, shape[1] ** -0.5)
        return ((2 * uniform(keys[name], shape) - 1) * spread * 3**0.5).to(dtype)

    return built(config, assemble(config, weight))


def _apply(
    params: Float[Tensor, "vocab vocab"], tokens: Int[Tensor, "tokens"], positions: Int[Tensor, "tokens"], kv: Any, attend: Any
) -> tuple[Float[Tensor, "tokens vocab"], Any]:
    return params[tokens], kv


def _prefill(params: Float[Tensor, "vocab vocab"], tokens: Int[Tensor, "tokens"], positions: Int[Tensor, "tokens"], kv: Any, attend: Any) -> Any:
    return kv
