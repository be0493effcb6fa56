"""Boxes of step functions: exact on whatever splits along the axes, and refusing what does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_proofs import cells

Cuts = list[list[int]]


def brute(f: cells.Outcome, axes: int, size: int) -> dict[int, int]:
    points = np.indices((size,) * axes).reshape(axes, -1).T
    values, counts = np.unique(f(np.zeros(len(points), np.int64), points), return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


@given(st.lists(st.lists(st.integers(1, 15), max_size=3), min_size=1, max_size=3), st.integers(0, 2**32))
def test_any_table_over_monotone_places_is_measured_exactly(cuts: Cuts, seed: int) -> None:
    """The outcome is a distinct value for each box, so nothing can hide: volumes equal those of a full enumeration."""
    edges = [np.array(sorted(set(axis))) for axis in cuts]
    names = np.random.default_rng(seed).permutation(int(np.prod([len(axis) + 1 for axis in edges])))

    def f(job: cells.Integers, at: cells.Integers) -> cells.Integers:
        place = [np.searchsorted(axis, at[:, i], side="right") for i, axis in enumerate(edges)]
        return names[np.ravel_multi_index(place, [len(axis) + 1 for axis in edges])]

    found = cells.find(f, 1, len(edges), 16)
    assert found.violations == []
    assert cells.masses(found.boxes[0], 16) == brute(f, len(edges), 16)


def one_uniform_read_twice(job: cells.Integers, at: cells.Integers) -> cells.Integers:
    return np.where(at[:, 0] < 700, 0, np.where(at[:, 0] < 900, 1, 2)) + 10 * (at[:, 1] > 5)


def only_both(job: cells.Integers, at: cells.Integers) -> cells.Integers:
    return ((at[:, 0] >= 300) & (at[:, 1] >= 77)).astype(np.int64)


def exclusive(job: cells.Integers, at: cells.Integers) -> cells.Integers:
    return ((at[:, 0] >= 300) ^ (at[:, 1] >= 77)).astype(np.int64)


@pytest.mark.parametrize("f", [one_uniform_read_twice, only_both, exclusive])
def test_dependence_between_coordinates_is_measured(f: cells.Outcome) -> None:
    found = cells.find(f, 1, 2, 1024)
    assert found.violations == []
    assert cells.masses(found.boxes[0], 1024) == brute(f, 2, 1024)


def test_jobs_do_not_mix_and_grids_may_be_large() -> None:
    limits = np.array([1, 2**30 + 7, 2**53 - 1])
    found = cells.find(lambda job, at: (at[:, 0] >= limits[job]).astype(np.int64), 3, 1, 2**53)
    assert [cells.masses(boxes, 2**53)[0] for boxes in found.boxes] == limits.tolist()


def test_a_boundary_that_is_not_parallel_to_the_axes_is_refused() -> None:
    found = cells.find(lambda job, at: (at.sum(1) >= 2**24).astype(np.int64), 1, 2, 2**24)
    assert found.violations


def test_an_outcome_that_comes_back_is_refused() -> None:
    """What a sampler that is not monotone does: both ends of an edge agree, and the middle does not."""
    found = cells.find(lambda job, at: ((at[:, 0] > 2**22) & (at[:, 0] < 2**23)).astype(np.int64), 1, 1, 2**24)
    assert "contradict" in found.violations[0]


def test_probes_reach_every_slab() -> None:
    """A fault that lives in a narrow slab of one axis is met, though the slab is 1/1000 of the grid."""
    low, high = 10**6, 10**6 + 16_000

    def f(job: cells.Integers, at: cells.Integers) -> cells.Integers:
        inside = (at[:, 0] >= low) & (at[:, 0] < high)
        return np.where(inside, 1 + ((at[:, 1] > 2**22) & (at[:, 1] < 2**23)), np.where(at[:, 0] < low, 0, 3))

    assert cells.find(f, 1, 2, 2**24).violations
