"""Statistics of a sampler under audit: many rounds, completed to K + 1 tokens, as counts over all sequences, and what such counts can show.

Drafts are drawn at once and rounds run one by one; what a round emits is completed by target sampling, all equal emissions in one multinomial
draw. Test and pooling are those of ``chi2`` and ``power``.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from specdec_fn import random
from specdec_proofs.enumerate import completed, joint
from specdec_proofs.integrate import tensors
from specdec_proofs.interception import seeded
from specdec_proofs.power import ALPHA, noncentrality, pool
from specdec_proofs.sample import cells, histogram, sample
from specdec_proofs.suspects import Suspect, emitted
from specdec_proofs.worlds import World, drafts

__all__ = ["CONFIDENCE", "Interval", "interval", "of_decide", "of_round", "seen"]

CONFIDENCE = 0.999  # of the interval of a total variation that was only sampled
STEP = 2000  # rounds between two words of progress


class Interval(NamedTuple):
    """A total variation estimated from counts, with bounds that hold with probability ``CONFIDENCE``."""

    low: float
    estimate: float
    high: float


def of_round(
    suspect: Suspect, world: World, rounds: int, seed: int, dtype: torch.dtype = torch.float32, progress: Callable[[str], None] | None = None
) -> NDArray[np.int64]:
    """Counts of the completed sequences of ``rounds`` rounds that draw from torch's global generator, seeded here and put back after.

    Raises:
        SuspectError: a round fails.

    >>> from specdec_proofs.suspects import find
    >>> from specdec_proofs.worlds import toy
    >>> int(of_round(find("token"), toy(1), 50, seed=3).sum())
    50
    """
    made = dict(drafts(world))
    tables = tensors(world, list(made), dtype)
    q = tables.draft.probs if world.soft else None
    rows = [(tables.target[j], None if q is None else q[j], torch.tensor(x)) for j, x in enumerate(made)]
    numbers = np.random.default_rng([seed, len(made)])
    order = numbers.choice(len(made), rounds, p=np.array([float(weight) for weight in made.values()]))
    seen_: Counter[tuple[int, ...]] = Counter()
    with seeded(seed):
        for i, j in enumerate(order.tolist()):
            if progress and i % STEP == 0:
                progress(f"{i:,} of {rounds:,} rounds on {world.name}")
            seen_[emitted(suspect, *rows[j])] += 1
    counts = np.zeros(world.vocab ** (world.k + 1), np.int64)
    for ids, times in sorted(seen_.items()):
        law = cells(world, completed({ids: 1}, world), world.k + 1)  # type: ignore[dict-item]
        counts += numbers.multinomial(times, law / law.sum())
    return counts


def of_decide(suspect: Suspect, world: World, rounds: int, seed: int) -> NDArray[np.int64]:
    """Counts of the completed sequences of a verifier, drawn by keys and tapes as an engine draws them, all rounds at once.

    >>> from specdec_proofs.suspects import find
    >>> from specdec_proofs.worlds import toy
    >>> int(of_decide(find("token"), toy(1), 50, seed=3).sum())
    50
    """
    assert suspect.decide is not None
    drawn = sample(suspect.decide, world, random.key(seed), rounds, tape=suspect.tape)
    return histogram(drawn.tokens, world.vocab, world.k + 1)


def seen(world: World, rounds: int, tests: int) -> float:
    """Smallest total variation that ``rounds`` rounds reject with probability .999 in the hardest direction, at level ALPHA over ``tests``.

    >>> from specdec_proofs.worlds import chain_reference
    >>> round(seen(chain_reference(), 120_000, 1), 4)
    0.0151
    """
    df = pool(cells(world, joint(world), world.k + 1), rounds).df
    return math.sqrt(noncentrality(df, ALPHA / tests) / rounds) / 2 if df else float("inf")


def interval(counts: ArrayLike, p: ArrayLike) -> Interval:
    """Total variation between the law that gave the counts and ``p``, with bounds.

    With n counts over m cells the empirical law is within sqrt((m - 1) / n) / 2 of its own in the mean (Cauchy-Schwarz) and exceeds that by
    sqrt(ln(1 / (1 - CONFIDENCE)) / 2n) only with probability 1 - CONFIDENCE (bounded differences); the triangle inequality does the rest.

    >>> [round(x, 3) for x in interval([700, 300], [0.5, 0.5])]
    [0.125, 0.2, 0.275]
    """
    found, law = np.asarray(counts, np.float64), np.asarray(p, np.float64)
    n, cells_ = found.sum(), int(((found > 0) | (law > 0)).sum())
    estimate = 0.5 * float(np.abs(found / n - law).sum())
    margin = 0.5 * math.sqrt((cells_ - 1) / n) + math.sqrt(math.log(1 / (1 - CONFIDENCE)) / (2 * n))
    return Interval(max(0.0, estimate - margin), estimate, min(1.0, estimate + margin))
