"""The passes of the speculative loop as an engine's events, each with its reasons: the tokens are those of ``generate``, to the last bit."""

from collections.abc import Iterator

from specdec_fn.engine import ending
from specdec_fn.engine.event import Event
from specdec_fn.engine.generate import speculative
from specdec_fn.engine.generation import Generation, Stats, add_pass
from specdec_fn.engine.job import Job
from specdec_fn.speculate.explain import cut_at

__all__ = ["traced"]


def traced(job: Job) -> Iterator[Event]:
    """Generates, and says after every pass what happened and why.

    Args:
        job: what ``engine.job.settle`` made of the arguments of ``generate``.

    Returns:
        One event a pass; the last has the generation.

    Raises:
        NoLawError: logits of NaN, or that allow nothing, where a token is needed.

    >>> import torch
    >>> from specdec_fn.engine.job import settle
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.sampling import SamplingParams
    >>> circle = toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> job = settle(circle, [0, 1, 2, 0], None, 0, SamplingParams(), "ngram", "token", 2, 5, (), (), False, False, None)
    >>> [(event.tokens, event.why.final.kind) for event in traced(job)]
    [([1, 2, 0], 'bonus'), ([1, 2], 'bonus')]
    """
    terms, state = job.terms, job.terms.ending
    how = terms.proposer, terms.verifier, terms.k
    tokens: list[int] = []
    texts: list[str] = []
    logprobs: list[float] = []
    stats = Stats()
    passes = speculative(job.model, job.key, job.law, terms.prompt, terms.limit, *how, ends=state.stop_ids, attention=job.attention, explain=True)
    for one in passes:
        state, kept = ending.feed(state, one.tokens)
        size = kept.size
        why = None if one.why is None else cut_at(one.why, size)
        one = one._replace(tokens=one.tokens[:size], kinds=one.kinds[:size], logprobs=one.logprobs[:size], why=why)
        stats = add_pass(stats, one)
        tokens += one.tokens
        texts.append(kept.text)
        logprobs += one.logprobs
        reason = kept.finish_reason
        done = None if reason is None else Generation(tokens, "".join(texts), reason, logprobs, stats)
        yield Event(*(0, one.tokens, one.logprobs, reason), text=kept.text, kinds=one.kinds, generation=done, why=one.why, proposed=one.proposed)
        if done is not None:
            return
