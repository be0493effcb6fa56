"""A sequence under generation as a value, and the two halves of its pass: ``drafted`` before the forward, ``judged`` after it.

What stands between them is one target forward, over the rows that ``rows`` names; whether other sequences share it is not the sequence's affair.
Before every pass the cache holds all committed tokens but the last, whose row comes first in the pass; after it, the rows of the accepted
tokens stay and the others are rolled back by not keeping them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from specdec_fn.engine.generation import Pass
from specdec_fn.engine.law import Law
from specdec_fn.kv import branching, dense
from specdec_fn.pytree import donates
from specdec_fn.random import Key
from specdec_fn.speculate import Draft, Proposer, Verifier, tree
from specdec_fn.speculate.draft import first
from specdec_fn.speculate.explain import explained
from specdec_fn.speculate.verifier import check_draft
from specdec_fn.typing import Float, Int, Tensor

__all__ = ["Running", "decided", "drafted", "judged", "no_law", "rows", "settled", "usable"]


class Running(NamedTuple):
    """One sequence between two passes.

    Attributes:
        key: the request's key.
        law: from logits to target laws; None where the laws of several sequences are made together.
        tokens: committed ids, prompt and output.
        prompt: how many of them are prompt.
        wanted: tokens to emit in all.
        proposer, verifier, k: how it speculates; at most ``min(k, tokens left - 1)`` nodes are drafted.
        guess: the proposer's state.
        kv: the dense cache, which holds all committed tokens but the last; None where the keys and values lie in a paged pool.
        ends: ids behind which nothing need be drafted.
        lawless: whether the logits gave no law where a token was needed; nothing can follow.
    """

    key: Key
    law: Law | None
    tokens: tuple[int, ...]
    prompt: int
    wanted: int
    proposer: Proposer
    verifier: Verifier
    k: int
    guess: Any
    kv: dense.DenseCache | None
    ends: frozenset[int] = frozenset()
    lawless: bool = False

    @property
    def left(self) -> int:
        """Tokens that are still to be emitted."""
        return self.prompt + self.wanted - len(self.tokens)


def drafted(run: Running, vocab_size: int) -> tuple[Running, Draft]:
    """Asks the proposer, and cuts what need not be verified: the padding, and of a chain what follows an end.

    Raises:
        TypeError, ValueError: a draft that is malformed or too long, with ids outside the vocabulary, with laws that are none, or that
            branches under a verifier that knows no trees.

    >>> from specdec_fn.engine.law import law
    >>> from specdec_fn.random import key
    >>> from specdec_fn.sampling import SamplingParams
    >>> from specdec_fn.speculate import proposers, verifiers
    >>> parrot = proposers.scripted.proposer(lambda context: context)
    >>> run = Running(key(0), law(SamplingParams()), (4, 5), 2, 3, parrot, verifiers["token"], 9, (), None)
    >>> drafted(run, 10)[1].tokens
    tensor([4, 5])
    """
    most = min(run.k, run.left - 1)
    proposed = run.proposer.propose(run.key, run.guess, list(run.tokens), most, position=len(run.tokens))
    if not isinstance(proposed, tuple) or len(proposed) != 2:
        raise TypeError(f"the proposer returned {proposed!r:.80}; expected its state and a Draft")
    guess, draft = proposed
    return run._replace(guess=guess), usable(run, draft, vocab_size)


def usable(run: Running, draft: Draft, vocab_size: int) -> Draft:
    """What of a draft is verified: no padding, and of a chain nothing that follows an end.

    Raises:
        TypeError, ValueError: as ``drafted``.

    >>> from specdec_fn.speculate import verifiers
    >>> from specdec_fn.speculate.draft import chain
    >>> run = Running(None, None, (4, 5), 2, 9, None, verifiers["token"], 9, (), None, frozenset([7]))
    >>> usable(run, chain([6, 7, 8], 5), 10).tokens
    tensor([6, 7])
    """
    check_draft(draft, vocab_size, chain=not run.verifier.trees)  # a law that was not drawn from would bias the tokens, so it is refused here
    ids, most = draft.tokens[: int(draft.length)].tolist(), min(run.k, run.left - 1)
    if len(ids) > most:
        raise ValueError(f"the proposer drafted {len(ids)} tokens; expected at most {most}")
    useful = len(ids) if draft.parents is not None else next((lane + 1 for lane, token in enumerate(ids) if token in run.ends), len(ids))
    return first(draft, useful)


def rows(run: Running, draft: Draft) -> tuple[Int[Tensor, "rows"], Int[Tensor, "rows"]]:
    """Ids and positions of the rows of the pass: the last committed token, then the drafted nodes.

    >>> from specdec_fn.speculate import verifiers
    >>> run = Running(None, None, (4, 5), 2, 3, None, verifiers["tree"], 9, (), None)
    >>> rows(run, tree.merge([[7], [8]], 2))
    (tensor([5, 7, 8]), tensor([1, 2, 2]))
    """
    last = torch.tensor(run.tokens[-1:])
    return torch.cat([last, draft.tokens]), tree.positions(tree.parents_of(draft), len(run.tokens))


@donates("kv")
def judged(run: Running, draft: Draft, logits: Float[Tensor, "rows vocab"], kv: dense.DenseCache, *, explain: bool = False) -> tuple[Running, Pass]:
    """Verifies the draft against the logits of its pass and commits what is emitted. DONATES the cache.

    Args:
        run: the sequence, whose own cache was given to the forward.
        draft: what ``drafted`` gave.
        logits: of the rows of the pass.
        kv: the cache as the forward returned it.
        explain: as in ``decided``.

    Returns:
        The sequence after the pass, and the pass; its last token is missing where the row that had to decide was no law.

    >>> from types import SimpleNamespace
    >>> from specdec_fn.engine.law import law
    >>> from specdec_fn.random import key
    >>> from specdec_fn.sampling import SamplingParams
    >>> from specdec_fn.speculate import verifiers
    >>> cache = dense.init(SimpleNamespace(layers=0, kv_heads=0, head_dim=0), 8, dtype=torch.float32)
    >>> run = Running(key(0), law(SamplingParams(temperature=0)), (0,), 1, 3, None, verifiers["tree"], 2, (), cache)
    >>> branching_draft = tree.merge([[1], [2]], 2)
    >>> run, one = judged(run._replace(kv=None), branching_draft, torch.tensor([[0.0, 0, 9], [9, 0, 0], [0, 9, 0]]), cache)
    >>> one.tokens, run.tokens, run.kv.length
    ([2, 1], (0, 2, 1), 2)
    """
    assert run.law is not None, "a sequence of its own makes its own laws"
    laws = run.law(logits, run.tokens[run.prompt :], draft.tokens.tolist(), draft.parents)
    run, one, kept = decided(run, draft, laws, logits, explain=explain)
    return run._replace(kv=branching.keep(kv, kept)), one


def decided(
    run: Running, draft: Draft, probs: Float[Tensor, "rows vocab"], logits: Float[Tensor, "rows vocab"], *, explain: bool = False
) -> tuple[Running, Pass, Int[Tensor, "kept"]]:
    """The decision of a pass, wherever its keys and values lie.

    Args:
        draft: what ``drafted`` gave.
        probs: the target laws of the rows of the pass.
        logits: what they were made from; the log-probabilities are theirs.
        explain: say in ``Pass.why`` how the tokens came to be.

    Returns:
        The sequence after the pass, the pass, and the rows whose keys and values stay: 0, and those of the accepted nodes.

    >>> from specdec_fn.random import key
    >>> from specdec_fn.speculate import verifiers
    >>> run = Running(key(0), None, (0,), 1, 3, None, verifiers["token"], 2, (), None)
    >>> logits = torch.tensor([[0.0, 99], [99, 0]], dtype=torch.float64)
    >>> decided(run, Draft(torch.tensor([1]), None, torch.tensor(1)), logits.softmax(-1), logits)[2]
    tensor([0, 1])
    """
    if draft.probs is not None:  # the law it was drawn from, as exact as the target's
        draft = draft._replace(probs=draft.probs.to(probs.dtype))
    tape = run.verifier.tape(run.key, draft.tokens.shape[0], probs.shape[1], position=len(run.tokens))
    verdict = run.verifier.decide(tape, probs, draft)
    accepted = int(verdict.accepted)
    emitted = verdict.tokens[: accepted + 1].tolist()
    kept = torch.nn.functional.pad(verdict.path[:accepted] + 1, (1, 0))
    rows = (logits[: accepted + 1] if draft.parents is None else logits[kept]).to(torch.float64)  # of a chain they are the first: a view
    chosen = rows[torch.arange(accepted + 1), torch.tensor(emitted, dtype=torch.int64)]
    last = int(verdict.path[accepted - 1]) if accepted else -1
    after, one = settled(run, draft, emitted, last, (chosen - rows.logsumexp(-1)).tolist())
    if explain:
        one = one._replace(why=explained(run.verifier, tape, probs, draft, verdict, base=len(run.tokens)))
    return after, one, kept


def settled(run: Running, draft: Draft, emitted: Sequence[int], last: int, logprobs: Sequence[float]) -> tuple[Running, Pass]:
    """What a decision makes of a sequence.

    Args:
        draft: what ``drafted`` gave.
        emitted: the accepted tokens, then the recovered or bonus token; -1 in its place where the row that had to decide was no law.
        last: the last accepted node, -1 for none.
        logprobs: of the emitted tokens.

    >>> run = Running(None, None, (4, 5), 2, 3, None, None, 9, (), None)
    >>> settled(run, Draft(torch.tensor([7]), None, torch.tensor(1)), [7, 8], 0, [-0.5, -0.25])[1]
    Pass(tokens=[7, 8], kinds=['accepted', 'bonus'], logprobs=[-0.5, -0.25], proposed=1, depth=None, why=None)
    """
    parents, proposed, accepted = tree.parents_of(draft), draft.tokens.shape[0], len(emitted) - 1
    lawless = emitted[-1] < 0  # the accepted tokens stand, and may end the generation before the missing law is needed
    count = accepted if lawless else accepted + 1
    final = "plain" if not proposed else "recovered" if (parents == last).any() else "bonus"
    depth = None if draft.parents is None else int(tree.depths(parents).amax()) if proposed else 0
    one = Pass(list(emitted[:count]), (["accepted"] * accepted + [final])[:count], list(logprobs[:count]), proposed, depth)
    return run._replace(tokens=(*run.tokens, *one.tokens), lawless=lawless), one


def no_law(run: Running) -> str:
    """Why a sequence whose logits gave no law cannot go on.

    >>> no_law(Running(None, None, (4, 5), 2, 3, None, None, 9, (), None))
    'the logits for position 2 hold NaN or allow no token; expected a finite logit that the controls allow'
    """
    return f"the logits for position {len(run.tokens)} hold NaN or allow no token; expected a finite logit that the controls allow"
