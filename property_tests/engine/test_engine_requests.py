"""What an engine refuses, in one sentence, and that nothing has changed then: the state that came in is valid and goes on."""

import dataclasses
from typing import Any

import pytest
import torch

from specdec_fn import generate
from specdec_fn.engine import Config, EngineState, PassError, Request, abort, clone, fork, free_pages, init, run, step, submit
from specdec_fn.engine.state import record_of
from specdec_fn.models import toy
from specdec_fn.pytree import DonatedError, checking
from specdec_fn.random import key
from specdec_fn.speculate import Draft, proposers, verifiers
from specdec_fn.speculate.draft import chain

MODEL = toy.llama(key(41), vocab_size=16, layers=1, context=32)
GOOD = Request([1, 2, 3], 5, seed=1)
EXPECTED = generate(MODEL, [1, 2, 3], seed=1, max_tokens=5, invariant=True).tokens


def begun(**settings: Any) -> EngineState:
    state = init(MODEL, Config(**{"page_size": 2, "num_pages": 8, "invariant": True} | settings))
    return submit(state, GOOD)[0]


def goes_on(state: EngineState, number: int = 0) -> None:
    """Nothing was changed: the request that was there, and a new one, get their tokens."""
    state, another = submit(state, GOOD)
    state, done = run(MODEL, state)
    assert done[number].tokens == done[another].tokens == EXPECTED
    assert free_pages(state) == state.config.num_pages


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"page_size": 0}, "page_size is 0; expected a whole number of 1 or more"),
        ({"page_size": -3}, "page_size is -3; expected a whole number of 1 or more"),
        ({"num_pages": 0}, "num_pages is 0; expected a whole number of 1 or more"),
        ({"max_batch": 0}, "max_batch is 0; expected a whole number of 1 or more"),
        ({"prefill_chunk": 0}, "prefill_chunk is 0; expected a whole number of 1 or more"),
        ({"context": 1}, "context is 1; expected a whole number of 2 or more"),
        ({"context": 33}, "context is 33; expected at most 32, the model's"),
        ({"k": -1}, "k is -1; expected a whole number of 0 or more"),
        ({"seed": 2**63}, r"seed is 9223372036854775808; expected a whole number in \[-2\*\*63, 2\*\*63\)"),
        ({"page_size": 2.0}, "page_size is 2.0; expected a whole number"),
        ({"num_pages": True}, "num_pages is True; expected a whole number"),
        ({"invariant": 1}, "invariant is 1; expected True or False"),
        ({"prefix_cache": "yes"}, "prefix_cache is 'yes'; expected True or False"),
        ({"proposer": "parrot"}, "proposer is 'parrot'; expected"),
        ({"verifier": "judge"}, "verifier is 'judge'; expected"),
        ({"verifier": "typical"}, "verifier 'typical' does not keep the target's law; expected"),
    ],
)
def test_settings_that_are_none(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        init(MODEL, Config(**settings))


def test_an_engine_needs_a_model_and_a_config() -> None:
    with pytest.raises(TypeError, match="model is 'llama'; expected a Model"):
        init("llama", Config())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"config is None; expected an engine\.Config"):
        init(MODEL, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no invariant form; expected"):
        init(MODEL._replace(invariant=None), Config(invariant=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": []}, "the prompt is empty; expected at least one token"),
        ({"prompt": [1, 16]}, r"prompt\[1\] is 16; expected an id in \[0, 16\)"),
        ({"prompt": [-1]}, r"prompt\[0\] is -1; expected an id in \[0, 16\)"),
        ({"prompt": [1.5]}, "expected a sequence of ids"),
        ({"prompt": b"abc"}, "expected a sequence of ids"),
        ({"prompt": None}, "expected a sequence of ids"),
        ({"prompt": "text"}, "the prompt is text without a tokenizer; expected a tokenizer, or ids"),
        ({"prompt": [1] * 33}, "the prompt has 33 tokens; expected at most 32, the model's context"),
        ({"prompt": [1] * 32}, "the prompt has 32 tokens; expected at most 31, so that one more fits the context"),
        ({"prompt": [1] * 17, "max_tokens": 2}, "9 pages of 2"),
        ({"max_tokens": 15}, "9 pages of 2"),
        ({"max_tokens": 0}, "max_tokens is 0; expected a whole number of 1 or more"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5; expected a whole number"),
        ({"seed": "x"}, "seed is 'x'; expected a whole number"),
        ({"seed": 2**64}, "seed is 18446744073709551616; expected a whole number"),
        ({"k": -1}, "k is -1; expected a whole number of 0 or more"),
        ({"priority": 0.5}, "priority is 0.5; expected a whole number"),
        ({"logprobs": -1}, "logprobs is -1; expected a whole number of 0 or more"),
        ({"prompt_logprobs": 1}, "prompt_logprobs is 1; expected True or False"),
        ({"salt": "a"}, "salt is 'a'; expected bytes"),
        ({"stop": ["x"]}, r"stop is \['x'\] without a tokenizer; expected a tokenizer"),
        ({"stop": 3}, "stop is 3; expected a string or a sequence of strings"),
        ({"stop_ids": [16]}, r"stop_ids\[0\] is 16; expected an id in \[0, 16\)"),
        ({"stop_ids": 3}, "stop_ids is 3; expected a sequence of ids"),
        ({"sampling": None}, "sampling is None; expected a SamplingParams"),
        ({"proposer": "parrot"}, "proposer is 'parrot'; expected"),
        ({"verifier": "judge"}, "verifier is 'judge'; expected"),
        ({"verifier": "lenient"}, "verifier 'lenient' does not keep the target's law; expected"),
        ({"verifier": "greedy"}, "verifier 'greedy' with temperature 1.0; expected temperature 0"),
        ({"constraint": lambda: 1}, "expected .init, mask, advance."),
    ],
)
def test_requests_that_are_refused(changes: dict[str, Any], message: str) -> None:
    """Before anything is held."""
    state, _ = run(MODEL, begun(), steps=2)
    before = (state.work, state.records, state.counters)
    with pytest.raises((ValueError, TypeError), match=message) as error:
        submit(state, dataclasses.replace(GOOD, **changes))
    assert "expected" in str(error.value)
    assert "\n" not in str(error.value)
    assert (state.work, state.records, state.counters) == before
    goes_on(state)


def test_what_is_no_request_is_refused() -> None:
    with pytest.raises(TypeError, match=r"request is \[1, 2\]; expected an engine.Request"):
        submit(begun(), [1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize("extra", [0, 1])
def test_a_request_that_just_fits_and_one_token_more(extra: int) -> None:
    """Eight pages of two hold sixteen keys, and the last token needs none: 3 + 14 tokens fit, 3 + 15 do not."""
    state = init(MODEL, Config(page_size=2, num_pages=8, k=5, proposer="ngram"))
    request = Request([1, 2, 3], 14 + extra)
    if extra:
        with pytest.raises(ValueError, match="9 pages of 2"):
            submit(state, request)
    else:
        assert len(run(MODEL, submit(state, request)[0])[1][0].tokens) == 14


def test_a_prompt_is_taken_as_it_was() -> None:
    """A list or a tensor that changes later changes nothing."""
    prompt, tensor = [1, 2, 3], torch.tensor([1, 2, 3])
    asked = [Request(prompt, 5, seed=1), Request(tensor, 5, seed=1), Request(range(1, 4), 5, seed=1), Request((1, 2, 3), 5, seed=1)]
    prompt.append(9)
    tensor.fill_(7)
    state = init(MODEL, Config(invariant=True))
    for request in asked:
        state, _ = submit(state, request)
    assert [one.tokens for one in run(MODEL, state)[1].values()] == [EXPECTED] * 4


@pytest.mark.parametrize("unknown", [1, 99, -1, None, "0"])
def test_an_abort_of_nobody_changes_nothing(unknown: Any) -> None:
    state = begun()
    assert abort(state, unknown) is state
    state, done = run(MODEL, state)
    assert abort(state, 0) is state
    assert done[0].tokens == EXPECTED


@pytest.mark.parametrize(
    ("which", "changes", "kind", "message"),
    [
        (7, {}, KeyError, "request 7 is not there; expected the id of one that waits or runs"),
        (0, {"max_tokens": 9}, TypeError, "fork changes max_tokens; expected some of k, proposer, verifier and sampling"),
        (0, {"k": -1}, ValueError, "k is -1; expected"),
        (0, {"verifier": "greedy"}, ValueError, "expected temperature 0"),
        (0, {"proposer": "parrot"}, ValueError, "proposer is 'parrot'; expected"),
        (0, {"sampling": 3}, TypeError, "sampling is 3; expected a SamplingParams"),
        (0, {"seed": 0.5}, TypeError, "seed is 0.5; expected a whole number"),
    ],
)
@pytest.mark.parametrize("steps", [0, 3])
def test_forks_that_are_refused(which: int, changes: dict[str, Any], kind: type[Exception], message: str, steps: int) -> None:
    state, _ = run(MODEL, begun(), steps=steps)
    with pytest.raises(kind, match=message):
        fork(state, which, **changes)
    assert record_of(state, 0).forks == 0
    goes_on(state)


def test_another_model_is_refused() -> None:
    state = begun()
    for other in (toy.llama(key(41), vocab_size=16, layers=2, context=32), toy.bigram(torch.eye(16))):
        with pytest.raises(ValueError, match="of other sizes; expected the model that the state was made for"):
            step(other, state)
    goes_on(state)


@pytest.mark.parametrize("steps", [-1, -7])
def test_a_negative_count_of_steps_is_refused(steps: int) -> None:
    state = begun()
    with pytest.raises(ValueError, match=f"steps is {steps}; expected a whole number of 0 or more, or None"):
        run(MODEL, state, steps=steps)
    assert run(MODEL, state, steps=0)[1] == {}
    goes_on(state)


def test_a_step_with_nothing_to_do_says_nothing() -> None:
    state, events = step(MODEL, init(MODEL, Config()))
    assert events == []
    assert state.counters.steps == 0


@pytest.mark.parametrize(
    ("propose", "message"),
    [
        (lambda *_, **__: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda *_, **__: None, "TypeError: the proposer returned None; expected its state and a Draft"),
        (lambda key, state, *_, **__: (state, chain([1, 99], 5)), r"ValueError: draft.tokens\[1\] is 99; expected an id in \[0, 16\)"),
        (lambda key, state, tokens, k, **__: (state, chain([1] * (k + 1), k + 1)), "drafted 4 tokens; expected at most 3"),
        (lambda key, state, *_, **__: (state, Draft(torch.tensor([1]), torch.zeros(1, 16), torch.tensor(1))), "ValueError: draft.probs"),
    ],
)
def test_a_proposer_that_fails_ends_its_own_request(propose: Any, message: str) -> None:
    """D13's neighbours: the others are as alone, and its pages come back; what it had computed of its prompt harms nobody who finds it."""
    state = begun(k=3, page_size=1, num_pages=20)
    wrong = proposers.scripted.proposer(lambda context: [])._replace(name="wrong", propose=propose)
    state, number = submit(state, dataclasses.replace(GOOD, proposer=wrong))
    state, done = run(MODEL, state)
    assert (done[number].tokens, done[number].finish_reason) == ([], "error")
    assert done[0].tokens == EXPECTED
    with pytest.raises(Exception, match=message):
        raise Exception(done[number].error)
    state, longer = submit(state, Request([1, 2, 3, *EXPECTED], 4, seed=1))
    assert run(MODEL, state)[1][longer].tokens == generate(MODEL, [1, 2, 3, *EXPECTED], seed=1, max_tokens=4, invariant=True).tokens


def test_a_verifier_that_fails_ends_its_own_request() -> None:
    def decide(*_: Any) -> Any:
        raise ArithmeticError("undecided")

    state, number = submit(begun(), dataclasses.replace(GOOD, verifier=verifiers["token"]._replace(name="mine", decide=decide)))
    state, done = run(MODEL, state)
    assert (done[number].finish_reason, done[0].tokens) == ("error", EXPECTED)
    assert "undecided" in done[number].error
    state, number = submit(state, GOOD)
    assert run(MODEL, state)[1][number].tokens == EXPECTED


def test_a_forward_that_fails_is_said_with_a_state_that_goes_on() -> None:
    def fails(*_: Any) -> Any:
        raise MemoryError("full")

    dead = MODEL._replace(invariant=MODEL.invariant._replace(apply=fails, prefill=fails, apply_at=fails))
    state, events = begun(), []
    for _ in range(3):
        with pytest.raises(PassError, match="the forward failed with MemoryError: full") as failure:
            step(dead, state)
        state, some = step(MODEL, failure.value.state)
        events += some
    assert [event.tokens for event in events] == [[token] for token in EXPECTED[:3]]
    goes_on(state)


def test_a_state_that_was_given_away_is_refused_in_check_mode_and_its_clone_is_not() -> None:
    state = begun()
    with checking():
        past = clone(state)
        state, _ = step(MODEL, state)
        given = state
        state, _ = step(MODEL, state)
        with pytest.raises(DonatedError, match="given away"):
            step(MODEL, given)
        with pytest.raises(DonatedError, match="given away"):
            clone(given)
        assert run(MODEL, past)[1][0].tokens == EXPECTED
    goes_on(state)
