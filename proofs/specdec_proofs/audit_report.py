"""An audit as words, as tables for people and as plain values for programs."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_proofs import report
from specdec_proofs.audit import Audit, Finding
from specdec_proofs.claim import Claim

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["as_json", "conclusion", "law_table", "tables"]

SHOWN = 6  # sequences of a law


def conclusion(audit: Audit) -> str:
    """What the audit says, in a few sentences.

    >>> conclusion(Audit("mine", "here", 0, 1000))
    'mine: nothing was checked.'
    """
    if not audit.claims:
        return f"{audit.name}: nothing was checked."
    exact = [claim for claim in audit.claims if claim.name.startswith("exact law")]
    sampled = [claim for claim in audit.claims if claim.name.startswith("statistics")]
    verdict = "not lossless" if not audit.passed else "lossless by all evidence" if exact else "no fault found, by statistics alone"
    said = [f"{audit.name}: {verdict}."]
    if sampled and all(claim.passed for claim in sampled):
        said.append(f"Statistics pass at {audit.rounds:,} rounds on each of {len(sampled)} {'worlds' if exact or len(sampled) > 1 else 'world'}.")
    elif sampled:
        worst = min(sampled, key=lambda claim: claim.figure)
        said.append(f"Statistics reject on {sum(not claim.passed for claim in sampled)} of {len(sampled)} worlds (p = {worst.figure:.1e}).")
    known = [finding for finding in audit.findings if finding.exact]
    if known:
        worst_tv = max(known, key=lambda finding: finding.tv.estimate)
        said.append(f"Exact law: total variation {worst_tv.tv.estimate:.2e} on {worst_tv.world}, the largest of {len(known)} worlds.")
        lost = max(known, key=lambda finding: finding.impossible)
        if lost.impossible:
            said.append(f"Exact law: impossible mass {lost.impossible:.2e} on {lost.world}: it emits what the target cannot produce.")
            if sampled and all(claim.passed for claim in sampled):
                said.append("That is below what statistics can see, so the two disagree and the exact law is right.")
    elif audit.findings:
        wide = max(audit.findings, key=lambda finding: finding.tv.high)
        said.append(f"Sampled law: total variation below {wide.tv.high:.4f} with confidence .999 ({wide.world}, of {len(audit.findings)} worlds).")
    edges = [claim for claim in audit.claims if claim.name.startswith("edges") and not claim.passed]
    if edges:
        said.append(f"With one uniform at an end of its grid, mass 2**-24, it emits what the target cannot produce ({edges[0].detail}).")
        if sampled and all(claim.passed for claim in sampled):
            said.append("That is below what statistics can see.")
    if audit.likeness is not None:
        like = audit.likeness
        nearly = "it resembles the mutant" if like.near else "it resembles no known mutant; the nearest is"
        said.append(f"Of the faults of the catalogue {nearly} {like.name!r} (total variation {like.distance:.2e} between them).")
    return " ".join([*said, *(f"Note: {note}." for note in audit.notes)])


def tables(audit: Audit, mutants: Sequence[Claim] = ()) -> Iterator["Table"]:
    """The claims, and the law of the world where it is furthest off, for ``rich.console.Console.print``.

    >>> [table.row_count for table in tables(Audit("mine", "here", 0, 1000))]
    [0]
    """
    yield report.table([*audit.claims, *mutants], f"Audit of {audit.name} ({audit.origin}), seed {audit.seed}")
    rejected = any(not claim.passed and claim.name.startswith("statistics") for claim in audit.claims)
    if not audit.passed and (rejected or any(finding.exact for finding in audit.findings)):
        yield law_table(max(audit.findings, key=lambda finding: (finding.impossible if finding.exact else 0.0, finding.tv.low)))


def law_table(finding: Finding) -> "Table":
    """The sequences that the target cannot produce, then those whose probability is furthest from the target's.

    >>> from specdec_proofs.audit_rounds import Interval
    >>> law = np.eye(27)[0]
    >>> law_table(Finding("w", True, law, law[::-1], Interval(1.0, 1.0, 1.0), 1.0)).row_count
    6
    """
    from rich.table import Table

    kind = "exact" if finding.exact else "sampled"
    made = Table(title=f"The law found on {finding.world} ({kind}), what the target cannot produce first", title_justify="left")
    for heading in ("sequence", "found", "target", "difference"):
        made.add_column(heading, justify="left" if heading == "sequence" else "right")
    apart = finding.law - finding.target
    lost = (finding.target == 0) & (finding.law > 0)
    for cell in np.lexsort((-np.abs(apart), ~lost))[:SHOWN].tolist():
        made.add_row(_sequence(cell, len(apart)), f"{finding.law[cell]:.6g}", f"{finding.target[cell]:.6g}", f"{apart[cell]:+.3g}")
    return made


def as_json(audit: Audit, mutants: Sequence[Claim] = (), *, complete: bool = True) -> dict[str, Any]:
    """The audit as plain values: claims, laws by sequence (found and target), the likeness and the conclusion.

    Args:
        complete: whether it ran to its end. Otherwise it has not passed, and has failed only if some claim did: ``passed`` is then null.

    >>> sorted(as_json(Audit("mine", "here", 0, 1000)))
    ['claims', 'complete', 'conclusion', 'laws', 'mutants', 'name', 'notes', 'origin', 'passed', 'resembles', 'rounds', 'seed']
    """
    failed = not all(claim.passed for claim in (*audit.claims, *mutants))
    return {
        "name": audit.name,
        "origin": audit.origin,
        "seed": audit.seed,
        "rounds": audit.rounds,
        "passed": False if failed else True if complete and audit.claims else None,
        "complete": complete,
        "conclusion": conclusion(audit),
        "claims": report.as_json(audit.claims),
        "mutants": report.as_json(mutants),
        "laws": [_finding(finding) for finding in audit.findings],
        "resembles": None if audit.likeness is None else audit.likeness._asdict(),
        "notes": list(audit.notes),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    size = len(finding.law)
    return {
        "world": finding.world,
        "exact": finding.exact,
        "tv": finding.tv._asdict(),
        "impossible": finding.impossible,
        "law": {_sequence(cell, size): [float(finding.law[cell]), float(finding.target[cell])] for cell in range(size)},
    }


def _sequence(cell: int, size: int, vocab: int = 3) -> str:
    length = round(np.log(size) / np.log(vocab))
    return " ".join(str(cell // vocab ** (length - 1 - i) % vocab) for i in range(length))
