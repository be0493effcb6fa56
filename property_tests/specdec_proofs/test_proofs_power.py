"""Power: the published table, plans whose power is real, and pools that are fixed before the data."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdec_proofs.enumerate import completed, joint
from specdec_proofs.mutants import catalogue
from specdec_proofs.power import attained, curve, divergence, minimum_detectable, needed, noncentrality, plan, pool, reaching
from specdec_proofs.sample import cells


@pytest.mark.parametrize(
    ("vocab", "critical", "wanted"),
    [
        (2, 23.9, 63.7),
        (16, 56.5, 95.9),
        (64, 131.4, 141.6),
        (216, 328.3, 217.0),
        (1296, 1551.5, 454.8),
        (49_152, 50655.8, 2522),
        (151_936, 154569.7, 4387),
    ],
)
def test_noncentrality_table(vocab: int, critical: float, wanted: float) -> None:
    """Reference figures: level 1e-6, power .999."""
    assert stats.chi2.isf(1e-6, vocab - 1) == pytest.approx(critical, abs=0.06)
    assert noncentrality(vocab - 1) == pytest.approx(wanted, rel=6e-4)


@pytest.mark.parametrize(
    ("vocab", "tv", "draws"), [(2, 1e-3, 1.59e7), (64, 1e-3, 3.54e7), (64, 1e-2, 3.54e5), (16, 5e-2, 9.6e3), (1296, 5e-2, 4.6e4)]
)
def test_draws_needed_in_the_hardest_direction(vocab: int, tv: float, draws: float) -> None:
    p = np.full(vocab, 1 / vocab)
    other = p + np.where(np.arange(vocab) % 2, 1, -1) * 2 * tv / vocab
    assert divergence(p, other) == pytest.approx(4 * tv**2)
    assert needed(p, other) == pytest.approx(draws, rel=0.02)


@pytest.mark.parametrize(
    ("vocab", "draws", "tv"),
    [(2, 1.59e7, 1e-3), (64, 3.54e7, 1e-3), (216, 5.43e5, 1e-2), (1296, 4.6e4, 5e-2), (49_152, 6.31e8, 1e-3), (151_936, 1.10e9, 1e-3)],
)
def test_what_draws_are_sure_to_see(vocab: int, draws: float, tv: float) -> None:
    """The reference table, read the other way."""
    assert minimum_detectable(vocab - 1, draws) == pytest.approx(tv, rel=0.01)


def test_curves_rise_to_the_power_that_is_promised() -> None:
    ns = np.geomspace(1e3, 1e6, 20)
    line = curve(63, 0.01, ns)
    assert (np.diff(line) >= 0).all()
    assert curve(63, 0.01, minimum_detectable(63, 1.0) ** 2 / 0.01**2) == pytest.approx(0.999, abs=1e-5)
    assert curve(63, 0.0, [1e9]) == pytest.approx([1e-6], rel=1e-3)


def test_a_law_at_the_least_detectable_distance_is_rejected() -> None:
    """Simulated at the figure that the reference gives for V = 64: TV .02 at 88,492 draws."""
    n, vocab = 88_492, 64
    assert minimum_detectable(vocab - 1, n) == pytest.approx(0.02, rel=1e-3)
    other = (1 + 0.04 * np.where(np.arange(vocab) % 2, 1, -1)) / vocab
    counts = np.random.default_rng(4).multinomial(n, other, size=8000)
    statistic = ((counts - n / vocab) ** 2).sum(1) * vocab / n
    assert (statistic > stats.chi2.isf(1e-6, vocab - 1)).mean() == pytest.approx(0.999, abs=0.0015)


def test_nothing_is_seen_with_nothing() -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        minimum_detectable(0, 100)
    assert reaching(stats.chi2.isf(1e-6, 15), 15) == noncentrality(15)


def test_level_and_one_degree_of_freedom() -> None:
    assert noncentrality(63, alpha=1e-9) == pytest.approx(172.1, abs=0.1)
    assert noncentrality(1) == pytest.approx((stats.norm.isf(5e-7) + stats.norm.isf(1e-3)) ** 2, rel=1e-6)
    assert attained(15, 0.0, 1e-6) == pytest.approx(1e-6, rel=1e-3)


def test_an_impossible_token_needs_no_statistics() -> None:
    assert divergence([1.0, 0.0], [0.99, 0.01]) == math.inf
    test = plan([0.5, 0.5, 0.0], [0.5, 0.49, 0.01])
    assert test.n < 1000
    assert 1 - 0.99**test.n >= 0.999


laws = st.lists(st.integers(0, 1000), min_size=2, max_size=30).filter(lambda w: sum(x > 0 for x in w) > 1)


@given(laws, st.integers(20, 10**6), st.sampled_from([5.0, 10.0, 20.0]))
def test_pools_keep_all_mass_and_reach_the_floor(weights: list[int], n: int, floor: float) -> None:
    p = np.array(weights) / sum(weights)
    made = pool(p, n, floor=floor)
    assert ((made.group == -1) == (p == 0)).all()
    assert made.p.sum() == pytest.approx(1)
    assert np.allclose(np.bincount(made.group[made.group >= 0], p[made.group >= 0]), made.p)
    assert n * made.p.min() >= floor * (1 - 1e-12)
    alone = np.bincount(made.group[made.group >= 0])[made.group[made.group >= 0]] == 1
    merged = p[made.group >= 0][~alone]
    assert not len(merged) or np.sort(p[p > 0])[: len(merged)] == pytest.approx(np.sort(merged)), "only the smallest cells are pooled"


def test_a_plan_keeps_its_promise() -> None:
    """Fresh simulation, other seed, of an alternative for which the noncentral law promises .999 at 876 draws and .9925 is true."""
    mutant = next(mutant for mutant in catalogue() if "residual of the previous" in mutant.name)
    world = mutant.world()
    p, other = cells(world, joint(world), 3), cells(world, completed(mutant.law(world), world), 3)
    test = plan(p, other)
    assert test.n > needed(p, other)
    counts = np.random.default_rng(99).multinomial(test.n, other, size=20_000)
    grouped = np.stack([counts[:, test.pool.group == i].sum(1) for i in range(len(test.pool.p))], 1)
    statistic = ((grouped - test.n * test.pool.p) ** 2 / (test.n * test.pool.p)).sum(1)
    assert (statistic > stats.chi2.isf(1e-6, test.pool.df)).mean() >= 0.998
    assert test.power >= 0.999


def test_a_plan_that_cannot_be_says_so() -> None:
    with pytest.raises(ValueError, match="do not reach power"):
        plan([0.5, 0.5], [0.501, 0.499], most=10_000)
