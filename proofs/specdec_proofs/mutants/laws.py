"""Laws of the single-position mutants, from the mathematics alone: what each must emit, in fractions, before its code is run.

They give the first token of a pass with one drafted token; m = min(p, q), beta = 1 - sum m, res = max(p - q, 0) / beta. Whatever follows the
first token is drawn from the target, so the completed law is the product. A value that the code gets from an elementary function (a root, an
entropy) is that function's float64 value read as a rational.
"""

import math
from collections.abc import Callable
from fractions import Fraction

from specdec_proofs.enumerate import Emitted, residual
from specdec_proofs.worlds import Law, World, normalised

__all__ = [
    "accepting",
    "bf16",
    "dropping",
    "likeliest",
    "only",
    "powered",
    "raced_with_draft",
    "repaired",
    "shared_with_draft",
    "shared_with_final",
    "single",
    "top",
    "typical",
    "without_rejected",
]

ONE, ZERO = Fraction(1), Fraction(0)
Repair = Callable[[Law, Law], Law]
Accept = Callable[[Fraction, Fraction], Fraction]


def single(first: Callable[[Law, Law], Law]) -> Callable[[World], Emitted]:
    """Lifts a law of the first token to the completed law of a world with one drafted token.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> world = independent([1, 3, 2], [3, 1, 1])
    >>> is_lossless(single(lambda p, q: p)(world), world), is_lossless(single(lambda p, q: q)(world), world)
    (True, False)
    """

    def law(world: World) -> Emitted:
        assert world.k == 1
        start = first(world.target(()), (world.told or world.draft)(()))
        return {(x, y): mass * share for x, mass in enumerate(start) for y, share in enumerate(world.target((x,))) if mass * share}

    return law


def repaired(repair: Repair) -> Callable[[World], Emitted]:
    """Right acceptance, wrong repair: m + beta repair(p, q).

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> world = independent([1, 3, 2], [3, 1, 1])
    >>> is_lossless(repaired(residual)(world), world), is_lossless(repaired(lambda p, q: p)(world), world)
    (True, False)
    """

    def first(p: Law, q: Law) -> Law:
        m = [min(a, b) for a, b in zip(p, q, strict=True)]
        beta = 1 - sum(m, ZERO)
        return tuple(a + beta * b for a, b in zip(m, repair(p, q), strict=True))

    return single(first)


def accepting(accept: Accept, repair: Repair = residual) -> Callable[[World], Emitted]:
    """Any acceptance and any repair: d accept(p, q) + (1 - sum d accept(p, q)) repair(p, q).

    Here d is the law the proposer draws from and q the one the verifier is told, which is the same unless the world misreports it.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> world = independent([1, 3, 2], [3, 1, 1])
    >>> is_lossless(accepting(lambda p, q: min(ONE, p / q))(world), world), is_lossless(accepting(lambda p, q: p)(world), world)
    (True, False)
    """

    def law(world: World) -> Emitted:
        drawn = world.draft(())

        def first(p: Law, q: Law) -> Law:
            kept = [d * accept(a, b) if d else ZERO for d, a, b in zip(drawn, p, q, strict=True)]
            lost = 1 - sum(kept, ZERO)
            return tuple(a + lost * b for a, b in zip(kept, repair(p, q), strict=True))

        return single(first)(world)

    return law


def without_rejected() -> Callable[[World], Emitted]:
    """Repair from p without the rejected token: m(x) + p(x) sum over t != x of max(q - p, 0)(t) / (1 - p(t)).

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> world = independent([1, 3, 2], [3, 1, 1])
    >>> is_lossless(without_rejected()(world), world)
    False
    """

    def first(p: Law, q: Law) -> Law:
        share = [max(b - a, ZERO) / (1 - a) for a, b in zip(p, q, strict=True)]
        return tuple(min(a, b) + a * (sum(share, ZERO) - own) for a, b, own in zip(p, q, share, strict=True))

    return single(first)


def shared_with_final() -> Callable[[World], Emitted]:
    """One uniform u decides acceptance of t (u < r_t) and then picks from the residual by its cumulative sums F.

    m(x) + sum over t of q(t) times the length of [F(x - 1), F(x)) that lies in [r_t, 1).

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> world = independent([1, 3, 2], [3, 1, 1])
    >>> is_lossless(shared_with_final()(world), world)
    False
    """

    def first(p: Law, q: Law) -> Law:
        ratio = [min(ONE, a / b) if b else ONE for a, b in zip(p, q, strict=True)]
        out, low = [], ZERO
        for x, share in enumerate(residual(p, q)):
            high = low + share
            out.append(min(p[x], q[x]) + sum((b * max(ZERO, high - max(low, r)) for b, r in zip(q, ratio, strict=True)), ZERO))
            low = high
        return tuple(out)

    return single(first)


def shared_with_draft() -> Callable[[World], Emitted]:
    """The uniform that drew t from q by its cumulative sums Q picks the recovered token too, by the residual's cumulative sums F.

    m(x) + sum over t of (1 - r_t) times the length of [Q(t - 1), Q(t)) that lies in [F(x - 1), F(x)).

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> world = independent([1, 3, 2], [3, 1, 1])
    >>> is_lossless(shared_with_draft()(world), world)
    False
    """

    def first(p: Law, q: Law) -> Law:
        lost = [1 - min(ONE, a / b) if b else ZERO for a, b in zip(p, q, strict=True)]
        drawn, repairs = _intervals(q), _intervals(residual(p, q))
        return tuple(
            min(a, b) + sum((rate * max(ZERO, min(high, end) - max(low, start)) for rate, (start, end) in zip(lost, drawn, strict=True)), ZERO)
            for a, b, (low, high) in zip(p, q, repairs, strict=True)
        )

    return single(first)


def raced_with_draft() -> Callable[[World], Emitted]:
    """The exponential noise E that drew the draft, t = argmin E / q, picks the recovered token too, y = argmin E / res.

    Given t and its finishing time T = E_t / q_t ~ Exp(1), the others have E_x = q_x T + E'_x with E' fresh. A rejected t has res_t = 0, so
    which t it was does not matter, and with s = sigma T and G(sigma) = sum of max(res sigma - q, 0)

        Pr[y = x] = integral over sigma > q_x / res_x of res_x / (1 + G(sigma))**2,

    where G is linear between the sorted q / res. So the law is rational: m + beta Pr[y = .].

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> world = independent([1, 3, 2], [3, 1, 1])
    >>> is_lossless(raced_with_draft()(world), world)
    False
    """

    def repair(p: Law, q: Law) -> Law:
        res = residual(p, q)
        order = sorted((x for x in range(len(p)) if res[x]), key=lambda x: q[x] / res[x])
        starts = [q[x] / res[x] for x in order]
        out, slope, offset = [ZERO] * len(p), ZERO, ZERO
        for place, x in enumerate(order):
            slope, offset = slope + res[x], offset + q[x]
            value = ONE / (1 - offset + slope * starts[place])
            if place + 1 < len(order):
                value -= ONE / (1 - offset + slope * starts[place + 1])
            for y in order[: place + 1]:
                out[y] += res[y] / slope * value
        return tuple(out)

    return repaired(repair)


def dropping(keep: Callable[[Fraction], bool]) -> Callable[[World], Emitted]:
    """A drawn token t with not keep(q(t)) is dropped and the target sampled: m 1[kept] + (sum of q - m over the kept) res + q(dropped) p.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> world = independent([1, 3, 2], [3, 1, 1])
    >>> is_lossless(dropping(lambda q: True)(world), world), is_lossless(dropping(lambda q: q > Fraction(1, 4))(world), world)
    (True, False)
    """

    def first(p: Law, q: Law) -> Law:
        kept = [min(a, b) if keep(b) else ZERO for a, b in zip(p, q, strict=True)]
        dropped = sum((b for b in q if not keep(b)), ZERO)
        rejected = 1 - dropped - sum(kept, ZERO)
        return tuple(m + rejected * r + dropped * a for m, r, a in zip(kept, residual(p, q), p, strict=True))

    return single(first)


def only(vocab: int, token: int) -> Law:
    """The one-hot law on a token.

    >>> only(2, 1)
    (Fraction(0, 1), Fraction(1, 1))
    """
    return normalised([int(t == token) for t in range(vocab)])


def likeliest(p: Law) -> int:
    """The token of largest probability, lowest id first.

    >>> likeliest(normalised([1, 2, 2]))
    1
    """
    return max(range(len(p)), key=lambda t: (p[t], -t))


def top(p: Law, count: int) -> Law:
    """The law restricted to its ``count`` likeliest tokens.

    >>> top(normalised([1, 2, 2]), 2)
    (Fraction(0, 1), Fraction(1, 2), Fraction(1, 2))
    """
    kept = sorted(range(len(p)), key=lambda t: (-p[t], t))[:count]
    return normalised([mass if t in kept else 0 for t, mass in enumerate(p)])


def powered(p: Law, exponent: float) -> Law:
    """The law proportional to p ** exponent: at temperature T the exponent is 1 / T.

    >>> powered(normalised([1, 3]), 2.0)
    (Fraction(1, 10), Fraction(9, 10))
    """
    return normalised([float(mass) ** exponent for mass in p])


def typical(p: Law, epsilon: float = 0.09, delta: float = 0.3) -> tuple[bool, ...]:
    """Which tokens typical acceptance takes: p > min(epsilon, delta exp(-entropy)).

    >>> typical(normalised([1, 1, 98]))
    (False, False, True)
    """
    entropy = -sum(float(mass) * math.log(mass) for mass in p if mass)
    return tuple(mass > min(epsilon, delta * math.exp(-entropy)) for mass in p)


def bf16(x: Fraction) -> Fraction:
    """The bfloat16 nearest to x > 0 (8 significant bits, ties to even); subnormal numbers are not considered.

    >>> bf16(Fraction(1, 3)), bf16(Fraction(257, 512)), bf16(Fraction(259, 512))
    (Fraction(171, 512), Fraction(1, 2), Fraction(65, 128))
    """
    unit = Fraction(2) ** (math.frexp(x)[1] - 8)
    return round(x / unit) * unit


def _intervals(p: Law) -> list[tuple[Fraction, Fraction]]:
    """Where each token stands on [0, 1) by the cumulative sums."""
    ends = [sum(p[: t + 1], ZERO) for t in range(len(p))]
    return list(zip([ZERO, *ends[:-1]], ends, strict=True))
