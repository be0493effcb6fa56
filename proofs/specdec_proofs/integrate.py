"""Exact law of the code that ships: every probability is a count of grid points, not an estimate.

``decide`` is a deterministic map of uniforms on the grid {k 2**-B}, B = 53 in float64 and 24 in float32. For each draft a world can make,
``cells.find`` gives the boxes of the tape on which the emitted tokens are constant; their volumes are integers. The sampler that draws the
draft is measured the same way. Combined in fractions this is the law that the float code emits, rounding and all; completed with the exact
target it is compared with the target's joint law (the definition in ``enumerate``). The target p is the float rows, read as rationals and
normalised exactly.

Nothing is assumed about how a verifier uses its tape, except that it compares one uniform at a time; see ``cells``. So the same function
measures the correct code, its mutants (one uniform read twice, say) and any verifier whose tape is a pytree of uniforms.
"""

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch

from specdec_fn.sampling import draw as shipped_draw
from specdec_fn.speculate import Draft, Tape, batched
from specdec_proofs import cells
from specdec_proofs.enumerate import Emitted, completed, joint, total_variation
from specdec_proofs.worlds import Law, Prefix, World, drafts, normalised

__all__ = ["BITS", "Measured", "draw_law", "law", "measure", "tensors"]

BITS = {torch.float64: 53, torch.float32: 24}
ROWS = 1 << 16  # rows of one batched call: bounds memory, and stays within the caches
ZERO = Fraction(0)


class Measured(NamedTuple):
    """The law of a piece of float code.

    Attributes:
        emitted: exact law of the emitted sequence.
        tv: total variation between the completed law and the target's joint law, exact.
        impossible: mass of completed sequences that the target cannot produce, exact.
        violations: what contradicts the assumptions or the form of a verdict; unless it is empty the figures prove nothing.
        evaluations: how many times ``decide`` and ``draw`` were evaluated.
    """

    emitted: Emitted
    tv: Fraction
    impossible: Fraction
    violations: tuple[str, ...]
    evaluations: int


class Tables(NamedTuple):
    """Every draft of a world, as the tensors a verifier gets: J drafts."""

    prefixes: list[Prefix]
    target: torch.Tensor  # [J, K + 1, V]
    draft: Draft  # tokens [J, K], probs [J, K or more, V] or None, length [J]


def tensors(world: World, made: list[Prefix], dtype: torch.dtype, *, draft_rows: int | None = None) -> Tables:
    """The arguments of ``decide`` for each draft in ``made``; what lies past a draft's length is -1 and NaN, which no verifier may read.

    Args:
        draft_rows: rows of ``probs``, k unless given; mutants that take a bonus from the proposer need one more.

    >>> from specdec_proofs.worlds import toy
    >>> tensors(toy(), [(1,), (2, 0)], torch.float32).draft.tokens
    tensor([[ 1, -1],
            [ 2,  0]])
    """
    rows = world.k if draft_rows is None else draft_rows
    target = torch.full((len(made), world.k + 1, world.vocab), torch.nan, dtype=dtype)
    probs = torch.full((len(made), rows, world.vocab), torch.nan, dtype=dtype)
    tokens = torch.full((len(made), world.k), -1)
    for j, x in enumerate(made):
        for i in range(len(x) + 1):
            target[j, i] = _row(world.target(x[:i]), dtype)
            if world.soft and i < min(rows, len(x) + rows - world.k):
                probs[j, i] = _row((world.told or world.draft)(x[:i]), dtype)
        tokens[j, : len(x)] = torch.tensor(x, dtype=torch.int64)
    return Tables(made, target, Draft(tokens, probs if world.soft else None, torch.tensor([len(x) for x in made])))


def law(rows: torch.Tensor, draw: Callable[..., Any] = shipped_draw, *, probes: int = 32) -> tuple[list[Law], list[str], int]:
    """Exact law of ``draw(u, row)`` for each row of a [n, V] tensor, u uniform on the grid of its dtype, with violations and evaluations.

    >>> [str(x) for x in law(torch.tensor([[0.25, 0.0, 0.75]], dtype=torch.float64))[0][0]]
    ['1/4', '0', '3/4']
    """
    size = 1 << BITS[rows.dtype]
    lifted = torch.func.vmap(draw)

    def outcome(job: cells.Integers, points: cells.Integers) -> cells.Integers:
        return lifted(_uniforms(points[:, 0], rows.dtype), rows[torch.from_numpy(job)]).numpy()

    found = cells.find(_in_pieces(outcome), len(rows), 1, size, probes=probes)
    laws, violations = [], list(found.violations)
    for boxes in found.boxes:
        counts = cells.masses(boxes, size)
        if not all(0 <= token < rows.shape[1] for token in counts):
            violations.append(f"draw gave {sorted(counts)}; expected ids in [0, {rows.shape[1]})")
        laws.append(tuple(Fraction(counts.get(token, 0), size) for token in range(rows.shape[1])))
    return laws, violations, found.evaluations


def draw_law(world: World, dtype: torch.dtype, draw: Callable[..., Any] = shipped_draw) -> tuple[dict[Prefix, Fraction], list[str], int]:
    """Exact law of the drafts of a world as the shipped sampler draws them, with violations and evaluations.

    >>> from specdec_proofs.worlds import toy
    >>> {draft: float(mass) for draft, mass in draw_law(toy(1), torch.float64)[0].items()}
    {(0,): 0.25, (1,): 0.5, (2,): 0.25}
    """
    asked = {x[:i] for x, _ in drafts(world) for i in range(world.k)}
    weights: dict[Prefix, Fraction] = {}
    known: dict[Prefix, Law] = {}
    level: dict[Prefix, Fraction] = {(): Fraction(1)}
    violations: list[str] = []
    evaluations = 0
    while level:
        grows = {x: mass for x, mass in level.items() if len(x) < world.k and not world.stop(x)}
        weights.update({x: mass for x, mass in level.items() if x not in grows})
        new = [x for x in (*sorted(asked), *grows) if x not in known] if grows.keys() - known.keys() else []
        if new:  # all at once, unless the sampler draws what the law does not hold
            laws, found, count = law(torch.stack([_row(world.draft(x), dtype) for x in new]), draw)
            violations, evaluations = violations + found, evaluations + count
            known.update(zip(new, laws, strict=True))
        level = {(*x, t): mass * share for x, mass in grows.items() for t, share in enumerate(known[x]) if share}
    return weights, violations, evaluations


def measure(
    decide: Callable[..., Any],
    world: World,
    dtype: torch.dtype = torch.float64,
    *,
    draw: Callable[..., Any] = shipped_draw,
    draft_rows: int | None = None,
    probes: int = 32,
) -> Measured:
    """Exact law of ``decide`` on a world, with drafts drawn by ``draw``.

    Args:
        decide: the single-sequence function of a verifier whose tape is a ``Tape``, or a mutant of one.
        dtype: float64 or float32: of the laws, and of the grid of the uniforms.
        draw: the sampler that draws the drafts.
        draft_rows: see ``tensors``.
        probes: random points for each slab between cuts.

    >>> from specdec_fn.speculate import verifiers
    >>> from specdec_proofs.worlds import toy
    >>> measured = measure(verifiers["token"].decide, toy())
    >>> float(measured.tv) < 1e-15, measured.violations
    (True, ())
    """
    weights, violations, drawn = draw_law(world, dtype, draw)
    tables = tensors(world, list(weights), dtype, draft_rows=draft_rows)
    size, lifted, k = 1 << BITS[dtype], batched(decide), world.k
    base = world.vocab + 1
    places = torch.tensor([base**i for i in range(k + 1)])
    malformed: set[str] = set()

    def outcome(job: cells.Integers, points: cells.Integers) -> cells.Integers:
        at = torch.from_numpy(job)
        u = _uniforms(points, dtype)
        draft = Draft(tables.draft.tokens[at], None if tables.draft.probs is None else tables.draft.probs[at], tables.draft.length[at])
        verdict = lifted(Tape(u[:, :k], u[:, k]), tables.target[at], draft)
        shown = torch.arange(k + 1) < verdict.emitted[:, None]
        wrong = (verdict.tokens >= world.vocab) | ((verdict.tokens >= 0) != shown) | (verdict.emitted != verdict.accepted + 1)[:, None]
        lane = torch.arange(k)  # on a chain the nodes to keep are the first ones
        wrong[:, :k] |= verdict.path != torch.where(lane < verdict.accepted[:, None], lane, -1)
        if wrong.any():
            row = int(wrong.any(1).int().argmax())
            shown_as = f"tokens {verdict.tokens[row].tolist()}, {int(verdict.accepted[row])} accepted, {int(verdict.emitted[row])} emitted"
            malformed.add(f"a verdict has {shown_as}, path {verdict.path[row].tolist()}")
        return ((verdict.tokens.clamp(-1, world.vocab - 1) + 1) * places).sum(1).numpy()

    found = cells.find(_in_pieces(outcome), len(tables.prefixes), k + 1, size, probes=probes)
    emitted: dict[Prefix, Fraction] = defaultdict(Fraction)
    for weight, boxes in zip(weights.values(), found.boxes, strict=True):
        for label, points in cells.masses(boxes, size).items():
            digits = [label // base**i % base - 1 for i in range(k + 1)]
            sequence = tuple(digits[: digits.index(-1)] if -1 in digits else digits)
            emitted[sequence] += weight * Fraction(points, size ** (k + 1))
    exact = _exact_target(world, dtype)
    violations += [*sorted(malformed)[:1], *found.violations]
    reached = {x: mass for x, mass in emitted.items() if x}
    whole, wanted = completed(reached, world, exact), joint(world, exact)
    nothing = emitted.get((), ZERO)
    impossible = nothing + sum((mass for x, mass in whole.items() if x not in wanted), ZERO)
    return Measured(dict(emitted), total_variation(whole, wanted) + nothing / 2, impossible, tuple(violations), drawn + found.evaluations)


def _row(exact: Law, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([float(x) for x in exact], dtype=torch.float64).to(dtype)


def _exact_target(world: World, dtype: torch.dtype) -> Callable[[Prefix], Law]:
    known: dict[Prefix, Law] = {}

    def target(prefix: Prefix) -> Law:
        if prefix not in known:
            known[prefix] = normalised(_row(world.target(prefix), dtype).tolist())
        return known[prefix]

    return target


def _uniforms(k: cells.Integers, dtype: torch.dtype) -> torch.Tensor:
    """k 2**-B, exact: k has at most B bits, as many as the dtype's significand."""
    return torch.from_numpy(np.ascontiguousarray(k)).to(dtype) * 2.0 ** -BITS[dtype]


def _in_pieces(outcome: cells.Outcome) -> cells.Outcome:
    def call(job: cells.Integers, points: cells.Integers) -> cells.Integers:
        pieces = [outcome(job[at : at + ROWS], points[at : at + ROWS]) for at in range(0, len(job), ROWS)]
        return np.concatenate(pieces)

    return call
