"""Two exponential races on the same noise, in fractions: drafter-invariant coupling (Daliri, Musco, Suresh 2024, arXiv 2408.07978).

With E_x ~ Exp(1) for every token, the target's token is argmin E_x / p(x) and is emitted always; a drafter that runs the race on the same E
drafts argmin E_x / q(x); the pass goes on while the two agree. The emitted law is the target's for any drafter, since nothing that is
emitted depends on the draft but where the pass ends. Only the chance to agree differs:

    Pr[both races are won by i] = 1 / sum over j of max(p_j / p_i, q_j / q_i)         (same noise)
    p(i) q(i)                                                                           (a drafter with noise of its own)
"""

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from specdec_proofs.enumerate import Emitted
from specdec_proofs.worlds import Law, Prefix, World

__all__ = ["coupled", "coupled_acceptance", "independent_winners", "race_pair", "same_winner"]

ONE, ZERO = Fraction(1), Fraction(0)


def same_winner(p: Law, q: Law) -> Law:
    """For each token, the probability that it wins the race for p and the race for q on the same noise.

    Token i wins both iff E_j >= E_i max(p_j / p_i, q_j / q_i) for all j; integrate exp over E_i.

    >>> [str(x) for x in same_winner((Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3)))]
    ['1/3', '1/3']
    """
    ratios = [sum((max(a / p[i], b / q[i]) for a, b in zip(p, q, strict=True)), ZERO) if p[i] and q[i] else None for i in range(len(p))]
    return tuple(1 / total if total else ZERO for total in ratios)


def independent_winners(p: Law, q: Law) -> Law:
    """The same for a drafter with noise of its own: p(i) q(i).

    >>> independent_winners((Fraction(1, 3), Fraction(2, 3)), (Fraction(0), Fraction(1)))
    (Fraction(0, 1), Fraction(2, 3))
    """
    return tuple(a * b for a, b in zip(p, q, strict=True))


def race_pair(p: Law, q: Law) -> dict[tuple[int, int], Fraction]:
    """Joint law of (winner of the race for p, winner of the race for q) on the same noise; zero entries left out.

    Off the diagonal, y wins for p and t for q iff r = E_y / E_t lies between q(y)/q(t) and p(y)/p(t) and every other E_j is at least
    max(E_y p_j / p_y, E_t q_j / q_t). Between the values of r at which one of those maxima changes hands, the exponent is linear, so that
    the integral of exp(-E_t (a + b r)) E_t over E_t and r is (1/b) (1/(a + b r_0) - 1/(a + b r_1)): rational.

    >>> p, q = (Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3))
    >>> {pair: str(mass) for pair, mass in sorted(race_pair(p, q).items())}
    {(0, 0): '1/3', (1, 0): '1/3', (1, 1): '1/3'}
    """
    law = {(i, i): mass for i, mass in enumerate(same_winner(p, q)) if mass}
    for y in range(len(p)):
        for t in range(len(p)):
            if y != t and p[y] and q[t] and (mass := _apart(p, q, y, t)):
                law[y, t] = mass
    return law


def coupled(world: World, meeting: Callable[[Law, Law], Law] = same_winner) -> Emitted:
    """Law of the emitted sequence under ``coupled`` with a drafter that runs the race (or, with another ``meeting``, that does not).

    Args:
        meeting: (p, q) to the probability, for each token, that it is both the target's and the drafted one.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import toy
    >>> is_lossless(coupled(toy()), toy()), is_lossless(coupled(toy(), independent_winners), toy())
    (True, True)
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)

    def grow(prefix: Prefix, weight: Fraction) -> None:
        p = world.target(prefix)
        ended = len(prefix) == world.k or world.stop(prefix)
        agree = (ZERO,) * world.vocab if ended else meeting(p, world.draft(prefix))
        for token in range(world.vocab):
            if p[token] > agree[token]:
                law[(*prefix, token)] += weight * (p[token] - agree[token])
            if agree[token]:
                grow((*prefix, token), weight * agree[token])

    grow((), ONE)
    return dict(law)


def coupled_acceptance(world: World, meeting: Callable[[Law, Law], Law] = same_winner) -> Fraction:
    """Mean number of accepted tokens under ``coupled``: sum over prefixes of the chance that all of it agrees.

    >>> from specdec_proofs.worlds import independent
    >>> coupled_acceptance(independent([1, 2], [2, 1], 2))
    Fraction(10, 9)
    """

    def after(prefix: Prefix) -> Fraction:
        if len(prefix) == world.k or world.stop(prefix):
            return ZERO
        agree = meeting(world.target(prefix), world.draft(prefix))
        return sum((mass * (1 + after((*prefix, token))) for token, mass in enumerate(agree) if mass), ZERO)

    return after(())


def _apart(p: Law, q: Law, y: int, t: int) -> Fraction:
    """Pr[y wins the race for p, t another one wins the race for q]."""
    low, high = q[y] / q[t], p[y] / p[t] if p[t] else None
    if high is not None and low >= high:
        return ZERO
    others = [j for j in range(len(p)) if j not in (y, t)]
    turns = {q[j] * p[y] / (q[t] * p[j]) for j in others if p[j]}
    cuts = sorted({low, *(r for r in turns if r > low and (high is None or r < high))})
    mass = ZERO
    for start, end in zip(cuts, [*cuts[1:], high], strict=True):
        inside = start + 1 if end is None else (start + end) / 2
        by_p = {j for j in others if inside * p[j] / p[y] > q[j] / q[t]}
        slope = 1 + sum((p[j] / p[y] for j in by_p), ZERO)
        level = 1 + sum((q[j] / q[t] for j in others if j not in by_p), ZERO)
        mass += (1 / (level + slope * start) - (ZERO if end is None else 1 / (level + slope * end))) / slope
    return mass
