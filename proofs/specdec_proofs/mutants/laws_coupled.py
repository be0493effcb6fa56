"""Laws of the mutants of coupled verification, from the mathematics alone, for drafts that were drawn without the race's noise.

The rule emits the winner of a race at every row and goes on while the winner is the drafted token, so with noise of its own at every row the
winner's law at a row is all there is to it. One row of noise for two positions makes two winners dependent, and their joint law is rational.
"""

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from specdec_proofs.enumerate import Emitted
from specdec_proofs.worlds import Law, Prefix, World, drafts

__all__ = ["both_winners", "following", "matching_late", "one_noise_row"]

ONE, ZERO = Fraction(1), Fraction(0)


def following(world: World, row: Callable[[Prefix, int], Law] | None = None) -> Emitted:
    """Law of the emitted sequence when the token after i drafted ones is drawn from ``row(drafted tokens, i)``, the target's unless given.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import toy
    >>> is_lossless(following(toy()), toy()), is_lossless(following(toy(), lambda tokens, i: toy().target(())), toy())
    (True, False)
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    for tokens, mass in drafts(world):
        for i, drafted in enumerate((*tokens, None)):
            p = row(tokens, i) if row else world.target(tokens[:i])
            for token, share in enumerate(p):
                if token != drafted:
                    law[(*tokens[:i], token)] += mass * share
            mass *= ZERO if drafted is None else p[drafted]
    return {x: mass for x, mass in law.items() if mass}


def matching_late(world: World) -> Emitted:
    """The drafted token is held against the winner one row on, which is then emitted a second time.

    Drafted tokens x_1 .. x_a pass when the winners at rows 1 .. a are those tokens; the last one, the winner at row a, is x_a again.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import toy
    >>> is_lossless(matching_late(toy()), toy())
    False
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    for tokens, mass in drafts(world):
        for i in range(len(tokens) + 1):
            passes = world.target(tokens[: i + 1])[tokens[i]] if i < len(tokens) else ZERO
            last = world.target(()) if i == 0 else tuple(ONE if t == tokens[i - 1] else ZERO for t in range(world.vocab))
            for token, share in enumerate(last):
                law[(*tokens[:i], token)] += mass * (1 - passes) * share
            mass *= passes
    return {x: mass for x, mass in law.items() if mass}


def one_noise_row(world: World) -> Emitted:
    """Both races of a pass that drafts one token are run on one row of noise.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import toy
    >>> is_lossless(one_noise_row(toy(1)), toy(1))
    False
    """
    assert world.k == 1
    p = world.target(())
    law: dict[Prefix, Fraction] = {}
    for token, drafted in enumerate(world.draft(())):
        law[(token,)] = p[token] * (1 - drafted)
        for bonus in range(world.vocab):
            law[token, bonus] = drafted * both_winners(p, world.target((token,)), token, bonus)
    return {x: mass for x, mass in law.items() if mass}


def both_winners(p: Law, q: Law, i: int, j: int) -> Fraction:
    """Pr[i wins the race of p and j that of q, on one row of noise E].

    For i = j it is 1 / sum of max(p / p_i, q / q_i). Else, with A = E_i / p_i, B = E_j / q_j and s = B / A, the others must be slower than both,

        Pr = integral over p_j / q_j < s < p_i / q_i of p_i q_j / c(s)**2,     c(s) = p_i + q_j s + sum over the others of max(p, q s),

    and c is linear between the p / q of the others.

    >>> p, q = (Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3))
    >>> [[str(both_winners(p, q, i, j)) for j in range(2)] for i in range(2)]
    [['1/3', '0'], ['1/3', '1/3']]
    """
    if not p[i] * q[j]:
        return ZERO
    if i == j:
        return ONE / sum((max(a / p[i], b / q[i]) for a, b in zip(p, q, strict=True)), ZERO)
    others = [(a, b) for t, (a, b) in enumerate(zip(p, q, strict=True)) if t not in (i, j)]
    low, high = p[j] / q[j], p[i] / q[i] if q[i] else None
    inner = sorted({a / b for a, b in others if b and a / b > low and (high is None or a / b < high)})
    if high is not None and high <= low:
        return ZERO
    total, edges = ZERO, [low, *inner]
    for place, start in enumerate(edges):
        stop = edges[place + 1] if place + 1 < len(edges) else high
        const = p[i] + sum((a for a, b in others if a > b * start), ZERO)
        slope = q[j] + sum((b for a, b in others if a <= b * start), ZERO)
        total += p[i] * q[j] / slope * (1 / (const + slope * start) - (1 / (const + slope * stop) if stop is not None else ZERO))
    return total
