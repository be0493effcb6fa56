"""What was written down is the engine, or one sentence says why it is not; functions are given again, and the state that came in stays as it is."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from specdec_fn import SamplingParams
from specdec_fn.engine import Config, Constraint, EngineState, Request, abort, fork, free_pages, init, restore, run, snapshot, snapshots, submit
from specdec_fn.models import toy
from specdec_fn.random import key
from specdec_fn.speculate import proposers, verifiers
from specdec_fn.text import Tokenizer

MODEL = toy.llama(key(14), vocab_size=16, layers=1, context=64)
PROMPT = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
LETTERS = Tokenizer(
    lambda text, *, special=False: ["abcdefghijklmnop".index(one) for one in text],
    lambda ids, *, skip_special=True: "".join("abcdefghijklmnop"[i] for i in ids),
    lambda messages: [0],
    (),
    16,
)


def begun(asked: list[Request], steps: int = 4, tokenizer: Tokenizer | None = None, **settings: Any) -> EngineState:
    state = init(MODEL, Config(**{"page_size": 2, "num_pages": 16, "prefill_chunk": 5, "max_batch": 2} | settings), tokenizer)
    for request in asked:
        state, _ = submit(state, request)
    return run(MODEL, state, steps=steps)[0]


def ends(state: EngineState) -> dict[int, tuple[list[int], str, str]]:
    return {number: (one.tokens, one.text, one.finish_reason) for number, one in run(MODEL, state)[1].items()}


ASKED = [Request(PROMPT[place:], 7, seed=place, priority=place % 2, logprobs=place, proposer="ngram") for place in range(4)]
WRITTEN = snapshot(begun(ASKED))
EXPECTED = ends(restore(MODEL, WRITTEN))


def refused(data: Any, message: str, **more: Any) -> None:
    """One sentence; and the state is as it was, and goes on."""
    with pytest.raises((ValueError, TypeError), match=message) as error:
        restore(MODEL, data, **more)
    assert "expected" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_snapshot_goes_on_where_the_state_was() -> None:
    assert ends(begun(ASKED)) == EXPECTED
    assert sorted(EXPECTED) == [0, 1, 2, 3]
    assert ends(restore(MODEL, bytearray(WRITTEN))) == ends(restore(MODEL, memoryview(WRITTEN))) == EXPECTED


def test_equal_states_are_written_alike() -> None:
    assert snapshot(begun(ASKED)) == WRITTEN == snapshot(restore(MODEL, WRITTEN))


def test_a_snapshot_of_nothing() -> None:
    empty = init(MODEL, Config(num_pages=5))
    again = restore(MODEL, snapshot(empty))
    assert (free_pages(again), again.counters, again.config) == (5, empty.counters, empty.config)
    state, number = submit(again, ASKED[0])
    assert number == 0
    assert run(MODEL, state)[1][0].tokens == EXPECTED[0][0]


@pytest.mark.parametrize("part", range(40))
def test_a_snapshot_cut_anywhere_is_refused(part: int) -> None:
    refused(WRITTEN[: len(WRITTEN) * part // 40], "bytes are no whole snapshot")


def test_the_last_byte_is_missed() -> None:
    refused(WRITTEN[:-1], "no whole snapshot")
    refused(WRITTEN + b"x", "no whole snapshot")


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"\xff" * 999, b"specdec " * 30, save({"x": torch.ones(2)}), save({"state": torch.ones(9)})])
def test_garbage_is_refused(data: bytes) -> None:
    refused(data, "no whole snapshot")


@pytest.mark.parametrize("data", [None, "text", 3, [1, 2]])
def test_what_is_no_bytes_is_refused(data: Any) -> None:
    refused(data, "expected bytes, what snapshot")


@pytest.mark.parametrize("name", sorted(load(WRITTEN)))
def test_a_missing_tensor_is_refused(name: str) -> None:
    refused(save({one: tensor for one, tensor in load(WRITTEN).items() if one != name}), "lacks|no whole snapshot")


@pytest.mark.parametrize("name", ["config", "counters", "drafters", "format", "held", "key", "model", "records", "work"])
def test_a_missing_part_is_refused(name: str) -> None:
    arrays = load(WRITTEN)
    written = json.loads(arrays["state"].numpy().tobytes())
    del written[name]
    text = torch.frombuffer(bytearray(json.dumps(written).encode()), dtype=torch.uint8)
    refused(save({**arrays, "state": text}), "lacks|no whole snapshot|has format None")


@given(place=st.integers(0, len(WRITTEN) - 1), byte=st.integers(0, 255))
def test_a_byte_that_was_changed_is_refused(place: int, byte: int) -> None:
    """Wherever it is: in the headers, in the text, in the keys and values."""
    damaged = bytearray(WRITTEN)
    damaged[place] ^= byte or 1
    with pytest.raises(ValueError, match="expected"):
        restore(MODEL, bytes(damaged))


def test_another_model_is_refused() -> None:
    for other in (toy.llama(key(15), vocab_size=16, layers=1, context=64), toy.llama(key(14), vocab_size=16, layers=2, context=64)):
        with pytest.raises(ValueError, match=r"the snapshot is of model \w+; expected \w+, the model that was given"):
            restore(other, WRITTEN)


@pytest.mark.parametrize("number", [0, 99, "1", None])
def test_another_version_is_refused(number: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "FORMAT", number)
    later = snapshot(begun(ASKED))
    monkeypatch.undo()
    refused(later, f"the snapshot has format {number!r}; expected {snapshots.FORMAT}, the one of this version")


def test_after_a_refusal_the_state_goes_on() -> None:
    state = begun(ASKED)
    written = snapshot(state)
    refused(written[:-5], "no whole snapshot")
    with pytest.raises(ValueError, match="is of model"):
        restore(toy.llama(key(15), vocab_size=16, layers=1, context=64), written)
    assert ends(state) == EXPECTED


# What must be given again


def own(name: str) -> Any:
    return proposers.scripted.proposer(lambda context: [3, 1, 4])._replace(name=name)


@pytest.mark.parametrize("by", ["request", "engine"])
def test_a_proposer_that_was_a_value_is_given_again(by: str) -> None:
    settings, request = ({"proposer": own("mine")}, {}) if by == "engine" else ({}, {"proposer": own("mine")})
    state = begun([Request(PROMPT, 7, seed=1, **request)], **settings)
    written = snapshot(state)
    for again in ({}, {"other": own("mine")}):
        refused(written, "proposer 'mine' was given as a value, which is not kept; expected it again, as proposers=", proposers=again)
    assert ends(restore(MODEL, written, proposers={"mine": own("mine")})) == ends(state)


def test_a_verifier_that_was_a_value_is_given_again() -> None:
    mine = verifiers["block"]._replace(name="mine")
    state = begun([Request(PROMPT, 7, seed=1, proposer="ngram", verifier=mine)])
    refused(snapshot(state), "verifier 'mine' was given as a value, which is not kept; expected it again, as verifiers=")
    again = restore(MODEL, snapshot(state), verifiers={"mine": mine})
    assert ends(again) == ends(state)


def test_a_constraint_is_given_again() -> None:
    """Its state follows from the tokens, so it is not written, and may be anything."""
    evens = Constraint(object(), lambda state: torch.arange(16) % 2 == 0, lambda state, token: state)
    state = begun([Request(PROMPT, 9, seed=1, constraint=evens), Request(PROMPT, 9, seed=2)])
    refused(snapshot(state), r"request 0 has a constraint, which is not kept; expected it again, as constraints=\{0: ...\}")
    again = restore(MODEL, snapshot(state), constraints={0: evens})
    expected = ends(state)
    assert ends(again) == expected
    assert all(token % 2 == 0 for token in expected[0][0])


def test_stop_strings_need_the_tokenizer() -> None:
    asked = [Request("fbe", 20, SamplingParams(temperature=0), stop=["zz"]), Request("fbe", 20, seed=2)]
    state = begun(asked, tokenizer=LETTERS)
    refused(snapshot(state), "tokenizer")
    assert ends(restore(MODEL, snapshot(state), tokenizer=LETTERS)) == ends(state)


def test_without_the_tokenizer_the_same_tokens_come_without_text() -> None:
    """The tokenizer decides tokens too: ids that end a text, and ids that have none."""
    cut = LETTERS._replace(eos_ids=(0, 3, 6), size=11)
    asked = [Request("fbe", 20, SamplingParams(min_tokens=3), seed=2), Request(PROMPT, 9, seed=3, ignore_eos=True)]
    state = begun(asked, tokenizer=cut)
    again = restore(MODEL, snapshot(state))
    with pytest.raises(ValueError, match=r"expected .*tokenizer"):
        submit(again, Request("abc", 3))
    with pytest.raises(ValueError, match=r"expected .*tokenizer"):
        submit(again, Request(PROMPT, 3, stop="c"))
    once_more = ends(restore(MODEL, snapshot(again), tokenizer=cut))
    quiet, expected = ends(again), ends(state)
    assert {number: (tokens, "", reason) for number, (tokens, _, reason) in expected.items()} == quiet
    assert once_more == expected
    assert max(token for tokens, _, _ in expected.values() for token in tokens) < 11
    assert expected[0][2] == "stop"


def test_a_state_that_nothing_can_write_is_refused() -> None:
    """A proposer's own state is written with the rest; one that is a function cannot be."""
    plain = own("closed")
    closed = plain._replace(
        init=lambda prompt: lambda: 1,
        propose=lambda key, state, tokens, k, *, position: (state, plain.propose(key, (), tokens, k, position=position)[1]),
    )
    state = begun([Request(PROMPT, 7, seed=1, proposer=closed)])
    with pytest.raises(TypeError, match="cannot be written down"):
        snapshot(state)
    assert len(ends(state)[0][0]) == 7


def test_forks_and_aborts_survive() -> None:
    """Counts of forks and numbers of requests go on where they were, so later forks draw what they would have drawn."""

    def later(state: EngineState) -> Any:
        state, second = fork(state, 0)
        state = abort(state, 1)
        state, third = submit(state, Request(PROMPT, 5))
        assert (second, third) == (5, 6)
        return ends(state)

    state, first = fork(begun(ASKED[:1], steps=5), 0)
    for request in ASKED[1:]:
        state, _ = submit(state, request)
    again = restore(MODEL, snapshot(state))
    assert first == 1
    assert later(again) == later(state)
