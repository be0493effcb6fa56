"""Repetitions of one pass over a world, drawn as the engine draws them: keys, then addresses, then the tape, then ``decide``.

Repetitions are the passes of many requests, each with a key of its own and ``PASSES`` passes at bases 0, 1, 2, ... Draft noise stands at
(key, draft, base, lane), the tape is the verifier's own ``tape``. What is emitted is completed to K + 1 tokens by target sampling, and that
law is what the tests are about; the completion has keys of its own.
"""

from collections.abc import Callable, Hashable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map

from specdec_fn.random import Key, split, uniform
from specdec_fn.sampling import draw as shipped_draw
from specdec_fn.speculate import Draft
from specdec_fn.speculate import batched as lift
from specdec_fn.speculate.tape import DRAFT, address, tape
from specdec_proofs.enumerate import Emitted
from specdec_proofs.worlds import Prefix, World

__all__ = ["Automaton", "Sample", "automaton", "cells", "histogram", "sample"]

PASSES = 64  # of one request
NUMBERS = 1 << 18  # passes whose numbers are drawn together, a multiple of PASSES
BYTES = 1 << 24  # of target rows in one batched decision


class Automaton(NamedTuple):
    """A world as tables over its states: S states, of which 0 is the one before any token.

    Attributes:
        target: float [S, V], law of the next token.
        draft: float [S, V], law of the next drafted token.
        told: float [S, V], the law the verifier is told, the same unless the proposer misreports it.
        stop: bool [S], whether a draft ends there.
        step: int64 [S, V], the state after a token.
    """

    target: torch.Tensor
    draft: torch.Tensor
    told: torch.Tensor
    stop: torch.Tensor
    step: torch.Tensor


class Sample(NamedTuple):
    """Repetitions: completed tokens int64 [n, K + 1], how many drafted tokens were accepted and how many proposed, int64 [n]."""

    tokens: torch.Tensor
    accepted: torch.Tensor
    proposed: torch.Tensor


def automaton(world: World, dtype: torch.dtype = torch.float64) -> Automaton:
    """Tabulates a world, state by state.

    >>> from specdec_proofs.worlds import toy
    >>> automaton(toy()).step.tolist()
    [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """
    heads: list[Prefix] = [()]
    known: dict[Hashable, int] = {world.state(()): 0}
    step = []
    for head in heads:  # grows as it runs: breadth first, so each state is met by its shortest prefix
        row = [0] * world.vocab
        for token in range(world.vocab if len(head) < world.k else 0):
            after = (*head, token)
            if world.state(after) not in known:
                known[world.state(after)] = len(heads)
                heads.append(after)
            row[token] = known[world.state(after)]
        step.append(row)
    laws = (world.target, world.draft, world.told or world.draft)
    target, draft, told = (torch.tensor([[float(x) for x in law(head)] for head in heads], dtype=torch.float64).to(dtype) for law in laws)
    return Automaton(target, draft, told, torch.tensor([world.stop(head) for head in heads]), torch.tensor(step))


def sample(
    decide: Callable[..., Any],
    world: World,
    key: Key,
    n: int,
    dtype: torch.dtype = torch.float64,
    *,
    tape: Callable[..., Any] = tape,
    draft_rows: int | None = None,
) -> Sample:
    """Draws ``n`` independent passes over a world.

    Args:
        decide: the single-sequence function of a verifier or of a mutant.
        key: of the experiment; pass i is that of base ``i % PASSES`` of the request key ``split(split(key)[0], ...)[i // PASSES]``.
        tape: the verifier's own.
        draft_rows: rows of ``Draft.probs``, k unless given; see ``integrate.tensors``.

    >>> from specdec_fn import random
    >>> from specdec_fn.speculate import verifiers
    >>> from specdec_proofs.worlds import toy
    >>> sample(verifiers["token"].decide, toy(), random.key(1), 5).tokens.shape
    torch.Size([5, 3])
    """
    requests, rest = split(key)
    keys, completion = split(requests, -(-n // PASSES)), uniform(rest, (n, world.k + 1), dtype)
    tables, rows = automaton(world, dtype), world.k if draft_rows is None else draft_rows
    step = max(1, BYTES // ((world.k + 1) * world.vocab * completion.element_size()))
    parts = []
    for first in range(0, n, NUMBERS):
        last = min(first + NUMBERS, n)
        numbers = _numbers(tape, world, keys[first // PASSES : -(-last // PASSES)], dtype)
        for at in range(first, last, step):
            end = min(at + step, last)
            noise, tapes = tree_map(lambda leaf: leaf[at - first : end - first], numbers)  # noqa: B023
            parts.append(_passes(decide, world, tables, noise, tapes, completion[at:end], rows))
    return Sample(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _numbers(tape: Callable[..., Any], world: World, keys: Key, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
    """Draft noise and tapes of all passes of the requests with these keys, [passes, ...]."""

    def one(key: Key, base: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return uniform(address(key, DRAFT, base), (world.k,), dtype), tape(key, world.k, world.vocab, position=base, dtype=dtype)

    each_base = torch.func.vmap(one, in_dims=(None, 0))
    drawn = torch.func.vmap(each_base, in_dims=(0, None))(keys, torch.arange(PASSES))
    return tree_map(lambda leaf: leaf.flatten(0, 1), drawn)


def _passes(
    decide: Callable[..., Any], world: World, tables: Automaton, noise: torch.Tensor, tapes: Any, completion: torch.Tensor, draft_rows: int
) -> Sample:
    n, k = len(completion), world.k
    pick = torch.func.vmap(shipped_draw)
    states, tokens = [torch.zeros(n, dtype=torch.int64)], []
    going, length = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64)
    for i in range(k):
        going = going & ~tables.stop[states[-1]]
        length = length + going
        drafted = pick(noise[:, i], tables.draft[states[-1]])
        tokens.append(torch.where(going, drafted, -1))
        states.append(tables.step[states[-1], drafted])
    path = torch.stack(states, 1)
    draft = Draft(torch.stack(tokens, 1), tables.told[path[:, :draft_rows]] if world.soft else None, length)
    verdict = lift(decide)(tapes, tables.target[path], draft)
    state, out = states[0], []
    for i in range(k + 1):
        token = torch.where(i < verdict.emitted, verdict.tokens[:, i], pick(completion[:, i], tables.target[state]))
        out.append(token)
        state = tables.step[state, token] if i < k else state
    return Sample(torch.stack(out, 1), verdict.accepted, length)


def cells(world: World, law: Emitted, length: int) -> NDArray[np.float64]:
    """A law of sequences of at least ``length`` tokens as a vector over the V**length values of their first ``length``.

    >>> from specdec_proofs.enumerate import joint
    >>> from specdec_proofs.worlds import toy
    >>> cells(toy(), joint(toy()), 1).tolist()
    [0.5, 0.25, 0.25]
    """
    vector = [Fraction(0)] * world.vocab**length
    for sequence, mass in law.items():
        vector[sum(token * world.vocab ** (length - 1 - i) for i, token in enumerate(sequence[:length]))] += mass
    return np.array(vector, np.float64)


def histogram(tokens: torch.Tensor, vocab: int, length: int) -> NDArray[np.int64]:
    """Counts of the first ``length`` tokens of each row, over the V**length cells of ``cells``.

    >>> histogram(torch.tensor([[0, 1], [1, 1], [1, 0]]), 2, 1).tolist()
    [1, 2]
    """
    code = torch.zeros(len(tokens), dtype=torch.int64)
    for i in range(length):
        code = code * vocab + tokens[:, i]
    return torch.bincount(code, minlength=vocab**length).numpy()
