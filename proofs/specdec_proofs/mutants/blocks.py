"""Mutants of block verification. With one drafted token the rule is token verification, so all are judged on whole sequences of K >= 2.

Some are invisible in some worlds: the wrong residual wherever the weighted excess has one token only, the wrong last coin wherever no ratio is
capped before the end. So each is judged on several worlds, and its law must be the measured one on all of them.
"""

import functools
from collections.abc import Callable

from specdec_proofs.mutants.edit import Edit
from specdec_proofs.mutants.laws_block import block
from specdec_proofs.mutants.mutant import EXACT, Mutant
from specdec_proofs.worlds import World, chain_reference, mixed_tables, softmax, toy

__all__ = ["blocks", "blocks_below_gate", "blocks_equivalent", "reference"]

HEIGHT = "height = torch.where(lane + 1 == length, weight[1:], F.pad(inner, (0, 1)))"
RAW = "torch.div(*(rows.gather(1, tokens[:, None]).squeeze(1) for rows in (p, laws))).cumprod(0)"
RETURN = "return of_chain(draft, accepted, draw(tape.final, law))"
SHORT = """whole = (accepted == length) & (length > 0)
    final = torch.where(whole, _row(draft.tokens, length - 1), draw(tape.final, law))
    return of_chain(draft, torch.where(whole, length - 1, accepted), final)"""


def blocks() -> tuple[Mutant, ...]:
    """The mutants of block verification that must be rejected.

    >>> len(blocks())
    4
    """
    return (
        _block("inner coin w_i", "coin", (HEIGHT, "height = weight[1:]")),
        _block("residual of token verification", "residual", ("residual(_row(weight, accepted) * p_row, q_row)", "residual(p_row, q_row)")),
        _block("stops at the first failure", "scan", ("torch.where(passed, lane + 1, 0).amax()", "passed.cumprod(0).sum()")),
        _block("last coin from the uncapped ratio", "uncapped", (HEIGHT, HEIGHT.replace("weight[1:]", RAW))),
    )


def blocks_equivalent() -> tuple[Mutant, ...]:
    """Edits of block verification whose completed law is the target's.

    Where S + 1 - w is 0, w is 1 and the rows are equal, so all coins behind it show heads, the last one too: its own coin decides nothing.

    >>> [control.name for control in blocks_equivalent()]
    ['block: no bonus token', 'block: 0/0 read as 0']
    """
    short, nought = Edit("block", RETURN, SHORT), Edit("block", "torch.where(room > 0, room, 1), 1)", "torch.where(room > 0, room, 1), 0)")
    return (
        Mutant("block: no bonus token", None, (short,), reference, functools.partial(block, no_bonus=True), 3, verifier="block"),
        Mutant("block: 0/0 read as 0", None, (nought,), _equal_rows, block, 3, verifier="block"),
    )


def blocks_below_gate() -> tuple[Mutant, ...]:
    """Edits of block verification that let u = 0 through.

    >>> [mutant.name for mutant in blocks_below_gate()]
    ['block: u <= h in place of u < h']
    """
    edit = Edit("block", "(tape.accept < height)", "(tape.accept <= height)")
    return (Mutant("block: u <= h in place of u < h", None, (edit,), _tables(3), block, 3, verifier="block", killers=(EXACT,)),)


def reference() -> World:
    """Tables over 4 tokens, K = 2, without zeros, in which every mutant of the rule is plain to see.

    >>> from specdec_proofs.enumerate import completed, joint, total_variation
    >>> world = reference()
    >>> [round(float(total_variation(completed(mutant.law(world), world), joint(world))), 4) for mutant in blocks()]
    [0.1188, 0.0144, 0.3207, 0.0364]
    """
    return mixed_tables(12, 4, 2, zeros=0)


def _block(name: str, wrong: str, edit: tuple[str, str]) -> Mutant:
    law = functools.partial(block, wrong=wrong)
    return Mutant(f"block: {name}", None, (Edit("block", *edit),), reference, law, 3, verifier="block", others=WORLDS)


def _tables(seed: int) -> Callable[[], World]:
    return lambda: mixed_tables(seed, 3, 2)


def _equal_rows() -> World:
    """The reference chain, where the draft's second row after token 1 is the target's own: S + 1 - w is 0 wherever the first token passed."""
    world = chain_reference()
    return world._replace(
        name="reference chain, equal rows after 1", draft=lambda prefix: world.target(prefix) if prefix == (1,) else world.draft(prefix)
    )


WORLDS = (chain_reference, toy, _tables(3), lambda: softmax(1, 3, 3))
