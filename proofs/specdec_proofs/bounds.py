"""What no verifier can exceed, and the table that compares token and block verification with it.

A verifier couples the target's chain law P with the draft's Q, and keeps a prefix x of i tokens with probability at most min(P(x), Q(x)). So

    E[accepted] <= sum over i = 1..K of sum over x of i tokens of min(P(x), Q(x)),

the *full-information* bound: it would need to know all later rows at once. Block verification is the best that knows them in order.
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from specdec_proofs.block_rule import block_acceptance
from specdec_proofs.enumerate import token_acceptance
from specdec_proofs.worlds import Prefix, World, independent

__all__ = ["Efficiency", "efficiencies", "full_information"]

ONE, ZERO = Fraction(1), Fraction(0)


class Efficiency(NamedTuple):
    """Mean number of emitted tokens of a pass that drafts ``k``: accepted and one more; ``bound`` is the full-information bound."""

    k: int
    token: Fraction
    block: Fraction
    bound: Fraction


def full_information(world: World) -> Fraction:
    """The full-information bound on the mean number of accepted tokens; a prefix past a stop is never drafted.

    >>> full_information(independent([1, 2], [2, 1], 2))
    Fraction(4, 3)
    """

    def after(tokens: Prefix, target: Fraction, draft: Fraction) -> Fraction:
        if len(tokens) == world.k or world.stop(tokens):
            return ZERO
        rows = enumerate(zip(world.target(tokens), world.draft(tokens), strict=True))
        longer = [((*tokens, t), target * p, draft * q) for t, (p, q) in rows if p and q]
        return sum((min(wanted, drafted) + after(x, wanted, drafted) for x, wanted, drafted in longer), ZERO)

    return after((), ONE, ONE)


def efficiencies(ks: Iterable[int] = range(1, 9)) -> list[Efficiency]:
    """The table of the toy of two tokens, p = (1/3, 2/3) against its reverse at every place, exact.

    >>> [f"{float(x):.4f}" for x in efficiencies([3])[0][1:]]
    ['2.4074', '2.6667', '2.8519']
    """
    worlds = [(k, independent([1, 2], [2, 1], k)) for k in ks]
    return [Efficiency(k, 1 + token_acceptance(world), 1 + block_acceptance(world), 1 + full_information(world)) for k, world in worlds]
