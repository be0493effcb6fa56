"""Laws of the block mutants, from the mathematics alone: what each emits, in fractions.

With w_0 = 1, w_i = min(1, w_{i-1} p(x_i) / q(x_i)) and S_i = sum of max(w_i p_i - q_i, 0), the rule keeps the longest beginning whose coin shows
heads: h_i = S_i / (S_i + 1 - w_i) at an inner place, w_L at the last one, 1 at none; then it draws from max(w_i p_i - q_i, 0). Each mutant has
one of these parts exchanged.
"""

from collections import defaultdict
from fractions import Fraction

from specdec_proofs.enumerate import Emitted
from specdec_proofs.worlds import Law, Prefix, World, drafts

__all__ = ["block"]

ONE, ZERO = Fraction(1), Fraction(0)


def block(world: World, wrong: str = "", *, no_bonus: bool = False) -> Emitted:
    """Law of the emitted sequence under block verification with one part exchanged.

    Args:
        wrong: "" for none; "coin": h_i = w_i; "residual": max(p - q, 0) whatever the weight; "scan": the places are
            read from the front up to the first tails; "uncapped": the whole draft passes with min(1, P(x) / Q(x)).
        no_bonus: a draft that passes whole is followed by nothing.

    Raises:
        ValueError: another ``wrong``.

    >>> from specdec_proofs.enumerate import is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> world = independent([1, 2], [2, 1], 2)
    >>> [is_lossless(block(world, wrong), world) for wrong in ("", "residual", "scan", "uncapped")]
    [True, True, False, False]
    """
    if wrong not in ("", "coin", "residual", "scan", "uncapped"):
        raise ValueError(f"wrong is {wrong!r}; expected '', 'coin', 'residual', 'scan' or 'uncapped'")
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    for tokens, chance in drafts(world):
        rows = [(world.target(tokens[:i]), world.draft(tokens[:i])) for i in range(len(tokens))]
        ratios = [p[t] / q[t] for (p, q), t in zip(rows, tokens, strict=True)]
        weights, raw = [ONE], ONE
        for ratio in ratios:
            weights.append(min(ONE, weights[-1] * ratio))
            raw *= ratio
        coins = []
        for i in range(1, len(tokens)):
            excess = sum(_excess(weights[i], *rows[i]), ZERO)
            room = excess + 1 - weights[i]
            coins.append(weights[i] if wrong == "coin" else excess / room if room else ONE)
        if tokens:
            coins.append(min(ONE, raw) if wrong == "uncapped" else weights[-1])
        for kept, share in enumerate(_stops(coins, from_the_front=wrong == "scan")):
            head, mass = tokens[:kept], chance * share
            if kept == len(tokens) and no_bonus and kept:
                law[head] += mass
                continue
            follow: Law = world.target(head)
            if kept < len(tokens):
                excess_law = _excess(ONE if wrong == "residual" else weights[kept], *rows[kept])
                total = sum(excess_law, ZERO)
                follow = tuple(x / total for x in excess_law) if total else follow
            for token, p in enumerate(follow):
                law[(*head, token)] += mass * p
    return {x: mass for x, mass in law.items() if mass}


def _excess(weight: Fraction, p: Law, q: Law) -> Law:
    return tuple(max(weight * a - b, ZERO) for a, b in zip(p, q, strict=True))


def _stops(coins: list[Fraction], *, from_the_front: bool) -> list[Fraction]:
    """Law of the number of kept tokens, 0 to L, from the chances of heads at places 1 to L."""
    if from_the_front:
        reach = [ONE]
        for coin in coins:
            reach.append(reach[-1] * coin)
        return [a - b for a, b in zip(reach, [*reach[1:], ZERO], strict=True)]
    law, left = [], ONE
    for coin in reversed(coins):
        law.append(left * coin)
        left *= 1 - coin
    return [left, *reversed(law)]
