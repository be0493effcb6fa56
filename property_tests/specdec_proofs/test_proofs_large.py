"""The claims at a real vocabulary: their measuring tools against independent values, and each against something that must fail."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from specdec_fn import random
from specdec_fn.sampling import draw
from specdec_fn.speculate.race import exponential, noise
from specdec_fn.speculate.tape import RACE
from specdec_proofs import integrate, large
from specdec_proofs.claim import settle
from specdec_proofs.enumerate import total_variation
from specdec_proofs.worlds import normalised

CLAIMS = {name: (gate, measurement) for name, gate, measurement in large.claims()}


def rows() -> Tensor:
    made = torch.from_numpy(np.random.default_rng(1).dirichlet(np.full(12, 0.3), size=5))
    made[1, :3], made[2, -4:], made[3, 5] = 0, 0, 1e-17
    return made


def test_row_law_is_that_of_the_boxes() -> None:
    laws, violations, _ = integrate.law(rows())
    assert not violations
    for row, wanted in zip(rows(), laws, strict=True):
        found = large.row_law(row)
        assert not found.violations
        assert [Fraction(int(count), 2**53) for count in found.counts] == list(wanted)


def test_total_variation_of_a_row_is_that_of_the_fractions() -> None:
    row = rows()[0]
    counts = large.row_law(row).counts
    wanted = total_variation(
        {(x,): Fraction(int(count), 2**53) for x, count in enumerate(counts)}, {(x,): p for x, p in enumerate(normalised(row.tolist()))}
    )
    assert large.total_variation_of_row(counts.tolist(), row.tolist()) == wanted
    assert wanted > 0


def falling(u: Tensor, probs: Tensor) -> Tensor:
    return draw(1 - u, probs)


def folded(u: Tensor, probs: Tensor) -> Tensor:
    return draw((2 * u) % 1, probs)


@pytest.mark.parametrize("wrong", [falling, folded])
def test_row_law_refuses_what_does_not_grow(wrong: Callable[..., Tensor]) -> None:
    assert large.row_law(rows()[0], wrong).violations


def test_row_law_sees_a_zero_that_is_drawn() -> None:
    def loose(u: Tensor, probs: Tensor) -> Tensor:
        return torch.searchsorted(probs.cumsum(0), u)  # at u = 0 the first token, whatever its probability

    counts = large.row_law(torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64), loose).counts
    assert counts[0] == 1


def test_row_law_sees_a_coarse_uniform() -> None:
    """Theory C.5: at V = 151,936 under zipf 1.0 a 24-bit grid is off by 1.5e-3 and reaches every token."""

    def narrow(u: Tensor, probs: Tensor) -> Tensor:
        return draw(torch.floor(u * 2**24) * 2.0**-24, probs)

    row = 1 / torch.arange(1, large.VOCAB + 1, dtype=torch.float64)
    row /= row.sum()
    counts = large.row_law(row, narrow, probes=0).counts
    assert float(large.total_variation_of_row(counts.tolist(), row.tolist())) == pytest.approx(1.5e-3, rel=0.05)
    assert (counts > 0).all()


def test_the_noise_is_made_of_the_bits() -> None:
    words = random.bits(random.fold_in(random.fold_in(random.key(4), RACE), 9), (500,), 64)
    assert noise(random.key(4), 9, 500).equal(exponential(words))
    whole = [word % 2**64 for word in words.tolist()]
    wanted = [-math.log1p(-float(Fraction(2 * k + 1, 2**65))) for k in whole]
    assert exponential(words).tolist() == pytest.approx(wanted, rel=1e-15, abs=0)


def test_numbers_grow_with_their_words() -> None:
    words = np.sort(np.random.default_rng(2).integers(0, 2**64, 20_000, dtype=np.uint64, endpoint=False) >> np.arange(20_000, dtype=np.uint64) % 60)
    for noise_of in (exponential, large.coarse):
        numbers = noise_of(torch.from_numpy(np.sort(words).view(np.int64)))
        assert (numbers.diff() >= 0).all()


@pytest.mark.parametrize("gap", large.GAPS)
def test_tail_mass_is_the_law_of_the_race(gap: int) -> None:
    mass = large.TAIL * math.exp(-gap)
    assert large.tail_mass(gap) == pytest.approx(mass / (1 + mass), rel=1e-5)
    assert large.tail_mass(gap, exponential) == pytest.approx(large.tail_mass(gap), rel=1e-9)


@pytest.mark.parametrize(("gap", "mass", "digits"), [(14, 0.1070, 4), (16, 0.0126, 4), (18, 0.00018, 5), (20, 0.0, 6)])
def test_tail_mass_of_a_coarse_race(gap: int, mass: float, digits: int) -> None:
    """Theory C.5, computed there from the grid alone."""
    assert round(large.tail_mass(gap, large.coarse), digits) == mass


def test_the_claims_that_lose_nothing_notice_a_coarse_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "exponential", large.coarse)
    broken = {name: measurement for name, _, measurement in large.claims()}
    for name in ("large: race, share of the tail that its grid loses", "large: race, tail events, least word of the tail"):
        assert not settle(name, *CLAIMS[name][:1], broken[name]).passed


def test_every_claim_has_a_name_of_its_own() -> None:
    assert len(CLAIMS) == sum(1 for _ in large.claims())


@pytest.mark.parametrize("name", [name for name in CLAIMS if "coupled" in name or "noise" in name or "control" in name or "share" in name])
def test_claims_hold(name: str) -> None:
    gate, measurement = CLAIMS[name]
    claim = settle(name, gate, measurement)
    assert claim.passed, claim
    assert (claim.p_value is not None) == gate.startswith("p > ")


@pytest.mark.parametrize(
    ("part", "spoil"),
    [
        ("Kolmogorov-Smirnov", lambda numbers: numbers * 1.01),
        ("independent", lambda numbers: torch.where(torch.arange(len(numbers))[:, None] % 20 == 1, numbers.roll(1, 0), numbers)),
    ],
)
def test_claims_about_the_noise_notice(part: str, spoil: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(name for name in CLAIMS if part in name)
    gate, measurement = CLAIMS[name]
    monkeypatch.setattr(large, "noise", lambda *arguments: spoil(noise(*arguments)))
    assert not settle(name, gate, measurement).passed
