"""Claims as a table for people and as rows for programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdec_proofs.claim import Claim
from specdec_proofs.families import corrected, families, words

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["as_json", "lines", "result", "summary", "table"]


def table(claims: Sequence[Claim], title: str = "Claims about the code that ships", *, details: bool = True) -> "Table":
    """A table with one line a claim, for ``rich.console.Console.print``.

    Args:
        details: whether to show how long each took and what else there is to say of it.

    >>> table([Claim("a", 0.0, "== 0", True, "", 0.5)]).row_count
    1
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, caption=summary(claims), title_justify="left", caption_justify="left")
    for heading in ("claim", "figure", "gate", "result", *(("seconds", "detail") if details else ())):
        made.add_column(heading, justify="right" if heading in ("figure", "seconds") else "left", overflow="fold")
    last = claims[0].family if claims else ""
    for claim in claims:
        if claim.family != last:
            made.add_section()
        last = claim.family
        row = (Text(claim.name), f"{claim.figure:.4g}", Text(claim.gate), Text(*result(claim)))
        made.add_row(*row, *((f"{claim.seconds:.1f}", Text(claim.detail)) if details else ()))
    return made


def result(claim: Claim) -> tuple[str, str]:
    """What came of a claim, and its colour; of a mutant that it was seen, which is what is claimed.

    >>> result(Claim("mutant 01: sampled", 0.0, "p <= 1e-06", True, "", 0.5))
    ('rejected', 'green')
    """
    if not claim.passed:
        return "FAILED", "bold red"
    wrong = "mutant" in claim.name or claim.name.startswith("control, 24-bit race")
    return ("rejected" if wrong and not claim.name.startswith("algorithm") else "passed"), "green"


def summary(claims: Sequence[Claim]) -> str:
    """One line: how many claims, how many failed.

    >>> summary([Claim("a", 0.0, "== 0", True, "", 0.5), Claim("b", 1.0, "== 0", False, "", 0.5)])
    '2 claims, 1 failed, 1.0 s'
    """
    failed = sum(not claim.passed for claim in claims)
    return f"{len(claims)} claims, {failed or 'none'} failed, {sum(claim.seconds for claim in claims):.1f} s"


def lines(claims: Sequence[Claim]) -> list[str]:
    """What to say below the table: a line for each family, with what Holm's correction leaves of its tests, and the names of what failed.

    >>> lines([Claim("a", 1.0, "== 0", False, "", 0.5, "exact")])
    ['exact: 1 claims, 1 failed', 'FAILED: a']
    """
    return [*map(words, families(claims)), *(f"FAILED: {claim.name}" for claim in claims if not claim.passed)]


def as_json(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """The claims as dictionaries of plain values; a figure that could not be had, or that is infinite, is null.

    Beside the fields of ``Claim`` each has ``p_corrected``, its p-value after Holm's correction inside its family, null where it has none.

    >>> row = as_json([Claim("a", 0.0, "== 0", True, "", 0.5, "exact")])[0]
    >>> row["name"], row["figure"], row["passed"], row["family"], row["p_corrected"]
    ('a', 0.0, True, 'exact', None)
    """
    values = corrected(claims)
    plain = [{**claim._asdict(), "figure": claim.figure if abs(claim.figure) < float("inf") else None} for claim in claims]
    return [{**row, "p_corrected": value} for row, value in zip(plain, values, strict=True)]
