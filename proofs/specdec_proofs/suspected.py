"""Claims about a sampler that is not ours: transformers' rule where it is installed, and the faults put into its text.

It is the audit's own control: a rule that many run must pass the statistics, and each of its seven mutants must fail. What the exact law shows
besides (a token of probability 0 accepted at u = 0) is said by ``specdec audit transformers``; here it is a detail.
"""

from collections.abc import Callable, Iterator

from specdec_proofs import audit, audit_exact
from specdec_proofs.claim import Figure
from specdec_proofs.power import ALPHA
from specdec_proofs.suspects import SuspectError, find
from specdec_proofs.worlds import World

__all__ = ["claims"]

ROUNDS = 120_000
Task = tuple[str, str, Callable[[], Figure]]


def claims(rounds: int = ROUNDS) -> Iterator[Task]:
    """The claims, none where transformers is not installed: name, gate, measurement.

    Args:
        rounds: of each test, on 27 sequences.

    >>> listed = [name for name, _, _ in claims()]
    >>> len(listed) in (0, 15)
    True
    """
    try:
        suspect = find("transformers")
        mutants = suspect.mutants() if suspect.mutants is not None else ()
    except SuspectError:
        return
    for number, world in enumerate(audit.worlds()):
        yield f"transformers: exact TV, {world.name}", "<= 1e-06", _exact(world)
        yield f"transformers: statistics, {world.name}", f"p > {ALPHA:g}", _sampled(suspect.name, None, world, rounds, number)
    for number, mutant in enumerate(mutants):
        yield f"transformers mutant, {mutant.name}: statistics", f"p <= {ALPHA:g}", _sampled(suspect.name, number, audit.worlds()[0], rounds, number)


def _exact(world: World) -> Callable[[], Figure]:
    def measurement() -> Figure:
        measured = audit_exact.measure(find("transformers"), world)
        detail = f"float32; mass on what p cannot produce {float(measured.impossible):.1e} (it accepts at u = 0 where p = 0)"
        return Figure(float(measured.tv), measured.tv <= 1e-6 and not measured.violations, "; ".join(measured.violations) or detail)

    return measurement


def _sampled(name: str, mutant: int | None, world: World, rounds: int, seed: int) -> Callable[[], Figure]:
    def measurement() -> Figure:
        suspect = find(name)
        if mutant is not None:
            assert suspect.mutants is not None
            suspect = suspect.mutants()[mutant]
        claim, _ = audit.sampled(suspect, world, rounds, seed)
        rejected = claim.figure <= ALPHA
        return Figure(claim.figure, rejected if mutant is not None else not rejected, claim.detail)

    return measurement
