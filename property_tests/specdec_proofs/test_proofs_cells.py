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


Node = tuple[int, int, "Node", "Node"] | int


def decision_tree(random: np.random.Generator, axes: int, size: int, leaves: int) -> tuple[Node, int]:
    """A random tree of comparisons of one coordinate with one threshold, and its number of leaves; each leaf has a name of its own."""
    names = iter(range(leaves + 1))

    def grow(low: list[int], high: list[int], budget: int) -> Node:
        able = [axis for axis in range(axes) if high[axis] > low[axis]]
        if budget == 1 or not able:
            return next(names)
        axis = int(random.choice(able))
        cut = int(random.integers(low[axis] + 1, high[axis] + 1))
        left = int(random.integers(1, budget))
        below, above = [*high[:axis], cut - 1, *high[axis + 1 :]], [*low[:axis], cut, *low[axis + 1 :]]
        return axis, cut, grow(low, below, left), grow(above, high, budget - left)

    tree = grow([0] * axes, [size - 1] * axes, leaves)
    return tree, next(names)


def walk(node: Node, at: cells.Integers) -> cells.Integers:
    if isinstance(node, int):
        return np.full(len(at), node)
    axis, cut, low, high = node
    return np.where(at[:, axis] < cut, walk(low, at), walk(high, at))


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 12))
def test_any_tree_of_comparisons_is_measured_exactly(seed: int, axes: int, leaves: int) -> None:
    """Coordinates are read again and again, with thresholds that depend on what was decided before: volumes equal those of an enumeration."""
    tree, named = decision_tree(np.random.default_rng(seed), axes, 5, leaves)
    found = cells.find(lambda job, at: walk(tree, at), 1, axes, 5)
    assert found.violations == []
    assert cells.masses(found.boxes[0], 5) == brute(lambda job, at: walk(tree, at), axes, 5)
    assert named <= len(found.boxes[0].outcome)


def test_leaves_are_the_paths_of_decisions() -> None:
    """Six uniforms that accept or reject in turn and a last one with thresholds of its own on each path: 7 paths of 3 outcomes, 21 boxes.

    The product of all cuts would be 2**6 * 15 boxes.
    """
    random, size = np.random.default_rng(0), 2**53
    accept, final = random.integers(1, size, 6), np.sort(random.integers(1, size, (7, 2)))

    def f(job: cells.Integers, at: cells.Integers) -> cells.Integers:
        passed = (at[:, :6] < accept).cumprod(1).sum(1)
        return passed * 10 + (at[:, 6, None] >= final[passed]).sum(1)

    found = cells.find(f, 1, 7, size)
    assert found.violations == []
    assert len(found.boxes[0].outcome) == 21
    assert found.evaluations < 50_000
    counts = cells.masses(found.boxes[0], size)
    for passed in range(7):
        stays = int(np.prod(accept[:passed].astype(object))) * (size - int(accept[passed]) if passed < 6 else 1) * size ** max(5 - passed, 0)
        assert counts[10 * passed] == stays * int(final[passed, 0])


def test_leaves_partition_the_grid() -> None:
    found = cells.find(only_both, 1, 2, 1024)
    covered = np.zeros((1024, 1024), np.int64)
    for low, high in zip(found.boxes[0].low, found.boxes[0].high, strict=True):
        covered[low[0] : high[0] + 1, low[1] : high[1] + 1] += 1
    assert (covered == 1).all()


def test_the_size_of_a_round_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, _ = decision_tree(np.random.default_rng(3), 4, 2**20, 30)
    f = lambda job, at: walk(tree, (at + 1000 * job[:, None]) % 2**20)  # noqa: E731
    whole = cells.find(f, 9, 4, 2**20, probes=0)
    monkeypatch.setattr(cells, "POINTS", 64)
    parts = cells.find(f, 9, 4, 2**20, probes=0)
    for one, two in zip(whole.boxes, parts.boxes, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_jobs_do_not_mix_and_grids_may_be_large() -> None:
    limits = np.array([1, 2**30 + 7, 2**53 - 1])
    found = cells.find(lambda job, at: (at[:, 0] >= limits[job]).astype(np.int64), 3, 1, 2**53)
    assert [cells.masses(boxes, 2**53)[0] for boxes in found.boxes] == limits.tolist()


@pytest.mark.parametrize("size", [2**24, 2**53])
@pytest.mark.parametrize("jobs", [1, 200])
def test_a_boundary_that_is_not_parallel_to_the_axes_is_refused(size: int, jobs: int) -> None:
    """Soon, and with boxes that still partition the grid."""
    found = cells.find(lambda job, at: (at.sum(1) >= size + job).astype(np.int64), jobs, 2, size)
    assert "does not split along the axes" in found.violations[0]
    assert found.evaluations < 2_000_000
    assert all(sum(cells.masses(boxes, size).values()) == size**2 for boxes in found.boxes)


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


@pytest.mark.parametrize("seed", range(20))
def test_a_window_of_two_strata_is_met_for_certain(seed: int) -> None:
    """1/32 of one of five uniforms, anywhere in it, whatever the seed of the probes."""
    low = int(np.random.default_rng(seed).integers(1, 2**24 - 2**19 - 1))
    f = lambda job, at: ((at[:, 3] >= low) & (at[:, 3] < low + 2**19)).astype(np.int64)  # noqa: E731
    assert "contradict" in cells.find(f, 1, 5, 2**24, probes=64, seed=seed).violations[0]


def test_a_window_of_a_ten_thousandth_is_met_where_it_shows_in_many_leaves() -> None:
    """1,000 leaves of 64 probes: missed with probability exp(-6.4) each, and the seed is fixed."""
    size, low = 2**53, 2**52 + 12345
    f = lambda job, at: ((at[:, 1] >= low) & (at[:, 1] < low + size // 10_000)).astype(np.int64)  # noqa: E731
    assert "contradict" in cells.find(f, 1000, 2, size).violations[0]


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(ValueError, match="received 17 axes"):
        cells.find(only_both, 1, 17, 8)
    with pytest.raises(ValueError, match="the boxes hold 3 points"):
        cells.masses(cells.Boxes(np.array([[0]]), np.array([[2]]), np.array([0])), 8)
