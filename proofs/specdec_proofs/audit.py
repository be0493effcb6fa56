"""The audit of a sampler, ours or anyone's: its exact law where its randomness can be injected, statistics always, and what fault it resembles.

Four worlds over 3 tokens with 2 drafted ones: the reference chain, random rows, and two tables with zeros. On each the law of the completed
sequence (``enumerate``) is held against the target's. Statistics see faults from about a hundredth in total variation on; the exact law sees a
single grid point. Where the first pass and the second does not, the audit says both.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from specdec_fn.speculate import Draft, Tape, batched
from specdec_proofs import audit_exact, audit_rounds, integrate
from specdec_proofs.chi2 import holm, pearson
from specdec_proofs.claim import Claim, one_thread
from specdec_proofs.enumerate import completed, joint
from specdec_proofs.interception import UnreachableError
from specdec_proofs.power import ALPHA, pool
from specdec_proofs.resemblance import Likeness, known_laws, nearest
from specdec_proofs.sample import cells
from specdec_proofs.suspects import Suspect, SuspectError
from specdec_proofs.worlds import World, chain_reference, cold, mixed_tables, softmax

__all__ = ["Audit", "Finding", "mutants", "run", "sampled", "worlds"]

GATES = ((torch.float32, 1e-6), (torch.float64, 1e-14))
LEAST = 1000  # rounds: below it nothing can be seen at level 1e-6
Say = Callable[[str], None]
Vector = NDArray[np.float64]


class Finding(NamedTuple):
    """The law that was found on one world.

    Attributes:
        world: its name.
        exact: whether the law was computed or sampled.
        law, target: float [V**(K + 1)], of every completed sequence in lexicographic order.
        tv: total variation between the two: low, estimate, high; all the same where it is exact.
        impossible: mass on what the target cannot produce.
    """

    world: str
    exact: bool
    law: Vector
    target: Vector
    tv: audit_rounds.Interval
    impossible: float


class Audit(NamedTuple):
    """How far an audit has come.

    Attributes:
        name, origin: the suspect's.
        seed, rounds: of the statistics, rounds on each world.
        claims: what was checked so far.
        findings: the laws found.
        likeness: the mutant that the law resembles, where the law is wrong.
        notes: what a reader must know, such as why there is no exact law.
    """

    name: str
    origin: str
    seed: int
    rounds: int
    claims: tuple[Claim, ...] = ()
    findings: tuple[Finding, ...] = ()
    likeness: Likeness | None = None
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every claim holds."""
        return all(claim.passed for claim in self.claims)


def worlds(greedy: bool = False) -> tuple[World, ...]:
    """The worlds of an audit; at temperature 0 for a rule that is only made for that.

    >>> [world.name for world in worlds()]
    ['reference chain V=3 K=2', 'softmax V=3 K=2', 'tables V=3 K=2 seed 14', 'tables V=3 K=2 seed 22']
    """
    made = (chain_reference(), softmax(0, 3, 2), mixed_tables(14, 3, 2), mixed_tables(22, 3, 2))
    return tuple(map(cold, made)) if greedy else made


def run(suspect: Suspect, rounds: int = 30_000, seed: int = 0, progress: Say | None = None) -> Iterator[Audit]:
    """Audits a sampler and yields what is known after every step; the last is the whole. Whoever stops listening stops the work.

    Args:
        rounds: of the statistics, on each world.
        seed: of the statistics.
        progress: called with a line now and then.

    Raises:
        SuspectError: it fails, gives no ids of the vocabulary, none or too many, or is no function of its numbers.
        ValueError: fewer than 1,000 rounds, or a seed that is negative.

    >>> from specdec_proofs.suspects import find
    >>> *_, whole = run(find("token"), rounds=1000)
    >>> whole.passed, len(whole.claims)
    (True, 16)
    """
    if rounds < LEAST:
        raise ValueError(f"received {rounds} rounds; expected at least {LEAST:,}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"the seed is {seed}; expected 0 to 2**32 - 1")
    say = progress or (lambda line: None)
    state = Audit(suspect.name, suspect.origin, seed, rounds)
    with one_thread():
        lifted = _check(suspect, say)
    for world in worlds(suspect.greedy):
        say(f"exact law on {world.name}")
        try:
            with one_thread():
                state = _exact(state, suspect, world, lifted)
        except UnreachableError as error:
            state = state._replace(notes=(*state.notes, f"there is no exact law, only statistics: {error}"))
            with one_thread():
                state = _edges(state, suspect)
            break
        yield state
    tested: list[tuple[Claim, Finding]] = []
    for number, world in enumerate(worlds(suspect.greedy)):
        with one_thread():
            tested.append(sampled(suspect, world, rounds, seed + 1000 * number, lifted, say))
        yield _with(state, tested)
    state = _with(state, tested, final=True)
    if not state.passed:
        say("comparing with the mutants")
        with one_thread():
            state = state._replace(likeness=_likeness(state, say))
    yield state


def mutants(suspect: Suspect, rounds: int = 30_000, seed: int = 0, progress: Say | None = None) -> Iterator[Claim]:
    """Audits faults put into the suspect's own source text, on the reference chain: each must be rejected, by its exact law and by statistics.

    Raises:
        SuspectError: the suspect has none, or they do not fit its source.

    >>> from specdec_proofs.suspects import find
    >>> next(mutants(find("token")))
    Traceback (most recent call last):
    ...
    specdec_proofs.suspects.suspect.SuspectError: no mutants are known of token; expected a suspect with source faults, such as transformers
    """
    if suspect.mutants is None:
        raise SuspectError(f"no mutants are known of {suspect.name}; expected a suspect with source faults, such as transformers")
    say, world = progress or (lambda line: None), worlds()[0]
    for number, mutant in enumerate(suspect.mutants()):
        say(f"mutant {mutant.name}: exact law")
        started = time.perf_counter()
        with one_thread():
            measured = audit_exact.measure(mutant, world)
        killed = measured.tv > GATES[0][1] and not measured.violations
        detail = "; ".join(measured.violations) or f"{measured.evaluations:,} evaluations"
        took = time.perf_counter() - started
        yield Claim(f"mutant, {mutant.name}: exact TV", float(measured.tv), f"> {GATES[0][1]:g}", killed, detail, took)
        say(f"mutant {mutant.name}: statistics")
        with one_thread():
            claim, _ = sampled(mutant, world, rounds, seed + 1000 * number, False, say)
        yield claim._replace(name=f"mutant, {mutant.name}: statistics", gate=f"p <= {ALPHA:g}", passed=claim.figure <= ALPHA)


def _check(suspect: Suspect, say: Say) -> bool:
    """A few rounds, for what is plainly wrong; whether the suspect is a verifier that can be run on all rounds at once."""
    say(f"first rounds of {suspect.name}")
    if suspect.boxes:
        with suppress(UnreachableError):  # said where the exact law is asked for
            audit_exact.reach(suspect, worlds(suspect.greedy)[0])
    if suspect.decide is None:
        return False
    audit_exact.twice(suspect, worlds(suspect.greedy)[0])
    if not suspect.boxes:
        return True
    p, q = torch.full((2, 3, 3), 1 / 3, dtype=torch.float64), torch.full((2, 2, 3), 1 / 3, dtype=torch.float64)
    try:
        batched(suspect.decide)(Tape(p[:, :2, 0], p[:, 0, 0]), p, Draft(torch.zeros(2, 2, dtype=torch.int64), q, torch.tensor([2, 2])))
    except Exception:
        return False  # it looks at values, as Python does; then it is run one round at a time
    return True


def _exact(state: Audit, suspect: Suspect, world: World, lifted: bool) -> Audit:
    if not suspect.boxes:
        raise UnreachableError("its tape is a race between tokens, whose winner does not split along single numbers")
    for dtype, gate in GATES if lifted else GATES[:1]:
        started = time.perf_counter()
        if lifted and suspect.decide is not None:
            measured = integrate.measure(suspect.decide, world, dtype)
        else:
            measured = audit_exact.measure(suspect, world, dtype)
        if measured.violations:
            raise UnreachableError(f"on {world.name}, {'; '.join(measured.violations)}")
        took, kind = time.perf_counter() - started, str(dtype).removeprefix("torch.")
        name = f"exact law, {world.name}, {kind}"
        detail = f"{measured.evaluations:,} evaluations"
        claims = [Claim(f"{name}: TV", float(measured.tv), f"<= {gate:g}", measured.tv <= gate, detail, took)]
        if dtype is torch.float32:
            lost = measured.impossible
            claims.append(Claim(f"{name}: impossible mass", float(lost), "== 0", lost == 0, "on what the target cannot produce", 0.0))
            law = cells(world, completed({x: mass for x, mass in measured.emitted.items() if x}, world), world.k + 1)
            tv = float(measured.tv)
            finding = Finding(world.name, True, law, _target(world), audit_rounds.Interval(tv, tv, tv), float(lost))
            state = state._replace(findings=(*state.findings, finding))
        state = state._replace(claims=(*state.claims, *claims))
    return state


def _edges(state: Audit, suspect: Suspect) -> Audit:
    """What can be said without a law: the single points where statistics see nothing."""
    if not suspect.boxes:
        return state
    claims = []
    for world in worlds(suspect.greedy):
        started = time.perf_counter()
        try:
            found = audit_exact.edges(suspect, world)
        except UnreachableError:
            return state
        detail = found.example or f"{found.rounds:,} rounds with one uniform at 0 or at its largest value"
        took = time.perf_counter() - started
        claims.append(Claim(f"edges, {world.name}: impossible outcomes", found.impossible, "== 0", not found.impossible, detail, took))
    return state._replace(claims=(*state.claims, *claims))


def sampled(suspect: Suspect, world: World, rounds: int, seed: int, lifted: bool = False, say: Say = lambda line: None) -> tuple[Claim, Finding]:
    """The statistics of one world: the joint law of the completed sequences, with what the test can see.

    Args:
        rounds, seed: how many, and their seed.
        lifted: whether the suspect is a verifier that can be run on all rounds at once.
        say: called with a line now and then.

    >>> from specdec_proofs.suspects import find
    >>> sampled(find("token"), worlds()[0], 2000, 0, lifted=True)[0].passed
    True
    """
    started, tests, p = time.perf_counter(), len(worlds()), _target(world)
    say(f"{rounds:,} rounds on {world.name}")
    once = lifted and suspect.decide is not None
    counts = audit_rounds.of_decide(suspect, world, rounds, seed) if once else audit_rounds.of_round(suspect, world, rounds, seed, progress=say)
    found = audit_rounds.interval(counts, p)
    planned = pool(p, rounds)
    if planned.df:
        result = pearson(counts, p, planned)
        value, lost = result.p_value, result.impossible
        power = f"sees any TV >= {audit_rounds.seen(world, rounds, tests):.4f} with power .999"
        detail = f"N {rounds:,}, chi2 {result.statistic:.1f} on {result.df}; {power}; TV in [{found.low:.4f}, {found.high:.4f}]"
    else:  # one sequence has all the mass, so one count elsewhere is enough
        lost = int(counts[p == 0].sum())
        value, detail = float(lost == 0), f"N {rounds:,}; one sequence is possible"
    if lost:
        detail += f"; {lost:,} rounds gave what the target cannot produce"
    claim = Claim(f"statistics, {world.name}", value, f"p > {ALPHA:g} (Holm)", value > ALPHA / tests, detail, time.perf_counter() - started)
    return claim, Finding(world.name, False, counts / counts.sum(), p, found, lost / rounds)


def _with(state: Audit, tested: list[tuple[Claim, Finding]], final: bool = False) -> Audit:
    claims = [claim for claim, _ in tested]
    if final:
        wrong = holm([claim.figure for claim in claims], ALPHA)
        claims = [claim._replace(passed=not rejected) for claim, rejected in zip(claims, wrong, strict=True)]
    sampled = [finding for _, finding in tested if finding.world not in {known.world for known in state.findings}]
    return state._replace(claims=(*state.claims, *claims), findings=(*state.findings, *sampled))


def _likeness(state: Audit, say: Say) -> Likeness | None:
    world, finding = worlds()[0], state.findings[0]
    if finding.world != world.name or finding.tv.low <= GATES[0][1]:
        return None
    noise = finding.tv.high - finding.tv.estimate
    return nearest(finding.law, finding.target, dict(known_laws(world, say)), noise)


def _target(world: World) -> Vector:
    return cells(world, joint(world), world.k + 1)
