"""Drafting on the target's own keys and values: a model of the target's first layers, in some form, needs no cache of its own.

Before a pass the target's cache holds all committed tokens but the last. The drafting model reads that token and then its own draft, each a row
of one forward, into slots past the committed ones; these are no part of the state, and the target's pass over the draft writes all of them again
before anything is kept.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from specdec_fn import models
from specdec_fn.engine.running import Running, usable
from specdec_fn.kv import dense
from specdec_fn.models.model import parameter
from specdec_fn.pytree import donates
from specdec_fn.speculate import Draft, Proposer, proposers
from specdec_fn.speculate.proposers.draft_model import Controls
from specdec_fn.typing import Tensor

__all__ = ["drafted", "fits", "in_dtype", "shares", "told_of"]


def shares(proposer: Proposer) -> bool:
    """Whether a proposer drafts on the target's own keys and values.

    >>> shares(proposers.ngram.proposer())
    False
    """
    return proposer.drafter is not None and proposer.drafter.shares


def fits(proposer: Proposer, sizes: models.Config) -> None:
    """Refuses a proposer that would share the cache of a target of another shape.

    Raises:
        ValueError: what the drafting model has and what was expected.

    >>> fits(proposers.ngram.proposer(), models.Config("toy", vocab_size=3, context=10))
    """
    if proposer.drafter is None or not proposer.drafter.shares:
        return
    own = proposer.drafter.model.config
    if own.layers > sizes.layers or (own.kv_heads, own.head_dim) != (sizes.kv_heads, sizes.head_dim):
        received = f"{own.layers} layers of {own.kv_heads} key-value heads of {own.head_dim}"
        expected = f"at most {sizes.layers} layers of {sizes.kv_heads} of {sizes.head_dim}"
        raise ValueError(f"proposer {proposer.name!r} shares the cache of a model with {received}; expected {expected}, as the target has")


@donates("kv")
def drafted(run: Running, kv: dense.DenseCache, vocab_size: int, attend: dense.Attend) -> tuple[Running, Draft, dense.DenseCache]:
    """Asks a proposer that shares the target's cache, and cuts what need not be verified. DONATES the cache.

    Args:
        run: the sequence, without its cache.
        kv: the cache; what it has committed stays as it is.
        vocab_size: the target's.
        attend: how the target attends to it.

    Raises:
        TypeError, ValueError: as ``running.drafted``.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> from specdec_fn.speculate import verifiers
    >>> circle = toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> guess = proposers.draft_model.sharing("own", circle)
    >>> run = Running(key(0), None, (0, 1), 2, 4, guess, verifiers["token"], 9, guess.init([0, 1]), None)
    >>> drafted(run, dense.advance(dense.init(circle.config, 6, dtype=torch.float32), 1), 3, dense.attend)[1].tokens
    tensor([2, 0, 1])
    """
    drafter = run.proposer.drafter
    assert drafter is not None, "a proposer that shares has a drafter"
    most, tokens = min(run.k, run.left - 1), list(run.tokens)
    guess, asked = drafter.ask(run.key, run.guess, tokens, most, position=len(tokens))
    if isinstance(asked, Draft):
        return run._replace(guess=guess), usable(run, asked, vocab_size), kv
    layers = drafter.model.config.layers
    lent = dataclasses.replace(kv, keys=kv.keys[:layers], values=kv.values[:layers], mask=())
    own = in_dtype(attend, kv.keys[0].dtype, parameter(drafter.model).dtype) if layers else attend
    controls = Controls(drafter.sampling, run.prompt, vocab_size)
    wanted = min(asked, most) if max(tokens) < drafter.model.config.vocab_size else 0
    draft, lent = proposers.draft_model.drawn(run.key, drafter.model, lent, tokens, wanted, controls, own, position=len(tokens), race=drafter.race)
    kv = dataclasses.replace(kv, keys=(*lent.keys, *kv.keys[layers:]), values=(*lent.values, *kv.values[layers:]), mask=())
    return told_of(run._replace(guess=guess), draft), usable(run, draft, vocab_size), kv


def told_of(run: Running, draft: Draft) -> Running:
    """The sequence whose proposer knows what its model drafted.

    >>> from specdec_fn.speculate.draft import chain
    >>> told_of(Running(None, None, (4, 5), 2, 3, proposers.ngram.proposer(), None, 9, (), None), chain([], 0)).guess
    ()
    """
    drafter = run.proposer.drafter
    return run if drafter is None else run._replace(guess=drafter.told(run.guess, list(run.tokens), draft))


def in_dtype(attend: Callable[..., tuple[Tensor, Any]], dtype: Any, wanted: Any = None) -> Callable[..., tuple[Tensor, Any]]:
    """An ``attend`` whose rows are brought to the dtype of the cache, and whose result comes back in their own.

    Args:
        attend: how rows of the cache's dtype attend.
        dtype: of the cache.
        wanted: of the rows, if it is known.

    >>> import torch
    >>> rows = torch.ones(1, 1, 2, dtype=torch.float64)
    >>> in_dtype(lambda kv, layer, query, key, value: (query, key.dtype), torch.float32)(None, 0, rows, rows, rows)[1]
    torch.float32
    """

    if wanted is dtype:
        return attend  # which may say beforehand what it does, and a wrapper cannot

    def cast(kv: Any, layer: int, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Any]:
        out, kv = attend(kv, layer, query.to(dtype), key.to(dtype), value.to(dtype))
        return out.to(query.dtype), kv

    return cast
