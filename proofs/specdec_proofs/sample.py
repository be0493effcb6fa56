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
from torch.utils._pytree import tree_leaves, tree_map

from specdec_fn.random import Key, split, uniform
from specdec_fn.sampling import draw as shipped_draw
from specdec_fn.speculate import Draft, Race, Verdict
from specdec_fn.speculate import batched as lift
from specdec_fn.speculate.race import winner
from specdec_fn.speculate.tape import DRAFT, address, tape
from specdec_proofs.enumerate import Emitted
from specdec_proofs.worlds import Prefix, World

__all__ = ["Automaton", "Sample", "automaton", "cells", "histogram", "sample", "sample_trees"]

PASSES = 64  # of one request
NUMBERS = 1 << 18  # passes whose numbers are drawn together, a multiple of PASSES
LEAVES = 1 << 22  # numbers of draft noise and tape in them, about
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
    raced: bool = False,
) -> Sample:
    """Draws ``n`` independent passes over a world.

    Args:
        decide: the single-sequence function of a verifier or of a mutant.
        key: of the experiment; pass i is that of base ``i % PASSES`` of the request key ``split(split(key)[0], ...)[i // PASSES]``. Under a
            race, which reads K + 1 positions on from its base, bases are K + 1 apart, so that no pass reads what another has read.
        tape: the verifier's own: a ``Tape`` or a ``Race``.
        draft_rows: rows of ``Draft.probs``, k unless given; see ``integrate.tensors``.
        raced: whether the drafts are the winners of the tape's own race on the draft's laws, as a coupled drafter's are.

    >>> from specdec_fn import random
    >>> from specdec_fn.speculate import verifiers
    >>> from specdec_proofs.worlds import toy
    >>> sample(verifiers["token"].decide, toy(), random.key(1), 5).tokens.shape
    torch.Size([5, 3])
    """
    tables, rows = automaton(world, dtype), world.k if draft_rows is None else draft_rows

    def run(noise: torch.Tensor, tapes: Any, completion: torch.Tensor) -> Sample:
        return _passes(decide, world, tables, noise, tapes, completion, rows, raced)

    return _repeated(run, world, world.k, tape, key, n, dtype)


def sample_trees(
    decide: Callable[..., Any],
    world: World,
    branches: int,
    key: Key,
    n: int,
    dtype: torch.dtype = torch.float64,
    *,
    replacement: bool,
    tape: Callable[..., Any] = tape,
) -> Sample:
    """Draws ``n`` independent passes over a world with drafts that branch, each child drawn with the noise of its own node (lane = node).

    Nodes stand depth first. Without replacement the next sibling is drawn from the parent's row with the drawn tokens set to 0.

    Args:
        decide, key, tape: as for ``sample``; a race is read ``world.k`` + 1 positions deep, but its tape is as long as the draft has nodes.
        branches, replacement: as for ``trees.tree_drafts``; depth is ``world.k``.

    Returns:
        Tokens completed to ``world.k`` + 1; proposed counts nodes.

    Raises:
        ValueError: ``branches`` is less than 1.

    >>> from specdec_fn import random
    >>> from specdec_fn.speculate import verifiers
    >>> from specdec_proofs.worlds import toy
    >>> sample_trees(verifiers["tree"].decide, toy(), 2, random.key(1), 5, replacement=False).proposed.tolist()
    [6, 6, 6, 6, 6]
    """
    if branches < 1:
        raise ValueError(f"branches is {branches}; expected 1 or more children a node")
    tables, slots = automaton(world, dtype), _slots(world.k, branches)

    def run(noise: torch.Tensor, tapes: Any, completion: torch.Tensor) -> Sample:
        draft, rows = _grown(world, tables, slots, noise, replacement)
        verdict = lift(decide)(tapes, rows, draft)
        return Sample(_completed(world, tables, verdict, completion), verdict.accepted, draft.length)

    return _repeated(run, world, len(slots), tape, key, n, dtype)


def _repeated(run: Callable[..., Sample], world: World, nodes: int, tape: Callable[..., Any], key: Key, n: int, dtype: torch.dtype) -> Sample:
    """``n`` passes with the numbers at their addresses, in batches that bound the memory and change nothing."""
    requests, rest = split(key)
    keys, completion = split(requests, -(-n // PASSES)), uniform(rest, (n, world.k + 1), dtype)
    one = tape(key, nodes, world.vocab, position=0, dtype=dtype)
    apart = nodes + 1 if isinstance(one, Race) else 1
    each = nodes + sum(leaf.numel() for leaf in tree_leaves(one))
    numbers_at_once = max(1, min(NUMBERS, LEAVES // each) // PASSES) * PASSES
    step = max(1, BYTES // ((nodes + 1) * world.vocab * completion.element_size()))
    parts = []
    for first in range(0, n, numbers_at_once):
        last = min(first + numbers_at_once, n)
        numbers = _numbers(tape, world, nodes, keys[first // PASSES : -(-last // PASSES)], apart, dtype)
        for at in range(first, last, step):
            end = min(at + step, last)
            noise, tapes = tree_map(lambda leaf: leaf[at - first : end - first], numbers)  # noqa: B023
            parts.append(run(noise, tapes, completion[at:end]))
    return Sample(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _numbers(tape: Callable[..., Any], world: World, nodes: int, keys: Key, apart: int, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
    """Draft noise and tapes of all passes of the requests with these keys, [passes, ...]."""

    def one(key: Key, base: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return uniform(address(key, DRAFT, base), (nodes,), dtype), tape(key, nodes, world.vocab, position=base, dtype=dtype)

    each_base = torch.func.vmap(one, in_dims=(None, 0))
    drawn = torch.func.vmap(each_base, in_dims=(0, None))(keys, torch.arange(PASSES) * apart)
    return tree_map(lambda leaf: leaf.flatten(0, 1), drawn)


def _passes(
    decide: Callable[..., Any],
    world: World,
    tables: Automaton,
    noise: torch.Tensor,
    tapes: Any,
    completion: torch.Tensor,
    draft_rows: int,
    raced: bool,
) -> Sample:
    n, k = len(completion), world.k
    pick, race = torch.func.vmap(shipped_draw), torch.func.vmap(winner)
    states, tokens = [torch.zeros(n, dtype=torch.int64)], []
    going, length = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64)
    for i in range(k):
        going = going & ~tables.stop[states[-1]]
        length = length + going
        law = tables.draft[states[-1]]
        drafted = race(tapes.noise[:, i], law) if raced else pick(noise[:, i], law)
        tokens.append(torch.where(going, drafted, -1))
        states.append(tables.step[states[-1], drafted])
    path = torch.stack(states, 1)
    told = tables.told[path[:, :draft_rows]] if world.soft else None
    verdict = lift(decide)(tapes, tables.target[path], Draft(torch.stack(tokens, 1) if k else torch.zeros(n, 0, dtype=torch.int64), told, length))
    return Sample(_completed(world, tables, verdict, completion), verdict.accepted, length)


def _completed(world: World, tables: Automaton, verdict: Verdict, completion: torch.Tensor) -> torch.Tensor:
    """The emitted tokens, and target sampling after them up to K + 1."""
    pick = torch.func.vmap(shipped_draw)
    state, out = torch.zeros(len(completion), dtype=torch.int64), []
    for i in range(world.k + 1):
        token = torch.where(i < verdict.emitted, verdict.tokens[:, i], pick(completion[:, i], tables.target[state]))
        out.append(token)
        state = tables.step[state, token] if i < world.k else state
    return torch.stack(out, 1)


def _slots(depth: int, branches: int, parent: int = -1, first: int = 0) -> list[int]:
    """Parents of the full tree, depth first: the places where nodes may come to stand."""
    slots: list[int] = []
    for _ in range(branches if depth else 0):
        own = first + len(slots)
        slots += [parent, *_slots(depth - 1, branches, own, own + 1)]
    return slots


def _grown(world: World, tables: Automaton, slots: list[int], noise: torch.Tensor, replacement: bool) -> tuple[Draft, torch.Tensor]:
    """Drafts of n trees and the target's rows. A slot stays empty where its branch has ended or nothing is left to draw; nodes close ranks."""
    n, nodes = noise.shape
    pick = torch.func.vmap(shipped_draw)
    zero = torch.zeros(n, dtype=torch.int64)
    state, node, weights = {-1: zero}, {-1: zero - 1}, {-1: tables.draft[zero]}
    alive = {-1: torch.ones(n, dtype=torch.bool)}
    length = zero
    tokens, parents = (torch.full((n, nodes + 1), -1) for _ in range(2))  # the last column takes what hangs in empty slots
    above, below = torch.zeros(n, nodes + 1, dtype=torch.int64), torch.zeros(n, nodes + 1, dtype=torch.int64)
    for slot, parent in enumerate(slots):
        there = alive[parent] & ~tables.stop[state[parent]] & (weights[parent].sum(-1) > 0)
        lane = torch.where(there, length, nodes)
        token = pick(noise.gather(1, length.clamp(max=nodes - 1)[:, None]).squeeze(1), weights[parent]).clamp(min=0)
        if not replacement:
            weights[parent] = torch.where(there[:, None], weights[parent].scatter(1, token[:, None], 0), weights[parent])
        state[slot], node[slot], alive[slot] = tables.step[state[parent], token], lane, there
        weights[slot] = tables.draft[state[slot]]
        for column, value in ((tokens, token), (parents, node[parent]), (above, state[parent]), (below, state[slot])):
            column.scatter_(1, lane[:, None], value[:, None])
        length = length + there
    drafted = torch.arange(nodes) < length[:, None]
    told = tables.told[above[:, :-1]] if world.soft else None
    draft = Draft(torch.where(drafted, tokens[:, :-1], -1), told, length, torch.where(drafted, parents[:, :-1], -1))
    return draft, tables.target[torch.cat([zero[:, None], below[:, :-1]], 1)]


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
