"""Exact law of the code that ships: every probability is a count of grid points, not an estimate.

``decide`` is a deterministic map of uniforms on the grid {k 2**-B}, B = 53 in float64 and 24 in float32. For each draft a world can make,
``cells.find`` gives the boxes of the tape on which the emitted tokens are constant; their volumes are integers. The sampler that draws the
draft is measured the same way. Combined in fractions this is the law that the float code emits, rounding and all; completed with the exact
target it is compared with the target's joint law (the definition in ``enumerate``). The target p is the float rows, read as rationals and
normalised exactly.

A draft that branches is measured in the same way (``measure_tree``), with one uniform for each node and one for the last token.

About how a verifier uses its tape two things are assumed: that it compares one uniform at a time, and that no outcome hides inside a box whose
corners agree. Both are probed, at 64 points of every box; a rule that misbehaves only while one uniform lies in a window of 1e-4 is reported at
the usual sizes, one of 3e-5 mostly, a narrower one may not be (see ``cells``). So the same function measures the correct code, its mutants (one
uniform read twice, say) and any verifier whose tape is a pytree of uniforms.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_map

from specdec_fn.sampling import draw as shipped_draw
from specdec_fn.speculate import Draft, Tape, Verdict, batched
from specdec_proofs import cells
from specdec_proofs.enumerate import Emitted, completed, joint, total_variation
from specdec_proofs.trees import Tree, family, grow, heads
from specdec_proofs.worlds import Law, Prefix, World, drafts, normalised, prefixes

__all__ = ["BITS", "Measured", "Tables", "draw_law", "law", "measure", "measure_tree", "tensors", "tree_law", "tree_tensors"]

BITS = {torch.float64: 53, torch.float32: 24}
ROWS = 1 << 14  # rows of one batched call: bounds memory, and stays within the caches
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
    """Every draft of a world, as the tensors a verifier gets: target [J, K + 1, V], and a draft of which every field has J rows."""

    target: torch.Tensor
    draft: Draft


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
    return Tables(target, Draft(tokens, probs if world.soft else None, torch.tensor([len(x) for x in made])))


def tree_tensors(world: World, made: list[Tree], dtype: torch.dtype) -> Tables:
    """The arguments of ``decide`` for each tree in ``made``, K the nodes of the largest; padding as in ``tensors``.

    >>> from specdec_proofs.worlds import toy
    >>> tree_tensors(toy(), [Tree((1, 2), (-1, -1)), Tree((2,), (-1,))], torch.float32).draft.parents
    tensor([[-1, -1],
            [-1, -1]])
    """
    nodes = max(len(tree.tokens) for tree in made)
    known: dict[tuple[int, Prefix], torch.Tensor] = {}

    def row(role: int, prefix: Prefix) -> torch.Tensor:
        if (role, prefix) not in known:
            known[role, prefix] = _row((world.target, world.told or world.draft)[role](prefix), dtype)
        return known[role, prefix]

    target = torch.full((len(made), nodes + 1, world.vocab), torch.nan, dtype=dtype)
    probs = torch.full((len(made), nodes, world.vocab), torch.nan, dtype=dtype)
    tokens, parents = (torch.full((len(made), nodes), -1) for _ in range(2))
    for j, tree in enumerate(made):
        target[j, 0] = row(0, ())
        for i, (token, head) in enumerate(zip(tree.tokens, heads(tree), strict=True)):
            target[j, i + 1] = row(0, (*head, token))
            probs[j, i] = row(1, head)
        tokens[j, : len(tree.tokens)] = torch.tensor(tree.tokens, dtype=torch.int64)
        parents[j, : len(tree.tokens)] = torch.tensor(tree.parents, dtype=torch.int64)
    length = torch.tensor([len(tree.tokens) for tree in made])
    return Tables(target, Draft(tokens, probs if world.soft else None, length, parents))


def law(rows: torch.Tensor, draw: Callable[..., Any] = shipped_draw, *, probes: int = 64) -> tuple[list[Law], list[str], int]:
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


def tree_law(
    world: World,
    branches: int,
    dtype: torch.dtype,
    draw: Callable[..., Any] = shipped_draw,
    *,
    replacement: bool,
    breadth_first: bool = False,
) -> tuple[dict[Tree, Fraction], list[str], int]:
    """Exact law of the trees of a world as the shipped sampler draws them, with violations and evaluations.

    Without replacement the next sibling is drawn from the parent's row with the drawn tokens set to 0, which ``draw`` takes as weights.

    >>> from specdec_proofs.worlds import toy
    >>> {tree.tokens: round(float(mass), 3) for tree, mass in tree_law(toy(1), 2, torch.float64, replacement=False)[0].items()}
    {(0, 1): 0.167, (0, 2): 0.083, (1, 0): 0.25, (1, 2): 0.25, (2, 0): 0.083, (2, 1): 0.167}
    """
    rows: dict[tuple[Prefix, frozenset[int]], torch.Tensor] = {}
    supports: dict[Prefix, frozenset[int]] = {}
    for prefix in itertools.chain.from_iterable(prefixes(world, i) for i in range(world.k)):
        row = _row(world.draft(prefix), dtype)
        supports[prefix] = frozenset(row.nonzero().flatten().tolist())
        for count in range(1 if replacement else min(branches, len(supports[prefix]))):
            for drawn in itertools.combinations(sorted(supports[prefix]), count):
                rows[prefix, frozenset(drawn)] = row.index_fill(0, torch.tensor(drawn, dtype=torch.int64), 0)
    laws, violations, evaluations = law(torch.stack(list(rows.values())), draw) if rows else ([], [], 0)
    known = dict(zip(rows, laws, strict=True))

    def siblings(prefix: Prefix) -> dict[Prefix, Fraction]:
        return family(lambda drawn: known.get((prefix, frozenset() if replacement else supports[prefix] & set(drawn))), branches)

    return dict(grow(world, siblings, breadth_first=breadth_first)), violations, evaluations


def measure(
    decide: Callable[..., Any],
    world: World,
    dtype: torch.dtype = torch.float64,
    *,
    draw: Callable[..., Any] = shipped_draw,
    draft_rows: int | None = None,
    probes: int = 64,
) -> Measured:
    """Exact law of ``decide`` on a world, with drafts drawn by ``draw``.

    Args:
        decide: the single-sequence function of a verifier whose tape is a ``Tape``, or a mutant of one.
        dtype: float64 or float32: of the laws, and of the grid of the uniforms.
        draw: the sampler that draws the drafts.
        draft_rows: see ``tensors``.
        probes: random points in each box, see ``cells.find``.

    >>> from specdec_fn.speculate import verifiers
    >>> from specdec_proofs.worlds import toy
    >>> measured = measure(verifiers["token"].decide, toy())
    >>> float(measured.tv) < 1e-15, measured.violations
    (True, ())
    """
    weights, violations, drawn = draw_law(world, dtype, draw)
    tables = tensors(world, list(weights), dtype, draft_rows=draft_rows)
    return _combined(decide, world, tables, list(weights.values()), dtype, violations, drawn, probes)


def measure_tree(
    decide: Callable[..., Any],
    world: World,
    branches: int,
    dtype: torch.dtype = torch.float64,
    *,
    replacement: bool,
    draw: Callable[..., Any] = shipped_draw,
    breadth_first: bool = False,
    probes: int = 64,
) -> Measured:
    """Exact law of ``decide`` on the trees of a world, completed to ``world.k`` + 1 tokens: depth is ``world.k``.

    Args:
        decide, dtype, probes: as for ``measure``.
        branches, replacement, breadth_first: as for ``trees.tree_drafts``.
        draw: the sampler that draws the siblings.

    Raises:
        ValueError: ``branches`` is less than 1, or the trees have more nodes than ``cells.find`` takes axes.

    >>> from specdec_fn.speculate import verifiers
    >>> from specdec_proofs.worlds import toy
    >>> measured = measure_tree(verifiers["tree"].decide, toy(1), 2, replacement=False)
    >>> float(measured.tv) < 1e-15, measured.violations
    (True, ())
    """
    weights, violations, drawn = tree_law(world, branches, dtype, draw, replacement=replacement, breadth_first=breadth_first)
    tables = tree_tensors(world, list(weights), dtype)
    return _combined(decide, world, tables, list(weights.values()), dtype, violations, drawn, probes)


def _combined(
    decide: Callable[..., Any],
    world: World,
    tables: Tables,
    weights: list[Fraction],
    dtype: torch.dtype,
    violations: list[str],
    drawn: int,
    probes: int,
) -> Measured:
    """The law of ``decide`` on each draft of the tables, found by ``cells``, mixed with the drafts' weights and held against the target's."""
    size, lifted, nodes, shown = 1 << BITS[dtype], batched(decide), tables.draft.tokens.shape[1], world.k + 1
    base = world.vocab + 1
    places = torch.tensor([base**i for i in range(shown)])
    malformed: set[str] = set()

    def outcome(job: cells.Integers, points: cells.Integers) -> cells.Integers:
        at = torch.from_numpy(job)
        u = _uniforms(points, dtype)
        draft = tree_map(lambda field: None if field is None else field.index_select(0, at), tables.draft)
        verdict = lifted(Tape(u[:, :nodes], u[:, nodes]), tables.target.index_select(0, at), draft)
        wrong = _malformed(verdict, draft, shown, world.vocab)
        if wrong.any():
            row = int(wrong.int().argmax())
            counts = f"{int(verdict.accepted[row])} accepted, {int(verdict.emitted[row])} emitted"
            malformed.add(f"a verdict has tokens {verdict.tokens[row].tolist()}, {counts}, path {verdict.path[row].tolist()}")
        ids = verdict.tokens[:, :shown].clamp(-1, world.vocab - 1) + 1
        return (ids * places[: ids.shape[1]]).sum(1).numpy()  # no more columns than nodes + 1, and none at all may be drafted

    found = cells.find(_in_pieces(outcome), len(weights), nodes + 1, size, probes=probes)
    emitted: dict[Prefix, Fraction] = defaultdict(Fraction)
    for weight, boxes in zip(weights, found.boxes, strict=True):
        for label, points in cells.masses(boxes, size).items():
            digits = [label // base**i % base - 1 for i in range(shown)]
            sequence = tuple(digits[: digits.index(-1)] if -1 in digits else digits)
            emitted[sequence] += weight * Fraction(points, size ** (nodes + 1))
    exact = _exact_target(world, dtype)
    violations = [*violations, *sorted(malformed)[:1], *found.violations]
    reached = {x: mass for x, mass in emitted.items() if x}
    whole, wanted = completed(reached, world, exact), joint(world, exact)
    nothing = emitted.get((), ZERO)
    impossible = nothing + sum((mass for x, mass in whole.items() if x not in wanted), ZERO)
    return Measured(dict(emitted), total_variation(whole, wanted) + nothing / 2, impossible, tuple(violations), drawn + found.evaluations)


def _malformed(verdict: Verdict, draft: Draft, shown: int, vocab: int) -> torch.Tensor:
    """Which verdicts do not have the form of one: ids, -1 behind them, counts that fit, and a path of accepted nodes from the context down.

    Args:
        shown: the most tokens that can be emitted.
    """
    nodes = draft.tokens.shape[1]
    place = torch.arange(nodes + 1)
    out = (verdict.tokens >= vocab) | ((verdict.tokens >= 0) != (place < verdict.emitted[:, None]))
    wrong = out.any(1) | (verdict.emitted != verdict.accepted + 1) | (verdict.emitted > shown) | (verdict.emitted < 1)
    if not nodes:
        return wrong
    lane, path = place[:nodes], verdict.path
    kept = lane < verdict.accepted[:, None]
    node = path.clamp(0, nodes - 1)
    above = node - 1 if draft.parents is None else draft.parents.gather(1, node)
    before = torch.cat([torch.full_like(path[:, :1], -1), path[:, :-1]], 1)
    fits = (path == node) & (path < draft.length[:, None]) & (above == before) & (draft.tokens.gather(1, node) == verdict.tokens[:, :nodes])
    return wrong | torch.where(kept, ~fits, path != -1).any(1)


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
