"""The race on a grid: integers against the code, point by point, and that wrong races are seen."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from specdec_fn.speculate import Draft, Race, Verdict, verifiers
from specdec_fn.speculate.follow import follow
from specdec_proofs.race_grid import chain_faults, expected_race_law, grid, race_law, winners
from specdec_proofs.worlds import Law, chain_reference, mixed_tables, normalised, softmax, toy

shipped = verifiers["coupled"].decide
ROWS = ([1, 1, 1], [1, 2, 3], [5, 0, 5], [0, 0, 1], [0, 7, 2], [1, 100, 1], [2, 1, 1], [1, 6, 3], [97, 1, 2])


def laws() -> list[Law]:
    tables = [mixed_tables(seed, 3, 2).target(prefix) for seed in range(4) for prefix in ((), (0,), (1, 2))]
    return [normalised(row) for row in ROWS] + tables


def test_counts_that_are_known_by_hand() -> None:
    """Equal laws: 0 wins where k_0 is least or ties, sum n**2; 1 where it is below 0 and ties 2, sum n (n - 1); 2 where it is below both."""
    n = range(1, 17)
    assert expected_race_law(normalised([1, 1, 1])) == (sum(i * i for i in n), sum(i * (i - 1) for i in n), sum((i - 1) ** 2 for i in n))
    assert expected_race_law(normalised([0, 1, 0])) == (0, 4096, 0)
    assert (winners((Fraction(0),) * 3, grid(3)) == -1).all()


def test_winners_are_those_of_the_logarithms() -> None:
    """A third road: E / p in floats, wherever no two are within rounding of each other."""
    points = grid(3)
    noise = -np.log1p(-(points + 0.5) / 16)
    for p in laws():
        row = np.array([float(share) for share in p])
        times = np.where(row > 0, noise / np.where(row > 0, row, 1), np.inf)
        ordered = np.sort(times, 1)
        clear = ordered[:, 1] > ordered[:, 0] * (1 + 1e-12)
        assert clear.mean() > 0.8
        assert (winners(p, points) == times.argmin(1))[clear].all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_law_of_the_shipped_race_is_that_of_the_grid(dtype: torch.dtype) -> None:
    """4,096 points a row, equal as counts, alone and before drafted tokens of every kind."""
    for p in laws():
        expected = expected_race_law(p)
        assert sum(expected) == 4096
        for drafted in ((), (0,), (2, 1)):
            assert race_law(shipped, p, drafted=drafted, dtype=dtype) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_chains_are_the_winners_of_their_rows(dtype: torch.dtype) -> None:
    for world in (toy(1), toy(2), chain_reference(), mixed_tables(1, 3, 2), mixed_tables(3, 3, 1)):
        assert chain_faults(shipped, world, dtype=dtype) == (0, 4096 * 3**world.k)


def raced(choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., Verdict]:
    def rule(tape: Race, target_probs: torch.Tensor, draft: Draft) -> Verdict:
        return follow(torch.func.vmap(choose)(tape.noise, target_probs), draft)

    return rule


@pytest.mark.parametrize(
    "choose",
    [
        lambda noise, p: (noise * p).argmax(),
        lambda noise, p: torch.where(p > 0, noise, torch.inf).argmin(),
        lambda noise, p: (p**1.01 / noise).argmax(),
        lambda noise, p: 2 - (p / noise).flip(0).argmax(),
        lambda noise, p: (p / torch.expm1(noise)).argmax(),
    ],
    ids=["noise times p", "without p", "sharpened", "last of equals", "another map of the uniforms"],
)
def test_wrong_races_are_seen(choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    assert any(race_law(raced(choose), p) != expected_race_law(p) for p in laws())
    assert chain_faults(raced(choose), toy(1)._replace(target=lambda prefix: normalised([1, 1, 2])))[0] > 0


def test_wrong_chains_are_seen() -> None:
    """Rows that share their noise, and going on after a token that was not drafted: the first token is right in both."""

    def shared(tape: Race, target_probs: torch.Tensor, draft: Draft) -> Verdict:
        return shipped(Race(tape.noise[:1].expand_as(tape.noise)), target_probs, draft)

    def onward(tape: Race, target_probs: torch.Tensor, draft: Draft) -> Verdict:
        verdict, second = shipped(tape, target_probs, draft), follow(torch.func.vmap(lambda e, p: (p / e).argmax())(tape.noise, target_probs), draft)
        return verdict._replace(tokens=torch.where(torch.arange(3) == 1, (verdict.tokens[1] < 0) * second.tokens[0], verdict.tokens))

    for rule in (shared, onward):
        assert race_law(rule, toy().target((1,)), drafted=(0, 0)) == expected_race_law(toy().target((1,)))
        assert chain_faults(rule, toy())[0] > 1000


def test_what_has_no_exact_winner_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at most 10000"):
        expected_race_law(softmax(0, 3, 1).target(()))
    with pytest.raises(ValueError, match="the points have 2 coordinates; expected 3"):
        winners(normalised([1, 1, 1]), grid(2))
    with pytest.raises(ValueError, match=r"expected ids in \[0, 3\)"):
        race_law(raced(lambda noise, p: p.argmax() - 1), normalised([1, 1, 1]))
