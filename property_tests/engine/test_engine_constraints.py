"""A request with a grammar emits what the grammar allows and nothing else, under every verifier and any draft; a grammar that fails ends its own
request and no other."""

import dataclasses
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import SamplingParams, generate, models
from specdec_fn.engine import Config, Constraint, Request, fork, free_pages, init, restore, run, snapshot, submit
from specdec_fn.engine.law import law
from specdec_fn.models import toy
from specdec_fn.random import key, uniform
from specdec_fn.sampling import draw
from specdec_fn.speculate import Proposer, proposers, verifiers
from specdec_fn.speculate.tape import FINAL, address

VOCAB = 12
MODEL = toy.llama(key(21), vocab_size=VOCAB, context=64)
GREEDY = SamplingParams(temperature=0)
RULES = ["greedy", *(name for name, rule in verifiers.items() if rule.lossless and name != "greedy")]
PROMPT = [1, 2, 3, 1, 2, 4, 1, 2]
ANOTHER = Request([4, 5, 6], 8, seed=7, proposer="ngram")


def mask_of(state: tuple[int, int]) -> torch.Tensor:
    """After a token t at place n, what is t or t + 1 away in steps of three may come, and every fourth place is even."""
    last, place = state
    ids = torch.arange(VOCAB)
    return ((ids - last) % 3 != 2) & ((ids % 2 == 0) | torch.tensor(place % 4 != 3))


def advance(state: tuple[int, int], token: int) -> tuple[int, int]:
    assert bool(mask_of(state)[token]), "only what was allowed is taken in"
    return token, state[1] + 1


GRAMMAR = Constraint((PROMPT[-1], 0), mask_of, advance)


def obeys(tokens: list[int]) -> bool:
    state = GRAMMAR.init
    for token in tokens:
        if not mask_of(state)[token]:
            return False
        state = token, state[1] + 1
    return True


def plainly(sampling: SamplingParams, seed: int, count: int, mask: Any = mask_of) -> list[int]:
    """One cold pass for each token, masked by the grammar: the law and the numbers of plain decoding."""
    tokens, state = list(PROMPT), GRAMMAR.init
    for _ in range(count):
        probs = law(sampling, PROMPT, (), mask(state))(models.logits(MODEL, tokens)[-1:], tokens[len(PROMPT) :], ())
        tokens.append(int(draw(uniform(address(key(seed), FINAL, len(tokens))), probs[0])))
        state = tokens[-1], state[1] + 1
    return tokens[len(PROMPT) :]


def drafting(name: str, fn: Any) -> Proposer:
    return proposers.scripted.proposer(fn)._replace(name=name)


EXPECTED = plainly(GREEDY, 0, 16)
DRAFTERS = {
    "right": drafting("right", lambda context: EXPECTED[len(context) - len(PROMPT) :][:4]),
    "wrong": drafting("wrong", lambda context: [(context[-1] + 2) % VOCAB, 0, 1, 2]),
    "half": drafting("half", lambda context: [*EXPECTED[len(context) - len(PROMPT) :][: len(context) % 3], 7, 7]),
    "none": "none",
    "ngram": "ngram",
    "ngram_tree": "ngram_tree",
}


def served(*asked: Request, **settings: Any) -> tuple[Any, dict[int, Any]]:
    state = init(MODEL, Config(**{"page_size": 2, "num_pages": 40, "k": 4, "invariant": True} | settings))
    for request in asked:
        state, _ = submit(state, request)
    state, done = run(MODEL, state)
    assert free_pages(state) == state.config.num_pages
    return state, done


@pytest.mark.parametrize(("rule", "drafter"), [(rule, one) for rule in RULES for one in DRAFTERS if one != "ngram_tree" or verifiers[rule].trees])
def test_greedy_tokens_are_those_of_plain_decoding_under_the_grammar(rule: str, drafter: str) -> None:
    asked = Request(PROMPT, 16, GREEDY, constraint=GRAMMAR, proposer=DRAFTERS[drafter], verifier=rule)
    _, done = served(ANOTHER, asked, max_batch=2)
    assert done[1].tokens == EXPECTED
    assert obeys(EXPECTED)
    assert generate(MODEL, PROMPT, sampling=GREEDY, max_tokens=16).tokens != EXPECTED
    assert drafter != "right" or done[1].stats.passes == 4


@given(rule=st.sampled_from(RULES[1:]), drafter=st.sampled_from(["right", "wrong", "half", "ngram"]), seed=st.integers(0, 99))
def test_sampled_tokens_obey(rule: str, drafter: str, seed: int) -> None:
    asked = Request(PROMPT, 8, SamplingParams(temperature=1.5), seed=seed, constraint=GRAMMAR, proposer=DRAFTERS[drafter], verifier=rule)
    _, done = served(asked, ANOTHER, asked, num_pages=10, max_batch=3, prefill_chunk=3)
    assert obeys(done[0].tokens)
    assert len(done[0].tokens) == 8
    assert done[2].tokens == done[0].tokens


@pytest.mark.parametrize("seed", range(4))
def test_coupled_tokens_do_not_depend_on_the_drafts(seed: int) -> None:
    """The race is run over the masked laws, so every drafter gives the tokens that none gives."""
    asked = Request(PROMPT, 12, SamplingParams(temperature=1.5), seed=seed, constraint=GRAMMAR, verifier="coupled")
    _, done = served(*(dataclasses.replace(asked, proposer=one) for one in DRAFTERS.values()), max_batch=6, num_pages=80)
    assert len({tuple(one.tokens) for one in done.values()}) == 1
    assert obeys(done[0].tokens)


@given(seed=st.integers(0, 99))
def test_without_drafts_a_seed_draws_from_the_masked_law(seed: int) -> None:
    sampling = SamplingParams(temperature=1.3, top_k=4, presence_penalty=0.5)
    _, done = served(Request(PROMPT, 6, sampling, seed=seed, constraint=GRAMMAR), ANOTHER)
    assert done[0].tokens == plainly(sampling, seed, 6)


def test_forks_and_restored_requests_go_on_in_the_grammar() -> None:
    state = init(MODEL, Config(page_size=2, num_pages=40, k=4, invariant=True))
    state, _ = submit(state, Request(PROMPT, 16, GREEDY, constraint=GRAMMAR, proposer="ngram"))
    state, _ = run(MODEL, state, steps=4)
    state, forked = fork(state, 0, sampling=SamplingParams(temperature=1.5))
    again = restore(MODEL, snapshot(state), constraints={0: GRAMMAR, forked: GRAMMAR})
    for one in (state, again):
        _, done = run(MODEL, one)
        assert done[0].tokens == EXPECTED
        assert obeys(done[forked].tokens)
        assert done[forked].tokens != EXPECTED


# Grammars that fail


def breaking(at: int, where: str, how: Any) -> Constraint:
    """The grammar, but that ``where`` does something else at the given place."""

    def broken() -> Any:
        if isinstance(how, Exception):
            raise how
        return how

    def mask(state: tuple[int, int]) -> Any:
        return broken() if where == "mask" and state[1] == at else mask_of(state)

    def step_on(state: tuple[int, int], token: int) -> Any:
        return broken() if where == "advance" and state[1] == at else advance(state, token)

    return Constraint(GRAMMAR.init, mask, step_on)


CASES = (
    ("mask", KeyError("gone"), "KeyError"),
    ("mask", torch.ones(VOCAB), r"float32 \[12\]; expected bool \[12\]"),
    ("mask", torch.ones(VOCAB - 1, dtype=torch.bool), r"bool \[11\]; expected bool \[12\]"),
    ("mask", torch.ones(1, VOCAB, dtype=torch.bool), r"bool \[1, 12\]; expected bool \[12\]"),
    ("mask", [True] * VOCAB, r"expected bool \[12\]"),
    ("mask", None, r"None; expected bool \[12\]"),
    ("mask", torch.zeros(VOCAB, dtype=torch.bool), "allow no token"),
    ("advance", RuntimeError("stuck"), "stuck"),
)


@pytest.mark.parametrize("drafter", ["none", "right", "wrong"])
@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize(("where", "how", "message"), CASES)
def test_a_grammar_that_fails_ends_its_own_request(where: str, how: Any, message: str, at: int, drafter: str) -> None:
    """What came before it stands, its pages come back, and the others are as alone."""
    asked = Request(PROMPT, 16, GREEDY, constraint=breaking(at, where, how), proposer=DRAFTERS[drafter])
    state, done = served(ANOTHER, asked, ANOTHER)
    failed = done[1]
    assert failed.finish_reason == "error"
    assert failed.tokens == EXPECTED[: len(failed.tokens)]
    assert len(failed.tokens) <= at + (where == "advance")
    assert len(failed.logprobs) == len(failed.tokens)
    assert re.search(message, failed.error)
    alone = generate(MODEL, ANOTHER.prompt, seed=7, proposer="ngram", k=4, max_tokens=8, invariant=True)
    assert done[0].tokens == done[2].tokens == alone.tokens
    assert (state.counters.failed, state.counters.finished) == (1, 2)


@pytest.mark.parametrize("given_as", [(0, len), (0, 1, 2), "abc", (0, len, None)])
def test_what_is_no_grammar_is_refused(given_as: Any) -> None:
    with pytest.raises(TypeError, match=r"constraint is .*; expected \(init, mask, advance\)"):
        Request(PROMPT, 3, constraint=given_as)


def test_a_plain_triple_is_a_grammar() -> None:
    _, done = served(Request(PROMPT, 16, GREEDY, constraint=tuple(GRAMMAR)))
    assert done[0].tokens == EXPECTED
