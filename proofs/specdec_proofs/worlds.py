"""Small worlds whose laws are known exactly: a target, a proposer, and nothing else.

A world stands where a target model and a proposer would: for each prefix of new tokens it gives the target's law of the next token, the law
the proposer draws from, and whether the proposer stops. All laws are fractions, so whatever is computed from a world is exact until someone
rounds it. Rows depend on the whole prefix unless a world says otherwise, so that a verifier that reads the wrong row is seen.
"""

import functools
import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

__all__ = [
    "Law",
    "Prefix",
    "World",
    "chain_reference",
    "cold",
    "declared_one_hot",
    "drafts",
    "greedy_draft",
    "independent",
    "mixed_tables",
    "normalised",
    "pair_reference",
    "prefixes",
    "softmax",
    "stopping",
    "toy",
    "wide",
]

Prefix = tuple[int, ...]
Law = tuple[Fraction, ...]
ONE, ZERO = Fraction(1), Fraction(0)


def never(prefix: Prefix) -> bool:
    """The rule of a proposer that always drafts as many tokens as it may."""
    return False


def whole(prefix: Prefix) -> Hashable:
    """The state of a world whose rows depend on every token of the prefix."""
    return prefix


class World(NamedTuple):
    """A target and a proposer over ``vocab`` tokens, for one pass that drafts at most ``k`` of them.

    Attributes:
        name: what tables and messages call it.
        vocab: number of token ids (V).
        k: the most tokens that are drafted (K).
        target: law of the next token after a prefix of 0 to k tokens.
        draft: law the proposer draws the next token from, after a prefix of 0 to k tokens (after k, for verifiers that read on wrongly).
        soft: whether the verifier is told that law; False declares each drawn token one-hot (``Draft.probs`` is None).
        told: the law the verifier is told instead, for proposers that misreport theirs; None for the truth.
        stop: whether the proposer ends its draft after a prefix; it may look at drafted tokens only.
        state: what the rows depend on; two prefixes of one state have the same rows, whatever follows.
    """

    name: str
    vocab: int
    k: int
    target: Callable[[Prefix], Law]
    draft: Callable[[Prefix], Law]
    soft: bool = True
    told: Callable[[Prefix], Law] | None = None
    stop: Callable[[Prefix], bool] = never
    state: Callable[[Prefix], Hashable] = whole


def normalised(weights: Iterable[Fraction | int | float]) -> Law:
    """Exact law proportional to the weights; floats are read as the rationals they are.

    Raises:
        ValueError: no weight is positive, or one is negative.

    >>> normalised([1, 2, 0])
    (Fraction(1, 3), Fraction(2, 3), Fraction(0, 1))
    """
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact, ZERO)
    if total <= 0 or min(exact) < 0:
        raise ValueError(f"weights are {[float(weight) for weight in exact]}; expected numbers of 0 or more, one of them positive")
    return tuple(weight / total for weight in exact)


def prefixes(world: World, length: int) -> Iterator[Prefix]:
    """Every sequence of ``length`` tokens, in lexicographic order.

    >>> list(prefixes(toy(), 1))
    [(0,), (1,), (2,)]
    """
    if length == 0:
        yield ()
        return
    for head in prefixes(world, length - 1):
        for token in range(world.vocab):
            yield (*head, token)


def drafts(world: World) -> Iterator[tuple[Prefix, Fraction]]:
    """Every draft the proposer can make, with its exact probability.

    >>> sum(weight for _, weight in drafts(toy())) == 1
    True
    """

    def grow(prefix: Prefix, weight: Fraction) -> Iterator[tuple[Prefix, Fraction]]:
        if len(prefix) == world.k or world.stop(prefix):
            yield prefix, weight
            return
        for token, share in enumerate(world.draft(prefix)):
            if share:
                yield from grow((*prefix, token), weight * share)

    return grow((), ONE)


def toy(k: int = 2, start: int = 0) -> World:
    """The bigram target and draft that the catalogue of public faults uses, after token ``start``.

    With k = 2 from token 0 the emitted length has law {1: 1/4, 2: 59/240, 3: 121/240} and mean 541/240 under the token rule.

    >>> toy().target((0, 1))
    (Fraction(1, 10), Fraction(3, 5), Fraction(3, 10))
    """
    target = [normalised(row) for row in ([2, 1, 1], [1, 6, 3], [1, 1, 1])]
    draft = [normalised(row) for row in ([1, 2, 1], [5, 2, 3], [4, 1, 1])]
    last = lambda prefix: prefix[-1] if prefix else start  # noqa: E731
    return World("toy bigram", 3, k, lambda prefix: target[last(prefix)], lambda prefix: draft[last(prefix)], state=last)


def independent(p: Iterable[Fraction | int | float], q: Iterable[Fraction | int | float], k: int = 1, name: str = "independent") -> World:
    """A world whose rows are the same at every position: the target ``p`` and the draft ``q``.

    >>> independent([1, 3], [1, 1]).target((0,))
    (Fraction(1, 4), Fraction(3, 4))
    """
    target, draft = normalised(p), normalised(q)
    return World(name, len(target), k, lambda prefix: target, lambda prefix: draft, state=lambda prefix: ())


def softmax(seed: int, vocab: int = 6, k: int = 3, scale: float = 2.0) -> World:
    """Rows softmax(N(0, scale)), different after every prefix; float64 values read as rationals and normalised.

    >>> [round(float(mass), 3) for mass in softmax(0, vocab=3).target(())], sum(softmax(0).target((2, 5)))
    ([0.227, 0.136, 0.637], Fraction(1, 1))
    """

    @functools.cache
    def row(role: int, prefix: Prefix) -> Law:
        logits = np.random.default_rng([seed, role, len(prefix), *prefix]).normal(size=vocab) * scale
        return normalised(np.exp(logits - logits.max()).tolist())

    return World(f"softmax V={vocab} K={k}", vocab, k, lambda prefix: row(0, prefix), lambda prefix: row(1, prefix))


def mixed_tables(seed: int, vocab: int = 4, k: int = 3, zeros: float = 0.35) -> World:
    """Random rational tables with everything that breaks verifiers: zeros, one-hot rows, ties, equal rows, disjoint supports.

    Rows depend on the whole prefix. Half of the prefixes have two independent rows in which each entry is 0 with probability ``zeros``; the
    others have equal rows, one-hot targets, one-hot drafts, uniform rows (ties everywhere), or supports that share no token.

    >>> sum(mixed_tables(0).target((1, 2))), mixed_tables(0).target(()) == mixed_tables(1).target(())
    (Fraction(1, 1), False)
    """

    @functools.cache
    def rows(prefix: Prefix) -> tuple[Law, Law]:
        draw = random.Random(repr((seed, prefix)))

        def sparse() -> Law:
            weights = [0 if draw.random() < zeros else draw.randint(1, 9) for _ in range(vocab)]
            return normalised(weights) if any(weights) else sparse()

        def only(tokens: Sequence[int]) -> Law:
            return normalised([draw.randint(1, 9) if token in tokens else 0 for token in range(vocab)])

        kind = draw.choice(["sparse"] * 5 + ["equal", "target one-hot", "draft one-hot", "uniform", "disjoint"])
        p, q = sparse(), sparse()
        if kind == "equal":
            q = p
        elif kind == "target one-hot":
            p = only([draw.randrange(vocab)])
        elif kind == "draft one-hot":
            q = only([draw.randrange(vocab)])
        elif kind == "uniform":
            p = normalised([1] * vocab)
        elif kind == "disjoint":
            order = draw.sample(range(vocab), vocab)
            cut = draw.randint(1, vocab - 1)
            p, q = only(order[:cut]), only(order[cut:])
        return p, q

    return World(f"tables V={vocab} K={k} seed {seed}", vocab, k, lambda prefix: rows(prefix)[0], lambda prefix: rows(prefix)[1])


def wide(seed: int = 0, vocab: int = 64, k: int = 4) -> World:
    """A bigram world for sampling at a larger vocabulary: rows softmax(N(0, 1.5)) that depend on the last token.

    >>> wide().target((3, 5)) == wide().target((5,)) != wide().target((3,))
    True
    """

    @functools.cache
    def row(role: int, last: int) -> Law:
        logits = np.random.default_rng([seed, role, last]).normal(size=vocab) * 1.5
        return normalised(np.exp(logits).tolist())

    last = lambda prefix: prefix[-1] if prefix else vocab  # noqa: E731
    return World(f"bigram V={vocab} K={k}", vocab, k, lambda prefix: row(0, last(prefix)), lambda prefix: row(1, last(prefix)), state=last)


def declared_one_hot(world: World) -> World:
    """The same world with a proposer that does not say what law it drew from.

    >>> declared_one_hot(toy()).soft, declared_one_hot(toy()).draft(()) == toy().draft(())
    (False, True)
    """
    return world._replace(name=f"{world.name}, declared one-hot", soft=False)


def greedy_draft(world: World) -> World:
    """The same target, with a proposer that always takes the likeliest token of its law and declares it one-hot.

    >>> greedy_draft(toy()).draft(())
    (Fraction(0, 1), Fraction(1, 1), Fraction(0, 1))
    """

    def draft(prefix: Prefix) -> Law:
        return _one_hot(world.vocab, _likeliest(world.draft(prefix)))

    return world._replace(name=f"{world.name}, greedy draft", draft=draft, soft=False)


def cold(world: World) -> World:
    """The same world at temperature 0: every target row is one-hot on its likeliest token, lowest id first among equals.

    >>> cold(toy()).target(())
    (Fraction(1, 1), Fraction(0, 1), Fraction(0, 1))
    """

    def target(prefix: Prefix) -> Law:
        return _one_hot(world.vocab, _likeliest(world.target(prefix)))

    return world._replace(name=f"{world.name}, temperature 0", target=target)


def stopping(world: World, seed: int = 0) -> World:
    """The same world with drafts of varying length: whether to go on is a fixed function of the tokens drafted so far.

    >>> sorted({len(draft) for draft, _ in drafts(stopping(toy()))})
    [1, 2]
    """

    @functools.cache
    def stop(prefix: Prefix) -> bool:
        return random.Random(repr(("stop", seed, prefix))).random() < 0.3

    return world._replace(name=f"{world.name}, varying length", stop=stop, state=whole)


def pair_reference(k: int = 1) -> World:
    """The pair of laws over 16 tokens on which single-position mutants are measured: total variation .272, largest p .329.

    >>> p, q = pair_reference().target(()), pair_reference().draft(())
    >>> round(float(sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2), 3)
    0.272
    """
    draw = np.random.default_rng(7)
    logits = draw.normal(size=16) * 1.5
    p = [math.exp(value) for value in logits]
    q = [math.exp(value) for value in logits + draw.normal(size=16)]
    return independent(p, q, k, name="reference pair V=16")


def _likeliest(law: Law) -> int:
    return max(range(len(law)), key=lambda token: (law[token], -token))


def _one_hot(vocab: int, token: int) -> Law:
    return tuple(ONE if other == token else ZERO for other in range(vocab))


CHAIN_TARGET = {
    (): (7, 8, 8),
    (0,): (9, 9, 1),
    (1,): (1, 9, 7),
    (2,): (8, 6, 7),
    (0, 0): (7, 4, 1),
    (0, 1): (7, 1, 9),
    (0, 2): (1, 3, 1),
    (1, 0): (3, 8, 4),
    (1, 1): (2, 1, 4),
    (1, 2): (7, 3, 7),
    (2, 0): (1, 4, 1),
    (2, 1): (9, 6, 2),
    (2, 2): (3, 6, 5),
}
CHAIN_DRAFT = {
    (): (3, 8, 2),
    (0,): (6, 2, 1),
    (1,): (7, 9, 5),
    (2,): (9, 7, 9),
    (0, 0): (3, 7, 1),
    (0, 1): (1, 5, 3),
    (0, 2): (9, 1, 6),
    (1, 0): (3, 6, 1),
    (1, 1): (5, 9, 7),
    (1, 2): (3, 6, 1),
    (2, 0): (2, 6, 7),
    (2, 1): (4, 7, 8),
    (2, 2): (3, 7, 6),
}


def chain_reference() -> World:
    """The tables over 3 tokens, K = 2, on which chain mutants are measured; draft rows go one place further than the draft.

    That extra row is what a verifier reads that takes its bonus token from the proposer, so it must exist to be told apart.

    >>> chain_reference().target((0, 1))
    (Fraction(7, 17), Fraction(1, 17), Fraction(9, 17))
    """
    target = {prefix: normalised(row) for prefix, row in CHAIN_TARGET.items()}
    draft = {prefix: normalised(row) for prefix, row in CHAIN_DRAFT.items()}
    return World("reference chain V=3 K=2", 3, 2, target.__getitem__, draft.__getitem__)
