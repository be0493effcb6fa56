"""Claims from sampling: the same keys, addresses and batched calls that an engine uses, against laws known in advance.

Every test says before its data what it can see: the power against a mutant's own law, or, for the correct code, the smallest total variation
that it would reject with probability .999 in the hardest direction.
"""

import math
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest

from specdec_fn import random
from specdec_fn.speculate import verifiers
from specdec_fn.speculate.tape import tape
from specdec_proofs.chi2 import holm, homogeneity, pearson, tails
from specdec_proofs.claim import Figure
from specdec_proofs.coupling import coupled_acceptance
from specdec_proofs.enumerate import joint, token_acceptance
from specdec_proofs.power import ALPHA, noncentrality, pool
from specdec_proofs.sample import cells, histogram, sample, sample_trees
from specdec_proofs.worlds import World, chain_reference, declared_one_hot, greedy_draft, mixed_tables, pair_reference, softmax, stopping, toy, wide

__all__ = ["claims", "compared", "repetitions"]

Task = tuple[str, str, Callable[[], Figure]]
RACES_AND_BLOCKS = ("block", "coupled")
TREES = MappingProxyType(  # verifiers of trees, and whether siblings are drawn with replacement
    {"tree": False, "traversal": False, "multi_draft_without_replacement": False, "multi_draft": True, "k_seq": True, "coupled": True}
)
SEED = 20_240  # of all fixed keys; a claim has the key fold_in(key(SEED), its number)


def claims() -> Iterator[Task]:
    """The statistical claims, in reading order: name, gate, measurement.

    >>> next(claims())[:2]
    ('sampled: joint law, V=3 K=2', 'p > 1e-06')
    """
    number = iter(range(1000))
    above = f"p > {ALPHA:g}"
    decide = verifiers.token.decide
    yield "sampled: joint law, V=3 K=2", above, _fits(decide, chain_reference(), 3, 200_000, next(number))
    yield "sampled: joint law, V=6 K=3, 1,296 cells", above, _fits(decide, softmax(0), 4, 100_000, next(number))
    yield "sampled: joint law, varying length", above, _fits(decide, stopping(softmax(0, 4, 3)), 4, 100_000, next(number))
    yield "sampled: first two tokens, V=64 K=4", above, _fits(decide, wide(), 2, 100_000, next(number))
    yield "sampled: tail tokens, V=64", f"p > {ALPHA:g} (Holm)", _tails(decide, wide(1, k=1), 100_000, next(number))
    yield "sampled: one law from five proposers", above, _homogeneous(decide, 40_000, next(number))
    for name in RACES_AND_BLOCKS:
        rule = verifiers.all[name]
        yield f"sampled: {name}, joint law, V=3 K=2", above, _fits(rule.decide, chain_reference(), 3, 200_000, next(number), rule.tape)
        yield f"sampled: {name}, joint law, varying length", above, _fits(rule.decide, stopping(softmax(0, 4, 3)), 4, 50_000, next(number), rule.tape)
        yield f"sampled: {name}, one law from five proposers", above, _homogeneous(rule.decide, 20_000, next(number), rule.tape)
    yield "sampled: coupled, drafts that run the same race", above, _raced(100_000, next(number))
    yield "sampled: coupled, acceptance of a drafter that runs the same race", above, _meeting(200_000, next(number))
    for name, replacement in TREES.items():
        yield f"sampled: {name}, joint law, trees V=3 depth 2, 2 branches", above, _fits_trees(name, replacement, 60_000, next(number))


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


def _fits(decide: Callable[..., Any], world: World, length: int, n: int, number: int, tape: Callable[..., Any] = tape) -> Callable[[], Figure]:
    return lambda: compared(sample(decide, world, _key(number), n, tape=tape).tokens, world, length)


def _raced(n: int, number: int) -> Callable[[], Figure]:
    rule, world = verifiers.coupled.verifier, softmax(3, 4, 2)
    return lambda: compared(sample(rule.decide, world, _key(number), n, tape=rule.tape, raced=True).tokens, world, 3)


def _meeting(n: int, number: int) -> Callable[[], Figure]:
    """How often drafter and target name one token: a binomial test against sum over i of 1 / sum over j of max(p_j / p_i, q_j / q_i)."""

    def measurement() -> Figure:
        rule, world = verifiers.coupled.verifier, pair_reference()
        exact = float(coupled_acceptance(world))
        met = int(sample(rule.decide, world, _key(number), n, tape=rule.tape, raced=True).accepted.sum())
        p_value = float(binomtest(met, n, exact).pvalue)
        least = 5.99 * math.sqrt(exact * (1 - exact) / n)  # two-sided 1e-6 and power .999 need 4.89 + 3.09 standard errors at most
        detail = f"N {n:,}, accepted {met / n:.4f}, formula {exact:.4f} (no rule exceeds {float(token_acceptance(world)):.4f}); sees {least:.4f}"
        return Figure(p_value, p_value > ALPHA, detail)

    return measurement


def _fits_trees(name: str, replacement: bool, n: int, number: int) -> Callable[[], Figure]:
    rule, world = verifiers.all[name], mixed_tables(5, 3, 2)
    return lambda: compared(sample_trees(rule.decide, world, 2, _key(number), n, replacement=replacement, tape=rule.tape).tokens, world, 3)


def compared(tokens: torch.Tensor, world: World, length: int) -> Figure:
    """The joint law of the first tokens of completed passes against the target's.

    Args:
        tokens: int64 [n, K + 1].
        length: how many of them are looked at.

    >>> from specdec_proofs.worlds import toy
    >>> drawn = sample(verifiers.token.decide, toy(), random.key(0), 5000)
    >>> compared(drawn.tokens, toy(), 2).passed
    True
    """
    n = len(tokens)
    p = cells(world, joint(world, length=length), length)
    test = pool(p, n)
    seen = math.sqrt(noncentrality(test.df) / n) / 2
    result = pearson(histogram(tokens, world.vocab, length), p, test)
    detail = f"N {n:,}, chi2 {result.statistic:.1f} on {result.df}; sees any TV >= {seen:.4f} of the pooled law with power .999"
    return Figure(result.p_value, result.p_value > ALPHA, detail)


def _tails(decide: Callable[..., Any], world: World, n: int, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        p = cells(world, joint(world, length=2), 2)
        gaps = [gap for gap in (6, 8, 10, 12, 14) if (p < math.exp(-gap) * p.max()).any()]
        counts = histogram(sample(decide, world, _key(number), n).tokens, world.vocab, 2)
        values = tails(counts, p, gaps)
        masses = ", ".join(f"{p[p < math.exp(-gap) * p.max()].sum():.1e}" for gap in gaps)
        detail = f"N {n:,}, pairs of tokens rarer than e^-g of the likeliest, g {gaps}, mass {masses}"
        return Figure(min(values), not any(holm(values, ALPHA)), detail, min(1.0, len(values) * min(values)))

    return measurement


def _homogeneous(decide: Callable[..., Any], n: int, number: int, tape: Callable[..., Any] = tape) -> Callable[[], Figure]:
    def measurement() -> Figure:
        world = softmax(3, 4, 2)
        proposers = [world, declared_one_hot(world), greedy_draft(world), stopping(world), world._replace(draft=world.target)]
        p = cells(world, joint(world), 3)
        counts = [
            histogram(sample(decide, one, random.fold_in(_key(number), row), n, tape=tape).tokens, world.vocab, 3)
            for row, one in enumerate(proposers)
        ]
        result = homogeneity(np.stack(counts), p)
        return Figure(result.p_value, result.p_value > ALPHA, f"5 x {n:,} passes, chi2 {result.statistic:.1f} on {result.df}")

    return measurement
