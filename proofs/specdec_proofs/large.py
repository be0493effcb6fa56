"""Claims at a real vocabulary, V = 151,936: what a sampler does to the tail, where small grids and small sums would lose it.

``draw`` is measured exactly: its result grows with the uniform, so each token's probability is a count of grid points between two breakpoints,
and every breakpoint is found by bisection on the function that ships. The race has a number for each token, so it is measured in three ways.
A race of one head against a tail of equals is won by the head or by the least word of the tail; against one tail token the words that win are
counted exactly, which gives the mass of the whole tail. The same race is then sampled often by drawing the least word from its own law, and
seldom with the whole keyed row. Last come the claims about the keyed noise itself.

A race on 24-bit uniforms is the control: it loses tokens that are more than 24 log 2 = 16.6 nats below the likeliest.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from specdec_fn import random
from specdec_fn.sampling import draw as shipped_draw
from specdec_fn.speculate import Draft, Race, batched, verifiers
from specdec_fn.speculate.race import exponential, noise, winner
from specdec_proofs.chi2 import adjusted, pearson
from specdec_proofs.claim import Figure
from specdec_proofs.power import ALPHA, noncentrality

__all__ = ["GAPS", "TAIL", "VOCAB", "RowLaw", "claims", "coarse", "row_law", "tail_mass", "total_variation_of_row"]

VOCAB, TAIL = 151_936, 150_000
GAPS = (12, 14, 16, 18, 20)  # nats below the likeliest token
SEED = 151_936  # of all fixed keys; a claim has the key fold_in(key(SEED), its number)
BITS = 53
NODES, FAR = 16_384, 45.0  # of the integral over the head's number; e**-45 is left out
Task = tuple[str, str, Callable[[], Figure]]
Map = Callable[[Tensor], Tensor]


class RowLaw(NamedTuple):
    """How many of the 2**53 uniforms give each token of one row.

    Attributes:
        counts: int64 [V].
        violations: what contradicts the assumption that the token grows with u; unless it is empty the counts prove nothing.
        evaluations: how many times the function was evaluated.
    """

    counts: NDArray[np.int64]
    violations: tuple[str, ...]
    evaluations: int


def claims() -> Iterator[Task]:
    """The claims at a real vocabulary, in reading order: name, gate, measurement.

    >>> next(claims())[:2]
    ('large: draw, exact TV, V=151,936, zipf 1.0', '<= 1e-11')
    """
    above, below = f"p > {ALPHA:g}", f"p <= {ALPHA:g}"
    for kind, row in _laws().items():
        yield f"large: draw, exact TV, V={VOCAB:,}, {kind}", "<= 1e-11", _drawn_exactly(row)
    yield "large: draw, tail events at 12 to 20 nats", above, _drawn_tails(1_000_000, 0)
    yield "large: race, share of the tail that its grid loses", "<= 1e-09", _lost(exponential)
    yield "control, 24-bit race: share of the tail at 18 nats that its grid loses", "> 0.9", _control_lost
    yield "large: race, tail events, least word of the tail", above, _raced_tails(exponential, 1_000_000, 1)
    yield "control, 24-bit race: tail events", below, _raced_tails(coarse, 1_000_000, 1)
    yield "large: race, tail events, whole keyed rows", above, _raced_rows(500, 2)
    yield "large: coupled, first token of 100,000 requests, V=6", above, _first_tokens(100_000, 3)
    yield "large: coupled, tokens at 200,000 positions of a request, in pairs, V=6", above, _consecutive_tokens(200_000, 4)
    yield "large: race, noise is Exp(1), Kolmogorov-Smirnov", above, _exponential_noise(1_000_000, 5)
    yield "large: race, noise of neighbouring positions and tokens is independent", above, _independent_noise(500_000, 6)


def row_law(probs: Tensor, draw: Callable[..., Any] = shipped_draw, probes: int = 2) -> RowLaw:
    """Exact law of ``draw(u, probs)`` for one row of any length, u uniform on {k 2**-53}.

    Token x is drawn between the first k whose token is x or more and the first whose token is more than x. All these breakpoints are bisected at
    once, with the row shared by the whole batch. Then both ends of every token's interval, and random points in it, must give that token.

    Args:
        probs: float64 [V].
        draw: the sampler.
        probes: random points in each interval, beside its ends.

    >>> row_law(torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64)).counts / 2**53
    array([0.25, 0.  , 0.75])
    """
    vocab, size, lifted = len(probs), 1 << BITS, torch.func.vmap(draw, in_dims=(0, None))
    tokens, evaluations = torch.arange(vocab), 0

    def at(points: Tensor) -> Tensor:
        return lifted(points.to(torch.float64) * 2.0**-BITS, probs)

    low, high = torch.zeros(vocab, dtype=torch.int64), torch.full((vocab,), size)  # the first k whose token is more than x lies in [low, high]
    while (open_ := low < high).any():
        middle = (low + high) // 2
        beyond = at(middle.clamp(max=size - 1)) > tokens
        evaluations += vocab
        high = torch.where(open_ & beyond, middle, high)
        low = torch.where(open_ & ~beyond, middle + 1, low)
    first = torch.nn.functional.pad(low[:-1], (1, 0))
    counts, held = low - first, (low > first).nonzero().flatten()
    generator, wrong = np.random.default_rng(0), 0
    begin, width = first[held], counts[held]
    for point in (begin, begin + width - 1, *(begin + torch.from_numpy(generator.integers(0, width.numpy())) for _ in range(probes))):
        wrong += int((at(point) != held).sum())
        evaluations += len(held)
    violations = [f"{wrong} points inside an interval gave another token"] if wrong else []
    violations += [f"the intervals hold {int(counts.sum())} of {size} points"] if int(counts.sum()) != size else []
    return RowLaw(counts.numpy(), tuple(violations), evaluations)


def total_variation_of_row(counts: Sequence[int], probs: Sequence[float], size: int = 1 << BITS) -> Fraction:
    """Total variation between counts of ``size`` points and the law proportional to floats, exact: the floats are read as rationals.

    >>> total_variation_of_row([1, 3], [0.5, 0.5], 4)
    Fraction(1, 4)
    """
    ratios = [value.as_integer_ratio() for value in probs]
    whole = max(below for _, below in ratios)
    weights = [above * (whole // below) for above, below in ratios]
    total = sum(weights)
    return Fraction(sum(abs(int(count) * total - weight * size) for count, weight in zip(counts, weights, strict=True)), 2 * size * total)


def coarse(words: Tensor) -> Tensor:
    """The control's noise: -log(1 - u) on the 24-bit grid u = (k + 1) 2**-24 of (0, 1], k the first 24 bits of the word.

    >>> coarse(torch.tensor([0])) * 2**24
    tensor([1.0000], dtype=torch.float64)
    """
    return -torch.log1p(-(((words >> 40) & (2**24 - 1)).to(torch.float64) + 1) * 2.0**-24)


def tail_mass(gap: float, noise_of: Map | None = None, tail: int = TAIL) -> float:
    """Probability that one of ``tail`` tokens, each ``gap`` nats below the head, wins a race.

    For a head whose number is s, the words that let one tail token win are counted by bisection on ``noise_of`` and the ``winner`` that ships;
    ``tail`` of them are independent, and s is integrated over its exponential law.

    Args:
        noise_of: from 64-bit words to noise; None for the exact exponential law, integrated at the same points.

    >>> [round(tail_mass(16, noise_of), 4) for noise_of in (None, coarse)]
    [0.0166, 0.0126]
    """
    heads = (np.arange(NODES, dtype=np.float64) + 0.5) * (FAR / NODES)
    wins = -np.expm1(-heads * math.exp(-gap)) if noise_of is None else _winning_share(heads, gap, noise_of)
    return float((-np.expm1(tail * np.log1p(-wins)) * np.exp(-heads)).sum() * (FAR / NODES))


def _winning_share(heads: NDArray[Any], gap: float, noise_of: Map) -> NDArray[np.float64]:
    """Share of the 2**64 words with which a tail token beats a head of each number."""
    probs = torch.tensor([1.0, math.exp(-gap)], dtype=torch.float64)
    race, numbers = torch.func.vmap(winner, in_dims=(0, None)), torch.from_numpy(heads)
    low, high = np.zeros(len(heads), np.uint64), np.full(len(heads), 2**64 - 1, np.uint64)  # the last word loses: its number is 36 or more
    while (low < high).any():
        middle = low + (high - low) // np.uint64(2)
        tail = noise_of(torch.from_numpy(middle.view(np.int64)))
        won = race(torch.stack([numbers, tail], 1), probs).numpy() == 1
        low, high = np.where(won, middle + np.uint64(1), low), np.where(won, high, middle)
    return low.astype(np.float64) * 2.0**-64


def _laws() -> dict[str, Tensor]:
    ranks = torch.arange(1, VOCAB + 1, dtype=torch.float64)
    normals = torch.from_numpy(np.random.default_rng(SEED).normal(size=VOCAB)) * 3
    normals[torch.from_numpy(np.random.default_rng(SEED + 1).permutation(VOCAB)[: VOCAB // 5])] = -torch.inf
    rows = {
        "zipf 1.0": 1 / ranks,
        "zipf 1.5": ranks**-1.5,
        "head and tail, 16 nats": _head_and_tail(16),
        "softmax, a fifth zeros": normals.softmax(0),
    }
    return {kind: row / row.sum() for kind, row in rows.items()}


def _head_and_tail(gap: float) -> Tensor:
    """Token 0, then 150,000 tokens that are ``gap`` nats less likely, then tokens of probability 0."""
    row = torch.zeros(VOCAB, dtype=torch.float64)
    row[0], row[1 : TAIL + 1] = 1, math.exp(-gap)
    return row / row.sum()


def _key(number: int) -> random.Key:
    return random.fold_in(random.key(SEED), number)


def _drawn_exactly(row: Tensor) -> Callable[[], Figure]:
    def measurement() -> Figure:
        found, probs = row_law(row), row.tolist()
        tv = float(total_variation_of_row(found.counts.tolist(), probs))
        never, unreachable = found.counts[row.numpy() == 0].sum() == 0, int((found.counts[row.numpy() > 0] == 0).sum())
        detail = f"{found.evaluations:,} evaluations; {unreachable} tokens out of reach; {int((row == 0).sum()):,} zeros never drawn: {never}"
        return Figure(tv, tv <= 1e-11 and bool(never) and not found.violations, "; ".join(found.violations) or detail)

    return measurement


def _drawn_tails(n: int, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        counts, impossible = [], 0
        for i, gap in enumerate(GAPS):
            row, uniforms = _head_and_tail(gap), random.uniform(random.fold_in(_key(number), i), (n,))
            drawn = torch.func.vmap(shipped_draw, in_dims=(0, None))(uniforms, row)
            counts.append(int((drawn > 0).sum()))
            impossible += int(((drawn < 0) | (drawn > TAIL)).sum())
        return _events(counts, n, impossible, "tail masses of a 24-bit race")

    return measurement


def _lost(noise_of: Map) -> Callable[[], Figure]:
    def measurement() -> Figure:
        masses = [(tail_mass(gap), tail_mass(gap, noise_of)) for gap in GAPS]
        worst = max(abs(found / true - 1) for true, found in masses)
        return Figure(worst, worst <= 1e-9, f"mass at {GAPS} nats: " + ", ".join(f"{found:.4g}" for _, found in masses))

    return measurement


def _control_lost() -> Figure:
    masses = [(tail_mass(gap), tail_mass(gap, coarse)) for gap in GAPS]
    lost = 1 - masses[GAPS.index(18)][1] / masses[GAPS.index(18)][0]
    return Figure(lost, lost > 0.9, f"mass at {GAPS} nats: " + ", ".join(f"{found:.4g} for {true:.4g}" for true, found in masses))


def _raced_tails(noise_of: Map, n: int, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        counts = []
        for i, gap in enumerate(GAPS):
            head, tail = random.split(random.fold_in(_key(number), i))
            # The least of W uniform words is below x with probability 1 - (1 - x)**W, and it has the least number: numbers grow with their words.
            least = -torch.expm1(torch.log1p(-random.uniform(tail, (n,))) / TAIL) * 2.0**64
            numbers = torch.stack([exponential(random.bits(head, (n,), 64)), noise_of(least.to(torch.int64))], 1)
            won = torch.func.vmap(winner, in_dims=(0, None))(numbers, torch.tensor([1.0, math.exp(-gap)], dtype=torch.float64))
            counts.append(int((won == 1).sum()))
        figure = _events(counts, n, 0, "24-bit race")
        return figure if noise_of is exponential else figure._replace(passed=figure.value <= ALPHA)

    return measurement


def _raced_rows(n: int, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        rows, counts, impossible, differ = [_head_and_tail(gap) for gap in GAPS], [0] * len(GAPS), 0, 0
        for position in range(0, n, 4):
            numbers = noise(_key(number), torch.arange(position, min(position + 4, n)), VOCAB)
            reduced = torch.stack([numbers[:, 0], numbers[:, 1 : TAIL + 1].amin(1)], 1)
            for i, row in enumerate(rows):
                won = torch.func.vmap(winner, in_dims=(0, None))(numbers, row)
                counts[i] += int((won > 0).sum())
                impossible += int(((won < 0) | (won > TAIL)).sum())
                differ += int(((won > 0) != (torch.func.vmap(winner, in_dims=(0, None))(reduced, row[:2]) > 0)).sum())
        figure = _events(counts, n, impossible, "24-bit race")
        reduction = f"; {differ} of {n * len(GAPS):,} winners differ from the race of the head against the least of the tail"
        return figure._replace(passed=figure.passed and not differ, detail=figure.detail + reduction)

    return measurement


def _events(counts: Sequence[int], n: int, impossible: int, against: str) -> Figure:
    """Exact binomial tests of the tail's counts at each gap, Holm over them; the power is that of each test at its share of the level."""
    masses = [TAIL * math.exp(-gap) / (1 + TAIL * math.exp(-gap)) for gap in GAPS]
    values = [float(stats.binomtest(count, n, mass).pvalue) for count, mass in zip(counts, masses, strict=True)]
    value = 0.0 if impossible else min(adjusted(values))
    powers = []
    for gap, mass in zip(GAPS, masses, strict=True):
        level, faulty = ALPHA / len(GAPS) / 2, tail_mass(gap, coarse)
        few, many = stats.binom.ppf(level, n, mass) - 1, stats.binom.isf(level, n, mass) + 1
        powers.append(float(stats.binom.cdf(few, n, faulty) + stats.binom.sf(many - 1, n, faulty)))
    found = ", ".join(f"g {gap}: {count:,} ({n * mass:,.0f})" for gap, count, mass in zip(GAPS, counts, masses, strict=True))
    detail = f"N {n:,}; counts (expected) {found}; power against the {against} {', '.join(f'{power:.3f}' for power in powers)}"
    return Figure(value, value > ALPHA, detail)


def _six() -> Tensor:
    return torch.tensor([0.4, 0.25, 0.2, 0.1, 0.045, 0.005], dtype=torch.float64)


def _first_tokens(n: int, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        keys, p = random.split(_key(number), n), _six()
        tapes = torch.func.vmap(lambda key: verifiers.coupled.tape(key, 1, len(p), position=9))(keys)
        draft = Draft(torch.zeros(n, 1, dtype=torch.int64), None, torch.ones(n, dtype=torch.int64))
        tokens = batched(verifiers.coupled.decide)(tapes, p.expand(n, 2, -1), draft).tokens[:, 0]
        return _fits(np.bincount(tokens.numpy(), minlength=len(p)), p.numpy(), n)

    return measurement


def _consecutive_tokens(n: int, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        p, vocab = _six(), len(_six())
        numbers = verifiers.coupled.tape(_key(number), n - 1, vocab, position=1).noise
        draft = Draft(torch.zeros(n, 0, dtype=torch.int64), None, torch.zeros(n, dtype=torch.int64))
        tokens = batched(verifiers.coupled.decide)(Race(numbers[:, None]), p.expand(n, 1, -1), draft).tokens[:, 0]
        pairs = tokens[0::2] * vocab + tokens[1::2]
        return _fits(np.bincount(pairs.numpy(), minlength=vocab**2), np.outer(p, p).ravel(), n // 2)

    return measurement


def _fits(counts: NDArray[np.int64], p: NDArray[np.float64], n: int) -> Figure:
    result = pearson(counts, p)
    seen = math.sqrt(noncentrality(result.df) / n) / 2
    detail = f"N {n:,}, chi2 {result.statistic:.1f} on {result.df}; sees any TV >= {seen:.4f} with power .999"
    return Figure(result.p_value, result.p_value > ALPHA, detail)


def _exponential_noise(n: int, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        numbers = noise(_key(number), torch.arange(n // 1000), 1000).flatten().numpy()
        test = stats.kstest(numbers, "expon")
        seen = math.sqrt(math.log(2 / ALPHA) / (2 * n)) + math.sqrt(math.log(2 / 1e-3) / (2 * n))
        detail = f"N {n:,}, distance {test.statistic:.2g}; sees any distance >= {seen:.4f} with power .999"
        return Figure(float(test.pvalue), test.pvalue > ALPHA, detail)

    return measurement


def _independent_noise(n: int, number: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        cells, columns = 8, 1000
        numbers = noise(_key(number), torch.arange(2 * n // columns), columns)
        bins = (-torch.expm1(-numbers) * cells).long().clamp(max=cells - 1)  # eight equally likely ranges
        pairs = {"positions": (bins[0::2], bins[1::2]), "tokens": (bins[:, 0::2], bins[:, 1::2])}  # disjoint, so that the pairs are independent
        tests = {
            kind: pearson(np.bincount((a * cells + b).flatten().numpy(), minlength=cells**2), np.full(cells**2, cells**-2))
            for kind, (a, b) in pairs.items()
        }
        seen = math.sqrt(noncentrality(cells**2 - 1, ALPHA / 2) / n) / 2
        value = min(adjusted([test.p_value for test in tests.values()]))
        found = ", ".join(f"{kind} {test.statistic:.1f}" for kind, test in tests.items())
        return Figure(value, value > ALPHA, f"N {n:,} pairs each, chi2 on {cells**2 - 1}: {found}; sees any TV >= {seen:.4f} with power .999")

    return measurement
