"""Why a pass emitted what it did: for every drafted node and the final token p, q, the uniform that decided, and what it was compared with.

Nothing is decided here. A verifier's ``bounds`` says what each uniform was compared with; this room puts it beside p, q and the verdict as plain
numbers. A verifier without ``bounds`` (greedy, coupled, one of your own) is told of by p and q, and by the uniforms that stood for its nodes.
"""

import math
from typing import NamedTuple

import torch

from specdec_fn.speculate import tree
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.race import Race, winner
from specdec_fn.speculate.tape import Tape
from specdec_fn.speculate.threshold import tried
from specdec_fn.speculate.verdict import Verdict
from specdec_fn.speculate.verifier import Verifier
from specdec_fn.typing import Float, Tensor

__all__ = ["Explained", "Why", "cut_at", "explained"]

READS_NO_ACCEPT = ("greedy", "typical")  # their acceptance is a matter of p alone
READS_NO_FINAL = ("greedy",)


class Why(NamedTuple):
    """One drafted node, or the final token of a pass.

    Attributes:
        token: drafted or emitted id.
        kind: of a node "accepted", "rejected" (it was judged and failed), or "unread" (it was not judged, or stands behind an end); of the final
            token "recovered", "bonus" or "plain".
        p: target probability at its own prefix, after all processors.
        q: the draft's probability of it there, before siblings were removed (one-hot: 1); None for final tokens.
        u: the uniform that decided it; None where none did: ``greedy``, ``coupled``, ``typical``, unread nodes, and accepted nodes that stand
            before the one by which ``block`` or ``traversal`` accepted them all.
        bound: what u was compared with: accepted if and only if u < bound. Under ``typical``, which has no u, what p was compared with: accepted
            if and only if p > bound. None where there was no such number, and for final tokens.
        noise: under ``coupled`` the noise of the winner at that position; else None.
        parent: the node that it hangs under, -1 for the context; of the final token the last accepted node.
    """

    token: int
    kind: str
    p: float
    q: float | None
    u: float | None
    bound: float | None
    noise: float | None
    parent: int


class Explained(NamedTuple):
    """One pass.

    Attributes:
        base: tokens committed before it.
        nodes: the draft, in its order.
        final: the recovered, bonus or plain token; None where the pass has none, because it was cut at an end or its row was no law.
    """

    base: int
    nodes: tuple[Why, ...]
    final: Why | None


def explained(
    verifier: Verifier, tape: Tape | Race, target_probs: Float[Tensor, "rows vocab"], draft: Draft, verdict: Verdict, *, base: int
) -> Explained:
    """Says of every node of a draft, and of the final token, what decided it.

    Args:
        verifier: the rule.
        tape, target_probs, draft: what its ``decide`` was given; float [K + 1, V] laws.
        verdict: what it gave.
        base: tokens committed before the pass.

    >>> from specdec_fn.speculate import verifiers
    >>> p = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    >>> q = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    >>> token, tape = verifiers["token"], Tape(torch.tensor([0.75], dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64))
    >>> draft = Draft(torch.tensor([0]), q, torch.tensor(1))
    >>> why = explained(token, tape, p, draft, token.decide(tape, p, draft), base=7)
    >>> why.nodes[0]
    Why(token=0, kind='rejected', p=0.25, q=0.5, u=0.75, bound=0.5, noise=None, parent=-1)
    >>> why.final.kind, why.final.token, why.final.p
    ('recovered', 1, 0.75)
    """
    length, accepted = int(draft.length), int(verdict.accepted)
    parents = tree.parents_of(draft)[:length]
    hung, tokens, path = parents.tolist(), draft.tokens[:length], verdict.path[:accepted].tolist()
    p = target_probs[parents + 1, tokens].tolist()
    q = [1.0] * length if draft.probs is None else draft.probs[torch.arange(length), tokens].tolist()
    if verifier.bounds is None:
        bounds, read = [None] * length, tried(draft, verdict).tolist()
    else:
        found = verifier.bounds(tape, target_probs, draft, verdict).tolist()
        bounds = [None if math.isnan(bound) else bound for bound in found]
        read = [bound is not None for bound in bounds]
    uniforms = [None] * length if isinstance(tape, Race) or verifier.name in READS_NO_ACCEPT else tape.accept.tolist()
    noises = _noises(tape, target_probs, draft)
    nodes = []
    for i, token in enumerate(tokens.tolist()):
        kind = "accepted" if i in path else "rejected" if read[i] else "unread"
        u, noise = (uniforms[i], noises[hung[i] + 1]) if read[i] else (None, None)
        nodes.append(Why(token, kind, p[i], q[i], u, bounds[i], noise, hung[i]))
    last, emitted = path[-1] if path else -1, int(verdict.tokens[accepted])
    if emitted < 0:
        return Explained(base, tuple(nodes), None)
    kind = "plain" if not length else "recovered" if last in hung else "bonus"
    u = None if isinstance(tape, Race) or verifier.name in READS_NO_FINAL else float(tape.final)
    return Explained(base, tuple(nodes), Why(emitted, kind, float(target_probs[last + 1, emitted]), None, u, None, noises[last + 1], last))


def cut_at(explained: Explained, size: int) -> Explained:
    """A pass of which only the first ``size`` emitted tokens are kept: accepted nodes behind them become "unread", and the final token goes.

    >>> node = Why(5, "accepted", 0.5, 1.0, 0.25, 0.5, None, -1)
    >>> kept = cut_at(Explained(7, (node, node._replace(token=6, parent=0)), Why(4, "bonus", 0.5, None, 0.5, None, None, 1)), 1)
    >>> [one.kind for one in kept.nodes], kept.final
    (['accepted', 'unread'], None)
    """
    left, nodes = size, []
    for node in explained.nodes:
        if node.kind == "accepted":
            node = node if left > 0 else node._replace(kind="unread")
            left -= 1
        nodes.append(node)
    return Explained(explained.base, tuple(nodes), explained.final if left > 0 else None)


def _noises(tape: Tape | Race, target_probs: Tensor, draft: Draft) -> list[float | None]:
    """For each row of the pass the noise of its winner, if it was a race that has one."""
    if not isinstance(tape, Race):
        return [None] * target_probs.shape[0]
    depth = torch.nn.functional.pad(tree.depths(tree.parents_of(draft)), (1, 0))
    rows = tape.noise.index_select(0, depth)
    won = torch.func.vmap(winner)(rows, target_probs)
    noise = rows.gather(1, won.clamp(min=0)[:, None]).squeeze(1)
    return [value if token >= 0 else None for value, token in zip(noise.tolist(), won.tolist(), strict=True)]
