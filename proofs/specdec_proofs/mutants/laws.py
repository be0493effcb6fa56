"""Laws of the mutants, from the mathematics alone: what each must emit, in fractions, before its code is run.

Single-position laws give the first token of a pass with one drafted token; m = min(p, q), beta = 1 - sum m, res = max(p - q, 0) / beta. Whatever
follows the first token is drawn from the target, so the completed law is the product. Chain laws give the emitted sequence, token by token.
"""

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from specdec_proofs.enumerate import Emitted, residual
from specdec_proofs.worlds import Law, Prefix, World, drafts, normalised

__all__ = [
    "accepting",
    "bonus",
    "continuing",
    "previous_residual",
    "repaired",
    "same_uniform",
    "shared_with_final",
    "single",
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
        start = first(world.target(()), world.draft(()))
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


def accepting(accept: Accept) -> Callable[[World], Emitted]:
    """Wrong acceptance, right repair: q accept + (1 - sum q accept) res.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> world = independent([1, 3, 2], [3, 1, 1])
    >>> is_lossless(accepting(lambda p, q: min(ONE, p / q))(world), world), is_lossless(accepting(lambda p, q: p)(world), world)
    (True, False)
    """

    def first(p: Law, q: Law) -> Law:
        kept = [b * accept(a, b) for a, b in zip(p, q, strict=True)]
        lost = 1 - sum(kept, ZERO)
        return tuple(a + lost * b for a, b in zip(kept, residual(p, q), strict=True))

    return single(first)


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


def same_uniform(world: World) -> Emitted:
    """One uniform for all acceptances: the first i tokens pass with probability min(r_1, ..., r_i) in place of the product.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import chain_reference
    >>> world = chain_reference()
    >>> is_lossless(same_uniform(world), world)
    False
    """
    return _chain(world, passes=lambda ratios: [min(ratios[: i + 1]) for i in range(len(ratios))])


def previous_residual(world: World) -> Emitted:
    """A rejection at place i > 1 is repaired from the residual of place i - 1.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import chain_reference
    >>> world = chain_reference()
    >>> is_lossless(previous_residual(world), world)
    False
    """
    return _chain(world, place=lambda i: max(i - 1, 0))


def bonus(rule: Callable[[World, Prefix], Law]) -> Callable[[World], Emitted]:
    """The bonus token after x_1 .. x_K comes from ``rule(world, x)`` instead of the target's law after x.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import chain_reference
    >>> world = chain_reference()
    >>> [is_lossless(bonus(rule)(world), world) for rule in (lambda world, x: world.target(x), lambda world, x: world.draft(x))]
    [True, False]
    """
    return lambda world: _chain(world, last=lambda x: rule(world, x))


def continuing(world: World) -> Emitted:
    """A rejected token is repaired and the pass goes on: later drafted tokens are still judged, against rows of the drafted prefix.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import chain_reference
    >>> world = chain_reference()
    >>> is_lossless(continuing(world), world)
    False
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    for tokens, weight in drafts(world):
        level: dict[tuple[Prefix, bool], Fraction] = {((), False): weight}
        for i, drafted in enumerate(tokens):
            p, q = world.target(tokens[:i]), world.draft(tokens[:i])
            passes = min(ONE, p[drafted] / q[drafted])
            grown: dict[tuple[Prefix, bool], Fraction] = defaultdict(Fraction)
            for (head, broken), mass in level.items():
                grown[(*head, drafted), broken] += mass * passes
                for other, share in enumerate(residual(p, q)):
                    grown[(*head, other), True] += mass * (1 - passes) * share
            level = grown
        for (head, broken), mass in level.items():
            if broken:
                law[head] += mass
            else:
                for token, share in enumerate(world.target(tokens)):
                    law[(*head, token)] += mass * share
    return {x: mass for x, mass in law.items() if mass}


def _chain(
    world: World,
    passes: Callable[[list[Fraction]], list[Fraction]] | None = None,
    place: Callable[[int], int] = lambda i: i,
    last: Callable[[Prefix], Law] | None = None,
) -> Emitted:
    """Token verification with one part exchanged.

    Args:
        passes: from the ratios min(1, p/q) of a draft, the probabilities that its first 1, 2, ... tokens all pass; the products by default.
        place: whose rows repair a rejection at place i.
        last: the law of the bonus token.
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    for tokens, weight in drafts(world):
        rows = [(world.target(tokens[:i]), world.draft(tokens[:i])) for i in range(len(tokens))]
        ratios = [min(ONE, p[t] / q[t]) for (p, q), t in zip(rows, tokens, strict=True)]
        reach = [ONE]
        if passes is None:
            for ratio in ratios:
                reach.append(reach[-1] * ratio)
        else:
            reach += passes(ratios)
        for i in range(len(tokens)):
            for other, share in enumerate(residual(*rows[place(i)])):
                law[(*tokens[:i], other)] += weight * (reach[i] - reach[i + 1]) * share
        for token, share in enumerate((last or world.target)(tokens)):
            law[(*tokens, token)] += weight * reach[-1] * share
    return {x: mass for x, mass in law.items() if mass}


def only(vocab: int, token: int) -> Law:
    """The one-hot law on a token."""
    return normalised([int(t == token) for t in range(vocab)])


def likeliest(p: Law) -> int:
    """The token of largest probability, lowest id first."""
    return max(range(len(p)), key=lambda t: (p[t], -t))
