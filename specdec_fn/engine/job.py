"""One request, checked and settled: everything a loop needs, and every refusal in one sentence."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from specdec_fn import models
from specdec_fn.engine import ending, sharing
from specdec_fn.engine.attention import CAUSAL, INVARIANT, Attention
from specdec_fn.engine.law import Controls, Law, law
from specdec_fn.models import Config, Model
from specdec_fn.random import Key, key
from specdec_fn.sampling import SamplingParams
from specdec_fn.sampling.processors import checked_ids
from specdec_fn.speculate import Proposer, Verifier, proposers, verifiers
from specdec_fn.speculate.draft import chain
from specdec_fn.speculate.proposer import raced
from specdec_fn.text import Tokenizer
from specdec_fn.typing import Tensor

__all__ = ["SILENT", "Job", "Terms", "checked_model", "settle", "terms"]


class Terms(NamedTuple):
    """What a request comes to once it is checked, whoever computes its logits.

    Attributes:
        controls: what makes its target laws from logits.
        prompt: its ids.
        limit: most tokens to emit, by ``max_tokens`` and by the context.
        proposer, verifier, k: how it speculates; k is 0 for plain decoding. Under ``coupled`` a drafting model runs the race, under others not.
        ending: what ends it.
    """

    controls: Controls
    prompt: list[int]
    limit: int
    proposer: Proposer
    verifier: Verifier
    k: int
    ending: ending.Ending


class Job(NamedTuple):
    """A request that can run on its own.

    Attributes:
        model: the target, in its invariant form where that was asked for.
        attention: how it attends to the cache.
        key: the request's key.
        law: from logits to target laws.
        terms: the rest.
    """

    model: Model
    attention: Attention
    key: Key
    law: Law
    terms: Terms


def settle(
    model: Model,
    prompt: str | Sequence[int] | Tensor,
    tokenizer: Tokenizer | None,
    seed: int,
    sampling: SamplingParams,
    proposer: Proposer | str | None,
    verifier: Verifier | str,
    k: int,
    max_tokens: int,
    stop_ids: Sequence[int],
    stop: str | Sequence[str],
    ignore_eos: bool,
    invariant: bool,
    draft_fn: Callable[[list[int]], Sequence[int]] | None,
) -> Job:
    """Checks the arguments of ``generate`` and makes the job of them.

    Raises:
        TypeError, ValueError: what was received and what was expected, in one sentence.

    >>> from specdec_fn.models import toy
    >>> rest = (None, 0, SamplingParams(), None, "token", 5, 128, (), (), False, False, None)
    >>> settle(toy.bigram(torch.eye(3), context=10), [0, 1], *rest).terms.limit
    8
    """
    checked_model(model)
    common = tokenizer, sampling, proposer, verifier, k, max_tokens, stop_ids, stop, ignore_eos, draft_fn
    settled = terms(model.config, prompt, *common, model=model)
    own = law(*settled.controls)
    if not invariant:
        return Job(model, CAUSAL, key(seed), own, settled)
    drafter = settled.proposer.drafter
    if drafter is not None:  # drafts that are drawn must have the same bits too
        same, vocab = models.invariant(drafter.model), model.config.vocab_size
        if drafter.again is None:
            again = proposers.draft_model.proposer(same, sampling=drafter.sampling, vocab_size=vocab, race=drafter.race)
        else:
            again = drafter.again(same, vocab)
        settled = settled._replace(proposer=again._replace(name=settled.proposer.name))
    return Job(models.invariant(model), INVARIANT, key(seed), own, settled)


def checked_model(model: Any) -> None:
    """Refuses what is no Model.

    >>> checked_model("gpt")
    Traceback (most recent call last):
    ...
    TypeError: model is 'gpt'; expected a Model, such as load(...)[0]
    """
    if not isinstance(model, Model):
        raise TypeError(f"model is {model!r:.80}; expected a Model, such as load(...)[0]")


def terms(
    config: Config,
    prompt: str | Sequence[int] | Tensor,
    tokenizer: Tokenizer | None,
    sampling: SamplingParams,
    proposer: Proposer | str | None,
    verifier: Verifier | str,
    k: int,
    max_tokens: int,
    stop_ids: Sequence[int],
    stop: str | Sequence[str],
    ignore_eos: bool,
    draft_fn: Callable[[list[int]], Sequence[int]] | None = None,
    *,
    model: Model | None = None,
    made: Mapping[str, Model] = MappingProxyType({}),
) -> Terms:
    """Checks a request against the sizes of a model.

    Args:
        config: the vocabulary, the context and the shape of the cache are read.
        model, made: the target, and what was made of it, for the names of proposers that draft with its weights; nothing else needs them.

    Raises:
        TypeError, ValueError: what was received and what was expected, in one sentence.

    >>> terms(Config("toy", vocab_size=3, context=10), [0, 1], None, SamplingParams(), None, "token", 5, 128, (), (), False).limit
    8
    """
    if not isinstance(sampling, SamplingParams):
        raise TypeError(f"sampling is {sampling!r:.80}; expected a SamplingParams")
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"tokenizer is {tokenizer!r:.80}; expected a Tokenizer, such as load(...)[1], or None")
    vocab, context = config.vocab_size, config.context
    checked_ids(sampling, vocab)
    k = _whole("k", k, least=0)
    max_tokens = _whole("max_tokens", max_tokens, least=1)
    ids = _prompt_ids(prompt, tokenizer, vocab)
    if len(ids) > context:
        raise ValueError(f"the prompt has {len(ids)} tokens; expected at most {context}, the model's context")
    if not isinstance(stop, Iterable) or isinstance(stop, bytes):
        raise TypeError(f"stop is {stop!r:.80}; expected a string or a sequence of strings")
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if strings and tokenizer is None:
        raise ValueError(f"stop is {list(strings)} without a tokenizer; expected a tokenizer to find strings with, or stop_ids")
    ends = [*_ids("stop_ids", stop_ids, vocab), *(() if tokenizer is None or ignore_eos else tokenizer.eos_ids)]
    chosen = _verifier(verifier)
    if chosen.name == "greedy" and not sampling.greedy:
        raise ValueError(f"verifier 'greedy' with temperature {sampling.temperature}; expected temperature 0, or another verifier such as 'token'")
    drafting = _proposer(proposer, draft_fn, k, vocab, lambda name: proposers.named(name, model, sampling, made=made))
    if drafting is not None:
        drafting = raced(drafting, chosen.name == "coupled", vocab)  # by any other rule such drafts would be no samples of their laws
        sharing.fits(drafting, config)
    limit = min(max_tokens, context - len(ids))
    return Terms(
        controls=Controls(sampling, tuple(ids), tuple(end for end in ends if end < vocab), _spelled(tokenizer, vocab)),
        prompt=ids,
        limit=limit,
        proposer=SILENT if drafting is None else drafting,
        verifier=chosen,
        k=0 if drafting is None else k,
        ending=ending.init(tokenizer, ids, count=limit, min_tokens=sampling.min_tokens, stop_ids=ends, stop_strings=strings),
    )


SILENT = Proposer("none", lambda prompt: (), lambda key, state, tokens, k, *, position: (state, chain((), k)))


def _whole(name: str, value: Any, *, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected a whole number of {least} or more") from None
    if number < least:
        raise ValueError(f"{name} is {number}; expected a whole number of {least} or more")
    return number


def _ids(name: str, values: Any, vocab: int) -> list[int]:
    items = values.tolist() if isinstance(values, Tensor) else values
    if isinstance(items, bytes | bytearray):  # text that was not decoded: its numbers are no ids
        raise TypeError(f"{name} is {values!r:.80}; expected a sequence of ids")
    try:
        ids = [operator.index(item) for item in items]
    except TypeError:
        raise TypeError(f"{name} is {values!r:.80}; expected a sequence of ids") from None
    for place, token in enumerate(ids):
        if not 0 <= token < vocab:
            raise ValueError(f"{name}[{place}] is {token}; expected an id in [0, {vocab})")
    return ids


def _prompt_ids(prompt: Any, tokenizer: Tokenizer | None, vocab: int) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError("the prompt is text without a tokenizer; expected a tokenizer, or ids")
        prompt = tokenizer.encode(prompt)
    ids = _ids("prompt", prompt, vocab)
    if not ids:
        raise ValueError("the prompt is empty; expected at least one token")
    return ids


def _verifier(verifier: Verifier | str) -> Verifier:
    if isinstance(verifier, Verifier):
        return verifier
    if isinstance(verifier, str) and verifier in verifiers.all:
        named = verifiers.all[verifier]
        if not named.lossless:
            opt_in = f"speculate.verifiers[{verifier!r}] itself, which says that you accept its bias"
            raise ValueError(f"verifier {verifier!r} does not keep the target's law; expected a lossless one, or {opt_in}")
        return named
    raise ValueError(f"verifier is {verifier!r}; expected a Verifier or one of the names {', '.join(verifiers.all)}")


def _proposer(
    proposer: Proposer | str | None,
    draft_fn: Callable[[list[int]], Sequence[int]] | None,
    k: int,
    vocab: int,
    named: Callable[[Proposer | str], Proposer],
) -> Proposer | None:
    if draft_fn is None:
        return None if proposer is None else named(proposer)
    if proposer is not None:
        raise ValueError(f"draft_fn together with proposer {getattr(proposer, 'name', proposer)!r}; expected one of the two")
    if not callable(draft_fn):
        raise TypeError(f"draft_fn is {draft_fn!r}; expected a callable from a list of ids to a list of ids")

    def checked(context: list[int]) -> list[int]:
        ids = _ids("the result of draft_fn", draft_fn(context), vocab)
        if len(ids) > k:
            raise ValueError(f"draft_fn returned {len(ids)} ids; expected at most k = {k}")
        return ids

    return proposers.scripted.proposer(checked)


def _spelled(tokenizer: Tokenizer | None, vocab: int) -> Tensor | None:
    """Forbids ids that pad the vocabulary and have no text."""
    if tokenizer is None or tokenizer.size >= vocab:
        return None
    return torch.arange(vocab) < tokenizer.size
