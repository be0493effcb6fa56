"""Block verification in fractions: the law of the emitted sequence, the chance to keep a prefix, the mean number of accepted tokens.

The rule (Sun et al., ICLR 2025, arXiv 2403.10444), for drafted tokens x_1..x_L with target rows p_i and draft rows q_i after x_1..x_i:

    w_0 = 1,  w_i = min(1, w_{i-1} p_{i-1}(x_i) / q_{i-1}(x_i))
    S_i = sum over x of max(w_i p_i(x) - q_i(x), 0)
    h_i = S_i / (S_i + 1 - w_i)  for 1 <= i < L  (0/0 := 1),   h_L = w_L
    accepted = the largest i whose own coin, heads with probability h_i, shows heads; 0 if none does
    next token: from max(w_i p_i - q_i, 0), normalised, at i = accepted < L; from p_L at L

Two facts make it what it is, and both are checked with ``==``: the law is lossless, and Pr[accepted >= i | x_1..x_i] = w_i whatever follows,
so that E[accepted] = sum over i of E_Q[w_i].
"""

from collections import defaultdict
from fractions import Fraction

from specdec_proofs.enumerate import Emitted, residual
from specdec_proofs.worlds import Law, Prefix, World, drafts

__all__ = ["block", "block_acceptance", "block_reach", "declared", "prefix_weights"]

ONE, ZERO = Fraction(1), Fraction(0)


def declared(world: World, tokens: Prefix, i: int) -> Law:
    """The law that the verifier is told for drafted token i: what the drafter states, or one-hot on the token.

    >>> from specdec_proofs.worlds import declared_one_hot, toy
    >>> declared(declared_one_hot(toy()), (2, 1), 0)
    (Fraction(0, 1), Fraction(0, 1), Fraction(1, 1))
    """
    if world.soft:
        return (world.told or world.draft)(tokens[:i])
    return tuple(ONE if t == tokens[i] else ZERO for t in range(world.vocab))


def prefix_weights(world: World, tokens: Prefix) -> list[Fraction]:
    """The weights w_0 = 1, w_1, ... of the drafted tokens: the chance that each prefix is kept.

    >>> from specdec_proofs.worlds import independent
    >>> [str(w) for w in prefix_weights(independent([1, 2], [2, 1], 2), (0, 1))]
    ['1', '1/2', '1']
    """
    weights = [ONE]
    for i, token in enumerate(tokens):
        p, q = world.target(tokens[:i])[token], declared(world, tokens, i)[token]
        weights.append(min(ONE, weights[-1] * p / q) if q else Fraction(int(weights[-1] * p > 0)))
    return weights


def block(world: World, *, naive: bool = False, uncapped: bool = False, token_residual: bool = False, first_failure: bool = False) -> Emitted:
    """Law of the emitted sequence under block verification, or under one of its known wrong variants.

    Args:
        naive: coins h_i = w_i at every place; wrong.
        uncapped: the whole draft is kept with min(1, P(x) / Q(x)), the ratio that was never capped on the way; wrong.
        token_residual: the next token comes from max(p - q, 0) without the weight; wrong.
        first_failure: the coins are read from the front and stop at the first tails; wrong.

    >>> from specdec_proofs.enumerate import expected_emitted, is_lossless
    >>> from specdec_proofs.worlds import independent
    >>> law = block(independent([1, 2], [2, 1], 2))
    >>> is_lossless(law, independent([1, 2], [2, 1], 2)), expected_emitted(law) - 1
    (True, Fraction(11, 9))
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    for tokens, weight in drafts(world):
        weights = prefix_weights(world, tokens)
        for kept, mass in enumerate(_kept(world, tokens, naive=naive, uncapped=uncapped, first_failure=first_failure)):
            follows = world.target(tokens[:kept])
            if kept < len(tokens):
                scale = ONE if token_residual else weights[kept]
                follows = _recovered(scale, follows, declared(world, tokens, kept))
            for other, share in enumerate(follows):
                if weight * mass * share:
                    law[(*tokens[:kept], other)] += weight * mass * share
    return dict(law)


def block_reach(world: World) -> dict[Prefix, Fraction]:
    """For each prefix: the probability that it is drafted and kept, from the decisions themselves. It is Q(x) w(x).

    >>> from specdec_proofs.worlds import independent
    >>> {x: str(mass) for x, mass in block_reach(independent([1, 2], [2, 1], 1)).items()}
    {(0,): '1/3', (1,): '1/3'}
    """
    reach: dict[Prefix, Fraction] = defaultdict(Fraction)
    for tokens, weight in drafts(world):
        kept = _kept(world, tokens)
        for i in range(1, len(tokens) + 1):
            reach[tokens[:i]] += weight * sum(kept[i:], ZERO)
    return dict(reach)


def block_acceptance(world: World) -> Fraction:
    """Mean number of accepted tokens under block verification, by its closed form: sum over i of E_Q[w_i].

    Drafts may stop early: a prefix counts with the probability that it is drafted.

    >>> from specdec_proofs.worlds import independent
    >>> block_acceptance(independent([1, 2], [2, 1], 2))
    Fraction(11, 9)
    """

    def after(tokens: Prefix, drafted: Fraction) -> Fraction:
        if len(tokens) == world.k or world.stop(tokens):
            return ZERO
        longer = [((*tokens, t), drafted * share) for t, share in enumerate(world.draft(tokens)) if share]
        return sum((mass * prefix_weights(world, x)[-1] + after(x, mass) for x, mass in longer), ZERO)

    return after((), ONE)


def _kept(world: World, tokens: Prefix, *, naive: bool = False, uncapped: bool = False, first_failure: bool = False) -> list[Fraction]:
    """Law of the number of accepted tokens of one draft."""
    length, weights = len(tokens), prefix_weights(world, tokens)
    coins = [ONE]
    for i in range(1, length):
        excess = sum((max(weights[i] * p - q, ZERO) for p, q in zip(world.target(tokens[:i]), declared(world, tokens, i), strict=True)), ZERO)
        below = excess + 1 - weights[i]
        coins.append(weights[i] if naive else excess / below if below else ONE)
    if length:
        coins.append(min(ONE, _ratio(world, tokens)) if uncapped else weights[length])
    law, rest = [ZERO] * (length + 1), ONE
    if first_failure:
        for i in range(1, length + 1):
            law[i - 1] = rest * (1 - coins[i])
            rest *= coins[i]
        law[length] = rest
        return law
    for i in range(length, -1, -1):
        law[i] = rest * coins[i]
        rest *= 1 - coins[i]
    return law


def _ratio(world: World, tokens: Prefix) -> Fraction:
    ratio = ONE
    for i, token in enumerate(tokens):
        ratio *= world.target(tokens[:i])[token] / declared(world, tokens, i)[token]
    return ratio


def _recovered(weight: Fraction, p: Law, q: Law) -> Law:
    """max(w p - q, 0), normalised; p where that is 0 everywhere."""
    return residual(tuple(weight * x for x in p), q) if any(weight * x > y for x, y in zip(p, q, strict=True)) else p
