"""Mutants of the rules for drafts that branch: top-down, traversal, several drafts of one token, k-SEQ.

What is wrong among siblings is judged at one position with two of them over four tokens; what is wrong from node to node on trees of depth 2,
in which only one token has children, so that a tree has at most four nodes and its law is found in a second. Over three tokens some faults have
nothing to be wrong with: after a rejection and a removal the excess has one token left.
"""

import functools
from collections.abc import Callable

from specdec_proofs.enumerate import Emitted
from specdec_proofs.mutants import laws_tree
from specdec_proofs.mutants.edit import Edit
from specdec_proofs.mutants.mutant import Mutant
from specdec_proofs.worlds import World, mixed_tables, normalised, whole

__all__ = ["siblings", "sparse", "trees"]

Text = tuple[str, str]
LEFT = "left = torch.where(rejected, without(q, token), left)"
DESCEND = "law = torch.where(kept[i], target_probs[i + 1], torch.where(rejected, repaired, law))"
EARLY = "law = torch.where(kept[i], target_probs.index_select(0, parents[i, None] + 1).squeeze(0), torch.where(rejected, repaired, law))"
LAST = "final = draw(tape.final, law)"
ROW = "target_probs.index_select(0, {}[None]).squeeze(0)"
ABOVE = ROW.format("(parents.index_select(0, node.clamp(min=0)[None]).squeeze(0) + 1)")
AFTER = "torch.where(here, after, weight))"


def trees() -> tuple[Mutant, ...]:
    """The mutants of the tree rules that must be rejected.

    >>> sorted({mutant.verifier for mutant in trees()})
    ['k_seq', 'multi_draft', 'traversal', 'tree']
    """
    return (*_top_down(), *_traversal(), *_with_replacement())


def siblings() -> World:
    """One position over four tokens, without zeros.

    >>> siblings().k, min(siblings().target(())) > 0
    (1, True)
    """
    return mixed_tables(12, 4, 1, zeros=0)


def sparse() -> World:
    """Tables over four tokens without zeros, as trees of depth 2: under the context only 1 and 2 are drafted, and only 1 has children.

    >>> sparse().draft(()), sparse().stop((1,)), sparse().stop((2,))
    ((Fraction(0, 1), Fraction(2, 11), Fraction(9, 11), Fraction(0, 1)), False, True)
    """
    world = mixed_tables(17, 4, 2, zeros=0)
    first = normalised([mass if token in (1, 2) else 0 for token, mass in enumerate(world.draft(()))])
    return world._replace(
        name=f"{world.name}, children under 1 alone",
        draft=lambda prefix: world.draft(prefix) if prefix else first,
        stop=lambda prefix: prefix[:1] not in ((), (1,)),
        state=whole,
    )


def _top_down() -> tuple[Mutant, ...]:
    own = "final = draw(tape.final, torch.where(tried | (node < 0), law, {}))"
    return (
        _tree(
            "removed sibling leaves a law that does not sum to 1", "unnormalised", siblings, (LEFT, LEFT.replace("without(q, token)", _zeroed("q")))
        ),
        # The same law: what was removed is not drawn again, and nothing of p is left on it.
        _tree("removed sibling stays in the law", "removal", siblings, (LEFT, "left = torch.where(rejected, q, left)")),
        _tree("a rejection does not change what is left of p", "stale", siblings, (DESCEND, "law = torch.where(kept[i], target_probs[i + 1], law)")),
        _tree(
            "children tried against the row before their parent",
            "grandparent",
            sparse,
            (DESCEND, EARLY),
            (LAST, own.format(ROW.format("(node + 1)"))),
        ),
        _tree("bonus from the row before the leaf", "bonus", sparse, (LAST, own.format(ABOVE))),
    )


def _traversal() -> tuple[Mutant, ...]:
    return (
        _traversed("a child's weight starts from 1", "carried", ("reached, drawn = w * r", "reached, drawn = r")),
        _traversed("a deletion leaves the parent's weight", "update", (AFTER, "weight)")),
        _traversed("residual without the weight", "residual", ("residual(w * r, c)", "residual(r, c)")),
        _traversed("removed sibling leaves a law that does not sum to 1", "unnormalised", ("without(c, token)", _zeroed("c"))),
        _traversed("scan from the root", "scan", ("torch.where(passed, postorder(parents, valid), k)", "torch.where(passed, row[:k], k)")),
    )


def _with_replacement() -> tuple[Mutant, ...]:
    removal = functools.partial(laws_tree.top_down, branches=2, wrong="removal", replacement=True)
    edit = ("descend(tape, target_probs, draft, replacement=True)", "descend(tape, target_probs, draft)")
    scaled = "torch.func.vmap(scale, in_dims=(0, 0, 0, None))(p, q, tries, k)"
    unserved = "(p, q, rho, tries, k)"
    return (
        _mutant("siblings drawn with replacement removed", "multi_draft", removal, siblings, edit, replacement=True),
        _k_seq("scale 1", "scale", (scaled, "torch.ones_like(p[:, 0])")),
        _k_seq("residual after one try", "tries", (unserved, "(p, q, rho, torch.ones_like(tries), k)")),
    )


def _zeroed(law: str) -> str:
    return f"{law}.scatter(0, token[None], 0)"


def _tree(name: str, wrong: str, world: Callable[[], World], *edits: Text) -> Mutant:
    return _mutant(name, "tree", functools.partial(laws_tree.top_down, branches=2, wrong=wrong), world, *edits)


def _traversed(name: str, wrong: str, *edits: Text) -> Mutant:
    return _mutant(name, "traversal", functools.partial(laws_tree.traversal, branches=2, wrong=wrong), sparse, *edits)


def _k_seq(name: str, wrong: str, *edits: Text) -> Mutant:
    return _mutant(name, "k_seq", functools.partial(laws_tree.k_seq, branches=2, wrong=wrong), siblings, *edits, replacement=True)


def _mutant(name: str, verifier: str, law: Callable[[World], Emitted], world: Callable[[], World], *edits: Text, replacement: bool = False) -> Mutant:
    return Mutant(
        f"{verifier}: {name}",
        None,
        tuple(Edit(verifier, *edit) for edit in edits),
        world,
        law,
        2 if world is siblings else 3,
        verifier=verifier,
        branches=2,
        replacement=replacement,
    )
