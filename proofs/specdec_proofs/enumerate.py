"""Exact law of an algorithm, in fractions: no floats, no sampling, no tolerance.

An *algorithm* here is a function of a world that gives the law of the emitted sequence. It is written from the mathematics, not from the
code that ships (``integrate`` measures that), and a new verification rule is admitted when ``is_lossless`` holds on many worlds. Token
and greedy verification stand here, the others in ``block_rule``, ``coupling``, ``siblings``, ``tree_rules`` and ``lossy``; ``bounds`` has what
none of them exceeds.

The one definition of lossless: emit, then complete the emitted tokens by ordinary target sampling to K + 1 tokens. That law must be the
target's, for every sequence x of K + 1 tokens:

    sum over j = 1..K+1 of Pr[emitted = x[:j]] * prod over i > j of p(x_i | x_<i)  =  prod over i of p(x_i | x_<i)

The law of "the token at place i, given that it was reached" is not the target's in any rule, and equality of first tokens is not enough.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction

from specdec_proofs.worlds import Law, Prefix, World, drafts, prefixes

__all__ = [
    "Algorithm",
    "Emitted",
    "completed",
    "emitted_lengths",
    "expected_emitted",
    "greedy",
    "is_lossless",
    "joint",
    "residual",
    "token",
    "token_acceptance",
    "total_variation",
]

Emitted = Mapping[Prefix, Fraction]
Algorithm = Callable[[World], Emitted]
ONE, ZERO = Fraction(1), Fraction(0)


def residual(p: Law, q: Law) -> Law:
    """Exact residual law, proportional to max(p - q, 0); p itself where that is 0 everywhere.

    >>> residual((Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3)))
    (Fraction(0, 1), Fraction(1, 1))
    """
    excess = [max(a - b, ZERO) for a, b in zip(p, q, strict=True)]
    total = sum(excess, ZERO)
    return tuple(x / total for x in excess) if total else p


def token(world: World) -> Emitted:
    """Law of the emitted sequence under token verification (arXiv 2211.17192, 2302.01318).

    Drafted token x at place i passes with probability min(1, p(x) / q(x)); the first that does not is replaced from the residual of its
    place; when all pass, one more token comes from the target. With ``world.soft`` false the verifier takes q one-hot at x.

    >>> from specdec_proofs.worlds import toy
    >>> law = token(toy())
    >>> is_lossless(law, toy()), expected_emitted(law)
    (True, Fraction(541, 240))
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    for tokens, weight in drafts(world):
        for i, drafted in enumerate(tokens):
            head, p = tokens[:i], world.target(tokens[:i])
            q = (world.told or world.draft)(head) if world.soft else tuple(ONE if t == drafted else ZERO for t in range(world.vocab))
            passes = min(ONE, p[drafted] / q[drafted]) if q[drafted] else Fraction(int(p[drafted] > 0))
            if passes < 1:
                for other, share in enumerate(residual(p, q)):
                    law[(*head, other)] += weight * (1 - passes) * share
            weight *= passes
        for bonus, share in enumerate(world.target(tokens)):
            law[(*tokens, bonus)] += weight * share
    return {sequence: mass for sequence, mass in law.items() if mass}


def greedy(world: World) -> Emitted:
    """Law of the emitted sequence when drafted tokens pass while they are the likeliest, lowest index first among equals.

    >>> from specdec_proofs.worlds import independent
    >>> greedy(independent([1, 2], [0, 1]))  # always drafts 1, which is the likeliest
    {(1, 1): Fraction(1, 1)}
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    for tokens, weight in drafts(world):
        emitted: Prefix = ()
        for drafted in (*tokens, None):
            p = world.target(emitted)
            best = max(range(world.vocab), key=lambda t: (p[t], -t))
            emitted = (*emitted, best)
            if drafted != best:
                break
        law[emitted] += weight
    return dict(law)


def joint(world: World, target: Callable[[Prefix], Law] | None = None, length: int | None = None) -> dict[Prefix, Fraction]:
    """The target's law of its first ``length`` tokens (K + 1 unless given), zero entries left out.

    >>> from specdec_proofs.worlds import independent
    >>> joint(independent([1, 3], [1, 1]), length=1)
    {(0,): Fraction(1, 4), (1,): Fraction(3, 4)}
    """
    target = target or world.target
    law: dict[Prefix, Fraction] = {(): ONE}
    for _ in range(world.k + 1 if length is None else length):
        law = {(*x, t): mass * share for x, mass in law.items() for t, share in enumerate(target(x)) if share}
    return law


def completed(law: Emitted, world: World, target: Callable[[Prefix], Law] | None = None) -> dict[Prefix, Fraction]:
    """Law of the emitted sequence after target sampling has brought it to K + 1 tokens.

    Raises:
        ValueError: a sequence of the law is empty or longer than K + 1 tokens.

    >>> from specdec_proofs.worlds import independent
    >>> completed({(0,): Fraction(1)}, independent([1, 3], [1, 1]))
    {(0, 0): Fraction(1, 4), (0, 1): Fraction(3, 4)}
    """
    target = target or world.target
    by_length: list[dict[Prefix, Fraction]] = [defaultdict(Fraction) for _ in range(world.k + 2)]
    for sequence, mass in law.items():
        if not 1 <= len(sequence) <= world.k + 1:
            raise ValueError(f"the law emits {sequence}; expected 1 to {world.k + 1} tokens")
        by_length[len(sequence)][sequence] += mass
    for length in range(1, world.k + 1):
        for sequence, mass in by_length[length].items():
            for t, share in enumerate(target(sequence)):
                if share:
                    by_length[length + 1][(*sequence, t)] += mass * share
    return dict(by_length[-1])


def total_variation(a: Emitted, b: Emitted) -> Fraction:
    """Half the sum of absolute differences, exact.

    >>> total_variation({(0,): Fraction(1)}, {(0,): Fraction(3, 4), (1,): Fraction(1, 4)})
    Fraction(1, 4)
    """
    return sum((abs(a.get(x, ZERO) - b.get(x, ZERO)) for x in a.keys() | b.keys()), ZERO) / 2


def is_lossless(law: Emitted, world: World) -> bool:
    """Whether the completed law equals the target's, sequence by sequence, with ``==``.

    >>> from specdec_proofs.worlds import toy
    >>> is_lossless(token(toy()), toy()), is_lossless({(0,): Fraction(1)}, toy())
    (True, False)
    """
    reached, wanted = completed(law, world), joint(world)
    return all(reached.get(x, ZERO) == wanted.get(x, ZERO) for x in prefixes(world, world.k + 1))


def emitted_lengths(law: Emitted) -> dict[int, Fraction]:
    """Law of the number of emitted tokens.

    >>> from specdec_proofs.worlds import toy
    >>> {n: str(mass) for n, mass in emitted_lengths(token(toy())).items()}
    {1: '1/4', 2: '59/240', 3: '121/240'}
    """
    lengths: dict[int, Fraction] = defaultdict(Fraction)
    for sequence, mass in law.items():
        lengths[len(sequence)] += mass
    return dict(sorted(lengths.items()))


def expected_emitted(law: Emitted) -> Fraction:
    """Mean number of emitted tokens, the block efficiency: one more than the mean number of accepted ones.

    >>> expected_emitted({(0,): Fraction(1, 2), (1, 0): Fraction(1, 2)})
    Fraction(3, 2)
    """
    return sum((n * mass for n, mass in emitted_lengths(law).items()), ZERO)


def token_acceptance(world: World) -> Fraction:
    """Mean number of accepted tokens under token verification, from its own formula instead of the law.

    E[accepted] = sum over i = 1..K, over x of i tokens, of prod over j <= i of min(p, q)(x_j | x_<j): drafts that always have K tokens, soft q.

    >>> from specdec_proofs.worlds import toy
    >>> token_acceptance(toy()) + 1 == expected_emitted(token(toy()))
    True
    """

    def overlap(x: Prefix) -> Fraction:
        return math.prod((min(world.target(x[:j])[x[j]], world.draft(x[:j])[x[j]]) for j in range(len(x))), start=ONE)

    return sum((overlap(x) for i in range(1, world.k + 1) for x in prefixes(world, i)), ZERO)
