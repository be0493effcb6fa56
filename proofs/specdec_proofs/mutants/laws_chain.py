"""Laws of the chain mutants of token verification, from the mathematics alone: the emitted sequence, token by token, in fractions.

Their first token is exactly right; only the law of the completed sequence tells them from the rule that ships.
"""

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from specdec_proofs.enumerate import Emitted, residual
from specdec_proofs.worlds import Law, Prefix, World, drafts

__all__ = ["bonus", "continuing", "previous_residual", "same_uniform"]

ONE = Fraction(1)


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
