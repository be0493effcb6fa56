"""Exact law of a sampler that draws for itself: its random numbers are injected, and ``cells`` counts the grid points of every outcome.

A round is one Python call, so it is evaluated point by point, some hundred microseconds each. Everything else is as in ``integrate``: boxes
between cuts, volumes in integers, probes, fractions. The draft itself is taken to be drawn from its row exactly; the drafter is not on trial.
"""

import functools
import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_map

from specdec_fn.random import key
from specdec_proofs import cells
from specdec_proofs.enumerate import completed, joint, total_variation
from specdec_proofs.integrate import Measured, tensors
from specdec_proofs.interception import Injected, MoreNumbersError, UnreachableError, global_states, seeded
from specdec_proofs.suspects import Suspect, SuspectError, emitted
from specdec_proofs.suspects.suspect import of_verdict
from specdec_proofs.worlds import Law, Prefix, World, drafts, normalised

__all__ = ["Edges", "Reach", "edges", "measure", "reach", "twice"]

MOST_NUMBERS = 6  # of one round: every further axis doubles the corners of each box
MOST_EVALUATIONS = 60_000  # of one world, some ten seconds
PILOTS = 5  # random tapes for each draft


class Reach(NamedTuple):
    """What rounds draw: how many numbers at most, and the bits of the finest grid among them."""

    numbers: int
    bits: int


class Edges(NamedTuple):
    """Rounds with one uniform at an end of its grid: how many, how many of them gave what the target cannot produce, and the first of those."""

    rounds: int
    impossible: int
    example: str


def edges(suspect: Suspect, world: World, dtype: torch.dtype = torch.float32) -> Edges:
    """Looks where faults hide from statistics, for samplers whose law has no boxes: each uniform in turn at 0 and at its largest value.

    A single grid point of one uniform has probability 2**-24 in float32, so what is found here has some mass, and what is not found may have.

    Raises:
        UnreachableError: not even its uniforms can be injected.
        SuspectError: a round fails.

    >>> from specdec_proofs.suspects import find
    >>> from specdec_proofs.worlds import mixed_tables
    >>> edges(find("token"), mixed_tables(22, 3, 2)).impossible
    0
    """
    made, draw = [tokens for tokens, _ in drafts(world)], random.Random(1)
    tables = tensors(world, made, dtype)
    rounds, wrong, example = 0, 0, ""
    for j, x in enumerate(made):
        for lane, value, _ in itertools.product(range(world.k + 2), (0, (1 << 53) - 1), range(4)):
            numbers = [draw.randrange(1 << 53) for _ in range(64)]
            numbers[lane] = value
            before = global_states()
            with Injected(numbers, 53, draw):
                try:
                    ids = emitted(suspect, tables.target[j], _soft(world, tables.draft.probs, j), torch.tensor(x))
                except MoreNumbersError as error:
                    raise UnreachableError(f"it draws more than {len(numbers)} numbers in a round") from error
            if before != global_states():
                raise UnreachableError("it draws from a global generator by a function that cannot be replaced")
            rounds += 1
            if any(world.target(ids[:i])[token] == 0 for i, token in enumerate(ids)):
                example = example or f"drafted {list(x)}, number {lane} at {'0' if value == 0 else 'its largest'}: emitted {list(ids)}"
                wrong += 1
    return Edges(rounds, wrong, example)


def reach(suspect: Suspect, world: World, dtype: torch.dtype = torch.float32) -> Reach:
    """Runs a few rounds on injected numbers, each twice, to see what the sampler draws and whether that is all it depends on.

    Raises:
        UnreachableError: it draws what cannot be injected, from a generator behind our back, or too many numbers.
        SuspectError: it fails, or two rounds on the same numbers differ.

    >>> from specdec_fn.speculate import verifiers
    >>> from specdec_proofs.suspects import find
    >>> from specdec_proofs.worlds import toy
    >>> reach(find("token"), toy())
    Reach(numbers=3, bits=24)
    """
    made = [tokens for tokens, _ in drafts(world)]
    tables = tensors(world, made, dtype)
    draw, found, bits, touched = random.Random(0), 0, 0, False
    for j, x in enumerate(made):
        for pilot in range(PILOTS):
            numbers = [draw.randrange(1 << 53) if pilot else 0 for _ in range(64)]
            outcomes = []
            for seed in (0, 1):  # a sampler that draws behind our back sees two seeds
                with seeded(seed):
                    before = global_states()
                    with Injected(numbers, 53) as tape:
                        try:
                            outcomes.append(emitted(suspect, tables.target[j], _soft(world, tables.draft.probs, j), torch.tensor(x)))
                        except MoreNumbersError as error:
                            raise UnreachableError(f"it draws more than {len(numbers)} numbers in a round") from error
                    touched |= before != global_states()
            found, bits = max(found, tape.asked), max(bits, tape.bits)
            if touched:
                raise UnreachableError("it draws from a global generator by a function that cannot be replaced")
            if outcomes[0] != outcomes[1]:
                raise SuspectError(
                    f"{suspect.name} gave {list(outcomes[0])} and then {list(outcomes[1])} from the same random numbers (drafted tokens {list(x)}); "
                    "expected a function of its numbers"
                )
    if found > MOST_NUMBERS:
        raise UnreachableError(f"it draws {found} numbers in a round, and boxes in more than {MOST_NUMBERS} dimensions are too many")
    return Reach(found, bits or 24)


def twice(suspect: Suspect, world: World) -> None:
    """Runs a verifier twice on each of some tapes, with the global generators elsewhere the second time.

    Raises:
        SuspectError: two verdicts on one tape differ, or one is no verdict.

    >>> from specdec_proofs.suspects import find
    >>> from specdec_proofs.worlds import toy
    >>> twice(find("token"), toy())
    """
    made = [tokens for tokens, _ in drafts(world)]
    tables = tensors(world, made, torch.float64)
    for j, pilot in itertools.product(range(len(made)), range(PILOTS)):
        assert suspect.decide is not None
        draft = tree_map(lambda field: None if field is None else field[j], tables.draft)  # noqa: B023
        tape = suspect.tape(key(PILOTS * j + pilot), world.k, world.vocab)
        decided = functools.partial(suspect.decide, tape, tables.target[j], draft)
        once = suspect._replace(round=lambda p, q, tokens: of_verdict(decided(), world.k))  # noqa: B023
        found = []
        for seed in (0, 1):
            with seeded(seed):
                found.append(emitted(once, tables.target[j], None, draft.tokens))
        if found[0] != found[1]:
            raise SuspectError(
                f"{suspect.name} gave {list(found[0])} and then {list(found[1])} on one tape (drafted tokens {list(made[j])}); "
                "expected a deterministic function of its tape"
            )


def measure(suspect: Suspect, world: World, dtype: torch.dtype = torch.float32, *, probes: int = 12) -> Measured:
    """Exact law of a round on a world, in the terms of ``integrate.measure``.

    Args:
        dtype: of the rows that the round gets.
        probes: random points in each box of the tape.

    Raises:
        UnreachableError: the law has no boxes that can be found: statistics alone are left.
        SuspectError: the round fails on some numbers.

    >>> from specdec_proofs.suspects import find
    >>> from specdec_proofs.worlds import toy
    >>> measured = measure(find("token"), toy(1))
    >>> float(measured.tv) < 1e-6, measured.impossible, measured.violations
    (True, Fraction(0, 1), ())
    """
    numbers, bits = reach(suspect, world, dtype)
    made = dict(drafts(world))
    tables = tensors(world, list(made), dtype)
    base, known = world.vocab + 1, dict[tuple[int, ...], int]()
    rows = [(tables.target[j], _soft(world, tables.draft.probs, j), torch.tensor(x)) for j, x in enumerate(made)]

    def one(job: int, point: tuple[int, ...]) -> int:
        if len(known) >= MOST_EVALUATIONS:
            raise UnreachableError(
                f"its law has no end of boxes after {MOST_EVALUATIONS:,} evaluations on {world.name}: it does not split along numbers"
            )
        with Injected(point, bits):
            ids = emitted(suspect, *rows[job])
        return sum((token + 1) * base**i for i, token in enumerate(ids))

    def outcome(jobs: cells.Integers, points: cells.Integers) -> cells.Integers:
        labels = []
        for point in zip(jobs.tolist(), *points.T.tolist(), strict=True):
            if point not in known:
                known[point] = one(point[0], point[1:])
            labels.append(known[point])
        return np.array(labels, np.int64)

    try:
        found = cells.find(outcome, len(rows), max(numbers, 1), 1 << bits, probes=probes)
    except MoreNumbersError as error:
        raise UnreachableError(f"it draws a varying count of numbers, more than the {numbers} of the first rounds") from error
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    for weight, boxes in zip(_weights(world, made, dtype), found.boxes, strict=True):
        for label, points in cells.masses(boxes, 1 << bits).items():
            law[_sequence(label, base)] += weight * Fraction(points, 1 << bits * max(numbers, 1))
    exact = _rounded(world.target, dtype)
    whole, wanted = completed({x: mass for x, mass in law.items() if x}, world, exact), joint(world, exact)
    impossible = sum((mass for x, mass in whole.items() if x not in wanted), Fraction(0))
    return Measured(dict(law), total_variation(whole, wanted), impossible, tuple(found.violations), len(known))


def _soft(world: World, probs: torch.Tensor | None, j: int) -> torch.Tensor | None:
    return probs[j] if world.soft and probs is not None else None


def _weights(world: World, made: dict[Prefix, Fraction], dtype: torch.dtype) -> list[Fraction]:
    """Exact probability of each draft under the rows as rounded to ``dtype``."""
    law, weights = _rounded(world.draft, dtype), []
    for x in made:
        weight = Fraction(1)
        for i, token in enumerate(x):
            weight *= law(x[:i])[token]
        weights.append(weight)
    return weights


def _rounded(law: Callable[[Prefix], Law], dtype: torch.dtype) -> Callable[[Prefix], Law]:
    """A law whose rows are the floats that the round gets, read as rationals."""
    known: dict[Prefix, Law] = {}

    def rows(prefix: Prefix) -> Law:
        if prefix not in known:
            known[prefix] = normalised(torch.tensor([float(mass) for mass in law(prefix)], dtype=torch.float64).to(dtype).tolist())
        return known[prefix]

    return rows


def _sequence(label: int, base: int) -> Prefix:
    digits = []
    while label:
        digits.append(label % base - 1)
        label //= base
    return tuple(digits)
