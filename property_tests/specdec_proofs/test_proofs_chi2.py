"""Tests of laws: their level is what it says, impossible counts fail at once, families of tests are kept in hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdec_proofs.chi2 import adjusted, holm, homogeneity, pearson, tails, uniformity


def test_pearson_agrees_with_scipy_where_nothing_is_pooled() -> None:
    p, counts = np.array([0.1, 0.2, 0.3, 0.4]), np.array([90, 230, 280, 400])
    statistic, p_value = stats.chisquare(counts, 1000 * p)
    result = pearson(counts, p)
    assert (result.statistic, result.p_value, result.df) == (pytest.approx(statistic), pytest.approx(p_value), 3)


def test_public_limits_of_the_statistic() -> None:
    """Section 0 of the catalogue of faults: limits at 1e-6 for 1, 2, 3 and 26 degrees of freedom."""
    for df, limit in ((1, 23.93), (2, 27.63), (3, 30.66), (26, 75.55)):
        assert stats.chi2.isf(1e-6, df) == pytest.approx(limit, abs=0.006)


def test_one_impossible_count_fails() -> None:
    assert pearson([500, 499, 1], [0.5, 0.5, 0.0]).p_value == 0
    assert pearson([500, 500, 0], [0.5, 0.5, 0.0]).p_value == 1
    assert homogeneity([[50, 50, 0], [50, 49, 1]], [0.5, 0.5, 0.0]).p_value == 0


def test_level_at_small_expected_counts() -> None:
    """Null size of the pooled test with N p down to 2: .05 and .001 are close to .05 and .001."""
    rng = np.random.default_rng(1)
    law = rng.dirichlet(np.ones(20))
    values = np.array([pearson(row, law).p_value for row in rng.multinomial(4000, law, size=6000)])
    assert (values < 0.05).mean() == pytest.approx(0.05, abs=0.012)
    assert (values < 0.001).mean() < 0.004
    distance, allowed = uniformity(values[:1000].tolist())
    assert distance < allowed == pytest.approx(0.0852, abs=5e-5)


def test_homogeneity_level_and_power() -> None:
    rng = np.random.default_rng(2)
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.35, 0.35, 0.2, 0.1])
    null = [homogeneity(rng.multinomial(3000, p, size=4), p).p_value for _ in range(1000)]
    assert (np.array(null) < 0.05).mean() == pytest.approx(0.05, abs=0.03)
    assert uniformity(null).distance < 0.0852
    other = np.concatenate([rng.multinomial(20_000, p, size=3), rng.multinomial(20_000, q, size=1)])
    assert homogeneity(other, p).p_value < 1e-6
    table = rng.multinomial(3000, p, size=4)
    assert homogeneity(table, p).p_value == pytest.approx(stats.chi2_contingency(table, correction=False).pvalue)


def test_tail_events_are_seen_where_pooling_hides_them() -> None:
    """Twenty tokens of 1e-6 each, drawn ten times too often: a pooled cell of expected 10 hides them, the tail event does not."""
    law = np.array([0.6, 0.4 - 2e-5, *[1e-6] * 20])
    counts = np.array([600_000, 399_780, *[11] * 20])
    assert min(tails(counts, law)) < 1e-30
    assert tails(counts, [0.5, 0.5], gaps=()) == []
    fair = np.array([600_000, 399_980, *[1] * 20])
    assert min(tails(fair, law)) > 0.1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from([1e-6, 0.01, 0.3]))
def test_holm_is_between_bonferroni_and_no_correction(values: list[float], alpha: float) -> None:
    rejected = holm(values, alpha)
    for value, hit in zip(values, rejected, strict=True):
        assert not hit or value <= alpha
        assert hit or value > alpha / len(values)
    kept = [value for value, hit in zip(values, rejected, strict=True) if not hit]
    assert not kept or all(value <= min(kept) for value, hit in zip(values, rejected, strict=True) if hit)


def test_holm_corrects_for_the_number_of_tests() -> None:
    assert holm([4e-7, 4e-7], 5e-7) == [False, False]
    assert holm([4e-7, 2e-7], 5e-7) == [True, True]
    assert holm([4e-7, 2e-7, 0.9], 5e-7) == [False, False, False]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(1e-9, 0.5))
def test_adjusted_values_reject_what_holm_rejects(values: list[float], alpha: float) -> None:
    """Holm 1979, by its definition: p_(i) is adjusted to the largest of (m - j + 1) p_(j), j <= i."""
    found, m = adjusted(values), len(values)
    ordered = sorted(values)
    for value, got in zip(values, found, strict=True):
        assert got == pytest.approx(min(1.0, max((m - j) * ordered[j] for j in range(ordered.index(value) + 1))))
        assert got >= value
    near = any(abs(got - alpha) < 1e-12 for got in found)
    assert near or [got <= alpha for got in found] == holm(values, alpha)


def test_uniformity_sees_p_values_that_are_too_good() -> None:
    assert uniformity((0.5 + np.random.default_rng(0).uniform(size=1000) / 2).tolist()).distance > 0.0852


def test_what_is_no_test_is_refused() -> None:
    with pytest.raises(ValueError, match="expected two vectors of one length"):
        pearson([1, 2, 3], [0.5, 0.5])
    with pytest.raises(ValueError, match="expected two or more"):
        pearson([3, 2], [0.5, 0.5])
    with pytest.raises(ValueError, match="expected \\[drafters, 2\\]"):
        homogeneity([[1, 2, 3]], [0.5, 0.5])
