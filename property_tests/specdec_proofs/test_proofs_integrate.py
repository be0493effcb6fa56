"""The exact law of the float code: the published figures, independent counts, and that faults of every kind are seen."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from specdec_fn.sampling import draw
from specdec_fn.speculate import Draft, Tape, Verdict, batched, verifiers
from specdec_proofs import strategies
from specdec_proofs.enumerate import emitted_lengths, expected_emitted, token, total_variation
from specdec_proofs.integrate import draw_law, law, measure, tensors
from specdec_proofs.mutants import Edit, decide
from specdec_proofs.worlds import World, declared_one_hot, drafts, greedy_draft, independent, mixed_tables, normalised, softmax, stopping, toy

shipped = verifiers.token.decide


def test_the_law_agrees_with_the_rational_algorithm() -> None:
    """Two independent roads to one law: boxes of the float code, and fractions."""
    for world in (toy(), stopping(toy(3)), declared_one_hot(mixed_tables(3)), greedy_draft(softmax(0, 4, 2))):
        measured = measure(shipped, world)
        assert total_variation(measured.emitted, token(world)) < 1e-15
        assert sum(measured.emitted.values()) == 1


@settings(max_examples=12)
@given(strategies.worlds())
def test_any_world_is_within_the_gate(world: World) -> None:
    measured = measure(shipped, world)
    assert measured.violations == ()
    assert measured.tv <= 1e-14
    assert measured.impossible == 0


def test_float32_shows_its_grid() -> None:
    """The 24-bit grid costs about 1e-7 at V=6, K=3: a law measured at 0 there would mean that nothing was measured."""
    measured = measure(shipped, softmax(0, 6, 2), torch.float32)
    assert 1e-9 < measured.tv < 1e-6


def test_draw_counts_equal_a_full_enumeration_of_the_float32_grid() -> None:
    """Every one of the 2**24 uniforms, drawn: the counts of the boxes are the counts."""
    row = torch.tensor([0.3, 0.0, 1e-6, 0.45, 0.25], dtype=torch.float32)
    laws, violations, _ = law(row[None], draw)
    lifted, counts = torch.func.vmap(draw, in_dims=(0, None)), torch.zeros(5, dtype=torch.int64)
    for start in range(0, 1 << 24, 1 << 21):
        u = torch.arange(start, start + (1 << 21)).to(torch.float32) * 2.0**-24
        counts += torch.bincount(lifted(u, row), minlength=5)
    assert violations == []
    assert [int(x * (1 << 24)) for x in laws[0]] == counts.tolist()


def test_acceptance_equals_its_count_on_the_grid() -> None:
    """One token, all residual on the other: Pr[emit 0 first] is the number of k with k 2**-24 q < p, over 2**24."""
    world = independent([1, 2], [2, 1])
    p, q = (torch.tensor([float(x) for x in row], dtype=torch.float32) for row in (world.target(()), world.draft(())))
    u = torch.arange(1 << 24).to(torch.float32) * 2.0**-24
    passes = int((u * q[0] < p[0]).sum())
    weights, _, _ = draw_law(world, torch.float32)
    emitted = measure(shipped, world, torch.float32).emitted
    assert emitted[(1,)] == weights[(0,)] * Fraction((1 << 24) - passes, 1 << 24)


def test_padding_is_hostile_and_not_read() -> None:
    """D12: past the length of a draft stand -1 and NaN; nothing but valid ids comes out, at most length + 1 of them."""
    world = stopping(softmax(0, 4, 3))
    made = [x for x, _ in drafts(world)]
    tables = tensors(world, made, torch.float64)
    short = [j for j, x in enumerate(made) if len(x) < 3]
    assert short
    assert tables.draft.probs is not None
    for j in short:
        assert tables.draft.tokens[j, -1] == -1
        assert torch.isnan(tables.draft.probs[j, -1]).all()
        assert torch.isnan(tables.target[j, -1]).all()
    verdict = batched(shipped)(
        Tape(torch.zeros(len(made), 3, dtype=torch.float64), torch.zeros(len(made), dtype=torch.float64)), tables.target, tables.draft
    )
    assert (verdict.emitted <= tables.draft.length + 1).all()
    assert ((verdict.tokens >= 0) == (torch.arange(4) < verdict.emitted[:, None])).all()
    assert measure(shipped, world).violations == ()


def test_no_draft_is_plain_sampling() -> None:
    """A8, draft_len = 0: one token of p."""
    measured = measure(shipped, softmax(0, 5, 0))
    assert emitted_lengths(measured.emitted) == {1: 1}
    assert measured.tv < 1e-15
    never = measure(shipped, toy()._replace(stop=lambda prefix: True))
    assert emitted_lengths(never.emitted) == {1: 1}
    assert never.tv < 1e-15


def test_p_is_the_float_row_read_as_rationals() -> None:
    """In float32 the row differs from the fraction by 1e-8; the law is held against what the code was given."""
    world = softmax(0, 5, 0)
    row = torch.tensor([float(x) for x in world.target(())], dtype=torch.float64).to(torch.float32)
    given = {(t,): share for t, share in enumerate(normalised(row.tolist()))}
    measured = measure(shipped, world, torch.float32)
    assert measured.tv == total_variation(measured.emitted, given)
    assert total_variation(given, {(t,): share for t, share in enumerate(world.target(()))}) > 1e-9


def test_identical_laws_accept_everything_in_floats() -> None:
    """D6: p = q, one-hot, uniform and random rows, in both dtypes: all accepted, whatever the tape."""
    for p in ([0, 1, 0], [1, 1, 1], [0.2, 0.7, 0.1]):
        for dtype in (torch.float64, torch.float32):
            measured = measure(shipped, independent(p, p, 2), dtype)
            assert emitted_lengths(measured.emitted) == {3: 1}


def test_greedy_draft_scored_with_its_softmax_is_caught() -> None:
    """D1: the lie costs TV .3 in the code that ships, and one-hot costs nothing."""
    honest = greedy_draft(independent([1, 6, 3], [5, 2, 3]))
    assert measure(shipped, honest).tv < 1e-15
    lying = honest._replace(soft=True, told=lambda prefix: independent([1, 6, 3], [5, 2, 3]).draft(()))
    assert float(measure(shipped, lying).tv) == pytest.approx(0.3, abs=1e-12)


def test_bonus_dropped_shows_in_the_mean_only() -> None:
    rule = decide(
        [
            Edit(
                "token",
                "return of_chain(draft, accepted, draw(tape.final, law))",
                "return of_chain(draft, torch.minimum(accepted, length - 1), torch.where(rejected, draw(tape.final, law), _row(tokens, length - 1)))",
            )
        ]
    )
    measured = measure(rule, toy())
    assert measured.tv < 1e-15
    assert expected_emitted(measured.emitted) < Fraction(541, 240) - Fraction(1, 2)


def test_acceptance_that_is_not_strict_emits_the_impossible() -> None:
    """A8, p(t) = 0: with <= the token passes at u = 0, one point in 2**24; no chi-squared test would ever see it."""
    rule = decide([Edit("token", "tape.accept * q < p", "tape.accept * q <= p")])
    world = independent([0, 1, 1], [1, 1, 1])
    measured = measure(rule, world, torch.float32)
    assert 0 < measured.impossible <= Fraction(1, 2**24)
    assert measured.tv < 1e-6
    assert measure(shipped, world, torch.float32).impossible == 0


def test_a_window_of_a_ten_thousandth_of_one_uniform_is_refused() -> None:
    """A fault between two corners that look right, in the final uniform and in one that accepts: V=6, K=3, 2,000 boxes of 64 probes."""

    def in_final(tape: Tape, target_probs: torch.Tensor, draft: Draft) -> Verdict:
        verdict = shipped(tape, target_probs, draft)
        hit = (tape.final >= 0.4) & (tape.final < 0.4001) & (verdict.tokens >= 0)
        return verdict._replace(tokens=torch.where(hit & (torch.arange(4) == verdict.accepted), (verdict.tokens + 1) % 6, verdict.tokens))

    def in_accept(tape: Tape, target_probs: torch.Tensor, draft: Draft) -> Verdict:
        hit = (tape.accept >= 0.1) & (tape.accept < 0.1001)
        return shipped(tape._replace(accept=torch.where(hit, 1 - 2.0**-30, tape.accept)), target_probs, draft)

    for rule in (in_final, in_accept):
        assert any("contradict" in violation for violation in measure(rule, softmax(0)).violations)


Change = Callable[[Tape, Verdict], Verdict]


def changed(change: Change) -> Callable[..., Verdict]:
    def rule(tape: Tape, target_probs: torch.Tensor, draft: Draft) -> Verdict:
        return change(tape, shipped(tape, target_probs, draft))

    return rule


def test_a_rule_that_adds_two_uniforms_is_refused() -> None:
    def rule(tape: Tape, target_probs: torch.Tensor, draft: Draft) -> Verdict:
        return shipped(Tape(tape.accept, (tape.final + tape.accept[0]) / 2), target_probs, draft)

    assert measure(rule, toy()).violations


def test_a_draw_that_is_not_monotone_is_refused() -> None:
    """A fold that the bisection meets is measured, each of its stretches; one as fine as the places it looks at is seen by the probes."""

    def folded(u: torch.Tensor, probs: torch.Tensor, times: int = 1024) -> torch.Tensor:
        return draw((u * times) % 1, probs)

    row = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    laws, violations, _ = law(row, lambda u, probs: folded(u, probs, 2))
    assert violations or [float(share) for share in laws[0]] == [0.5, 0.25, 0.25]
    assert law(row, folded)[1]
    assert measure(shipped, toy(), draw=folded).violations


@pytest.mark.parametrize(
    "change",
    [
        lambda tape, v: v._replace(emitted=v.emitted + 1),
        lambda tape, v: v._replace(accepted=v.accepted + 1),
        lambda tape, v: v._replace(tokens=torch.where(v.tokens == 1, 3, v.tokens)),
        lambda tape, v: v._replace(tokens=torch.where(v.tokens == 1, -1, v.tokens)),
        lambda tape, v: v._replace(path=v.path.flip(0)),
    ],
    ids=["emitted", "accepted", "id past the vocabulary", "no token", "path"],
)
def test_a_malformed_verdict_is_refused(change: Any) -> None:
    """D12, D13: ids outside the vocabulary, -1 among the emitted, counts that do not fit, rows to keep that are not the accepted ones."""
    assert any("a verdict has" in violation for violation in measure(changed(change), toy()).violations)


def test_a_bias_in_one_corner_of_the_tape_is_measured_to_the_last_grid_point() -> None:
    """A fault on one point in 2**24 of the final uniform, from outside: the law has it exactly."""

    def change(tape: Tape, verdict: Verdict) -> Verdict:
        hit = (tape.final >= 1 - 2.0**-24) & (verdict.accepted == 0)
        return verdict._replace(tokens=torch.where(hit & (torch.arange(2) == 0), 0, verdict.tokens))

    world = independent([1, 2], [2, 1])
    biased, fair = (measure(rule, world, torch.float32).emitted for rule in (changed(change), shipped))
    assert biased[(0,)] == fair[(1,)] / 2**24
    assert np.isclose(float(biased[(1,)]), float(fair[(1,)]))
