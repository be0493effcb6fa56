"""Chain mutants of token verification: their first token is exactly right, so they are judged on the whole completed sequence."""

from collections.abc import Callable

from specdec_proofs.enumerate import Emitted
from specdec_proofs.mutants.edit import Edit
from specdec_proofs.mutants.laws import likeliest, only
from specdec_proofs.mutants.laws_chain import bonus, continuing, previous_residual, same_uniform
from specdec_proofs.mutants.mutant import Mutant
from specdec_proofs.mutants.snippets import ACCEPT, ARGMAX, OWN_Q, PREVIOUS, REPAIR, REPAIRED, RETURN
from specdec_proofs.worlds import World, chain_reference

__all__ = ["chains"]

CONTINUE = """spread = ((tape.accept * q - p) / (q - p)).clamp(0, 1 - torch.finfo(p.dtype).eps / 2)
    mended = torch.func.vmap(draw)(spread, torch.func.vmap(residual)(target_probs[:k], draft.probs))
    kept = torch.where(accept, tokens, mended)
    whole = accept.all().to(accepted.dtype)
    return of_chain(draft._replace(tokens=kept), k - 1 + whole, torch.where(whole > 0, draw(tape.final, p_row), kept[k - 1]))"""


def chains() -> tuple[Mutant, ...]:
    """The chain mutants.

    >>> len(chains())
    6
    """
    bonus_row = f"law = torch.where(rejected, {REPAIR}, {{}})"
    return (
        _chain("one uniform for every position", same_uniform, ("token", ACCEPT, "tape.accept[0] * q < p")),
        _chain(
            "residual of the previous position",
            previous_residual,
            ("token", REPAIR, f"residual(_row(target_probs, {PREVIOUS}), _row(draft.probs, {PREVIOUS}))"),
        ),
        _chain(
            "bonus from the target one row early",
            bonus(lambda world, x: world.target(x[:-1])),
            ("token", REPAIRED, bonus_row.format(f"_row(target_probs, {PREVIOUS})")),
        ),
        _chain("bonus from the proposer", bonus(lambda world, x: world.draft(x)), ("token", REPAIRED, bonus_row.format(OWN_Q)), draft_rows=3),
        _chain(
            "bonus is the argmax",
            bonus(lambda world, x: only(world.vocab, likeliest(world.target(x)))),
            ("token", REPAIRED, bonus_row.format(ARGMAX.format("p_row"))),
        ),
        _chain("goes on after a rejection", continuing, ("token", RETURN, CONTINUE))._replace(formless=True),
    )


def _chain(name: str, law: Callable[[World], Emitted], *edits: tuple[str, str, str], draft_rows: int | None = None) -> Mutant:
    return Mutant(name, None, tuple(Edit(*edit) for edit in edits), chain_reference, law, 3, draft_rows)
