"""Answers: OpenAI's client reads them, and the chunks of a request, joined, say what the whole says, however its tokens came."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn.engine import ending
from specdec_fn.engine.event import Event
from specdec_fn.engine.generation import Generation, Stats
from specdec_fn.serve import answers, chat, completion, events
from specdec_fn.serve.asked import Asked
from specdec_fn.text import detokenizer

from . import wire

SERVED, MODEL, TOKENIZER = wire.served(), wire.model(), wire.tokenizer()
ROUTES = {"completions": completion, "chat": chat}
BODIES: dict[str, dict[str, Any]] = {
    "completions": {"model": "toy", "prompt": ["a", "b c"]},
    "chat": {"model": "toy", "messages": [{"role": "user", "content": "abc"}]},
}
both = pytest.mark.parametrize("route", sorted(ROUTES))


def read(route: str, **body: Any) -> Asked:
    return ROUTES[route].asked({**BODIES[route], **body}, SERVED, 11)


def joined(chunks: Sequence[Mapping[str, Any]], choices: int) -> list[dict[str, Any]]:
    """What a reader of a stream puts together, choice by choice, in the shape of the whole."""
    made: list[dict[str, Any]] = [{"text": "", "reasons": [], "rows": None, "passes": []} for _ in range(choices)]
    for chunk in chunks:
        for choice in chunk["choices"]:
            one = made[choice["index"]]
            assert not one["reasons"], "something came after the end"
            one["text"] += choice.get("text", choice.get("delta", {}).get("content", ""))
            one["reasons"] += [choice["finish_reason"]] if choice["finish_reason"] else []
            one["passes"] += [choice["speculation"]] if "speculation" in choice else []
            if choice["logprobs"] is not None:
                rows = one["rows"] or dict.fromkeys(choice["logprobs"])
                one["rows"] = {name: _sum(rows[name], more) for name, more in choice["logprobs"].items()}
    return made


def _sum(before: Any, more: Any) -> Any:
    return before if more is None else [*(before or ()), *more]


def told_whole(asked: Asked, told: Sequence[tuple[int, Event]]) -> tuple[dict[str, Any], list[Generation]]:
    done = {index: event.generation for index, event in told if event.generation is not None}
    whys = [[event.why for index, event in told if index == place and event.why is not None] for place in range(len(asked.requests))]
    generations = [done[place] for place in sorted(done)]
    answer = answers.whole(asked, generations, whys, *wire.ABOUT, TOKENIZER)
    wire.check(answer, SERVED)
    return answer, generations


def agree(asked: Asked, chunks: Sequence[Mapping[str, Any]], whole: Mapping[str, Any]) -> None:
    for one, choice in zip(joined(chunks, len(asked.requests)), whole["choices"], strict=True):
        assert one["text"] == (choice["text"] if "text" in choice else choice["message"]["content"])
        assert one["reasons"] == [choice["finish_reason"]]
        assert one["rows"] == choice["logprobs"]
        assert one["passes"] == choice.get("speculation", [])
    for chunk in chunks:
        assert events.event(chunk) == b"data: " + json.dumps(chunk, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"
    json.dumps(whole, allow_nan=False)


@both
@pytest.mark.parametrize(
    "how", [{}, {"top": 0}, {"top": 3}, {"explain": True}, {"top": 2, "explain": True}, {"echo": True}, {"echo": True, "top": 2}]
)
@pytest.mark.parametrize("verifier", ["token", "tree", "greedy"])
def test_the_stream_of_an_engine_is_its_whole(route: str, how: dict[str, Any], verifier: str) -> None:
    if route == "chat" and "echo" in how:
        how = {"top": 5}
    top = how.get("top")
    logprobs: dict[str, Any] = {} if top is None else {"logprobs": top} if route == "completions" else {"logprobs": True, "top_logprobs": top}
    body = {"echo": True} if "echo" in how else {}
    proposer = "ngram_tree" if verifier == "tree" else "ngram"
    stop, more = (["ab", "ha"], {}) if verifier != "greedy" else ([], {"temperature": 0, "ignore_eos": True, "logit_bias": {"0": 50}})
    asked = read(
        route, n=2, max_tokens=24, seed=4, stop=stop, stream=True, stream_options={"include_usage": True}, **logprobs, **body, **more,
        speculation={"explain": "explain" in how, "verifier": verifier, "proposer": proposer},
    )  # fmt: skip
    told = wire.ran(MODEL, asked)
    chunks = wire.streamed(asked, told, SERVED)
    whole, generations = told_whole(asked, told)
    agree(asked, chunks, whole)
    assert [chunk["usage"] for chunk in chunks] == [None] * (len(chunks) - 1) + [whole["usage"]]
    assert chunks[-1]["choices"] == []
    assert {chunk["seed"] for chunk in chunks} == {whole["seed"]} == {4}
    for place, (choice, done) in enumerate(zip(whole["choices"], generations, strict=True)):
        prompt = asked.prompts[place // asked.n]
        echoed = asked.texts[place // asked.n] if asked.texts else ""
        assert (choice["index"], choice["finish_reason"]) == (place, done.finish_reason)
        assert (choice["text"] if route == "completions" else choice["message"]["content"]) == echoed + done.text
        if top is None:
            assert choice["logprobs"] is None
        elif route == "chat":
            rows = choice["logprobs"]["content"]
            assert [row["logprob"] for row in rows] == done.logprobs
            assert [row["bytes"] for row in rows] == [list(wire.PIECES[token]) for token in done.tokens]
            assert all(len(row["top_logprobs"]) == top for row in rows)
        else:
            rows = choice["logprobs"]
            skipped = len(prompt) if asked.texts else 0
            assert rows["token_logprobs"][skipped:] == done.logprobs
            assert all(one is None or len(one) == len(rows["tokens"]) for one in rows.values())
            assert (rows["top_logprobs"] is None) == (top == 0)
            if skipped:
                assert rows["token_logprobs"][:skipped] == [None, *(done.prompt_logprobs or [])]
        if asked.explain:
            count = sum(sum(node["kind"] == "accepted" for node in one["proposed"]) + (one["final"] is not None) for one in choice["speculation"])
            assert count == len(done.tokens) == sum(len(one["pieces"]) for one in choice["speculation"])
            assert "".join(piece for one in choice["speculation"] for piece in one["pieces"]).startswith(done.text.rstrip("\ufffd"))
    usage = whole["usage"]
    assert usage["completion_tokens"] == sum(len(done.tokens) for done in generations)
    assert usage["prompt_tokens"] == sum(map(len, asked.prompts))
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == sum(done.stats.accepted for done in generations)
    if verifier == "greedy":  # a text of one letter, which drafts foresee
        assert usage["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    proposed = sum(event.proposed for _, event in told)
    assert sum(usage["completion_tokens_details"].values()) == proposed


def scripted(asked: Asked, tokens: Sequence[int], cuts: Sequence[int], count: int) -> list[tuple[int, Event]]:
    """The events of tokens that came in passes of these sizes, ended as the engine ends them."""
    one = asked.requests[0]
    now = ending.init(TOKENIZER, one.prompt, count=count, stop_ids=(*one.stop_ids, wire.END), stop_strings=one.stop)  # type: ignore[arg-type]
    told, said, made, at = [], "", [], 0
    for size in [*cuts, len(tokens)]:
        part = list(tokens[at : at + size])
        at += size
        now, kept = ending.feed(now, part)
        said, made = said + kept.text, [*made, *part[: kept.size]]
        scores = [-0.25 * (token + 1) for token in made]
        best = [{token: score, (token + 1) % wire.VOCAB: score - 1} for token, score in zip(made, scores, strict=True)]
        done = kept.finish_reason and Generation(made, said, kept.finish_reason, scores, Stats(), best)
        start = len(made) - kept.size
        told.append((0, Event(0, made[start:], scores[start:], kept.finish_reason, text=kept.text, generation=done or None, likeliest=best[start:])))
        if done:
            return told
    raise AssertionError("the tokens do not reach an end")


pieces = st.lists(st.integers(0, wire.SIZE - 1), min_size=12, max_size=12)
cuts = st.lists(st.integers(1, 5), max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(ROUTES)), pieces, cuts, st.sampled_from([[], ["beta gamma"], ["ab", "c"], ["é"]]), st.integers(1, 12))
def test_any_split_of_the_tokens_says_the_same(route: str, tokens: list[int], sizes: list[int], stop: list[str], count: int) -> None:
    body = {"prompt": [*TOKENIZER.encode("a"), wire.PIECES.index("é".encode()[:1])]} if route == "completions" else {}  # it ends inside a character
    rows = {"logprobs": 2} if route == "completions" else {"logprobs": True, "top_logprobs": 2}
    asked = read(route, stop=stop, max_tokens=count, stream=True, **body, **rows)
    told = scripted(asked, tokens, sizes, count)
    whole, (done,) = told_whole(asked, told)
    chunks = wire.streamed(asked, told, SERVED)
    agree(asked, chunks, whole)
    text = "".join(one["text"] for one in joined(chunks, 1))
    assert all(string not in text for string in stop)
    if route == "chat":
        return
    # The offsets by another way: the length of what all tokens before come to, as far as it is certain.
    before = list(asked.prompts[0])
    start = detokenizer.init(TOKENIZER, before)
    lengths = [len(detokenizer.feed(start, done.tokens[:place])[1]) for place in range(len(done.tokens))]
    assert whole["choices"][0]["logprobs"]["text_offset"] == lengths


def test_echo_counts_offsets_in_the_whole_text() -> None:
    asked = read("completions", prompt="aé", echo=True, logprobs=0, max_tokens=4)
    first, second = (wire.PIECES.index(bytes([one])) for one in "é".encode())
    done = Generation([1, first, second, 2], "béc", "length", [-1.0, -2.0, -3.0, -math.inf], Stats(), None, [-4.0, -5.0])
    rows = answers.whole(asked, [done], [[]], *wire.ABOUT, TOKENIZER)["choices"][0]
    assert rows["text"] == "aébéc"
    assert rows["logprobs"] == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "b", "bytes:\\xc3", "bytes:\\xa9", "c"],
        "token_logprobs": [None, -4.0, -5.0, -1.0, -2.0, -3.0, -9999.0],
        "top_logprobs": None,
        "text_offset": [0, 1, 1, 2, 3, 3, 4],
    }


def test_ids_without_text_can_be_likely() -> None:
    done = Generation([0], "a", "length", [-1.0], Stats(), [{wire.VOCAB - 1: -0.5, 0: -1.0, wire.END: -2.0}])
    asked = read("completions", prompt="a", logprobs=3, max_tokens=1)
    (rows,) = answers.whole(asked, [done], [[]], *wire.ABOUT, TOKENIZER)["choices"][0]["logprobs"]["top_logprobs"]
    assert list(rows.items()) == [(f"<id {wire.VOCAB - 1}>", -0.5), ("a", -1.0), ("<end>", -2.0)]
    spoken = read("chat", logprobs=True, top_logprobs=3, max_tokens=1)
    (row,) = answers.whole(spoken, [done], [[]], *wire.ABOUT, TOKENIZER)["choices"][0]["logprobs"]["content"]
    assert [one["bytes"] for one in row["top_logprobs"]] == [None, [97], list(b"<end>")]


def test_a_tokenizer_that_only_decodes() -> None:
    plain = TOKENIZER._replace(token_bytes=None)
    asked = read("chat", logprobs=True, max_tokens=1)
    done = Generation([wire.PIECES.index(b"pha b")], "pha b", "length", [-1.0], Stats())
    (row,) = answers.whole(asked, [done], [[]], *wire.ABOUT, plain)["choices"][0]["logprobs"]["content"]
    assert row == {"token": "pha b", "logprob": -1.0, "bytes": list(b"pha b"), "top_logprobs": []}


@both
def test_the_first_chunks(route: str) -> None:
    asked = read(route, n=2, stream=True, **({"echo": True} if route == "completions" else {}))
    first = answers.opening(asked, *wire.ABOUT)
    assert [chunk["choices"][0]["index"] for chunk in first] == list(range(len(asked.requests)))
    if route == "chat":
        assert {json.dumps(chunk["choices"][0]["delta"]) for chunk in first} == {'{"role": "assistant", "content": ""}'}
    else:
        assert [chunk["choices"][0]["text"] for chunk in first] == ["a", "a", "b c", "b c"]
        assert answers.opening(read(route), *wire.ABOUT) == []


def test_a_token_that_says_nothing_yet_is_no_chunk() -> None:
    asked = read("chat", stream=True)
    state, made = answers.chunks(asked, answers.begin(asked), 0, Event(0, [3], [-1.0], None), *wire.ABOUT, TOKENIZER)
    assert made == []
    _, made = answers.chunks(asked, state, 0, Event(0, [], [], "length"), *wire.ABOUT, TOKENIZER)
    assert [(chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]) for chunk in made] == [({}, "length")]


def test_events_are_lines() -> None:
    assert events.event({"a": "x\ny é \u2028"}) == 'data: {"a":"x\\ny é \u2028"}\n\n'.encode()
    assert events.event("a\r\nb\rc") == b"data: a\ndata: b\ndata: c\n\n"
    assert events.event({"a": "\ud800"}) == b'data: {"a":"?"}\n\n'
    with pytest.raises(ValueError, match="Out of range"):
        events.event({"a": math.nan})


def test_the_offsets_grow() -> None:
    asked = read("completions", prompt="ab", logprobs=0, max_tokens=30, echo=True, seed=9)
    whole, _ = told_whole(asked, wire.ran(MODEL, asked))
    choice = whole["choices"][0]
    offsets = choice["logprobs"]["text_offset"]
    assert offsets[:3] == [0, 1, 2]
    assert all(one <= other for one, other in pairwise(offsets))
