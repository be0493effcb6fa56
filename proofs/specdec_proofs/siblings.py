"""Several drafts at one node, in fractions: how siblings are drawn, the rules that try them, and what no rule can exceed.

A *rule* maps (p, q, siblings) to the law of (which sibling is accepted or -1, the emitted token):

    recursive rejection  r_1 = p; try sibling j, drawn from q_j: accept with min(1, r_j / q_j), else r_{j+1} = norm(max(r_j - q_j, 0));
                         all rejected: emit a sample of the last r. With replacement q_j = q (SpecInfer, arXiv 2305.09781); without, q_j is q
                         with the earlier siblings removed and *renormalised* (Sequoia, arXiv 2402.12374); one-hot, q_j is 1 at the sibling:
                         accept with r_j(t), else remove t (EAGLE-2, arXiv 2406.16858, lossless for siblings of any origin)
    k-SEQ                accept each with min(1, p / (rho q)), all against the same p; all rejected: emit a sample of
                         (p - min(p / rho, q) a / b) / (1 - a), with b = sum of min(p / rho, q), a = 1 - (1 - b)^n (SpecTr, arXiv 2310.15141).
                         That is a law for every rho from the root of a = rho b on; rho = n always is
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

from specdec_proofs.enumerate import residual
from specdec_proofs.worlds import Law, Prefix

__all__ = [
    "Decision",
    "OnePosition",
    "Rule",
    "draws",
    "k_seq",
    "k_seq_division",
    "one_hot",
    "one_position",
    "transport",
    "transport_by_prefixes",
    "with_replacement",
    "without",
    "without_replacement",
]

Decision = Mapping[tuple[int, int], Fraction]
Rule = Callable[[Law, Law, Prefix], Decision]
ONE, ZERO = Fraction(1), Fraction(0)


class OnePosition(NamedTuple):
    """The law of the emitted token, and the probability that it is an accepted sibling."""

    law: Law
    accepted: Fraction


def without(law: Law, token: int) -> Law | None:
    """The law with one token removed, renormalised; None where nothing is left.

    >>> without((Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)), 0)
    (Fraction(0, 1), Fraction(1, 2), Fraction(1, 2))
    """
    rest = 1 - law[token]
    return tuple(ZERO if t == token else x / rest for t, x in enumerate(law)) if rest else None


def draws(law: Law, count: int, *, replacement: bool) -> dict[Prefix, Fraction]:
    """Every sequence of siblings and its probability; fewer than ``count`` where all tokens have been drawn.

    >>> {x: str(mass) for x, mass in draws((Fraction(1, 3), Fraction(2, 3)), 3, replacement=False).items()}
    {(0, 1): '1/3', (1, 0): '2/3'}
    """
    if count == 0:
        return {(): ONE}
    found: dict[Prefix, Fraction] = {}
    for token, share in enumerate(law):
        if share:
            left = law if replacement else without(law, token)
            for rest, mass in draws(left, count - 1, replacement=replacement).items() if left else [((), ONE)]:
                found[(token, *rest)] = share * mass
    return found


def with_replacement(p: Law, q: Law, siblings: Prefix) -> Decision:
    """Recursive rejection for siblings drawn with replacement.

    >>> half = Fraction(1, 2)
    >>> {pair: str(mass) for pair, mass in with_replacement((half, half), (Fraction(3, 4), Fraction(1, 4)), (0, 1)).items()}
    {(0, 0): '2/3', (1, 1): '1/3'}
    """
    return _in_turn(p, [(token, q) for token in siblings])


def without_replacement(p: Law, q: Law, siblings: Prefix, *, renormalise: bool = True) -> Decision:
    """Recursive rejection for siblings drawn without replacement.

    Args:
        renormalise: False leaves the draft's law as it is when a token is removed; wrong.

    >>> half = Fraction(1, 2)
    >>> {pair: str(mass) for pair, mass in without_replacement((half, half), (Fraction(3, 4), Fraction(1, 4)), (0, 1)).items()}
    {(0, 0): '2/3', (1, 1): '1/3'}
    """
    tries: list[tuple[int, Law]] = []
    for token in siblings:
        tries.append((token, q))
        q = (without(q, token) or q) if renormalise else tuple(ZERO if t == token else x for t, x in enumerate(q))
    return _in_turn(p, tries)


def one_hot(p: Law, q: Law, siblings: Prefix) -> Decision:
    """Recursive rejection that reads no draft law: accept with r(t), else remove t and renormalise.

    A sibling that was rejected before, or has probability 0, is never accepted. The acceptance of a list is p(list).

    >>> third = Fraction(1, 3)
    >>> {pair: str(mass) for pair, mass in one_hot((third, third, third), (), (0, 2)).items()}
    {(0, 0): '1/3', (1, 2): '1/3', (-1, 1): '1/3'}
    """
    return _in_turn(p, [(token, tuple(ONE if t == token else ZERO for t in range(len(p)))) for token in siblings])


def k_seq_division(p: Law, q: Law, count: int, bits: int = 20) -> Fraction:
    """The least rho in [1, n], on a grid of 2**-bits, for which 1 - (1 - b)^n <= rho b, which makes k-SEQ lossless; b = sum of min(p / rho, q).

    >>> k_seq_division((Fraction(1), Fraction(0)), (Fraction(1, 2), Fraction(1, 2)), 2)
    Fraction(3, 2)
    """

    def valid(rho: Fraction) -> bool:
        overlap = sum((min(a / rho, b) for a, b in zip(p, q, strict=True)), ZERO)
        return 1 - (1 - overlap) ** count <= rho * overlap

    if valid(ONE):
        return ONE
    low, high = 1 << bits, count << bits
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if valid(Fraction(middle, 1 << bits)) else (middle, high)
    return Fraction(high, 1 << bits)


def k_seq(p: Law, q: Law, siblings: Prefix, *, rho: Fraction | None = None) -> Decision:
    """The k-SEQ rule for siblings drawn with replacement.

    Args:
        rho: the division factor, ``k_seq_division`` if None. Below that the rule is wrong: what should be negative is clipped.

    >>> half = Fraction(1, 2)
    >>> {pair: str(mass) for pair, mass in k_seq((half, half), (half, half), (0, 1), rho=Fraction(2)).items()}
    {(0, 0): '1/2', (1, 1): '1/4', (-1, 0): '1/8', (-1, 1): '1/8'}
    """
    count = len(siblings)
    rho = _division(p, q, count) if rho is None else rho
    law, rest = dict[tuple[int, int], Fraction](), ONE
    for j, token in enumerate(siblings):
        passes = min(ONE, p[token] / (rho * q[token])) if q[token] else Fraction(int(p[token] > 0))
        if rest * passes:
            law[j, token] = rest * passes
        rest *= 1 - passes
    kept = [min(a / rho, b) for a, b in zip(p, q, strict=True)]
    overlap = sum(kept, ZERO)
    accepted = 1 - (1 - overlap) ** count
    weights = [max(a - (x * accepted / overlap if overlap else ZERO), ZERO) for a, x in zip(p, kept, strict=True)]
    total = sum(weights, ZERO)
    law |= {(-1, t): rest * (x / total if total else p[t]) for t, x in enumerate(weights) if rest * (x if total else p[t])}
    return law


def one_position(p: Law, q: Law, count: int, rule: Rule, *, replacement: bool) -> OnePosition:
    """Law of the emitted token and acceptance over all draws of ``count`` siblings.

    >>> p, q = (Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3))
    >>> one_position(p, q, 2, with_replacement, replacement=True)
    OnePosition(law=(Fraction(1, 3), Fraction(2, 3)), accepted=Fraction(7, 9))
    """
    law, accepted = [ZERO] * len(p), ZERO
    for siblings, weight in draws(q, count, replacement=replacement).items():
        for (which, token), mass in rule(p, q, siblings).items():
            law[token] += weight * mass
            accepted += weight * mass * (which >= 0)
    return OnePosition(tuple(law), accepted)


def transport(p: Law, q: Law, count: int, *, replacement: bool) -> Fraction:
    """The most that any rule can accept: min over sets H of p(H) + 1 - Pr[all siblings in H], the min-cut of the transport problem.

    >>> transport((Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3)), 2, replacement=True)
    Fraction(8, 9)
    """
    drawn: dict[frozenset[int], Fraction] = defaultdict(Fraction)
    for siblings, mass in draws(q, count, replacement=replacement).items():
        drawn[frozenset(siblings)] += mass
    sets = (frozenset(chosen) for size in range(len(p) + 1) for chosen in combinations(range(len(p)), size))
    return min(sum((p[t] for t in h), ZERO) + 1 - sum((mass for seen, mass in drawn.items() if seen <= h), ZERO) for h in sets)


def transport_by_prefixes(p: Law, q: Law, count: int) -> Fraction:
    """The same for siblings with replacement, over the prefixes of the tokens sorted by p / q alone: a least set is among them.

    >>> transport_by_prefixes((Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3)), 2)
    Fraction(8, 9)
    """
    target, draft, least = ZERO, ZERO, ONE
    for token in sorted((t for t in range(len(p)) if q[t]), key=lambda t: p[t] / q[t]):
        target, draft = target + p[token], draft + q[token]
        least = min(least, target + 1 - draft**count)
    return least


_division = functools.cache(k_seq_division)


def _in_turn(p: Law, tries: list[tuple[int, Law]]) -> Decision:
    """Tries each sibling against its own law q_j; the target of the next try is the residual."""
    law, rest = dict[tuple[int, int], Fraction](), ONE
    for j, (token, q) in enumerate(tries):
        passes = min(ONE, p[token] / q[token])
        if rest * passes:
            law[j, token] = rest * passes
        rest *= 1 - passes
        p = residual(p, q)
    return law | {(-1, token): rest * share for token, share in enumerate(p) if rest * share}
