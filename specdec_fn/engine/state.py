"""The engine as one immutable value.

Metadata is persistent: an old state stays valid and costs nothing to keep. The pool of keys and values is not: states that share a pool die
together when one of them is stepped; ``clone`` owns a copy of it.
"""

import dataclasses
import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rpds import HashTrieMap

from specdec_fn import schedule
from specdec_fn.engine import ending
from specdec_fn.engine.generation import Stats
from specdec_fn.engine.identity import identity
from specdec_fn.engine.job import checked_model, terms
from specdec_fn.engine.law import Controls
from specdec_fn.engine.request import Config, Request
from specdec_fn.engine.running import Running
from specdec_fn.kv import store
from specdec_fn.models import Config as Sizes
from specdec_fn.models import Model
from specdec_fn.models.model import parameter
from specdec_fn.pytree import alive
from specdec_fn.pytree import state as pytree_state
from specdec_fn.random import Key, key
from specdec_fn.sampling import SamplingParams
from specdec_fn.schedule import Schedule
from specdec_fn.speculate import proposers
from specdec_fn.text import Tokenizer

__all__ = ["Counters", "EngineState", "Family", "Record", "clone", "free_pages", "init", "number_of", "pool", "record_of", "with_kin"]


class Record(NamedTuple):
    """One live request, but for its pages, which the scheduler has.

    Attributes:
        request: as it was submitted, with the engine's settings filled in.
        run: its tokens, key, proposer and verifier between passes.
        controls: what makes its laws.
        ending: what ends it, and its spelling so far.
        said: the pieces of its text.
        logprobs: of its tokens, in nats.
        likeliest: for each token, the ``request.logprobs`` likeliest ids there with their log-probabilities.
        prompt_logprobs: of prompt tokens 1, 2, ..., as far as they were computed.
        grammar: the constraint's state.
        stats: counts.
        forks: how many were forked from it.
        drafter: which of the engine's drafting models it uses; -1 for none.
        drafted: slots that hold that model's keys and values of committed tokens.
    """

    request: Request
    run: Running
    controls: Controls
    ending: ending.Ending
    said: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    likeliest: tuple[dict[int, float], ...] = ()
    prompt_logprobs: tuple[float, ...] = ()
    grammar: Any = None
    stats: Stats = Stats()
    forks: int = 0
    drafter: int = -1
    drafted: int = 0


class Counters(NamedTuple):
    """Totals since ``init``.

    Attributes:
        submitted, finished, aborted, failed: requests; forks count as submitted, and failed ones not as finished.
        steps: passes of the model.
        preempted: times that a request lost its pages and was computed again.
        prompted, cached: prompt tokens of requests at their first admission, and how many of them the prefix cache had.
        proposed, accepted, emitted: tokens.
        captured: passes that went through a captured step.
    """

    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    steps: int = 0
    preempted: int = 0
    prompted: int = 0
    cached: int = 0
    proposed: int = 0
    accepted: int = 0
    emitted: int = 0
    captured: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """The target, and the drafting models that were made of its weights; equal to itself only, since parameters are not compared.

    Attributes:
        target: the model that the engine was made for.
        kin: by the names of proposers.
    """

    target: Model
    kin: Mapping[str, Model]


@pytree_state(static=("config", "sizes", "tokenizer", "model", "drafters", "family"))
class EngineState:
    """Everything an engine knows, but the model's parameters.

    Attributes:
        config: its settings.
        sizes: the model's configuration, with the engine's context.
        tokenizer: spells, or None.
        model: a fingerprint of the model that it was made for.
        drafters: the drafting models in use that have pools of their own.
        key: of requests without a seed.
        records: persistent map from request id to ``Record``, of all that wait or run.
        work: the scheduler's state: queues, page tables, free pages, prefix cache.
        store: the pool of keys and values.
        drafts: the drafting models' pools, one each, with the same pages.
        counters: totals.
        family: the target, and the drafting models that are made of its weights.
    """

    config: Config
    sizes: Sizes
    tokenizer: Tokenizer | None
    model: str
    drafters: tuple[Model, ...]
    key: Key
    records: HashTrieMap
    work: Schedule
    store: store.Store
    drafts: tuple[store.Store, ...]
    counters: Counters
    family: Family


def init(model: Model, config: Config, tokenizer: Tokenizer | None = None) -> EngineState:
    """An engine without requests.

    Args:
        model: the target; every ``step`` must be given the same.
        config: settings.
        tokenizer: for text prompts, text and stop strings, and the ids that end a text.

    Raises:
        TypeError, ValueError: what was received and what was expected.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> free_pages(init(toy.bigram(torch.eye(3)), Config(num_pages=8)))
    8
    """
    checked_model(model)
    if not isinstance(config, Config):
        raise TypeError(f"config is {config!r:.80}; expected an engine.Config")
    context = model.config.context if config.context is None else config.context
    if context > model.config.context:
        raise ValueError(f"context is {context}; expected at most {model.config.context}, the model's")
    sizes = dataclasses.replace(model.config, context=context)
    if config.invariant and model.invariant is None:
        raise ValueError(f"this {sizes.architecture} model has no invariant form; expected Config(invariant=False)")
    family, greedy = with_kin(Family(model, MappingProxyType({})), config.proposer), SamplingParams(temperature=0)
    how = config.proposer, config.verifier, config.k, 1, (), (), False
    terms(sizes, [0], tokenizer, greedy, *how, model=model, made=family.kin)  # what it says, early
    limits = schedule.Limits(config.page_size, config.num_pages, config.max_batch, config.prefix_cache)
    own = pool(model, config)
    work = schedule.init(limits)
    return EngineState(config, sizes, tokenizer, identity(model), (), key(config.seed), HashTrieMap(), work, own, (), Counters(), family)


def with_kin(family: Family, proposer: Any) -> Family:
    """The family with the drafting models that a proposer's name needs; each is made once, and serves all requests that name it.

    Raises:
        TypeError, ValueError: a target of which no such model can be made. Unknown names are left to who looks them up.

    >>> from specdec_fn.models import toy
    >>> list(with_kin(Family(toy.llama(key(0)), {}), "ngram+early_exit").kin)
    ['early_exit']
    """
    parts = proposer.split("+") if isinstance(proposer, str) else ()
    made = {name: proposers.drafting(name, family.target) for name in parts if name in proposers.of_target and name not in family.kin}
    return Family(family.target, MappingProxyType({**family.kin, **made})) if made else family


def record_of(state: EngineState, request_id: int) -> Record:
    """What is known of a live request.

    Raises:
        KeyError: it never was, or has ended.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.engine.lifecycle import submit
    >>> state, first = submit(init(toy.bigram(torch.eye(3)), Config()), Request([1], 4))
    >>> record_of(state, first).run.tokens
    (1,)
    """
    number = number_of(request_id)
    if number is None or number not in state.records:
        raise KeyError(f"request {request_id!r} is not there; expected the id of one that waits or runs")
    return state.records[number]


def number_of(request_id: Any) -> int | None:
    """An id as the plain integer it is, which is all that a persistent map can look up; None for what is no id.

    >>> number_of(3), number_of("3")
    (3, None)
    """
    try:
        return None if isinstance(request_id, bool) else operator.index(request_id)
    except TypeError:
        return None


def free_pages(state: EngineState) -> int:
    """Pages that a new request could have: free ones, and cached ones that no request holds.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> free_pages(init(toy.bigram(torch.eye(3)), Config(num_pages=8)))
    8
    """
    return schedule.free_pages(state.work)


def clone(state: EngineState) -> EngineState:
    """The same state with pools of its own, for a past to return to.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> state = init(toy.bigram(torch.eye(3)), Config())
    >>> clone(state).store is state.store
    False
    """
    alive((state.key, state.store, state.drafts), "the state")
    pools = tuple(store.clone(pool) for pool in state.drafts)
    return dataclasses.replace(state, key=Key(state.key.words.clone()), store=store.clone(state.store), drafts=pools)


def pool(model: Model, config: Config) -> store.Store:
    """An empty pool for the keys and values of a model.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> pool(toy.bigram(torch.eye(3)), Config(num_pages=8)).pages
    8
    """
    any_one = parameter(model)
    return store.init(model.config, config.num_pages, config.page_size, dtype=any_one.dtype, device=any_one.device)
