"""The catalogue: faults that engines have shipped, or nearly, each as an edit of the source that ships.

A mutant is killed twice: by the exact law of its code, whose total variation must be the one worked out in ``laws``, and by a chi-squared
test whose size was fixed from that law before any data. Single-position mutants are judged on their first token, chain mutants on the whole
completed sequence, since their first token is right.

``equivalents`` are edits that change the code and not its law; a checker that rejected them would be wrong.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from specdec_proofs.enumerate import Emitted, residual, token
from specdec_proofs.mutants.edit import Edit, decide
from specdec_proofs.mutants.laws import (
    accepting,
    bonus,
    continuing,
    likeliest,
    only,
    previous_residual,
    repaired,
    same_uniform,
    shared_with_final,
    without_rejected,
)
from specdec_proofs.worlds import World, chain_reference, normalised, pair_reference

__all__ = ["Mutant", "catalogue", "equivalents"]


class Mutant(NamedTuple):
    """A fault, as a change of the source that ships.

    Attributes:
        name: one line.
        number: its number in the catalogue of reference laws; chain mutants and equivalents have none.
        edits: the changes.
        world: where it is judged.
        law: the law it must emit there, from the mathematics.
        length: how many tokens of the completed sequence the statistics look at.
        draft_rows: rows of ``Draft.probs`` it reads, K unless given.
    """

    name: str
    number: int | None
    edits: tuple[Edit, ...]
    world: Callable[[], World]
    law: Callable[[World], Emitted]
    length: int
    draft_rows: int | None = None

    def decide(self) -> Callable[..., Any]:
        """The edited rule; raises ValueError where an edit no longer fits the source."""
        return decide(self.edits)


ACCEPT = "tape.accept * q < p"
EXCESS = "torch.clamp(p - q, min=0)"
REPAIR = "residual(p_row, _row(draft.probs, accepted))"
REPAIRED = f"law = torch.where(rejected, {REPAIR}, p_row)"
FINAL = "draw(tape.final, law)"
RETURN = f"return of_chain(draft, accepted, {FINAL})"
PREVIOUS = "(accepted - 1).clamp(min=0)"
ARGMAX = "torch.eye(p_row.shape[0], dtype=p_row.dtype), {}.argmax()"
CONTINUE = """spread = ((tape.accept * q - p) / (q - p)).clamp(0, 1 - torch.finfo(p.dtype).eps / 2)
    mended = torch.func.vmap(draw)(spread, torch.func.vmap(residual)(target_probs[:k], draft.probs))
    kept = torch.where(accept, tokens, mended)
    whole = accept.all().to(accepted.dtype)
    return of_chain(draft._replace(tokens=kept), k - 1 + whole, torch.where(whole > 0, draw(tape.final, p_row), kept[k - 1]))"""

SHORT = f"return of_chain(draft, torch.minimum(accepted, length - 1), torch.where(rejected, {FINAL}, _row(tokens, length - 1)))"


def _pair(number: int, name: str, law: Callable[[World], Emitted], *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name, number, tuple(Edit(*edit) for edit in edits), pair_reference, law, 1)


def _chain(name: str, law: Callable[[World], Emitted], *edits: tuple[str, str, str], draft_rows: int | None = None) -> Mutant:
    return Mutant(name, None, tuple(Edit(*edit) for edit in edits), chain_reference, law, 3, draft_rows)


def catalogue() -> tuple[Mutant, ...]:
    """Every mutant that must be rejected.

    >>> [mutant.number for mutant in catalogue()]
    [1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 16, 25, None, None, None, None, None, None]
    """
    uniform = lambda p, q: normalised([1] * len(p))  # noqa: E731
    return (
        _pair(1, "recovered token drawn from p", repaired(lambda p, q: p), ("token", REPAIR, "p_row")),
        _pair(
            2,
            "recovered token is the argmax of the residual",
            repaired(lambda p, q: only(len(p), likeliest(residual(p, q)))),
            ("token", REPAIR, f"_row({ARGMAX.format(REPAIR)})"),
        ),
        _pair(3, "recovered token from p without the rejected one", without_rejected(), ("token", REPAIR, "without(p_row, _row(tokens, accepted))")),
        _pair(
            4,
            "residual abs(p - q)",
            repaired(lambda p, q: normalised([abs(a - b) for a, b in zip(p, q, strict=True)])),
            ("recover", EXCESS, "(p - q).abs()"),
        ),
        _pair(5, "residual max(q - p, 0)", repaired(lambda p, q: residual(q, p)), ("recover", EXCESS, "torch.clamp(q - p, min=0)")),
        _pair(6, "uniform residual", repaired(uniform), ("recover", EXCESS, "torch.ones_like(p)")),
        _pair(7, "accept with probability p", accepting(lambda p, q: p), ("token", ACCEPT, "tape.accept < p")),
        _pair(10, "ratio upside down", accepting(lambda p, q: min(Fraction(1), q / p)), ("token", ACCEPT, "tape.accept * p < q")),
        _pair(11, "always accept", accepting(lambda p, q: Fraction(1)), ("token", f"drafted & ({ACCEPT})", "drafted")),
        _pair(12, "accept where p >= q", accepting(lambda p, q: Fraction(int(p >= q))), ("token", ACCEPT, "q <= p")),
        _pair(
            16,
            "one uniform for acceptance and recovery",
            shared_with_final(),
            ("token", FINAL, "draw(torch.where(rejected, _row(tape.accept, accepted), tape.final), law)"),
        ),
        _pair(
            25,
            "residual p where p > q",
            repaired(lambda p, q: normalised([a if a > b else 0 for a, b in zip(p, q, strict=True)])),
            ("recover", EXCESS, "p * (p > q)"),
        ),
        _chain("one uniform for every position", same_uniform, ("token", ACCEPT, "tape.accept[0] * q < p")),
        _chain(
            "residual of the previous position",
            previous_residual,
            ("token", REPAIR, f"residual(_row(target_probs, {PREVIOUS}), _row(draft.probs, {PREVIOUS}))"),
        ),
        _chain(
            "bonus from the target one row early",
            bonus(lambda world, x: world.target(x[:-1])),
            ("token", REPAIRED, f"law = torch.where(rejected, {REPAIR}, _row(target_probs, {PREVIOUS}))"),
        ),
        _chain(
            "bonus from the proposer",
            bonus(lambda world, x: world.draft(x)),
            ("token", REPAIRED, f"law = torch.where(rejected, {REPAIR}, _row(draft.probs, accepted))"),
            draft_rows=3,
        ),
        _chain(
            "bonus is the argmax",
            bonus(lambda world, x: only(world.vocab, likeliest(world.target(x)))),
            ("token", REPAIRED, f"law = torch.where(rejected, {REPAIR}, _row({ARGMAX.format('p_row')}))"),
        ),
        _chain("goes on after a rejection", continuing, ("token", RETURN, CONTINUE)),
    )


def equivalents() -> tuple[Mutant, ...]:
    """Edits whose completed law is the target's: positive controls.

    The first is the rule "accept iff the target's own sample is the drafted token" (the sample is emitted either way): fewer tokens are accepted,
    none is wrong. The second drops the bonus token, which only shortens what is emitted.

    >>> [control.name for control in equivalents()]
    ["accept iff equal to the target's own sample", 'no bonus token']
    """
    return (
        Mutant(
            "accept iff equal to the target's own sample",
            None,
            (
                Edit("token", ACCEPT, "torch.func.vmap(draw)(tape.accept, target_probs[:k]) == tokens"),
                Edit("token", FINAL, "draw(torch.where(rejected, _row(tape.accept, accepted), tape.final), p_row)"),
            ),
            chain_reference,
            _own_sample,
            3,
        ),
        Mutant(
            "no bonus token",
            None,
            (Edit("token", RETURN, SHORT),),
            chain_reference,
            _no_bonus,
            3,
        ),
    )


def _own_sample(world: World) -> Emitted:
    """Tokens of the target, up to and including the first that is not the drafted one."""
    return token(world._replace(soft=False))


def _no_bonus(world: World) -> Emitted:
    law: dict[tuple[int, ...], Fraction] = {}
    for sequence, mass in token(world).items():
        short = sequence[: world.k]
        law[short] = law.get(short, Fraction(0)) + mass
    return law
