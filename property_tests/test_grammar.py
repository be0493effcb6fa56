"""Grammars as values: what may come is what the grammar says, no state ever changes, and what cannot be followed is refused in one sentence."""

import itertools
import json
import re
import socket
import string
import threading
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import SamplingParams, grammar
from specdec_fn.engine import Config, Constraint, Request, init, run, submit
from specdec_fn.load import load
from specdec_fn.models import toy
from specdec_fn.random import key
from specdec_fn.text import Tokenizer

EMBEDDED = load("smollm2-135m")[1]
KNOWN = grammar.vocabulary(EMBEDDED, EMBEDDED.size + 3)
END = EMBEDDED.eos_ids[0]

PIECES = (*string.printable.encode(), *range(0x80, 0x100))
LETTERS = len(PIECES)


def of_bytes(*, bos: bool = False, control: str = "<end>") -> Tokenizer:
    """A token for each byte that is text or a part of it, then two ends and a control token."""
    places = {byte: i for i, byte in enumerate(PIECES)}

    def token_bytes(id: int, *, skip_special: bool = True) -> bytes:
        return bytes([PIECES[id]]) if id < LETTERS else b"" if skip_special else control.encode()

    def encode(text: str, *, special: bool = False) -> list[int]:
        return [*([LETTERS + 2] if bos else []), *(places[byte] for byte in text.encode())]

    def decode(ids: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(token_bytes(i, skip_special=skip_special) for i in ids).decode(errors="replace")

    return Tokenizer(encode, decode, list, (LETTERS, LETTERS + 1), LETTERS + 3, token_bytes)  # type: ignore[arg-type]


SMALL = of_bytes(bos=True)
SMALL_KNOWN = grammar.vocabulary(SMALL, SMALL.size)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["red", "été"]}, "size": {"type": ["integer", "null"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


def walked(rule: Constraint, ids: Sequence[int]) -> Any:
    state = rule.init
    for token in ids:
        assert bool(rule.mask(state)[token]), f"{token} may come"
        state = rule.advance(state, token)
    return state


def allowed(rule: Constraint, state: Any) -> list[int]:
    return rule.mask(state).nonzero().flatten().tolist()


# What may come


@pytest.mark.parametrize(
    "text", ['{"name":"한국어 🙂 é","kind":"été"}', '{"name":"a\\n\\"b","kind":"red","size":-12}', '{"name":"","kind":"red","size":null}']
)
def test_the_models_own_spelling_of_a_text_that_follows_the_schema(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)
    rule = grammar.json_schema(KNOWN, SCHEMA)
    ids = EMBEDDED.encode(text)
    assert any(len(EMBEDDED.decode([token]).strip("\ufffd")) == 0 for token in ids) or text.isascii()
    state = walked(rule, ids)
    assert allowed(rule, state) == [END]


def test_control_tokens_and_ids_without_text_never_come() -> None:
    controls = [i for i in range(EMBEDDED.size) if EMBEDDED.token_bytes(i) == b""]
    assert {0, 1, 2} <= set(controls)
    rule = grammar.regex(KNOWN, "(.|\n)*")
    mask = rule.mask(rule.init)
    assert mask.shape == (EMBEDDED.size + 3,)
    assert [i for i in (*controls, *range(EMBEDDED.size, EMBEDDED.size + 3)) if mask[i]] == [END]
    assert int(mask.sum()) > 40_000
    for token in (0, 1, EMBEDDED.size):
        with pytest.raises(ValueError, match=rf"^the token is {token}; expected text$"):
            rule.advance(rule.init, token)
    with pytest.raises(ValueError, match="unknown special token"):
        grammar.lark(KNOWN, "start: <|im_start|>")
    with pytest.raises(ValueError, match="no tokens spell what it asks for"):
        grammar.lark(KNOWN, "start: <[1]>")


@given(st.lists(st.text("abé.*|\\\n(", max_size=5), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_walks_through_a_choice_end_in_one_of_its_texts(texts: list[str], source: Any) -> None:
    """What may come begins one of the texts; an end may come exactly behind a whole one."""
    rule, state, said = _choice(tuple(texts)), None, b""
    state = rule.init
    whole = [text.encode() for text in texts]
    while True:
        ids = allowed(rule, state)
        letters = [token for token in ids if token < LETTERS]
        assert ids[len(letters) :] == ([LETTERS, LETTERS + 1] if said in whole else [])
        assert {PIECES[token] for token in letters} == {text[len(said)] for text in whole if text.startswith(said) and len(text) > len(said)}
        token = source.choice(ids)
        state = rule.advance(state, token)
        if token >= LETTERS:
            return
        said += bytes([PIECES[token]])


def _choice(texts: tuple[str, ...]) -> Constraint:
    from specdec_fn.grammar import matching, written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "refusal", lambda built: "")  # a process for each example would take minutes
        return written.choice(SMALL_KNOWN, texts)


@pytest.mark.parametrize(("pattern", "alphabet"), [("[a-c]+x{2}", "abcx"), ("é|ü+", "éü"), (r"\d{3}-\d?", "0-"), ("a\nb/?", "a\nb/")])
def test_expressions(pattern: str, alphabet: str) -> None:
    """Of all short texts, those that Python's own expressions match can be written and ended, and no others."""
    rule = grammar.regex(SMALL_KNOWN, pattern)
    for size in range(6):
        for letters in itertools.product(alphabet, repeat=size):
            state, fits = rule.init, True
            for token in [*SMALL.encode("".join(letters))[1:], LETTERS]:
                fits = fits and bool(rule.mask(state)[token])
                state = rule.advance(state, token) if fits else state
            assert fits is bool(re.fullmatch(pattern, "".join(letters))), letters


def test_any_json_is_compact() -> None:
    for rule in (grammar.json_object(SMALL_KNOWN), grammar.json_schema(SMALL_KNOWN, True)):
        state = walked(rule, SMALL.encode('{"a":[1,2.5e3,null,{}],"b":"x y"')[1:])
        assert PIECES.index(ord(" ")) not in allowed(rule, state)
        assert {PIECES[i] for i in allowed(rule, state)} == set(b",}")


def test_a_tokenizer_that_only_decodes() -> None:
    """Pieces with a space in front, which the start of a text loses; a part of a character is no text."""
    pieces = ["▁", "▁a", "b", "\ufffd", "é"]

    def decode(ids: Sequence[int], *, skip_special: bool = True) -> str:
        return "".join(pieces[i] for i in ids if i < 5).replace("▁", " ").removeprefix(" ")

    def encode(text: str, *, special: bool = False) -> list[int]:
        return [1]  # with a space that the text has not, as such tokenizers do

    known = grammar.vocabulary(Tokenizer(encode, decode, list, (5,), 6), 6)  # type: ignore[arg-type]
    assert known.text.tolist() == [True, True, True, False, True, False]
    rule = grammar.regex(known, "b a+é( a)?")
    assert allowed(rule, walked(rule, [2, 1, 4, 1])) == [5]


# States are values


def test_states_and_masks_are_values() -> None:
    rule = grammar.json_schema(KNOWN, SCHEMA)
    ids = EMBEDDED.encode('{"name":"한국어","kind":"red"}')
    kept = [rule.init]
    for token in ids:
        kept.append(rule.advance(kept[-1], token))
    before = [rule.mask(state) for state in kept]
    for state, mask in zip(kept, before, strict=True):
        rule.mask(state).fill_(True)
        for token in mask.nonzero().flatten().tolist()[:5]:
            rule.advance(state, token)
        with pytest.raises(ValueError, match=r"^the token is 0; expected"):
            rule.advance(state, 0)
    again = rule.init
    for token, state, mask in zip([*ids, END], kept, before, strict=True):
        assert rule.mask(state).equal(mask)
        assert rule.mask(again).equal(mask)
        assert mask.dtype is torch.bool
        again = rule.advance(again, token)


def test_an_old_state_in_many_threads() -> None:
    rule = grammar.json_schema(KNOWN, SCHEMA)
    ids = EMBEDDED.encode('{"name":"x y z","kind":"été","size":7}')
    place = walked(rule, ids[:4])
    wanted = [rule.mask(walked(rule, ids[:n])) for n in range(4, len(ids))]
    wrong: list[int] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait(60)
        for _ in range(5):
            state = place
            for n, mask in enumerate(wanted, 4):
                if not rule.mask(state).equal(mask) or not rule.mask(place).equal(wanted[0]):
                    wrong.append(n)
                state = rule.advance(state, ids[n])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_behind_an_end_only_ends_come() -> None:
    rule = grammar.choice(SMALL_KNOWN, ["a", "ab"])
    with pytest.raises(ValueError, match="an end; expected more text, which the grammar needs"):
        rule.advance(rule.init, LETTERS)
    over = rule.advance(walked(rule, SMALL.encode("a")[1:]), LETTERS + 1)
    assert allowed(rule, over) == [LETTERS, LETTERS + 1]
    assert allowed(rule, rule.advance(over, LETTERS)) == [LETTERS, LETTERS + 1]
    with pytest.raises(ValueError, match="expected an end"):
        rule.advance(over, 0)
    for token in (-1, SMALL.size):
        with pytest.raises(ValueError, match=rf"^the token is {token}; expected an id in \[0, {SMALL.size}\)$"):
            rule.advance(rule.init, token)


# In the engine


MODEL = toy.llama(key(3), vocab_size=SMALL.size, context=256)


def answers(*asked: Request) -> dict[int, Any]:
    state = init(MODEL, Config(max_batch=4, invariant=True), SMALL)
    for request in asked:
        state, _ = submit(state, request)
    return run(MODEL, state)[1]


@pytest.mark.parametrize("rule", ["token", "block", "coupled", "tree"])
def test_answers_under_speculation_follow_the_schema(rule: str) -> None:
    schema = SCHEMA | {"properties": {**SCHEMA["properties"], "size": {"type": ["integer", "null"], "minimum": 0, "maximum": 99}}}  # type: ignore[dict-item]
    made = grammar.json_schema(SMALL_KNOWN, schema)
    prompt = SMALL.encode('{"name":"aaa","kind":"red"}{"name":"aaa","kind":"été"}')
    proposer = "ngram_tree" if rule == "tree" else "ngram"
    done = answers(*(Request(prompt, 160, seed=i, constraint=made, proposer=proposer, verifier=rule) for i in range(8)))
    for one in done.values():
        assert one.finish_reason == "stop"
        jsonschema.validate(json.loads(one.text), schema)
    assert sum(one.stats.accepted for one in done.values()) > 20


def test_ends_of_an_answer() -> None:
    """Cut by max_tokens it is no JSON and says so; past its end under ignore_eos it says no more; where nothing may come it alone fails."""
    word = grammar.choice(SMALL_KNOWN, ["abcdef"])
    stuck = Constraint(word.init, lambda state: word.mask(state) & (torch.arange(SMALL.size) != PIECES.index(ord("c"))), word.advance)
    free = Request(SMALL.encode("ab"), 8, seed=1)
    how: dict[str, Any] = {"sampling": SamplingParams(), "seed": 5, "proposer": "ngram"}
    prompt = SMALL.encode("abcdef abcdef")
    cut = Request(prompt, 4, constraint=word, **how)
    past = Request(prompt, 12, constraint=word, ignore_eos=True, **how)
    done = answers(cut, past, Request(prompt, 12, constraint=stuck, **how), free)
    assert (done[0].text, done[0].finish_reason) == ("abcd", "length")
    assert (done[1].text, done[1].finish_reason, set(done[1].tokens[6:])) == ("abcdef", "length", {LETTERS, LETTERS + 1} & set(done[1].tokens))
    assert (done[2].text, done[2].finish_reason) == ("ab", "error")
    assert done[3] == answers(free)[0]._replace(stats=done[3].stats)


# What is refused


REFUSED: tuple[tuple[Any, str], ...] = (
    ({"$ref": "#"}, "no text at all satisfies it"),
    ({"not": {}}, "Unimplemented keys"),
    ({"uniqueItems": True, "type": "array"}, "Unimplemented keys"),
    ({"type": "text"}, "Invalid type: text"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "Unsatisfiable"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"$ref": "file:///etc/passwd"}, "does not fetch"),
    ({"x-guidance": {"whitespace_flexible": True}}, "x-guidance"),
    ({"const": float("nan")}, "not readable as JSON"),
    ({"const": {1, 2}}, "not readable as JSON"),
    (False, "which nothing satisfies"),
    # What would take minutes
    ({"type": "integer", "multipleOf": 99_999_989}, "takes more than"),
    ({"allOf": [{"type": "string", "pattern": f"{i}.*{i}"} for i in range(1200)]}, "takes more than"),
    ({"allOf": [{"oneOf": [{"properties": {f"p{i}": {"const": j}}, "required": [f"p{i}"]} for j in range(6)]} for i in range(14)]}, "too large"),
)


@pytest.mark.parametrize(("schema", "why"), REFUSED)
def test_schemas_that_cannot_be_followed(schema: Any, why: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)^the schema .*{re.escape(why)}.*; expected ") as refused:
        grammar.json_schema(KNOWN, schema)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("levels", [200, 3000])
def test_schemas_of_too_many_levels(levels: int) -> None:
    schema: Any = {}
    for _ in range(levels):
        schema = {"items": schema}
    with pytest.raises(ValueError, match=r"^the schema is (nested too deeply|not readable as JSON \(recursion limit)"):
        grammar.json_schema(KNOWN, schema)


def test_a_remote_reference_reaches_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        with pytest.raises(ValueError, match="does not fetch"):
            grammar.json_schema(KNOWN, {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/x.json"})
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    ("make", "given_as", "why"),
    [
        (grammar.regex, "(", "unclosed group"),
        (grammar.regex, "(" * 3000 + "a" + ")" * 3000, "nested parentheses"),
        (grammar.regex, r"[^\s\S]", "no text at all"),
        (grammar.regex, "a\ud800", "lone surrogate"),
        (grammar.regex, "(.{1,1000}){1000}", "too many expressions"),
        (grammar.lark, "start: other", "unknown name"),
        (grammar.lark, "start: " + "(" * 30_000, "too deeply nested"),
        (grammar.lark, "start: T\nT: " + " & ".join(f"/.*{i}.*/" for i in range(3000)), "takes more than"),
        (grammar.choice, [], "no texts"),
    ],
)
def test_other_grammars_that_cannot_be_followed(make: Any, given_as: Any, why: str) -> None:
    with pytest.raises(ValueError, match=rf"^(the|a) .*{why}.*; expected ") as refused:
        make(KNOWN, given_as)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "given_as"), [(grammar.json_schema, []), (grammar.regex, 5), (grammar.lark, None), (grammar.choice, "ab"), (grammar.choice, [1])]
)
def test_what_is_no_grammar_at_all(make: Any, given_as: Any) -> None:
    with pytest.raises(TypeError, match=r"; expected "):
        make(KNOWN, given_as)


def test_a_grammar_that_reaches_a_limit_later_ends_its_own_request() -> None:
    """The expression is taken, and becomes too much only once it has begun."""
    rule = grammar.regex(SMALL_KNOWN, "((a{100}){100}){100}")
    done = answers(Request(SMALL.encode("b"), 4, constraint=rule, seed=1), Request(SMALL.encode("ab"), 4, seed=2))
    assert done[0].finish_reason == "error"
    assert "too many expressions" in done[0].error
    assert done[1].finish_reason == "length"


def test_vocabularies_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=rf"^vocab_size is 7; expected at least the tokenizer's {SMALL.size}$"):
        grammar.vocabulary(SMALL, 7)
    with pytest.raises(ValueError, match=r"eos_ids are \(\); expected an id"):
        grammar.vocabulary(SMALL._replace(eos_ids=()), SMALL.size)
