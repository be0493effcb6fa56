"""Several drafts at one position, in fractions: lossless rules, their acceptance, what none exceeds, and wrong variants."""

import functools
import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_proofs import strategies
from specdec_proofs.siblings import (
    draws,
    k_seq,
    k_seq_division,
    one_hot,
    one_position,
    transport,
    transport_by_prefixes,
    with_replacement,
    without_replacement,
)
from specdec_proofs.worlds import Law, normalised

F = Fraction
PAIRS = st.integers(2, 4).flatmap(lambda vocab: st.tuples(strategies.laws(vocab), strategies.laws(vocab), st.integers(1, 3)))
RULES = (
    ("with replacement", with_replacement, True),
    ("without replacement", without_replacement, False),
    ("one-hot, with", one_hot, True),
    ("one-hot, without", one_hot, False),
    ("k-SEQ", k_seq, True),
)
# Three pairs (p, q, n) and the figures of an independent script: acceptance of one draft, recursive rejection with and without replacement,
# k-SEQ near its rho*, rho*, optimal transport with and without replacement, and the total variation without renormalising.
FIGURES = (
    ([2, 8, 8, 4], [1, 7, 1, 5], 2, (0.6883, 0.7301, 0.7468, 0.7437, 1.507, 0.7741, 0.8244), 0.01461038961038961),
    ([1, 6, 5, 4], [3, 7, 9, 9], 3, (0.8750, 0.9297, 0.9634, 0.9727, 1.392, 1.0, 1.0), 0.0),
    ([0, 6, 8, 2, 8], [0, 0, 8, 9, 3], 2, (0.5667, 0.6317, 0.6833, 0.6547, 1.588, 0.6942, 0.75), 0.03506787330316742),
    ([0, 5, 1, 0], [5, 2, 0, 1], 2, (0.25, 0.4375, 0.7024, 0.4375, 1.75, 0.4375, 0.7024), 0.07848324514991181),
)


def apart(a: Law, b: Law) -> Fraction:
    return sum((abs(x - y) for x, y in zip(a, b, strict=True)), F(0)) / 2


@pytest.mark.parametrize(("name", "rule", "replacement"), RULES, ids=lambda value: value if isinstance(value, str) else None)
@given(pair=PAIRS)
def test_every_rule_emits_the_target_law(pair: tuple, name: str, rule, replacement: bool) -> None:
    p, q, count = pair
    found = one_position(p, q, count, rule, replacement=replacement)
    assert found.law == p
    assert found.accepted <= transport(p, q, count, replacement=replacement)
    if count == 1 and "one-hot" not in name:
        assert found.accepted == sum(min(a, b) for a, b in zip(p, q, strict=True))


@given(PAIRS)
def test_acceptance_in_closed_form(pair: tuple) -> None:
    """1 - prod of TV(r_j, q) with replacement; 1 - (1 - b)^n for k-SEQ; p(list) one-hot."""
    p, q, count = pair
    r, missed = p, F(1)
    for _ in range(count):
        missed *= apart(r, q)
        r = tuple(max(a - b, F(0)) / apart(r, q) for a, b in zip(r, q, strict=True)) if r != q else r
    assert one_position(p, q, count, with_replacement, replacement=True).accepted == 1 - missed
    rho = k_seq_division(p, q, count)
    overlap = sum(min(a / rho, b) for a, b in zip(p, q, strict=True))
    assert one_position(p, q, count, k_seq, replacement=True).accepted == 1 - (1 - overlap) ** count
    for siblings in itertools.islice(draws(q, count, replacement=True), 5):
        law = one_hot(p, q, siblings)
        assert sum(mass for (which, _), mass in law.items() if which >= 0) == sum(p[t] for t in set(siblings))


@pytest.mark.parametrize(("p", "q", "count", "figures", "bias"), FIGURES)
def test_figures(p: list[int], q: list[int], count: int, figures: tuple[float, ...], bias: float) -> None:
    p, q = normalised(p), normalised(q)
    rho = k_seq_division(p, q, count)
    found = (
        one_position(p, q, 1, with_replacement, replacement=True).accepted,
        one_position(p, q, count, with_replacement, replacement=True).accepted,
        one_position(p, q, count, without_replacement, replacement=False).accepted,
        one_position(p, q, count, functools.partial(k_seq, rho=rho), replacement=True).accepted,
        rho,
        transport(p, q, count, replacement=True),
        transport(p, q, count, replacement=False),
    )
    for value, figure in zip(found, figures, strict=True):
        assert float(value) == pytest.approx(figure, abs=1e-3 if value is rho else 2.5e-4)
    wrong = functools.partial(without_replacement, renormalise=False)
    law = one_position(p, q, count, wrong, replacement=False).law
    assert float(apart(law, p)) == pytest.approx(bias, abs=1e-12)


def test_the_example_of_four_tokens() -> None:
    """.688 .730 .747 .744 .774 .824: one draft, two with and without replacement, k-SEQ, optimal transport with and without."""
    p, q = normalised(FIGURES[0][0]), normalised(FIGURES[0][1])
    accepted = (
        one_position(p, q, 1, with_replacement, replacement=True).accepted,
        one_position(p, q, 2, with_replacement, replacement=True).accepted,
        one_position(p, q, 2, without_replacement, replacement=False).accepted,
        one_position(p, q, 2, k_seq, replacement=True).accepted,
        transport(p, q, 2, replacement=True),
        transport(p, q, 2, replacement=False),
    )
    assert " ".join(f"{float(x):.3f}" for x in accepted) == "0.688 0.730 0.747 0.744 0.774 0.824"


def test_k_seq_needs_its_division_factor() -> None:
    """rho = 1 clips what should be negative; just below rho* it is wrong, at rho*, and at n, right.

    The figures are of the clipped law normalised as a whole; a sampler normalises the clipped residual alone, which is worse.
    """
    for (p, q, count, *_), figure in zip(FIGURES[:3], (0.06459794609647201, 0.030296229802513466, 0.0892156862745098), strict=True):
        p, q = normalised(p), normalised(q)
        rho = k_seq_division(p, q, count)
        law = {r: one_position(p, q, count, functools.partial(k_seq, rho=r), replacement=True).law for r in (F(1), rho - F(1, 100), rho, F(count))}
        assert law[rho] == law[F(count)] == p
        assert 0 < apart(law[rho - F(1, 100)], p) < apart(law[F(1)], p)
        kept = [F(0)] * len(p)
        for siblings, weight in draws(q, count, replacement=True).items():
            for (which, token), mass in k_seq(p, q, siblings, rho=F(1)).items():
                kept[token] += weight * mass * (which >= 0)
        clipped = normalised([max(a, b) for a, b in zip(p, kept, strict=True)])
        assert float(apart(clipped, p)) == pytest.approx(figure, abs=1e-12)
        assert apart(law[F(1)], p) >= apart(clipped, p)


def test_siblings_must_be_judged_as_they_were_drawn() -> None:
    """The law of a sibling drawn without replacement is not q; judged as if it were, the pair above gets another law."""
    p, q = normalised([2, 8, 8, 4]), normalised([1, 7, 1, 5])
    assert one_position(p, q, 2, with_replacement, replacement=False).law != p


def test_a_list_that_is_not_drawn_must_not_be_scored_with_q() -> None:
    """The two likeliest tokens of q, always: one-hot tries are lossless, tries against q are not (mutant 18)."""
    p, q, listed = normalised([2, 8, 8, 4]), normalised([1, 7, 1, 5]), (1, 3)
    law = {name: [sum(m for (_, t), m in rule(p, q, listed).items() if t == x) for x in range(4)] for name, rule, _ in RULES}
    assert tuple(law["one-hot, without"]) == p
    assert tuple(law["without replacement"]) != p
    assert sum(m for (which, _), m in one_hot(p, q, listed).items() if which >= 0) == p[1] + p[3]


def test_exhausted_supports_have_fewer_siblings() -> None:
    p, q = normalised([1, 1, 2]), normalised([0, 1, 3])
    assert draws(q, 5, replacement=False) == {(1, 2): F(1, 4), (2, 1): F(3, 4)}
    assert one_position(p, q, 5, without_replacement, replacement=False) == (p, F(3, 4))


def test_the_least_set_is_a_prefix_of_the_sorted_tokens() -> None:
    """300 of 300 random pairs, with replacement."""
    for seed in range(300):
        draw = random.Random(1000 + seed)
        count = draw.choice([2, 3])
        p, q = (normalised([draw.randint(1, 9) for _ in range(4)]) for _ in range(2))
        assert transport_by_prefixes(p, q, count) == transport(p, q, count, replacement=True)
