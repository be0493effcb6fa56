"""Mutants of coupled verification. Its noise is no grid of uniforms, so they are killed by sampling: keys, addresses, races and all.

They are judged with drafts whose noise is not the race's. One more fault shows between passes only: noise addressed by the lane alone, so that
all passes of a request race alike. Each pass by itself is then right; ``deaf`` is for a test of two passes together.
"""

from collections.abc import Callable

from specdec_proofs.enumerate import Emitted
from specdec_proofs.mutants import laws_coupled
from specdec_proofs.mutants.edit import Edit
from specdec_proofs.mutants.mutant import SAMPLED, Mutant
from specdec_proofs.worlds import Law, World, chain_reference, normalised

__all__ = ["couplings", "deaf"]

KEYED = "noise(key, position + lanes, vocab_size, dtype)"
WINNERS = "torch.func.vmap(winner)(rows, target_probs)"


def couplings() -> tuple[Mutant, ...]:
    """The mutants of coupled verification that must be rejected.

    >>> len(couplings())
    5
    """
    one = laws_coupled.one_noise_row
    return (
        _coupled(
            "one noise row for every position", one, ("coupled", "rows = tape.noise\n", "rows = tape.noise[:1].expand_as(tape.noise)\n"), world=_one
        ),
        _coupled("noise keyed by the pass, not by the position", one, ("race", KEYED, KEYED.replace("lanes", "0 * lanes")), world=_one),
        _coupled(
            "winner by the noise alone", _evenly, ("race", "torch.where(probs > 0, probs / noise, -1)", "torch.where(probs > 0, 1 / noise, -1)")
        ),
        _coupled(
            "races on the row before",
            _early,
            ("coupled", WINNERS, WINNERS.replace("target_probs", "torch.cat([target_probs[:1], target_probs[:-1]])")),
        ),
        _coupled(
            "match against the winner one row on",
            laws_coupled.matching_late,
            ("follow", "draft.tokens == choices[:k]", "draft.tokens == choices[1:]"),
        ),
    )


def deaf() -> Mutant:
    """Noise that does not hear the position: lane i of every pass of a request has the same; each pass has the target's law.

    >>> deaf().name
    'coupled: noise keyed by the lane alone'
    """
    edit = ("race", KEYED, KEYED.replace("position + lanes", "lanes"))
    return _coupled("noise keyed by the lane alone", laws_coupled.following, edit)


def _coupled(name: str, law: Callable[[World], Emitted], edit: tuple[str, str, str], world: Callable[[], World] = chain_reference) -> Mutant:
    return Mutant(f"coupled: {name}", None, (Edit(*edit),), world, law, world().k + 1, verifier="coupled", killers=(SAMPLED,))


def _one() -> World:
    """The reference chain with one drafted token."""
    return chain_reference()._replace(name="reference chain V=3 K=1", k=1)


def _evenly(world: World) -> Emitted:
    return laws_coupled.following(world, lambda tokens, i: _support(world.target(tokens[:i])))


def _early(world: World) -> Emitted:
    return laws_coupled.following(world, lambda tokens, i: world.target(tokens[: max(i - 1, 0)]))


def _support(p: Law) -> Law:
    """Each token that has a probability, as likely as the others."""
    return normalised([int(mass > 0) for mass in p])
