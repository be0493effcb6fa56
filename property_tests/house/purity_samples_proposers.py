"""Sample arguments for what drafts: the proposers with models and automata, their halves, and the sharing of a target's cache."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from specdec_fn import models, random
from specdec_fn.engine import job, sharing, state
from specdec_fn.engine.running import Running
from specdec_fn.kv import dense
from specdec_fn.models import Model, toy, truncate
from specdec_fn.models import quantized as small
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import Proposer, proposers, verifiers
from specdec_fn.speculate.draft import chain
from specdec_fn.speculate.proposer import raced
from specdec_fn.speculate.proposers import draft_model, early_exit, first, ngram, paying, quantized, suffix
from specdec_fn.text import vocabulary

from .purity_samples import FIXED, Sample, bigram, bytewise, cache, call, sizes, table, tiny, words

LINE = [1, 2, 3, 1, 2]
WARM = SamplingParams(0.7)


def samples() -> Iterator[Sample]:
    yield from suffix_rooms()
    yield from model_rooms()
    yield from halves()
    yield from sharing_rooms()
    yield Sample(vocabulary.check_same, lambda: call(words(), words()))
    yield Sample(vocabulary.check_same, lambda: call(words(), bytewise()), ValueError)
    yield Sample(vocabulary.first_difference, lambda: call(words(), bytewise()))


def packable() -> Model:
    """A model whose rows have whole groups of 32."""
    return toy.llama(random.key(2), vocab_size=8, layers=1, width=32, heads=2, head_dim=16, ffn=32, dtype=torch.float32)


def suffix_rooms() -> Iterator[Sample]:
    read = suffix.extend(suffix.Automaton(), LINE)
    yield Sample(suffix.extend, lambda: call(suffix.Automaton(), LINE))
    yield Sample(suffix.extend, lambda: call(read, [1, 2, 4]))
    yield Sample(suffix.match, lambda: call(read))
    yield Sample(suffix.continuation, lambda: call(LINE, [2], 4, 0.5))
    yield Sample(suffix.proposer, lambda: call(2, 0.5))
    yield Sample(suffix.proposer, lambda: call(0), ValueError)
    yield from of_proposer(suffix.proposer())


def model_rooms() -> Iterator[Sample]:
    yield Sample(truncate.first_layers, lambda: call(tiny(), 1))
    yield Sample(truncate.first_layers, lambda: call(bigram(), 1), TypeError)
    yield Sample(small.quantized, lambda: call(packable(), "q4_0"))
    yield Sample(small.quantized, lambda: call(bigram()), TypeError)
    yield Sample(early_exit.drafting, lambda: call(tiny()))
    yield Sample(early_exit.proposer, lambda: call(tiny(), 1, sampling=WARM))
    yield Sample(quantized.drafting, lambda: call(packable(), "q4_0"))
    yield Sample(quantized.proposer, lambda: call(packable(), sampling=WARM))
    yield Sample(proposers.drafting, lambda: call("early_exit", tiny()))
    yield Sample(proposers.drafting, lambda: call("ngram", tiny()), ValueError)
    yield Sample(proposers.named, lambda: call("ngram+early_exit", tiny(), WARM))
    yield Sample(proposers.named, lambda: call("draft_model", tiny(), WARM, made={"draft_model": tiny()}))
    yield Sample(proposers.named, lambda: call("early_exit"), ValueError)
    yield Sample(proposers.names_in, lambda: call("ngram+quantized"))
    yield Sample(proposers.names_in, lambda: call("ngram+"), ValueError)
    for made, settings in ((tiny(), FIXED), (models.invariant(tiny()), WARM)):
        yield Sample(draft_model.sharing, lambda made=made, settings=settings: call("own", made, sampling=settings, vocab_size=7))
        controls = draft_model.Controls(settings, 2, 7)
        given = random.key(0), made
        for race in (False, True):
            yield Sample(
                draft_model.drawn,
                lambda given=given, controls=controls, race=race: call(*given, cache(), [1, 2, 3], 2, controls, dense.attend, position=3, race=race),
            )


def halves() -> Iterator[Sample]:
    soft = draft_model.proposer(tiny(), sampling=WARM)
    yield Sample(first.proposer, lambda: call(ngram.proposer(), soft))
    yield Sample(first.proposer, lambda: call(), ValueError)
    for race in (False, True):
        yield Sample(raced, lambda race=race: call(paying.proposer(soft), race, 9))
    for one in (
        soft,
        draft_model.proposer(tiny(), sampling=WARM, race=True),
        draft_model.sharing("own", tiny()),
        paying.proposer(soft),
        first.proposer(ngram.proposer(), soft),
        first.proposer(suffix.proposer()),
    ):
        yield from of_proposer(one)


def of_proposer(one: Proposer) -> Iterator[Sample]:
    yield Sample(one.init, lambda: call(LINE))
    for tokens in (LINE, [1, 2, 3]):
        yield Sample(one.propose, lambda tokens=tokens: call(random.key(0), one.init(LINE), tokens, 2, position=len(tokens)))
    drafter = one.drafter
    if drafter is None:
        return
    yield Sample(drafter.again, lambda: call(tiny(), 9))
    for tokens in (LINE, [1, 2, 3]):
        yield Sample(drafter.ask, lambda tokens=tokens: call(random.key(0), one.init(LINE), tokens, 2, position=len(tokens)))
    yield Sample(drafter.told, lambda: call(one.init(LINE), LINE, chain([4], 2)))


def sharing_rooms() -> Iterator[Sample]:
    own, cheap = early_exit.proposer(tiny(), 1, sampling=WARM), ngram.proposer()
    mixed = first.proposer(cheap, own)
    for one in (own, cheap):
        yield Sample(sharing.shares, lambda one=one: call(one))
        yield Sample(sharing.fits, lambda one=one: call(one, sizes("llama")))
    yield Sample(sharing.fits, lambda: call(own, dataclasses.replace(sizes("llama"), head_dim=8)), ValueError)
    for one, tokens in ((own, (1, 2, 3)), (mixed, (1, 2, 3)), (mixed, (1, 2, 1))):
        yield Sample(sharing.drafted, lambda one=one, tokens=tokens: call(running(one, tokens), cache(), 8, dense.attend))
        yield Sample(sharing.told_of, lambda one=one, tokens=tokens: call(running(one, tokens), chain([1], 1)))
    yield Sample(sharing.in_dtype, lambda: call(dense.attend, torch.float32))
    cast = sharing.in_dtype(models.causal, torch.float64)
    yield Sample(cast, lambda: call((), 0, table(3, 2, 4), table(3, 1, 4), table(3, 1, 4)))
    yield Sample(state.with_kin, lambda: call(state.Family(tiny(), {}), "ngram+early_exit"))
    yield Sample(job.terms, lambda: call(sizes("llama"), [1, 2], *terms("early_exit"), model=tiny()))
    yield Sample(job.terms, lambda: call(sizes("llama"), [1, 2], *terms("early_exit")), ValueError)


def terms(proposer: str) -> tuple[Any, ...]:
    return None, WARM, proposer, "token", 2, 3, (), (), False


def running(one: Proposer, tokens: tuple[int, ...]) -> Running:
    """A sequence whose cache holds two tokens."""
    return Running(random.key(0), None, tokens, 2, 4, one, verifiers["token"], 2, one.init([1, 2]), None)
