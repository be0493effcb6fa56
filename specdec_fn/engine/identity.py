"""A fingerprint of a model, so that a state is never stepped or restored with another one."""

import hashlib

import torch
from torch.utils import _pytree as torch_pytree

from specdec_fn.models import Model

__all__ = ["identity"]

SAMPLED = 64  # numbers read of each parameter: enough to tell models apart, few enough to cost nothing


def identity(model: Model) -> str:
    """A digest of the configuration, and of shape, dtype and some numbers of every parameter.

    >>> from specdec_fn.models import toy
    >>> one, other = toy.bigram(torch.eye(3)), toy.bigram(torch.eye(3).roll(1, 0))
    >>> identity(one) == identity(toy.bigram(torch.eye(3))), identity(one) == identity(other)
    (True, False)
    """
    digest = hashlib.blake2b(repr(model.config).encode(), digest_size=16)
    for leaf in torch_pytree.tree_leaves(model.params):
        if isinstance(leaf, torch.Tensor):
            flat = leaf.detach().reshape(-1)
            some = flat[:: max(1, flat.shape[0] // SAMPLED)].to(torch.float64).cpu()
            digest.update(f"{tuple(leaf.shape)} {leaf.dtype}".encode() + some.numpy().tobytes())
    return digest.hexdigest()
