"""Hypothesis strategies for laws, worlds, drafts and keys, for this project's tests and for yours.

Laws come with what breaks verifiers: zeros, one-hot rows, ties, values far apart. They shrink to few tokens and equal weights.
"""

from typing import Any

import torch
from hypothesis import strategies as st

from specdec_fn import random
from specdec_fn.speculate import Draft
from specdec_proofs.worlds import Law, Prefix, World, declared_one_hot, normalised

__all__ = ["drafts", "keys", "laws", "rows", "worlds"]


@st.composite
def laws(draw: Any, vocab: int, zeros: bool = True) -> Law:
    """An exact law over ``vocab`` tokens: small weights, so that ties and zeros are common, one-hot, or weights a million apart.

    Args:
        zeros: whether tokens of probability 0 may occur.

    >>> from hypothesis import find
    >>> find(laws(2), lambda law: law[0] == 0)
    (Fraction(0, 1), Fraction(1, 1))
    """
    least = 0 if zeros else 1
    small = st.lists(st.integers(least, 3), min_size=vocab, max_size=vocab)
    far = st.lists(st.sampled_from([least, 1, 1000, 10**6]), min_size=vocab, max_size=vocab)
    one_hot = st.integers(0, vocab - 1).map(lambda token: [int(other == token) for other in range(vocab)])
    weights = draw(st.one_of(small, far, one_hot) if zeros else st.one_of(small, far))
    return normalised(weights if any(weights) else [1] * vocab)


@st.composite
def worlds(draw: Any, most_vocab: int = 3, most_k: int = 2) -> World:
    """A small world whose rows depend on the whole prefix; soft or declared one-hot, with drafts that may stop early.

    >>> from hypothesis import find
    >>> find(worlds(), lambda world: world.k == 2).vocab
    2
    """
    vocab, k = draw(st.integers(2, most_vocab)), draw(st.integers(1, most_k))
    heads: list[Prefix] = [()]
    for head in heads:
        if len(head) < k:
            heads += [(*head, token) for token in range(vocab)]
    target = {head: draw(laws(vocab)) for head in heads}
    draft = {head: draw(laws(vocab)) if draw(st.booleans()) else target[head] for head in heads}
    ends = draw(st.sets(st.sampled_from(heads), max_size=2))
    world = World(f"drawn V={vocab} K={k}", vocab, k, target.__getitem__, draft.__getitem__, stop=ends.__contains__)
    return declared_one_hot(world) if draw(st.booleans()) else world


@st.composite
def rows(draw: Any, count: int, vocab: int, dtype: torch.dtype = torch.float64, zeros: bool = True) -> torch.Tensor:
    """``count`` laws as a float tensor [count, vocab].

    >>> from hypothesis import find
    >>> find(rows(1, 2), lambda law: bool(law[0, 0] > 0.6))
    tensor([[1., 0.]], dtype=torch.float64)
    """
    exact = [draw(laws(vocab, zeros)) for _ in range(count)]
    return torch.tensor([[float(x) for x in law] for law in exact], dtype=torch.float64).reshape(count, vocab).to(dtype)


@st.composite
def drafts(draw: Any, k: int, vocab: int, dtype: torch.dtype = torch.float64) -> Draft:
    """A chain of up to ``k`` tokens that its laws can give, padded; soft or one-hot.

    >>> from hypothesis import find
    >>> find(drafts(2, 3), lambda draft: int(draft.length) == 1).tokens
    tensor([ 0, -1])
    """
    length = draw(st.integers(0, k))
    probs = draw(rows(k, vocab, dtype))
    tokens = [draw(st.sampled_from(torch.nonzero(row).flatten().tolist())) for row in probs]
    padded = [token if i < length else -1 for i, token in enumerate(tokens)]
    return Draft(torch.tensor(padded, dtype=torch.int64), probs if draw(st.booleans()) else None, torch.tensor(length))


def keys() -> st.SearchStrategy[random.Key]:
    """Keys from seeds of either sign, small ones first.

    >>> from hypothesis import find
    >>> find(keys(), lambda key: int(random.key_data(key)[1]) > 5)
    Key(words=tensor([0, 6]))
    """
    return st.one_of(st.integers(0, 100), st.integers(-(2**63), 2**63 - 1)).map(random.key)
