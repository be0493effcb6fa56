"""Several sequences in one forward: their rows lie one after another, and each sequence attends to its own cache.

Everything in a pass but attention treats rows apart, so a batch is an ``attend`` value too: it hands every sequence its own rows.
"""

from collections.abc import Sequence

import torch

from specdec_fn.kv.dense import Attend, DenseCache
from specdec_fn.pytree import donates
from specdec_fn.typing import Float, Tensor

__all__ = ["attend"]


def attend(parts: Sequence[Attend], counts: Sequence[int]) -> Attend:
    """Builds the attention of a pass over several sequences.

    Args:
        parts: the ``attend`` value of each sequence.
        counts: how many rows of the pass are each one's.

    Returns:
        an ``attend`` value whose ``kv`` is the tuple of their caches, which it DONATES.

    >>> from types import SimpleNamespace
    >>> from specdec_fn.kv import dense
    >>> caches = tuple(dense.init(SimpleNamespace(layers=1, kv_heads=1, head_dim=1), 4, dtype=torch.float32) for _ in range(2))
    >>> values = torch.tensor([1.0, 3.0, 8.0])[:, None, None]
    >>> attend([dense.attend, dense.attend], [2, 1])(caches, 0, torch.ones(3, 1, 1), torch.ones(3, 1, 1), values)[0].flatten()
    tensor([1., 2., 8.])
    """
    assert len(parts) == len(counts), "one attention for each sequence"

    @donates("kv")
    def beside(
        kv: tuple[DenseCache, ...],
        layer: int,
        query: Float[Tensor, "tokens heads head_dim"],
        key: Float[Tensor, "tokens kv_heads head_dim"],
        value: Float[Tensor, "tokens kv_heads head_dim"],
    ) -> tuple[Float[Tensor, "tokens heads head_dim"], tuple[DenseCache, ...]]:
        rows = zip(*(tensor.split(tuple(counts)) for tensor in (query, key, value)), strict=True)
        done = [part(cache, layer, *own) for part, cache, own in zip(parts, kv, rows, strict=True)]
        return torch.cat([out for out, _ in done]), tuple(cache for _, cache in done)

    return beside
