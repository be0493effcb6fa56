"""E-processes: mean 1 under the law, rarely large, soon large under another, and the same value by another road."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdec_proofs.eprocess import (
    KAPPAS,
    LONG,
    anytime_p,
    critical,
    log_e,
    merge,
    minimum_detectable,
    product,
    start,
    threshold,
    update,
)

V, TV = 8, 0.03


def reference() -> tuple[np.ndarray, np.ndarray]:
    """The law and the alternative at total variation .03 of the reference figures, KL 2.1e-3."""
    p = np.random.default_rng(2).dirichlet(np.full(V, 3.0))
    return p, p + np.where(np.arange(V) % 2, 1, -1) * 2 * TV / V


def one_by_one(tokens: list[int], p: list[float]) -> float:
    """E as a product of predictions: each token's posterior mean under the prior, over its probability; averaged over the priors."""
    total = 0.0
    for kappa in KAPPAS:
        seen, e = [0] * len(p), 1.0
        for n, token in enumerate(tokens):
            e *= (kappa * p[token] + seen[token]) / (kappa + n) / p[token]
            seen[token] += 1
        total += e
    return total / len(KAPPAS)


@given(st.lists(st.integers(0, 3), max_size=40))
def test_e_is_the_product_of_its_predictions(tokens: list[int]) -> None:
    p = [0.1, 0.2, 0.3, 0.4]
    counts = np.bincount(tokens, minlength=4) if tokens else np.zeros(4, int)
    assert float(log_e(counts, p)) == pytest.approx(math.log(one_by_one(tokens, p)), abs=1e-9)


@pytest.mark.parametrize("kappas", [KAPPAS, LONG, (0.5,)])
def test_its_mean_under_the_law_is_one(kappas: tuple[float, ...]) -> None:
    """Every table of 7 counts, weighed by its multinomial probability: the martingale property, with no sampling."""
    p, n = np.array([0.2, 0.3, 0.5]), 7
    tables = np.array([t for t in itertools.product(range(n + 1), repeat=3) if sum(t) == n])
    weights = stats.multinomial.pmf(tables, n, p)
    assert (weights * np.exp(log_e(tables, p, kappas))).sum() == pytest.approx(1, abs=1e-10)


def test_it_exceeds_twenty_in_at_most_a_twentieth_of_the_runs() -> None:
    """Ville: reference figure .016 of 4,000 runs, looked at every 200 draws up to 20,000."""
    p, _ = reference()
    runs = np.random.default_rng(31).multinomial(200, p, size=(1500, 100)).cumsum(1)
    often = float((log_e(runs, p).max(1) > math.log(20)).mean())
    assert 0.005 < often < 0.03


def test_median_draws_until_it_rejects() -> None:
    """Reference figure: about 10,200 draws to E > 1e6 at V = 8, TV .03."""
    p, other = reference()
    assert float((other * np.log(other / p)).sum()) == pytest.approx(2.1e-3, abs=5e-5)
    runs = np.random.default_rng(32).multinomial(200, other, size=(300, 200)).cumsum(1)
    over = log_e(runs, p) > math.log(1e6)
    assert over.any(1).all()
    assert float(np.median(over.argmax(1) + 1)) * 200 == pytest.approx(10_200, rel=0.06)


def test_what_it_can_see_is_what_it_sees() -> None:
    """At the stated total variation, in the hardest direction, .999 of the runs are over the threshold; at .8 of it far fewer."""
    n, p = 20_000, np.full(V, 1 / V)
    least = minimum_detectable(V - 1, n)
    for share, allowed in ((1.0, (0.996, 1.0)), (0.8, (0.7, 0.98))):
        other = p * (1 + 2 * share * least * np.where(np.arange(V) % 2, 1, -1))
        over = log_e(np.random.default_rng(33).multinomial(n, other, size=4000), p) > threshold()
        assert allowed[0] <= float(over.mean()) <= allowed[1]


def test_the_statistic_it_asks_for() -> None:
    """The normal limit: log E of a table with Pearson's statistic at the critical value is close to the threshold."""
    n, p = 200_000, np.array([0.25, 0.25, 0.5])
    shift = np.sqrt(critical(2, n) * n * 0.25 / 2)
    assert float(log_e(np.round(n * p + np.array([shift, -shift, 0])), p)) == pytest.approx(threshold(), rel=0.01)
    assert minimum_detectable(1295, 200_000, kappas=LONG) < 0.5 * minimum_detectable(1295, 200_000), "many cells ask for a larger kappa"


def test_one_impossible_count_is_proof() -> None:
    p = [0.5, 0.5, 0.0]
    evidence = update(update(start(p), [600, 600, 0], p), [10, 9, 1], p)
    assert evidence.highest == math.inf
    assert anytime_p(evidence.highest) == 0
    assert update(evidence, [500, 500, 0], p).highest == math.inf, "what was proved stays proved"
    assert product([1.0, math.inf, -math.inf]) == math.inf


def test_batches_add_up_in_any_order() -> None:
    p, batches = [0.2, 0.3, 0.5], np.random.default_rng(1).multinomial(500, [0.3, 0.3, 0.4], size=6)
    one = two = start(p)
    for batch in batches:
        one = update(one, batch, p)
    for batch in batches[::-1]:
        two = update(two, batch, p)
    assert (one.counts == two.counts).all()
    assert float(log_e(one.counts, p)) == float(log_e(merge(batches[0], batches[1:].sum(0)), p))


def test_the_highest_is_kept() -> None:
    p = [0.5, 0.5]
    first = update(start(p), [640, 360], p)
    later = update(first, [360, 640], p)
    assert later.highest == first.highest == pytest.approx(float(log_e([640, 360], p)))
    assert float(log_e(later.counts, p)) < 0


def test_contexts_multiply() -> None:
    """Two contexts of one stream: the product still has mean 1, by exhaustion over both tables."""
    p, q, n = [0.5, 0.5], [0.2, 0.8], 3
    total = 0.0
    for a, b in itertools.product(range(n + 1), repeat=2):
        weight = stats.binom.pmf(a, n, p[0]) * stats.binom.pmf(b, n, q[0])
        total += weight * math.exp(product([float(log_e([a, n - a], p)), float(log_e([b, n - b], q))]))
    assert total == pytest.approx(1, abs=1e-10)


def test_what_is_no_evidence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \[\.\.\., cells\] and \[cells\]"):
        log_e([1, 2], [0.5, 0.25, 0.25])
    with pytest.raises(ValueError, match="expected a law"):
        log_e([1, 2], [0.5, 0.6])
    with pytest.raises(ValueError, match="counts of 0 or more"):
        merge([1, 2], [1, -1])
    with pytest.raises(ValueError, match="expected alpha in"):
        threshold(0.0)
