"""What changes an engine between steps: a request comes, is forked, or is called off."""

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

from specdec_fn import schedule
from specdec_fn.engine import ending, grammar
from specdec_fn.engine.job import Terms, terms
from specdec_fn.engine.mute import is_mute
from specdec_fn.engine.request import Request
from specdec_fn.engine.running import Running
from specdec_fn.engine.state import EngineState, Record, number_of, pool, record_of, with_kin
from specdec_fn.random import Key, fold_in, key
from specdec_fn.speculate import Proposer

__all__ = ["abort", "fork", "renewed", "submit", "with_drafter"]

FORK = 4  # the role under which the keys of forks are derived; 0 to 3 are those of ``speculate.tape``


def submit(state: EngineState, request: Request) -> tuple[EngineState, int]:
    """Puts a request in the queue.

    Returns:
        The state, and the request's id.

    Raises:
        TypeError, ValueError: a request that is malformed, or that could never run: what was received and what was expected. The state that
            came in is as it was.

    >>> import torch
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.engine.request import Config
    >>> from specdec_fn.models import toy
    >>> state = init(toy.bigram(torch.eye(3)), Config(num_pages=2, page_size=4))
    >>> state, first = submit(state, Request([1, 2], max_tokens=4))
    >>> first
    0
    >>> submit(state, Request([1, 2], max_tokens=40))
    Traceback (most recent call last):
    ...
    ValueError: request 1 may grow to 42 tokens, which needs 11 pages of 4 slots; expected at most the 2 pages that there are
    """
    if not isinstance(request, Request):
        raise TypeError(f"request is {request!r:.80}; expected an engine.Request")
    state = _with_kin(state, request)
    settled = _settled(state, request)
    number = state.counters.submitted
    own = fold_in(state.key, number) if request.seed is None else key(request.seed)
    state, drafter = with_drafter(state, settled.proposer)
    return _entered(state, _record(request, settled, own, drafter)), number


def abort(state: EngineState, request_id: int) -> EngineState:
    """Ends a request at once and gives its pages back; an id that is not there, or no more, changes nothing.

    >>> import torch
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.engine.request import Config
    >>> from specdec_fn.models import toy
    >>> state, first = submit(init(toy.bigram(torch.eye(3)), Config()), Request([1], 4))
    >>> len(abort(abort(state, first), first).records)
    0
    """
    number = number_of(request_id)
    if number is None or number not in state.records:
        return state
    counters = state.counters._replace(aborted=state.counters.aborted + 1)
    work = schedule.remove(state.work, number)
    return dataclasses.replace(state, records=state.records.remove(number), work=work, counters=counters)


def fork(state: EngineState, request_id: int, *, seed: int | None = None, **changes: Any) -> tuple[EngineState, int]:
    """A second request that has the same tokens so far, shares the pages that hold them, and goes on by itself.

    Several answers to one prompt are a submit, and forks once the prompt is computed.

    Args:
        request_id: of a request that waits or runs.
        seed: of the new one's tokens; None derives its key from the key of the one it comes from and the count of forks from that one, so that
            the same forks of the same seed give the same tokens.
        changes: any of k, proposer, verifier and sampling.

    Returns:
        The state, and the new request's id.

    Raises:
        KeyError: no such request.
        TypeError, ValueError: another change, or one that a request could not be submitted with.

    >>> import torch
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.engine.request import Config
    >>> from specdec_fn.models import toy
    >>> state, first = submit(init(toy.bigram(torch.eye(3)), Config()), Request([1], 4))
    >>> fork(state, first, seed=3)[1]
    1
    """
    old, parent = record_of(state, request_id), operator.index(request_id)
    unknown = sorted(set(changes) - {"k", "proposer", "verifier", "sampling"})
    if unknown:
        raise TypeError(f"fork changes {', '.join(unknown)}; expected some of k, proposer, verifier and sampling")
    request = dataclasses.replace(old.request, seed=seed, **changes)
    state = _with_kin(state, request)
    settled = _settled(state, request)
    state, drafter = with_drafter(state, settled.proposer)
    own = fold_in(fold_in(old.run.key, FORK), old.forks) if seed is None else key(seed)
    guess = settled.proposer.init(settled.prompt) if "proposer" in changes else old.run.guess
    number = state.counters.submitted
    new = renewed(state, request, own, old.run.tokens, guess)
    new = new._replace(logprobs=old.logprobs, likeliest=old.likeliest, prompt_logprobs=old.prompt_logprobs, stats=old.stats)
    state = dataclasses.replace(state, records=state.records.insert(parent, old._replace(forks=old.forks + 1)))
    unscored = request.prompt_logprobs and len(old.prompt_logprobs) < old.run.prompt - 1
    if drafter != old.drafter or unscored:  # pages hold the keys of one drafting model, and no logits: what was shared is computed anew
        return _entered(state, new), number
    work = schedule.fork(state.work, parent, number, k=settled.k)
    counters = state.counters._replace(submitted=number + 1)
    new = new._replace(drafted=old.drafted)
    return dataclasses.replace(state, records=state.records.insert(number, new), work=work, counters=counters), number


def with_drafter(state: EngineState, proposer: Proposer) -> tuple[EngineState, int]:
    """The state with a pool for the proposer's drafting model, and that pool's place; -1 where it drafts with none, or in the target's pool.

    >>> import torch
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.engine.request import Config
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.engine.job import SILENT
    >>> with_drafter(init(toy.bigram(torch.eye(3)), Config()), SILENT)[1]
    -1
    """
    drafter = proposer.drafter
    if drafter is None or drafter.shares:
        return state, -1
    known = [place for place, other in enumerate(state.drafters) if other is drafter.model]
    if known:
        return state, known[0]
    drafts = (*state.drafts, pool(drafter.model, state.config))
    return dataclasses.replace(state, drafters=(*state.drafters, drafter.model), drafts=drafts), len(state.drafters)


def renewed(state: EngineState, request: Request, own: Key, tokens: Sequence[int], guess: Any) -> Record:
    """The record of a request that has come to some tokens: what follows from them (laws, spelling, a constraint's state) is made anew.

    Args:
        own: the request's key.
        tokens: its prompt and what was emitted.
        guess: its proposer's state.

    >>> import torch
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.engine.request import Config
    >>> from specdec_fn.models import toy
    >>> renewed(init(toy.bigram(torch.eye(3)), Config()), Request([1], 4), key(0), [1, 2], ()).ending.left
    3
    """
    settled = _settled(state, request)
    record = _record(request, settled, own, with_drafter(state, settled.proposer)[1])
    made = list(tokens[len(settled.prompt) :])
    start, ends = settled.ending, settled.ending.stop_ids
    feeding, kept = ending.feed(start, made)
    if kept.size < len(made) or kept.finish_reason:  # under other controls it would have ended before: what was emitted stands
        feeding, kept = ending.feed(start._replace(minimum=len(made), stop_ids=frozenset()), made)
        feeding = feeding._replace(minimum=max(start.minimum - len(made), 0), stop_ids=ends)
    grown = record.grammar if request.constraint is None else grammar.advanced(request.constraint, record.grammar, made)
    run = record.run._replace(tokens=tuple(tokens), guess=guess)
    return record._replace(run=run, ending=feeding, said=(kept.text,), grammar=grown)


def _with_kin(state: EngineState, request: Request) -> EngineState:
    family = with_kin(state.family, state.config.proposer if request.proposer is None else request.proposer)
    return state if family is state.family else dataclasses.replace(state, family=family)


def _settled(state: EngineState, request: Request) -> Terms:
    config = state.config
    proposer = config.proposer if request.proposer is None else request.proposer
    if request.stop and is_mute(state.tokenizer):
        raise ValueError(f"stop is {request.stop!r} in an engine that was restored without its tokenizer; expected restore(..., tokenizer=...)")
    settled = terms(
        state.sizes,
        request.prompt,
        state.tokenizer,
        request.sampling,
        None if proposer == "none" else proposer,
        config.verifier if request.verifier is None else request.verifier,
        config.k if request.k is None else request.k,
        request.max_tokens,
        request.stop_ids,
        request.stop,
        request.ignore_eos,
        model=state.family.target,
        made=state.family.kin,
    )
    if settled.limit < 1:
        raise ValueError(
            f"the prompt has {len(settled.prompt)} tokens; expected at most {state.sizes.context - 1}, so that one more fits the context"
        )
    return settled


def _record(request: Request, settled: Terms, own: Key, drafter: int) -> Record:
    prompt, k = settled.prompt, settled.k
    guess = settled.proposer.init(list(prompt))
    how = settled.proposer, settled.verifier, k, guess, None, settled.ending.stop_ids
    run = Running(own, None, tuple(prompt), len(prompt), settled.limit, *how)
    grammar = None if request.constraint is None else request.constraint[0]
    return Record(request, run, settled.controls, settled.ending, grammar=grammar, drafter=drafter)


def _entered(state: EngineState, record: Record) -> EngineState:
    request, run, number = record.request, record.run, state.counters.submitted
    tag = f"{record.drafter}:{number if request.prompt_logprobs else ''}:".encode()
    work = schedule.submit(
        state.work,
        id=number,
        tokens=run.tokens,
        limit=run.prompt + run.wanted,
        k=run.k,
        priority=request.priority,
        salt=tag + request.salt,
        prompt=run.prompt,
    )
    counters = state.counters._replace(submitted=number + 1)
    return dataclasses.replace(state, records=state.records.insert(number, record), work=work, counters=counters)
