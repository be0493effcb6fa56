"""Families of claims, and what is left of their rejections when all of their tests count.

Each statistical claim fails at its own level of 1e-6. A run makes many, so the chance that some correct one fails grows with their number;
Holm's correction inside each family, and again over the families, says which failures are beyond that.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specdec_proofs.chi2 import adjusted
from specdec_proofs.claim import Claim
from specdec_proofs.power import ALPHA

__all__ = ["Family", "corrected", "families", "words"]


class Family(NamedTuple):
    """The claims of one room, counted.

    Attributes:
        name: the room.
        claims: how many there are.
        failed: how many of them failed.
        tests: how many are tests of a law, with a p-value under it.
        p_value: the smallest p-value after Holm's correction inside the family; None without a test.
        across: that p-value after Holm's correction over all families.
        rejected: the claims that are rejected at level 1e-6 after the correction inside the family.
    """

    name: str
    claims: int
    failed: int
    tests: int
    p_value: float | None
    across: float | None
    rejected: tuple[str, ...]


def corrected(claims: Sequence[Claim]) -> list[float | None]:
    """Each claim's p-value after Holm's correction inside its family, in the order of the claims; None for those that have none.

    >>> some = [Claim(name, p, "p > 1e-06", True, "", 0.1, "sampled", p) for name, p in (("a", 0.01), ("b", 0.4))]
    >>> corrected(some)
    [0.02, 0.4]
    """
    found: list[float | None] = [None] * len(claims)
    for name in dict.fromkeys(claim.family for claim in claims):
        tests = [(i, claim.p_value) for i, claim in enumerate(claims) if claim.family == name and claim.p_value is not None]
        for (i, _), value in zip(tests, adjusted([p for _, p in tests]), strict=True):
            found[i] = value
    return found


def families(claims: Sequence[Claim]) -> list[Family]:
    """The families of some claims, in the order in which they first occur.

    >>> some = [Claim(name, p, "p > 1e-06", True, "", 0.1, "sampled", p) for name, p in (("a", 0.01), ("b", 0.4))]
    >>> families(some)
    [Family(name='sampled', claims=2, failed=0, tests=2, p_value=0.02, across=0.02, rejected=())]
    """
    values, found = corrected(claims), []
    for name in dict.fromkeys(claim.family for claim in claims):
        own = [(claim, value) for claim, value in zip(claims, values, strict=True) if claim.family == name]
        tests = [value for _, value in own if value is not None]
        rejected = tuple(claim.name for claim, value in own if value is not None and value <= ALPHA)
        failed = sum(not claim.passed for claim, _ in own)
        found.append(Family(name, len(own), failed, len(tests), min(tests, default=None), None, rejected))
    across = iter(adjusted([family.p_value for family in found if family.p_value is not None]))
    return [family if family.p_value is None else family._replace(across=next(across)) for family in found]


def words(family: Family) -> str:
    """One line about a family.

    >>> words(Family("sampled", 9, 0, 2, 0.02, 0.02, ()))
    'sampled: 9 claims, none failed; 2 tests of a law, smallest p 0.02 (Holm), 0.02 over all families'
    """
    line = f"{family.name or 'others'}: {family.claims} claims, {family.failed or 'none'} failed"
    if family.p_value is None or family.across is None:
        return line
    line += f"; {family.tests} tests of a law, smallest p {family.p_value:.2g} (Holm), {family.across:.2g} over all families"
    return line + (f"; beyond chance: {', '.join(family.rejected)}" if family.rejected else "")
