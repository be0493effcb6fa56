"""The catalogue: faults that engines have shipped, or nearly, each as an edit of the source that ships.

A mutant is killed twice: by the exact law of its code, whose total variation must be the one worked out in the rooms of laws, and by a
chi-squared test whose size was fixed from that law before any data. Single-position mutants are judged on their first token, all others on
the completed sequence, since their first token may be right; ``Mutant.killers`` says which of the two can see it.

``equivalents`` are edits that change the code and not its law; a checker that rejected them would be wrong. ``below_gate`` are edits that
change the law by one grid point of a uniform, less than any gate on a total variation: only the claim about impossible mass sees them.
"""

from collections.abc import Callable
from fractions import Fraction
from types import MappingProxyType

from specdec_proofs.enumerate import Emitted, token
from specdec_proofs.mutants.blocks import blocks, blocks_below_gate, blocks_equivalent
from specdec_proofs.mutants.chains import chains
from specdec_proofs.mutants.coupling import couplings
from specdec_proofs.mutants.edit import Edit
from specdec_proofs.mutants.mutant import EXACT, Mutant
from specdec_proofs.mutants.single import singles
from specdec_proofs.mutants.snippets import ACCEPT, FINAL, RETURN
from specdec_proofs.mutants.trees import trees
from specdec_proofs.worlds import World, chain_reference, mixed_tables

__all__ = ["FAMILIES", "below_gate", "catalogue", "equivalents"]

FAMILIES = ("token", "block", "tree", "coupled")
SHORT = f"return of_chain(draft, torch.minimum(accepted, length - 1), torch.where(rejected, {FINAL}, _row(tokens, length - 1)))"


def catalogue(*families: str) -> tuple[Mutant, ...]:
    """Every mutant that must be rejected, of token verification unless other families are named; ``FAMILIES`` are all.

    Raises:
        ValueError: a family that is not in ``FAMILIES``.

    >>> [mutant.number for mutant in catalogue()] == [*range(1, 29), *[None] * 6]
    True
    >>> [len(catalogue(family)) for family in FAMILIES]
    [34, 4, 13, 5]
    """
    return _of(REJECTED, families)


def equivalents(*families: str) -> tuple[Mutant, ...]:
    """Edits whose completed law is the target's: positive controls; arguments as for ``catalogue``.

    The first is the rule "accept iff the target's own sample is the drafted token" (the sample is emitted either way): fewer tokens are accepted,
    none is wrong. The second drops the bonus token, which only shortens what is emitted.

    >>> [control.name for control in equivalents()]
    ["accept iff equal to the target's own sample", 'no bonus token']
    """
    return _of(EQUIVALENT, families)


def below_gate(*families: str) -> tuple[Mutant, ...]:
    """Edits of ``<`` that let u = 0 through: what has probability 0 then comes out once in 2**53 (or 2**24) times; arguments as for ``catalogue``.

    >>> [mutant.name for mutant in below_gate()]
    ['u q <= p in place of u q < p', 'a token drawn at the foot of its step, not above it']
    """
    return _of(UNSEEN, families)


def _of(rooms: MappingProxyType[str, Callable[[], tuple[Mutant, ...]]], families: tuple[str, ...]) -> tuple[Mutant, ...]:
    unknown = set(families) - set(FAMILIES)
    if unknown:
        raise ValueError(f"received families {families}; expected some of {FAMILIES}")
    return tuple(mutant for family in families or ("token",) for mutant in rooms.get(family, tuple)())


def _equivalent() -> tuple[Mutant, ...]:
    own = (
        Edit("token", ACCEPT, "torch.func.vmap(draw)(tape.accept, target_probs[:k]) == tokens"),
        Edit("token", FINAL, "draw(torch.where(rejected, _row(tape.accept, accepted), tape.final), p_row)"),
    )
    return (
        Mutant("accept iff equal to the target's own sample", None, own, chain_reference, _own_sample, 3),
        Mutant("no bonus token", None, (Edit("token", RETURN, SHORT),), chain_reference, _no_bonus, 3),
    )


def _unseen() -> tuple[Mutant, ...]:
    def mutant(name: str, *edit: str) -> Mutant:
        return Mutant(name, None, (Edit(*edit),), _zeros, token, 3, killers=(EXACT,))

    return (
        mutant("u q <= p in place of u q < p", "token", ACCEPT, "tape.accept * q <= p"),
        mutant("a token drawn at the foot of its step, not above it", "draw", "right=True", "right=False"),
    )


def _zeros() -> World:
    """A world in which tokens that cannot come are drafted, and stand first in a row."""
    return mixed_tables(3, 3, 2)


def _own_sample(world: World) -> Emitted:
    """Tokens of the target, up to and including the first that is not the drafted one."""
    return token(world._replace(soft=False))


def _no_bonus(world: World) -> Emitted:
    law: dict[tuple[int, ...], Fraction] = {}
    for sequence, mass in token(world).items():
        short = sequence[: world.k]
        law[short] = law.get(short, Fraction(0)) + mass
    return law


REJECTED = MappingProxyType({"token": lambda: (*singles(), *chains()), "block": blocks, "tree": trees, "coupled": couplings})
EQUIVALENT = MappingProxyType({"token": _equivalent, "block": blocks_equivalent})
UNSEEN = MappingProxyType({"token": _unseen, "block": blocks_below_gate})
