"""Claims from sampling: the same keys, addresses and batched calls that an engine uses, against laws known in advance.

Every test says before its data what it can see: the power against a mutant's own law, or, for the correct code, the smallest total variation
that it would reject with probability .999 in the hardest direction.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from specdec_fn import random
from specdec_fn.speculate import verifiers
from specdec_proofs.chi2 import holm, homogeneity, pearson, tails
from specdec_proofs.claim import Figure
from specdec_proofs.enumerate import completed, joint
from specdec_proofs.mutants import Mutant, catalogue, equivalents
from specdec_proofs.power import ALPHA, needed, noncentrality, plan, pool
from specdec_proofs.sample import cells, histogram, sample
from specdec_proofs.worlds import World, chain_reference, declared_one_hot, greedy_draft, pair_reference, softmax, stopping, toy, wide

__all__ = ["claims", "repetitions"]

Task = tuple[str, str, Callable[[], Figure]]
SEED = 20_240  # of all fixed keys; a claim has the key fold_in(key(SEED), its number)


def claims() -> Iterator[Task]:
    """The statistical claims, in reading order: name, gate, measurement.

    >>> next(claims())[:2]
    ('sampled: joint law, V=3 K=2', 'p > 1e-06')
    """
    number = iter(range(1000))
    above, below = f"p > {ALPHA:g}", f"p <= {ALPHA:g}"
    decide = verifiers.token.decide
    yield "sampled: joint law, V=3 K=2", above, _fits(decide, chain_reference(), 3, 200_000, next(number))
    yield "sampled: joint law, V=6 K=3, 1,296 cells", above, _fits(decide, softmax(0), 4, 100_000, next(number))
    yield "sampled: joint law, varying length", above, _fits(decide, stopping(softmax(0, 4, 3)), 4, 100_000, next(number))
    yield "sampled: first two tokens, V=64 K=4", above, _fits(decide, wide(), 2, 100_000, next(number))
    yield "sampled: tail tokens, V=64", f"p > {ALPHA:g} (Holm)", _tails(decide, wide(1, k=1), 100_000, next(number))
    yield "sampled: one law from five proposers", above, _homogeneous(decide, 40_000, next(number))
    for mutant in catalogue():
        name = f"{mutant.number:02d} {mutant.name}" if mutant.number is not None else f"chain, {mutant.name}"
        yield f"mutant {name}: sampled", below, _rejected(mutant, next(number))
    for control in equivalents():
        yield f"control, {control.name}: sampled", above, _fits(control.decide(), control.world(), control.length, 50_000, next(number))


def repetitions(count: int, n: int, *, start: int = 0, seed: int = SEED) -> Iterator[float]:
    """p-values of independent repetitions of a joint test of the correct code, one at a time; repetition i is the same in every run.

    Worlds take turns: soft drafts, one-hot drafts, drafts of varying length, a larger vocabulary, the toy. Expected counts are 20 or more,
    so that the p-values are uniform to well within what ``chi2.uniformity`` can see.

    >>> first, second = repetitions(2, 1000)
    >>> next(repetitions(2, 1000, start=1)) == second
    True
    """
    worlds = [(chain_reference(), 3), (declared_one_hot(chain_reference()), 3), (stopping(chain_reference()), 3), (pair_reference(), 2), (toy(3), 4)]
    laws = [cells(world, joint(world), length) for world, length in worlds]
    root = random.fold_in(random.key(seed), 2**32 - 1)
    for i in range(start, count):
        (world, length), p = worlds[i % len(worlds)], laws[i % len(worlds)]
        drawn = sample(verifiers.token.decide, world, random.fold_in(root, i), n)
        yield pearson(histogram(drawn.tokens, world.vocab, length), p, pool(p, n, floor=20)).p_value


def _key(number: int) -> random.Key:
    return random.fold_in(random.key(SEED), number)


def _fits(decide: Callable[..., Any], world: World, length: int, n: int, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        p = cells(world, joint(world, length=length), length)
        test = pool(p, n)
        seen = math.sqrt(noncentrality(test.df) / n) / 2
        drawn = sample(decide, world, _key(number), n)
        result = pearson(histogram(drawn.tokens, world.vocab, length), p, test)
        detail = f"N {n:,}, chi2 {result.statistic:.1f} on {result.df}; sees any TV >= {seen:.4f} of the pooled law with power .999"
        return Figure(result.p_value, result.p_value > ALPHA, detail)

    return measurement


def _tails(decide: Callable[..., Any], world: World, n: int, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        p = cells(world, joint(world, length=2), 2)
        gaps = [gap for gap in (6, 8, 10, 12, 14) if (p < math.exp(-gap) * p.max()).any()]
        counts = histogram(sample(decide, world, _key(number), n).tokens, world.vocab, 2)
        values = tails(counts, p, gaps)
        masses = ", ".join(f"{p[p < math.exp(-gap) * p.max()].sum():.1e}" for gap in gaps)
        detail = f"N {n:,}, pairs of tokens rarer than e^-g of the likeliest, g {gaps}, mass {masses}"
        return Figure(min(values), not any(holm(values, ALPHA)), detail)

    return measurement


def _homogeneous(decide: Callable[..., Any], n: int, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        world = softmax(3, 4, 2)
        proposers = [world, declared_one_hot(world), greedy_draft(world), stopping(world), world._replace(draft=world.target)]
        p = cells(world, joint(world), 3)
        counts = [histogram(sample(decide, one, random.fold_in(_key(number), row), n).tokens, world.vocab, 3) for row, one in enumerate(proposers)]
        result = homogeneity(np.stack(counts), p)
        return Figure(result.p_value, result.p_value > ALPHA, f"5 x {n:,} passes, chi2 {result.statistic:.1f} on {result.df}")

    return measurement


def _rejected(mutant: Mutant, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        world = mutant.world()
        p = cells(world, joint(world), mutant.length)
        wrong = cells(world, completed(mutant.law(world), world), mutant.length)
        listed = needed(p, wrong)
        test = plan(p, wrong, least=math.ceil(listed), most=100_000)
        tokens = sample(mutant.decide(), world, _key(number), test.n, draft_rows=mutant.draft_rows).tokens
        result = pearson(histogram(tokens, world.vocab, mutant.length), p, test.pool)
        fair = sample(verifiers.token.decide, world, _key(number), test.n).tokens
        correct = pearson(histogram(fair, world.vocab, mutant.length), p, test.pool).p_value
        detail = f"N {test.n:,} (lambda/D {listed:.0f}), {len(test.pool.p)} cells, power {test.power:.4f}; the correct code there: p {correct:.3f}"
        return Figure(result.p_value, result.p_value <= ALPHA < correct, detail)

    return measurement
