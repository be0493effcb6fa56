"""Explained requests: the events say how each token came to be, nothing else changes, and who does not ask does not pay."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn.engine import Config, EngineState, Request, init, restore, snapshot, step, submit
from specdec_fn.engine.decode import decided
from specdec_fn.engine.event import Event
from specdec_fn.engine.graphs import Bucket, Graphs
from specdec_fn.models import toy
from specdec_fn.random import key
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import explain, verifiers

TARGET = toy.llama(key(1), vocab_size=16, layers=1, context=64)
PROMPT = (1, 2, 3, 1, 2, 3, 1)


def engine(*requests: Request, **sizes: Any) -> EngineState:
    state = init(TARGET, Config(**{"page_size": 4, "num_pages": 64, "invariant": True, **sizes}))
    for one in requests:
        state, _ = submit(state, one)
    return state


def events_of(state: EngineState, **more: Any) -> list[Event]:
    found: list[Event] = []
    while len(state.records):
        state, some = step(TARGET, state, **more)
        found += some
    return found


def request(**more: Any) -> Request:
    return Request(PROMPT, **{"max_tokens": 12, "sampling": SamplingParams(1.5), "seed": 3, "proposer": "ngram", "k": 4, "explain": True, **more})


@settings(max_examples=30)
@given(st.sampled_from([name for name, rule in verifiers.items() if name != "greedy"]), st.integers(0, 9), st.integers(1, 12), st.booleans())
def test_events_tell_of_their_own_tokens(name: str, seed: int, most: int, tree: bool) -> None:
    rule = verifiers[name]
    asked = request(seed=seed, max_tokens=most, verifier=rule, proposer="ngram_tree" if tree and rule.trees else "ngram", stop_ids=[5])
    told, base = events_of(engine(asked)), len(PROMPT)
    plain = events_of(engine(Request(**{**vars(asked), "explain": False})))
    assert [tuple(event) for event in told] == [tuple(event) for event in plain]
    for event in told:
        assert event.why is not None
        assert event.why.base == base
        assert event.proposed == len(event.why.nodes)
        said = [node for node in event.why.nodes if node.kind == "accepted"] + ([event.why.final] if event.why.final else [])
        assert [node.token for node in said] == event.tokens
        assert [node.kind for node in said] == event.kinds
        base += len(event.tokens)


def test_without_the_wish_nothing_is_told_or_reckoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_fn.engine.running.explained", lambda *given, **more: pytest.fail("explained without being asked to"))
    for event in events_of(engine(request(explain=False), request(explain=False, verifier="block"))):
        assert event.why is None
        assert event.likeliest is None


def test_each_request_is_told_of_what_it_asked_for() -> None:
    found = events_of(engine(request(), request(explain=False, logprobs=2), request(seed=4)))
    told = {number: {event.why is not None for event in found if event.request_id == number} for number in range(3)}
    assert told == {0: {True}, 1: {False}, 2: {True}}
    for event in found:
        assert (event.likeliest is not None) == (event.request_id == 1)
        assert event.likeliest is None or [len(row) for row in event.likeliest] == [2] * len(event.tokens)
    whole = next(event.generation for event in found if event.request_id == 1 and event.generation is not None)
    assert [row for event in found if event.request_id == 1 for row in event.likeliest or []] == whole.likeliest
    assert whole.stats.proposed == sum(event.proposed for event in found if event.request_id == 1)


def test_tokens_behind_an_end_are_cut_from_what_is_told() -> None:
    circle = toy.bigram(torch.eye(4).roll(1, dims=1))  # 0 -> 1 -> 2 -> 3 -> 0: every draft is right
    state = init(circle, Config())
    state, _ = submit(state, _round())
    (event,) = step(circle, state)[1]
    assert (event.tokens, event.finish_reason) == ([1, 2], "length")
    assert event.why is not None
    assert [node.kind for node in event.why.nodes] == ["accepted"]
    assert event.why.final is not None
    state, _ = submit(init(circle, Config()), _round(max_tokens=9, verifier="tree", proposer="ngram_tree", stop_ids=[2], logprobs=2))
    (event,) = step(circle, state)[1]
    assert (event.tokens, event.finish_reason) == ([1, 2], "stop")
    assert event.why is not None
    assert Counter(node.kind for node in event.why.nodes) == {"accepted": 2, "unread": 2}
    assert event.why.final is None
    assert event.proposed == 4
    assert event.likeliest is not None
    assert [max(row, key=row.__getitem__) for row in event.likeliest] == event.tokens


def _round(**more: Any) -> Request:
    return Request([0, 1, 2, 3, 0], **{"max_tokens": 2, "proposer": "ngram", "k": 4, "explain": True, **more})


def test_a_snapshot_keeps_the_wish() -> None:
    state, _ = step(TARGET, engine(request()))
    again = restore(TARGET, snapshot(state))
    assert again.records[0].request.explain is True
    assert [event.why for event in events_of(again)] == [event.why for event in events_of(state)]


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_the_wish_is_a_bool(wrong: Any) -> None:
    with pytest.raises(TypeError, match=rf"explain is {wrong!r}; expected True or False"):
        Request([1], 4, explain=wrong)


def test_an_explained_pass_goes_through_no_captured_step() -> None:
    bucket = Bucket(1, 5, 8)
    steps = Graphs({bucket: lambda logits, batch: decided(verifiers[bucket.verifier], logits, batch)})
    for wish in (True, False):
        state, _ = submit(engine(invariant=False), request(explain=wish))
        parts: list[str] = []
        while len(state.records):
            state, events = step(TARGET, state, graphs=steps, lap=parts.append)
            assert all((event.why is not None) == wish for event in events)
        captured = state.counters.captured
        assert (captured > 0) is not wish
        assert parts.count("verify") == parts.count("plan") - captured
        assert all(parts.count(part) == parts.count("plan") for part in ("propose", "forward", "commit"))


def test_laps_come_after_each_part() -> None:
    parts: list[str] = []
    step(TARGET, engine(request()), lap=parts.append)
    assert parts == ["plan", "propose", "forward", "verify", "commit"]


def test_a_generation_is_explained_by_the_same_words_alone_and_in_company() -> None:
    alone = [event.why for event in events_of(engine(request()))]
    together = [event.why for event in events_of(engine(request(seed=8), request(), prefill_chunk=3)) if event.request_id == 1]
    assert together == alone
    assert all(isinstance(why, explain.Explained) for why in alone)
