"""The audit: right samplers pass, wrong ones fail with their law and their fault's name, and what cannot be audited is said in one sentence."""

import json
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from specdec_fn import generate
from specdec_fn.models import toy
from specdec_fn.speculate import verifiers
from specdec_fn.speculate.verdict import Verdict, of_chain
from specdec_proofs import audit, audit_exact, audit_generator, audit_report, audit_rounds, integrate
from specdec_proofs.chi2 import pearson
from specdec_proofs.claim import Claim
from specdec_proofs.enumerate import joint
from specdec_proofs.interception import UnreachableError
from specdec_proofs.resemblance import nearest
from specdec_proofs.sample import cells
from specdec_proofs.suspects import Suspect, SuspectError, find
from specdec_proofs.suspects.suspect import as_round
from specdec_proofs.worlds import World, chain_reference, cold, mixed_tables

ROUNDS = 1000


def two_worlds(greedy: bool = False) -> tuple[World, ...]:
    """A world without zeros and one with them: half the time. The doctests of ``audit`` take all four."""
    made = chain_reference(), mixed_tables(22, 3, 2)
    return tuple(map(cold, made)) if greedy else made


@pytest.fixture(autouse=True)
def _two_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "worlds", two_worlds)


@pytest.fixture(scope="module")
def accepting() -> audit.Audit:
    """The audit of a sampler that keeps every draft, compared with the whole catalogue."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "worlds", two_worlds)
        return whole(own(lambda p, q, tokens: rule(p, q, tokens, accept_all=True)))


def winner(row: torch.Tensor) -> int:
    """A draw by a race of exponentials."""
    return int((row / torch.empty(len(row)).exponential_()).argmax())


def picked(row: torch.Tensor) -> int:
    """A draw by torch."""
    return int(torch.multinomial(row, 1))


def rule(
    p: torch.Tensor,
    q: torch.Tensor | None,
    tokens: torch.Tensor,
    *,
    strict: bool = True,
    accept_all: bool = False,
    pick: Callable[[torch.Tensor], int] = picked,
) -> list[int]:
    """Token verification in plain Python, drawing for itself: a foreign sampler for these tests."""
    assert q is not None
    uniforms, ids = torch.rand(len(tokens)).tolist(), []
    for i, token in enumerate(tokens.tolist()):
        u, a, b = uniforms[i], float(p[i, token]), float(q[i, token])
        if not (accept_all or u * b < a or (not strict and u * b <= a)):
            return [*ids, pick((p[i] - q[i]).clamp(min=0))]
        ids.append(token)
    return [*ids, pick(p[-1])]


def whole(suspect: Suspect, rounds: int = ROUNDS, seed: int = 0) -> audit.Audit:
    *_, last = audit.run(suspect, rounds, seed)
    return last


def own(give: Callable[..., Any], **named: Any) -> Suspect:
    return Suspect("mine", "here", give, **named)


# What passes and what fails


def test_a_right_sampler_passes_exactly_and_by_statistics() -> None:
    found = whole(own(rule))
    assert found.passed
    assert found.notes == ()
    assert [finding.exact for finding in found.findings] == [True] * 2
    assert max(finding.tv.estimate for finding in found.findings) < 1e-6
    assert "lossless by all evidence" in audit_report.conclusion(found)


def test_what_statistics_cannot_see_is_found_by_the_exact_law() -> None:
    """u q <= p lets p = 0 pass at u = 0: the audit says that statistics pass and that the law is wrong."""
    found = whole(own(lambda p, q, tokens: rule(p, q, tokens, strict=False)))
    statistics = [claim for claim in found.claims if claim.name.startswith("statistics")]
    assert all(claim.passed for claim in statistics)
    assert len(statistics) == 2
    assert not found.passed
    assert [claim.passed for claim in found.claims if "impossible" in claim.name] == [True, False]
    assert all(claim.passed for claim in found.claims if claim.name.endswith("TV"))
    said = audit_report.conclusion(found)
    assert "not lossless. Statistics pass" in said
    assert "impossible mass" in said
    assert "below what statistics can see" in said
    assert found.likeness is None  # no mutant is as near to it as it is to the target


def test_a_wrong_sampler_fails_and_its_fault_gets_a_name(accepting: audit.Audit) -> None:
    """Always accepting has its law in the catalogue; the name comes from the law alone."""
    found = accepting
    assert not found.passed
    world, expected = chain_reference(), Fraction(0)
    for x, mass in joint(world).items():  # the law is q q p
        expected += abs(world.draft(())[x[0]] * world.draft(x[:1])[x[1]] * world.target(x[:2])[x[2]] - mass) / 2
    assert found.findings[0].tv.estimate == pytest.approx(float(expected), abs=1e-6)
    assert all(not claim.passed for claim in found.claims if claim.name.startswith("statistics, reference"))
    assert found.likeness is not None
    assert (found.likeness.name, found.likeness.near) == ("always accept", True)
    assert found.likeness.distance < 1e-6
    assert "resembles the mutant 'always accept'" in audit_report.conclusion(found)


def test_a_race_leaves_statistics_and_single_points() -> None:
    """Token verification whose last token wins a race: right, and then with u q <= p, which lets p = 0 pass at u = 0."""
    found = whole(own(lambda p, q, tokens: rule(p, q, tokens, pick=winner)))
    assert found.passed
    assert len(found.notes) == 1
    assert "3 exponential numbers" in found.notes[0]
    assert not any(finding.exact for finding in found.findings)
    assert "by statistics alone" in audit_report.conclusion(found)
    found = whole(own(lambda p, q, tokens: rule(p, q, tokens, strict=False, pick=winner)))
    edges = [claim for claim in found.claims if claim.name.startswith("edges")]
    assert all(claim.passed for claim in found.claims if claim.name.startswith("statistics"))
    assert [claim.passed for claim in edges] == [True, False]
    assert "number 1 at 0" in audit_report.conclusion(found)


def test_our_verifiers_are_audited_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "known_laws", lambda world, say: iter(()))
    assert whole(find("token")).passed
    assert whole(find("greedy")).passed  # at temperature 0
    if "coupled" in verifiers:
        found = whole(find("coupled"))
        assert found.passed
        assert "race" in found.notes[0]
    if "lenient" in verifiers:
        found = whole(find("lenient"))
        assert not found.passed
        assert found.findings[0].tv.estimate > 0.01


def test_a_verifier_that_cannot_be_lifted_is_run_one_round_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rule with a Python branch: the same exact law in float32, to the last bit."""

    def branching(tape: Any, target_probs: torch.Tensor, draft: Any) -> Verdict:
        accepted = 0
        while accepted < int(draft.length):
            token = int(draft.tokens[accepted])
            if not float(tape.accept[accepted]) * float(draft.probs[accepted, token]) < float(target_probs[accepted, token]):
                break
            accepted += 1
        from specdec_fn.sampling import draw
        from specdec_fn.speculate.recover import residual

        law = residual(target_probs[accepted], draft.probs[accepted]) if accepted < int(draft.length) else target_probs[accepted]
        return of_chain(draft, torch.tensor(accepted), draw(tape.final, law))

    monkeypatch.setattr(audit, "worlds", lambda greedy=False: (chain_reference(),))
    suspect = own(as_round(branching), decide=branching)
    found = whole(suspect)
    assert found.passed
    assert len([claim for claim in found.claims if "float32" in claim.name]) == 2
    direct = integrate.measure(verifiers["token"].decide, chain_reference(), torch.float32)
    assert found.findings[0].exact
    assert abs(found.findings[0].tv.estimate - float(direct.tv)) < 1e-7  # the shipped drawer of drafts has its own rounding


# What cannot be audited


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda p, q, tokens: [random.SystemRandom().randrange(3) for _ in range(3)], "from the same random numbers"),
        (lambda p, q, tokens: [], "emitted 0 tokens"),
        (lambda p, q, tokens: [0] * 4, "emitted 4 tokens"),
        (lambda p, q, tokens: [7], "emitted id 7"),
        (lambda p, q, tokens: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_a_bad_sampler_is_refused_by_name(give: Callable[..., Any], words: str) -> None:
    with pytest.raises(SuspectError, match=f"^mine .*{words}") as refusal:
        whole(own(give))
    assert "\n" not in str(refusal.value)


def test_a_verifier_that_is_no_function_of_its_tape_is_refused() -> None:
    numbers = random.Random(0)

    def loaded(tape: Any, target_probs: torch.Tensor, draft: Any) -> Verdict:
        return of_chain(draft, torch.tensor(0), torch.tensor(numbers.randrange(3)))

    with pytest.raises(SuspectError, match="expected a function of its numbers"):
        whole(own(as_round(loaded), decide=loaded))


def test_numbers_behind_our_back_leave_statistics() -> None:
    def pythons(p: torch.Tensor, q: torch.Tensor | None, tokens: torch.Tensor) -> list[int]:
        return random.choices(range(3), p[0].tolist())

    def numpys(p: torch.Tensor, q: torch.Tensor | None, tokens: torch.Tensor) -> list[int]:
        row = p[0].double().numpy()
        return [int(np.random.choice(3, p=row / row.sum()))]  # noqa: NPY002

    for give in (pythons, numpys):
        found = whole(own(give))
        assert found.passed
        assert "global generator" in found.notes[0]
        assert whole(own(give)).claims[0].figure == found.claims[0].figure  # seeded all the same


def test_too_many_numbers_leave_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    def many(p: torch.Tensor, q: torch.Tensor | None, tokens: torch.Tensor) -> list[int]:
        return [int(torch.multinomial(p[0], 1)) + 0 * int(torch.rand(9).sum())]

    assert "10 numbers" in whole(own(many)).notes[0]
    monkeypatch.setattr(audit_exact, "MOST_EVALUATIONS", 2000)
    curved = own(lambda p, q, tokens: [int(torch.rand(2).prod() < p[0, 0])])
    with pytest.raises(UnreachableError, match="no end of boxes"):
        audit_exact.measure(curved, chain_reference())


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="received 10 rounds"):
        next(audit.run(find("token"), 10))
    with pytest.raises(ValueError, match="the seed is -1"):
        next(audit.run(find("token"), seed=-1))
    with pytest.raises(SuspectError, match="no mutants are known of token"):
        next(audit.mutants(find("token")))


# Parts


def test_rounds_follow_the_law_and_the_seed() -> None:
    """Against the exact target, with the test the audit uses; the same seed gives the same counts, another does not."""
    world, suspect = mixed_tables(14, 3, 2), own(rule)
    counts = audit_rounds.of_round(suspect, world, 4000, 5)
    assert counts.tolist() == audit_rounds.of_round(suspect, world, 4000, 5).tolist()
    assert counts.tolist() != audit_rounds.of_round(suspect, world, 4000, 6).tolist()
    p = cells(world, joint(world), 3)
    assert counts[p == 0].sum() == 0
    inside = p > 0
    chi2 = float((((counts - 4000 * p)[inside] ** 2) / (4000 * p[inside])).sum())
    assert chi2 < 60  # on 15 degrees of freedom: p about 1e-7


def test_the_interval_of_a_sampled_distance_holds_it() -> None:
    draw, misses = np.random.default_rng(3), 0
    p, o = np.full(27, 1 / 27), np.append(np.full(13, 1.2 / 27), np.full(14, (27 - 13 * 1.2) / 14 / 27))
    tv = 0.5 * float(np.abs(p - o).sum())
    for _ in range(300):
        low, estimate, high = audit_rounds.interval(draw.multinomial(20_000, o), p)
        assert low <= estimate <= high
        misses += not low <= tv <= high
    assert misses <= 3
    assert audit_rounds.interval(draw.multinomial(10**7, o), p).low > 0.09


def test_what_can_be_seen_is_what_the_noncentral_law_says() -> None:
    """lambda / (4 TV**2) draws: 27 cells at level 1e-6 and power .999 need lambda = 104 (scipy's noncentral law, by bisection here)."""
    from scipy import stats

    tv = audit_rounds.seen(chain_reference(), 120_000, 4)
    noncentral = 4 * tv**2 * 120_000
    assert stats.ncx2.sf(stats.chi2.isf(1e-6 / 4, 26), 26, noncentral) == pytest.approx(0.999, abs=1e-6)
    assert math.isclose(tv, 2 * audit_rounds.seen(chain_reference(), 480_000, 4), rel_tol=1e-6)


def test_a_law_that_resembles_nothing_gets_no_name() -> None:
    p = np.full(3, 1 / 3)
    known = {"first": np.array([1.0, 0.0, 0.0]), "second": np.array([0.0, 1.0, 0.0])}
    found = nearest(np.array([0.0, 0.1, 0.9]), p, known)
    assert found is not None
    assert (found.name, found.near) == ("second", False)
    assert nearest(p, p, {}) is None


def test_statistics_look_at_the_whole_sequence() -> None:
    """A bonus token from the row before: the first token is right, the sequence is off by .1719."""
    early = own(lambda p, q, tokens: rule(torch.cat([p[:-1], p[-2:-1]]), q, tokens))
    counts, p = audit_rounds.of_round(early, chain_reference(), 2000, 1), cells(chain_reference(), joint(chain_reference()), 3)
    first, wanted = counts.reshape(3, 9).sum(1), p.reshape(3, 9).sum(1)
    assert pearson(first, wanted).p_value > 1e-6
    assert pearson(counts, p).p_value < 1e-20
    assert audit_rounds.interval(counts, p).estimate == pytest.approx(0.1719, abs=0.05)


def test_mutants_must_be_rejected_twice() -> None:
    """By the exact law and by statistics; one that is right is a claim that failed."""
    accept = Suspect("keeps all", "edited", lambda p, q, tokens: rule(p, q, tokens, accept_all=True))
    suspect = own(rule, mutants=lambda: (accept, Suspect("changes nothing", "edited", rule)))
    claims = list(audit.mutants(suspect, ROUNDS))
    assert [claim.passed for claim in claims] == [True, True, False, False]
    assert claims[0].name == "mutant, keeps all: exact TV"
    assert claims[1].figure <= 1e-6


def test_the_report_is_plain_values(accepting: audit.Audit) -> None:
    found = accepting
    values = json.loads(json.dumps(audit_report.as_json(found, [Claim("m", 0.5, "> 0", True, "", 0.1)])))
    assert (values["passed"], values["rounds"], len(values["mutants"])) == (False, 1000, 1)
    assert values["resembles"]["name"] == "always accept"
    law = values["laws"][0]["law"]
    assert len(law) == 27
    assert law["0 1 2"][1] == pytest.approx(float(joint(chain_reference())[(0, 1, 2)]))
    assert sum(found for found, _ in law.values()) == pytest.approx(1)
    claims, shown = audit_report.tables(found)
    assert (claims.row_count, shown.row_count) == (len(found.claims), 6)


# Generators


TABLE = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]], dtype=torch.float64)


def speaking(verifier: Any) -> audit_generator.Generate:
    """This house's generator on a bigram table, with drafts that are always token 0."""
    model = toy.bigram(TABLE)

    def run(context: list[int], n_tokens: int, seed: int, speculate: bool) -> list[int]:
        draft = (lambda ids: [0, 0]) if speculate else None
        return generate(model, context, seed=seed, verifier=verifier, k=2, max_tokens=n_tokens, draft_fn=draft).tokens

    return run


def test_our_generator_is_the_same_with_speculation() -> None:
    *_, found = audit_generator.run(speaking("token"), "ours", 150, contexts=[(0,)])
    assert found.passed
    assert len(found.claims) == 3
    assert "sees any TV" in found.claims[0].detail


def test_a_generator_that_keeps_every_draft_is_found() -> None:
    def keep(tape: Any, target_probs: torch.Tensor, draft: Any) -> Verdict:
        from specdec_fn.sampling import draw

        return of_chain(draft, draft.length, draw(tape.final, target_probs[int(draft.length)]))

    biased = verifiers["token"]._replace(decide=keep)
    *_, found = audit_generator.run(speaking(biased), "biased", 150, contexts=[(1,)])
    assert not found.passed
    assert found.claims[0].figure < 1e-6
    assert "not lossless" in audit_report.conclusion(found)


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda context, n, seed, speculate: [], "returned 0 tokens"),
        (lambda context, n, seed, speculate: [0] * 4, "returned 4 tokens"),
        (lambda context, n, seed, speculate: [-3], "id -3"),
        (lambda context, n, seed, speculate: "abc", "expected a list of ids"),
        (lambda context, n, seed: [0], "raised TypeError"),
        (lambda context, n, seed, speculate: [random.SystemRandom().randrange(10**9)], "expected a function of its arguments"),
    ],
)
def test_a_bad_generator_is_refused_by_name(give: Callable[..., Any], words: str) -> None:
    with pytest.raises(SuspectError, match=f"^mine .*{words}"):
        next(audit_generator.run(give, "mine", 100))


def test_an_end_is_an_outcome_like_others() -> None:
    def ending(context: list[int], n: int, seed: int, speculate: bool) -> list[int]:
        draw = random.Random(seed)
        return [1] * draw.choice([1, 2, 3] if not speculate else [2, 3])

    *_, found = audit_generator.run(ending, "ending", 400, contexts=[(0,)])
    assert not found.passed
    with pytest.raises(ValueError, match="received 5 rounds"):
        next(audit_generator.run(ending, "ending", 5))
