"""The two lossy rules in fractions, and what each does to the law: a function of p, q and the threshold.

    typical   accept t iff p(t) > min(epsilon, delta exp(-H(p))), else emit a sample of p (Cai et al. 2024, arXiv 2401.10774)
              with S the tokens above the threshold: law = q 1_S + (1 - q(S)) p,  TV = q(S) TV(q given S, p)
    lenient   accept t iff u l q(t) < p(t), l in (0, 1], else emit a token of the residual, unchanged (Leviathan et al. 2023, appendix)
              with b = sum of min(q, p / l): law = min(q, p / l) + (1 - b) residual(p, q),  TV = b - sum of min(p, q)

The total variations are those of the first token of a pass with a soft draft. Lenience buys acceptance with bias, one for one.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from specdec_proofs.block_rule import declared
from specdec_proofs.enumerate import Emitted, residual
from specdec_proofs.worlds import Law, Prefix, World, drafts

__all__ = ["lenient", "lenient_bias", "lenient_law", "typical", "typical_bias", "typical_law", "typical_set"]

ONE, ZERO = Fraction(1), Fraction(0)
Rule = Callable[[Law, Law, int], tuple[Fraction, Law]]


def typical_set(p: Law, epsilon: float = 0.09, delta: float = 0.3) -> frozenset[int]:
    """The tokens that typical acceptance keeps: p(t) > min(epsilon, delta exp(-H(p))), entropy in nats and float64.

    >>> sorted(typical_set((Fraction(1, 2), Fraction(9, 20), Fraction(1, 20))))
    [0, 1]
    """
    entropy = -sum(float(x) * math.log(x) for x in p if x)
    return frozenset(t for t, x in enumerate(p) if x > Fraction(min(epsilon, delta * math.exp(-entropy))))


def typical_law(p: Law, q: Law, kept: frozenset[int]) -> Law:
    """Law of the first token where tokens in ``kept`` are accepted and all others replaced by a sample of p.

    >>> half = Fraction(1, 2)
    >>> typical_law((half, half), (Fraction(1, 4), Fraction(3, 4)), frozenset([0]))
    (Fraction(5, 8), Fraction(3, 8))
    """
    inside = sum((q[t] for t in kept), ZERO)
    return tuple((q[t] if t in kept else ZERO) + (1 - inside) * p[t] for t in range(len(p)))


def typical_bias(p: Law, q: Law, kept: frozenset[int]) -> Fraction:
    """Total variation of ``typical_law`` to p, by its closed form q(S) TV(q given S, p).

    >>> half = Fraction(1, 2)
    >>> typical_bias((half, half), (Fraction(1, 4), Fraction(3, 4)), frozenset([0]))
    Fraction(1, 8)
    """
    inside = sum((q[t] for t in kept), ZERO)
    return sum((max((q[t] if t in kept else ZERO) - inside * p[t], ZERO) for t in range(len(p))), ZERO)


def lenient_law(p: Law, q: Law, lenience: Fraction = Fraction(4, 5)) -> Law:
    """Law of the first token under lenience: min(q, p / l) + (1 - b) residual(p, q).

    >>> lenient_law((Fraction(1, 2), Fraction(1, 2)), (Fraction(1, 4), Fraction(3, 4)))
    (Fraction(3, 8), Fraction(5, 8))
    """
    kept = [min(b, a / lenience) for a, b in zip(p, q, strict=True)]
    rejected = 1 - sum(kept, ZERO)
    return tuple(a + rejected * r for a, r in zip(kept, residual(p, q), strict=True))


def lenient_bias(p: Law, q: Law, lenience: Fraction = Fraction(4, 5)) -> Fraction:
    """Total variation of ``lenient_law`` to p, by its closed form: the acceptance that lenience adds.

    >>> lenient_bias((Fraction(1, 2), Fraction(1, 2)), (Fraction(1, 4), Fraction(3, 4)))
    Fraction(1, 8)
    """
    return sum((min(b, a / lenience) - min(a, b) for a, b in zip(p, q, strict=True)), ZERO)


def typical(world: World, epsilon: float = 0.09, delta: float = 0.3) -> Emitted:
    """Law of the emitted sequence under typical acceptance; the draft's laws are not read.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import toy
    >>> is_lossless(typical(toy()), toy())
    False
    """

    def rule(p: Law, q: Law, token: int) -> tuple[Fraction, Law]:
        return Fraction(int(token in typical_set(p, epsilon, delta))), p

    return _in_order(world, rule)


def lenient(world: World, lenience: Fraction = Fraction(4, 5)) -> Emitted:
    """Law of the emitted sequence under lenience; with l = 1 it is token verification.

    >>> from specdec_proofs.enumerate import is_lossless, token
    >>> from specdec_proofs.worlds import toy
    >>> is_lossless(lenient(toy()), toy()), lenient(toy(), Fraction(1)) == token(toy())
    (False, True)
    """

    def rule(p: Law, q: Law, token: int) -> tuple[Fraction, Law]:
        return (min(ONE, p[token] / (lenience * q[token])) if q[token] else Fraction(int(p[token] > 0))), residual(p, q)

    return _in_order(world, rule)


def _in_order(world: World, rule: Rule) -> Emitted:
    """Tokens are tried in order; the first that fails is replaced from the law that the rule names; a bonus follows the last."""
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    for tokens, weight in drafts(world):
        for i, drafted in enumerate(tokens):
            passes, instead = rule(world.target(tokens[:i]), declared(world, tokens, i), drafted)
            for other, share in enumerate(instead):
                law[(*tokens[:i], other)] += weight * (1 - passes) * share
            weight *= passes
        for bonus, share in enumerate(world.target(tokens)):
            law[(*tokens, bonus)] += weight * share
    return {sequence: mass for sequence, mass in law.items() if mass}
