"""The target's own weights in 4 or 8 bits as the draft: exact tokens, drafts that are mostly right, one packing for all requests of an engine."""

import dataclasses
import itertools
from collections import Counter
from typing import Any

import pytest
import torch

from specdec_fn import SamplingParams, generate, models
from specdec_fn.engine import Config, Request, init, restore, run, snapshot, submit
from specdec_fn.models import toy
from specdec_fn.random import key
from specdec_fn.speculate import proposers
from specdec_fn.speculate.proposers import quantized

GREEDY = SamplingParams(temperature=0)
KINDS = ("int8", "q8_0", "q4_0", "q4_1")
TARGET = toy.llama(key(4), vocab_size=64, layers=2, width=32, heads=2, head_dim=16, ffn=64, context=96, dtype=torch.float32)

WIDE = toy.llama(key(4), vocab_size=64, layers=2, width=32, heads=2, head_dim=16, ffn=64, context=96)


def timeless(done: Any) -> Any:
    return done._replace(stats=done.stats._replace(seconds={}))


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_ids_are_the_target_s_and_most_drafts_are_right(kind: str) -> None:
    plain = generate(TARGET, [5, 9, 2], sampling=GREEDY, max_tokens=60, invariant=True)
    guess = quantized.proposer(TARGET, kind, sampling=GREEDY)
    done = generate(TARGET, [5, 9, 2], sampling=GREEDY, max_tokens=60, proposer=guess, k=3, invariant=True)
    assert done.tokens == plain.tokens
    assert done.stats.acceptance_rate > (0.8 if kind in ("int8", "q8_0") else 0.3)


@pytest.mark.parametrize(("kind", "verifier"), [("q4_0", "token"), ("int8", "block")])
def test_three_tokens_have_the_joint_law_of_the_target(kind: str, verifier: str) -> None:
    """64 sequences, their laws multiplied out from cold passes of the whole weights; chi-squared, 63 degrees of freedom, alpha 5e-7."""
    target = toy.llama(key(12), vocab_size=4, layers=1, width=32, heads=2, head_dim=16, ffn=32, dtype=torch.float32)
    guess = quantized.proposer(target, kind, sampling=SamplingParams(temperature=1.2))
    laws = {
        line: models.logits(target, [2, 0, *line])[-1].double().softmax(-1).tolist()
        for size in range(3)
        for line in itertools.product(range(4), repeat=size)
    }
    expected = {line: laws[()][line[0]] * laws[line[:1]][line[1]] * laws[line[:2]][line[2]] for line in itertools.product(range(4), repeat=3)}
    n, counts, accepted = 300, Counter(), 0
    for seed in range(n):
        done = generate(target, [2, 0], seed=seed, proposer=guess, verifier=verifier, k=2, max_tokens=3)
        counts[tuple(done.tokens)] += 1
        accepted += done.stats.accepted
    assert sum((counts[line] - n * p) ** 2 / (n * p) for line, p in expected.items()) < 135
    assert 0 < accepted < 2 * n


@pytest.mark.parametrize("name", ["quantized", "ngram+quantized"])
def test_in_an_engine_it_drafts_what_it_drafts_alone(name: str) -> None:
    asked = [Request([5, 9, 2, place], 14, seed=place, proposer=name, k=3, verifier="token") for place in range(3)]
    asked.append(dataclasses.replace(asked[0], sampling=GREEDY, seed=7))
    state = init(WIDE, Config(page_size=4, num_pages=40, prefill_chunk=3, invariant=True))
    for request in asked:
        state, _ = submit(state, request)
    drafting = {id(record.run.proposer.drafter.model) for record in state.records.values()}
    assert len(drafting) == 1
    state, early = run(WIDE, state, 3)
    state = restore(WIDE, snapshot(state))
    done = early | run(WIDE, state)[1]
    for number, request in enumerate(asked):
        how = {field: getattr(request, field) for field in ("seed", "sampling", "proposer", "k", "max_tokens", "verifier")}
        assert timeless(done[number]) == timeless(generate(WIDE, request.prompt, invariant=True, **how))


def test_with_a_cache_of_its_own_it_is_as_exact() -> None:
    guess = quantized.proposer(TARGET, "q4_0", sampling=GREEDY)._replace(drafter=None)
    plain = generate(TARGET, [5, 9, 2], sampling=GREEDY, max_tokens=30)
    assert generate(TARGET, [5, 9, 2], sampling=GREEDY, max_tokens=30, proposer=guess, k=3).tokens == plain.tokens


def test_bfloat16_targets_draft_too() -> None:
    target = toy.llama(key(4), vocab_size=64, width=32, heads=2, head_dim=16, ffn=64, dtype=torch.bfloat16)
    guess = quantized.proposer(target, "q8_0", sampling=GREEDY)
    done = generate(target, [5, 9, 2], sampling=GREEDY, max_tokens=30, proposer=guess, k=3)
    assert len(done.tokens) == 30
    assert done.stats.acceptance_rate > 0.5


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^the model is a toy model without blocks; expected one of the Llama family$"):
        generate(toy.bigram(torch.eye(3)), [1], proposer="quantized")
    with pytest.raises(ValueError, match="kind is 'q3'; expected one of int8"):
        quantized.proposer(TARGET, "q3")
    with pytest.raises(ValueError, match="a row has 16 inputs; expected a multiple of 32"):
        proposers.named("quantized", toy.llama(key(0)))
