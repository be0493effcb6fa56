"""Claims that the checker rejects what is wrong: every mutant by the exact law of its code, by a sample, or by both.

A mutant's measured law must be the one worked out from the mathematics, to 1e-12, and its total variation far above the gates that correct code
must pass. A sample whose size was fixed from that law, at most a million draws, must reject it, and accept the rule that ships on the same
world. Equivalents must pass. Mutants that move one grid point are below every gate on a total variation: only impossible mass shows them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from specdec_fn import random
from specdec_fn.speculate import verifiers
from specdec_proofs.chi2 import pearson
from specdec_proofs.claim import Figure
from specdec_proofs.enumerate import Emitted, completed, joint, total_variation
from specdec_proofs.exact import GATES, because
from specdec_proofs.mutants import FAMILIES, Mutant, below_gate, catalogue, equivalents
from specdec_proofs.mutants.mutant import EXACT, SAMPLED
from specdec_proofs.power import ALPHA, needed, plan
from specdec_proofs.race_grid import chain_faults
from specdec_proofs.sample import cells, histogram, sample, sample_trees
from specdec_proofs.sampled import compared
from specdec_proofs.worlds import Prefix, World, toy

__all__ = ["exactly", "sampled", "sampled_trees"]

CLOSED = 1e-12  # a mutant's measured law against its closed form
GATE = GATES[torch.float64]
RULES = ("coupled", "follow")  # rooms whose edits change what decide does with a given race
MOST = 1_000_000
SEED = 20_242
Task = tuple[str, str, Callable[[], Figure]]


def exactly() -> Iterator[Task]:
    """The claims that need no sample: name, gate, measurement.

    >>> next(exactly())[:2]
    ('mutant 01 recovered token drawn from p: exact TV', 'closed form, > 1e-14')
    """
    for mutant in catalogue(*FAMILIES):
        if EXACT in mutant.killers:
            yield f"mutant {_label(mutant)}: exact TV", f"closed form, > {GATE:g}", _killed(mutant)
    for mutant in catalogue("coupled"):
        if all(edit.room in RULES for edit in mutant.edits):
            yield f"mutant {_label(mutant)}: verdicts that are not the winners of their rows", "> 0", _lost(mutant)
    for mutant in below_gate(*FAMILIES):
        yield f"mutant below the gate, {_rule(mutant)}: impossible mass", "> 0, TV <= 1e-6", _impossible(mutant)
    for control in equivalents(*FAMILIES):
        yield f"control, {_rule(control)}: exact TV", f"<= {GATE:g}", _control(control)


def sampled() -> Iterator[Task]:
    """The claims from samples of chains: name, gate, measurement.

    >>> next(sampled())[:2]
    ('mutant 01 recovered token drawn from p: sampled', 'p <= 1e-06')
    """
    return _samples([family for family in FAMILIES if family != "tree"], SEED)


def sampled_trees() -> Iterator[Task]:
    """The claims from samples of trees: name, gate, measurement.

    >>> next(sampled_trees())[1]
    'p <= 1e-06'
    """
    return _samples(["tree"], SEED + 1)


def _samples(families: Sequence[str], seed: int) -> Iterator[Task]:
    root, number = random.key(seed), iter(range(1000))
    for mutant in catalogue(*families):
        if SAMPLED in mutant.killers:
            yield f"mutant {_label(mutant)}: sampled", f"p <= {ALPHA:g}", _rejected(mutant, random.fold_in(root, next(number)))
    for control in equivalents(*families):
        yield f"control, {_rule(control)}: sampled", f"p > {ALPHA:g}", _accepted(control, 50_000, random.fold_in(root, next(number)))


def _killed(mutant: Mutant) -> Callable[[], Figure]:
    def measurement() -> Figure:
        world = mutant.world()
        wanted = completed(mutant.law(world), world)
        expected = total_variation(wanted, joint(world))
        measured = mutant.measured()
        off = total_variation(completed(_nonempty(measured.emitted), world), wanted)
        for make in mutant.others:  # where it may be invisible, and must be so exactly
            other = make()
            law = completed(mutant.law(other), other)
            off = max(off, total_variation(completed(_nonempty(mutant.measured(world=other).emitted), other), law))
        passed = measured.tv > GATE and off <= CLOSED and abs(measured.tv - expected) <= CLOSED and not measured.violations
        worlds = f"{world.name}" + (f" and {len(mutant.others)} others" if mutant.others else "")
        detail = f"closed form {float(expected):.5f}; laws differ by {float(off):.1e}; {worlds}"
        return Figure(float(measured.tv), passed, because(measured, detail))

    return measurement


def _lost(mutant: Mutant) -> Callable[[], Figure]:
    def measurement() -> Figure:
        faults, total = chain_faults(mutant.decide(), toy(2))
        return Figure(float(faults), faults > 0, f"of {total:,}, every point of a grid of the noise; the correct code has none")

    return measurement


def _impossible(mutant: Mutant) -> Callable[[], Figure]:
    def measurement() -> Figure:
        measured = mutant.measured(torch.float32)
        passed = measured.impossible > 0 and measured.tv <= GATES[torch.float32] and not measured.violations
        detail = f"exact TV {float(measured.tv):.1e}, which passes the gate of correct code; float32, one grid point is 2^-24 = 6.0e-08"
        return Figure(float(measured.impossible), passed, because(measured, detail))

    return measurement


def _control(control: Mutant) -> Callable[[], Figure]:
    def measurement() -> Figure:
        measured = control.measured()
        off = total_variation(measured.emitted, control.law(control.world()))
        passed = measured.tv <= GATE and off <= CLOSED and not measured.violations
        return Figure(float(measured.tv), passed, because(measured, "lossless by another road; must pass"))

    return measurement


def _rejected(mutant: Mutant, key: random.Key) -> Callable[[], Figure]:
    def measurement() -> Figure:
        world, rule = mutant.world(), verifiers.all[mutant.verifier]
        p = cells(world, joint(world), mutant.length)
        wrong = cells(world, completed(mutant.law(world), world), mutant.length)
        listed = needed(p, wrong)
        test = plan(p, wrong, least=math.ceil(listed), most=MOST)
        tokens = _drawn(mutant, mutant.decide(), mutant.tape(), world, key, test.n)
        result = pearson(histogram(tokens, world.vocab, mutant.length), p, test.pool)
        fair = _drawn(mutant._replace(draft_rows=None), rule.decide, rule.tape, mutant.fair(), key, test.n)
        correct = pearson(histogram(fair, world.vocab, mutant.length), p, test.pool).p_value
        detail = f"N {test.n:,} (lambda/D {listed:.0f}), {len(test.pool.p)} cells, power {test.power:.4f}; the correct code there: p {correct:.3f}"
        return Figure(result.p_value, result.p_value <= ALPHA < correct, detail)

    return measurement


def _accepted(control: Mutant, n: int, key: random.Key) -> Callable[[], Figure]:
    return lambda: compared(sample(control.decide(), control.world(), key, n, tape=control.tape()).tokens, control.world(), control.length)


def _drawn(mutant: Mutant, decide: Callable[..., Any], tape: Callable[..., Any], world: World, key: random.Key, n: int) -> torch.Tensor:
    """Completed tokens of n passes over the mutant's kind of drafts."""
    if mutant.branches is None:
        return sample(decide, world, key, n, tape=tape, draft_rows=mutant.draft_rows).tokens
    return sample_trees(decide, world, mutant.branches, key, n, replacement=mutant.replacement, tape=tape).tokens


def _nonempty(emitted: Emitted) -> dict[Prefix, Any]:
    return {sequence: mass for sequence, mass in emitted.items() if sequence}


def _label(mutant: Mutant) -> str:
    if mutant.number is not None:
        return f"{mutant.number:02d} {mutant.name}"
    return f"chain, {mutant.name}" if mutant.verifier == "token" else mutant.name


def _rule(mutant: Mutant) -> str:
    """Its name with the rule it changes in front."""
    return mutant.name if mutant.name.startswith(mutant.verifier) else f"{mutant.verifier}: {mutant.name}"
