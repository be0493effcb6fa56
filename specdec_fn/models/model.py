"""A model is a value: its configuration, its parameters, and a pure function of them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as torch_pytree

from specdec_fn.models.config import Config
from specdec_fn.typing import Float, Int, Tensor
from specdec_kernels.packed import Packed

__all__ = ["Attend", "Forward", "Model", "causal", "invariant", "logits", "parameter"]

Attend = Callable[[Any, int, Tensor, Tensor, Tensor], tuple[Tensor, Any]]


class Forward(NamedTuple):
    """The two passes of a model.

    Attributes:
        apply: (params, tokens, positions, kv, attend) -> (logits, kv).
        prefill: (params, tokens, positions, kv, attend) -> kv; the same pass without the vocabulary head, for the tokens of a prompt whose
            logits nobody asks for.
        apply_at: (params, tokens, positions, kv, attend, rows: Int[R]) -> (logits: Float[R, V], kv); the same pass with the head for some rows.
    """

    apply: Callable[..., Any]
    prefill: Callable[..., Any] | None = None
    apply_at: Callable[..., Any] | None = None


class Model(NamedTuple):
    """A language model as a pure function of its parameters.

    Attributes:
        config: sizes and switches.
        params: a pytree of tensors; ``functional_call``, ``grad`` and ``vmap`` apply to it.
        apply: (params, tokens: Int[T], positions: Int[T], kv, attend) -> (logits: Float[T, V], kv). Row t is the law of the token after
            tokens[t]. ``attend(kv, layer, query: [T, H, D], key: [T, HK, D], value: [T, HK, D]) -> (out: [T, H, D], kv)`` is the only place
            where a token meets others, so that dense, paged and tree attention are values of that argument.
        prefill: the pass without the vocabulary head, or None.
        invariant: the passes whose bits do not depend on how many rows they are given, or None; see ``invariant``.
        apply_at: the pass with the vocabulary head for some of its rows, or None; see ``Forward``.
    """

    config: Config
    params: Any
    apply: Callable[..., Any]
    prefill: Callable[..., Any] | None = None
    invariant: Forward | None = None
    apply_at: Callable[..., Any] | None = None


def causal(
    kv: Any,
    layer: int,
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens kv_heads head_dim"],
    value: Float[Tensor, "tokens kv_heads head_dim"],
) -> tuple[Float[Tensor, "tokens heads head_dim"], Any]:
    """Attends without a cache: an ``attend`` value whose tokens see themselves and the earlier tokens of the same pass.

    Softmax(q k / sqrt(D)) v over the keys up to the query's own; query head h reads key-value head h // (H / HK). ``kv`` is handed on.

    >>> out, kv = causal(None, 0, torch.ones(2, 2, 2), torch.ones(2, 1, 2), torch.tensor([[[1.0, 3.0]], [[3.0, 5.0]]]))
    >>> out[:, 0], kv
    (tensor([[1., 3.],
            [2., 4.]]), None)
    """
    out, end = [], 0
    # Written out, since the fused operator has neither a batching rule nor second derivatives on a CPU; in blocks, to bound the scores.
    for rows in query.unflatten(1, (key.shape[1], -1)).split(512):
        start, end = end, end + rows.shape[0]
        scores = torch.einsum("tkgd,skd->kgts", rows, key[:end]) / query.shape[2] ** 0.5
        later = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(start + 1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        out.append(torch.einsum("kgts,skd->tkgd", weights, value[:end]).flatten(1, 2))
    return torch.cat(out), kv


def logits(model: Model, tokens: Tensor | Sequence[int]) -> Float[Tensor, "tokens vocab"]:
    """Computes the logits after every token in one cold pass: no cache, positions 0 to T-1.

    Args:
        model: any model.
        tokens: token ids, a sequence or an integer tensor of one axis.

    Raises:
        TypeError: the ids are not integers.
        ValueError: no tokens, more than one axis, an id outside the vocabulary, or more tokens than the model's context.

    >>> from specdec_fn.models import toy
    >>> logits(toy.bigram(torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)), [1, 0]).exp()
    tensor([[0.2500, 0.7500],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    ids = checked(model.config, tokens).to(parameter(model).device)
    return model.apply(model.params, ids, torch.arange(ids.shape[0], device=ids.device), None, causal)[0]


def invariant(model: Model) -> Model:
    """Gives the model whose logits for a token do not depend, in any bit, on how many rows shared its pass.

    The parameters are the same. Use it with an ``attend`` that has the same property (``kv.dense.attend_invariant``); then speculation,
    chunks and batches change no bit of any logit. It is slower, but not with the C library on a CPU.

    Raises:
        ValueError: the model states no such form.

    >>> from specdec_fn.models import toy
    >>> model = toy.bigram(torch.eye(2))
    >>> invariant(model).apply is model.apply
    True
    """
    if model.invariant is None:
        raise ValueError(f"this {model.config.architecture} model has no invariant form; expected Model.invariant to be given")
    return model._replace(**model.invariant._asdict())


def checked(config: Config, tokens: Tensor | Sequence[int]) -> Int[Tensor, "tokens"]:
    """The ids as an int64 tensor, or one sentence that says why they cannot be token ids of this model."""
    ids = torch.as_tensor(tokens)
    if ids.numel() == 0:
        raise ValueError("no tokens: a pass needs at least one token id")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype is torch.bool:
        raise TypeError(f"token ids must be integers, received {ids.dtype}")
    if ids.dim() != 1:
        raise ValueError(f"token ids must have one axis, received shape {tuple(ids.shape)}")
    if ids.shape[0] > config.context:
        raise ValueError(f"{ids.shape[0]} tokens do not fit into the model's context of {config.context}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= config.vocab_size:
        raise ValueError(f"token ids must lie in [0, {config.vocab_size}), received {low if low < 0 else high}")
    return ids.to(torch.int64)


def parameter(model: Model) -> Tensor:
    """Any one parameter that is not packed: its dtype and device are the model's. An empty float32 tensor on the CPU where there is none.

    >>> from specdec_fn.models import toy
    >>> parameter(toy.bigram(torch.eye(2, dtype=torch.float64))).dtype
    torch.float64
    """
    leaves = torch_pytree.tree_iter(model.params, is_leaf=lambda one: isinstance(one, Packed))
    return next((leaf for leaf in leaves if isinstance(leaf, Tensor)), torch.empty(0))
