"""The doors ``generate`` and ``stream``: they wire the speculative loop to text, stop rules and a clock, and collect what it emits."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from specdec_fn.engine import ending
from specdec_fn.engine.generate import speculative
from specdec_fn.engine.generation import Generation, Pass, Piece, Stats, add_pass
from specdec_fn.engine.job import Job, settle
from specdec_fn.measure import Stopwatch
from specdec_fn.models import Model
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import Proposer, Verifier
from specdec_fn.text import Tokenizer
from specdec_fn.typing import Int, Tensor

__all__ = ["generate", "stream"]

Prompt = str | Sequence[int] | Int[Tensor, "prompt"]


def generate(
    model: Model,
    prompt: Prompt,
    *,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    proposer: Proposer | str | None = None,
    verifier: Verifier | str = "token",
    k: int = 5,
    max_tokens: int = 128,
    stop_ids: Sequence[int] = (),
    stop: str | Sequence[str] = (),
    ignore_eos: bool = False,
    invariant: bool = False,
    draft_fn: Callable[[list[int]], Sequence[int]] | None = None,
    on_piece: Callable[[Piece], None] | None = None,
) -> Generation:
    """Generates with or without speculation; the tokens follow the target's law either way.

    Args:
        model: the target.
        prompt: text, which needs ``tokenizer`` and is taken literally (control tokens in it are plain text), or ids.
        tokenizer: spells the output, and brings the ids that end it.
        seed: of the request; the same seed and settings give the same tokens.
        sampling: controls that make p from the logits, each applied at its own prefix.
        proposer: who drafts: a Proposer, the name of one, or None for plain decoding.
        verifier: the rule that keeps or repairs drafts, or its name. "greedy" needs temperature 0.
        k: most drafted tokens of a pass.
        max_tokens: most tokens to emit; the model's context may leave fewer.
        stop_ids, stop: ids and strings that end the generation, besides the tokenizer's own end ids.
        ignore_eos: go on past the tokenizer's end ids.
        invariant: compute logits whose bits do not depend on how many rows share a pass (slower, but not with the C library on a CPU).
        draft_fn: a function that dictates the drafts, from all committed ids to at most ``k`` ids; instead of a proposer.
        on_piece: called with each piece as it comes, for those who want to watch and the whole as well.

    Returns:
        Tokens, text, finish reason, log-probabilities (nats) and counts.

    Raises:
        TypeError, ValueError: a setting out of range, in one sentence; NoLawError (a ValueError) where logits are NaN or nothing is allowed.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> circle = toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> done = generate(circle, [0, 1, 2, 0], proposer="ngram", max_tokens=6)
    >>> done.tokens, done.finish_reason, done.stats.passes
    ([1, 2, 0, 1, 2, 0], 'length', 2)
    """
    if on_piece is not None and not callable(on_piece):
        raise TypeError(f"on_piece is {on_piece!r:.80}; expected a callable that takes a Piece, or None")
    watch = Stopwatch()
    job = settle(model, prompt, tokenizer, seed, sampling, proposer, verifier, k, max_tokens, stop_ids, stop, ignore_eos, invariant, draft_fn)
    tokens: list[int] = []
    texts: list[str] = []
    logprobs: list[float] = []
    stats, reason = Stats(), "length"
    for step in _steps(job, watch):
        tokens += step.kept.tokens
        logprobs += step.kept.logprobs
        texts.append(step.text)
        if on_piece is not None:
            on_piece(Piece(step.text, step.kept.tokens, step.kept.kinds))
        stats, reason = add_pass(stats, step.kept), step.finish_reason or reason
    return Generation(tokens, "".join(texts), reason, logprobs, stats._replace(seconds=watch.seconds))


def stream(
    model: Model,
    prompt: Prompt,
    *,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    proposer: Proposer | str | None = None,
    verifier: Verifier | str = "token",
    k: int = 5,
    max_tokens: int = 128,
    stop_ids: Sequence[int] = (),
    stop: str | Sequence[str] = (),
    ignore_eos: bool = False,
    invariant: bool = False,
    draft_fn: Callable[[list[int]], Sequence[int]] | None = None,
) -> Iterator[Piece]:
    """The same generation as ``generate``, piece by piece, one piece a pass; settings are checked before the first.

    Joined, the pieces are ``generate``'s text and tokens; text never comes back to change what was given.

    Raises:
        TypeError, ValueError: as ``generate``.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> circle = toy.bigram(torch.eye(3).roll(1, dims=1))
    >>> for piece in stream(circle, [0, 1, 2, 0], proposer="ngram", max_tokens=5, k=2):
    ...     print(piece.tokens, piece.kinds)
    [1, 2, 0] ['accepted', 'accepted', 'bonus']
    [1, 2] ['accepted', 'bonus']
    """
    job = settle(model, prompt, tokenizer, seed, sampling, proposer, verifier, k, max_tokens, stop_ids, stop, ignore_eos, invariant, draft_fn)
    return (Piece(step.text, step.kept.tokens, step.kept.kinds) for step in _steps(job, Stopwatch()))


class _Step(NamedTuple):
    """One pass, cut at the end of the generation if that lies in it."""

    kept: Pass
    text: str
    finish_reason: str | None


def _steps(job: Job, watch: Stopwatch) -> Iterator[_Step]:
    timed = job.model._replace(
        apply=watch.wrap("forward", job.model.apply),
        prefill=None if job.model.prefill is None else watch.wrap("prefill", job.model.prefill),
    )
    terms = job.terms
    proposer = terms.proposer._replace(propose=watch.wrap("propose", terms.proposer.propose))
    if proposer.drafter is not None and proposer.drafter.shares:  # the loop runs its model
        shared = proposer.drafter.model
        model = shared._replace(apply=watch.wrap("propose", shared.apply))
        proposer = proposer._replace(drafter=proposer.drafter._replace(model=model))
    feed = watch.wrap("text", ending.feed)
    state = terms.ending
    how = proposer, terms.verifier, terms.k
    passes = speculative(timed, job.key, job.law, terms.prompt, terms.limit, *how, ends=state.stop_ids, attention=job.attention)
    for one in watch.iterate("verify", passes):
        state, kept = feed(state, one.tokens)
        cut = one._replace(tokens=one.tokens[: kept.size], kinds=one.kinds[: kept.size], logprobs=one.logprobs[: kept.size])
        yield _Step(cut, kept.text, kept.finish_reason)
        if kept.finish_reason is not None:
            return
