"""What a body comes to: every field reaches the engine, whatever is let in the engine takes, and the rest is refused by the field at fault."""

import ast
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from specdec_fn import engine
from specdec_fn.batch import seed_of
from specdec_fn.sampling import SamplingParams
from specdec_fn.serve import chat, choices, completion, controls, logged, openapi
from specdec_fn.serve.asked import Asked, Served
from specdec_fn.serve.journal import Entry
from specdec_fn.serve.limits import Limits
from specdec_fn.serve.refusal import Refusal
from specdec_fn.speculate import verifiers

from . import wire

ROUTES = {"completions": completion, "chat": chat}
GOOD: dict[str, dict[str, Any]] = {
    "completions": {"model": "toy", "prompt": "abc"},
    "chat": {"model": "toy", "messages": [{"role": "user", "content": "abc"}]},
}
SERVED, MODEL = wire.served(), wire.model()
STATE = wire.state(MODEL)


def read(route: str, served: Served = SERVED, **body: Any) -> Asked:
    return ROUTES[route].asked({**GOOD[route], **body}, served, 11)


def refusal(route: str, served: Served = SERVED, **body: Any) -> Refusal:
    with pytest.raises(Refusal) as found:
        read(route, served, **body)
    return found.value


both = pytest.mark.parametrize("route", sorted(ROUTES))


# --- what is let in


def test_the_controls_reach_the_engine() -> None:
    body = {
        "max_tokens": 9, "seed": -5, "stop": ["b", "cd"], "stop_ids": [4], "ignore_eos": True, "priority": 3, "temperature": 0.5, "top_k": 7,
        "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8, "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": -0.3,
        "logit_bias": {"3": 2, "5": -100}, "bad_words": [6, [1, 2]], "allowed_ids": [1, 2, 3, 4], "min_tokens": 2, "echo": True, "logprobs": 3,
        "speculation": {"proposer": "suffix", "verifier": "block", "k": 4, "explain": True},
    }  # fmt: skip
    asked = read("completions", **body)
    (one,) = asked.requests
    names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "bad_words",
             "allowed_ids", "min_tokens")  # fmt: skip
    assert one.sampling == SamplingParams(**{name: body[name] for name in names}, logit_bias={3: 2, 5: -100})  # type: ignore[arg-type]
    assert (one.prompt, one.max_tokens, one.seed, one.stop, one.stop_ids, one.ignore_eos, one.priority) == (
        (0, 1, 2),
        9,
        -5,
        ("b", "cd"),
        (4,),
        True,
        3,
    )
    assert (one.proposer, one.verifier, one.k, one.explain, one.logprobs, one.prompt_logprobs, one.salt) == ("suffix", "block", 4, True, 3, True, b"")
    assert (asked.seed, asked.texts, asked.logprobs, asked.top, asked.explain, asked.stream) == (-5, ("abc",), True, 3, True, False)


@both
def test_what_is_left_open(route: str) -> None:
    asked = read(route)
    (one,) = asked.requests
    assert one.sampling == SamplingParams()
    assert asked.seed == one.seed == 11
    assert (one.proposer, one.verifier, one.k, one.explain, one.logprobs, one.constraint) == ("ngram", "token", 3, False, 0, None)
    assert one.max_tokens == (16 if route == "completions" else wire.CONTEXT - len(one.prompt))
    assert (asked.stream, asked.usage, asked.logprobs, asked.background, asked.n, asked.texts) == (False, False, False, False, 1, ())
    nulls = {field.name: None for field in ROUTES[route].table(SERVED) if not field.needed}
    assert read(route, **nulls) == asked


def test_choices_and_their_seeds() -> None:
    asked = read("completions", prompt=["a", "bc"], n=3, seed=5)
    assert [one.prompt for one in asked.requests] == [(0,)] * 3 + [(1, 2)] * 3
    assert [one.seed for one in asked.requests] == [5, *(seed_of(5, place) for place in range(1, 6))]
    assert (asked.n, asked.prompts, asked.seed) == (3, ((0,), (1, 2)), 5)


@pytest.mark.parametrize(
    ("prompt", "ids", "texts"),
    [("ab", [(0, 1)], ("ab",)), ([0, 1], [(0, 1)], ("ab",)), (["a", "b"], [(0,), (1,)], ("a", "b")), ([[0], [1, 0]], [(0,), (1, 0)], ("a", "ba"))],
)
def test_four_forms_of_a_prompt(prompt: Any, ids: Any, texts: Any) -> None:
    asked = read("completions", prompt=prompt, echo=True)
    assert list(asked.prompts) == ids
    assert asked.texts == texts


def test_messages() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    back = {"role": "assistant", "content": "c", "refusal": None, "annotations": [], "audio": None, "tool_calls": None, "function_call": None}
    messages = [{"role": "developer", "content": "h"}, {"role": "user", "content": parts}, back]
    plain = [{"role": "system", "content": "h"}, {"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
    assert list(read("chat", messages=messages).prompts[0]) == wire.tokenizer().chat(plain)


def test_both_names_of_the_length() -> None:
    for body in ({"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 5, "max_completion_tokens": 5}):
        assert read("chat", **body).requests[0].max_tokens == 5
    assert refusal("chat", max_tokens=5, max_completion_tokens=6).param == "max_tokens"
    assert read("completions", stop_token_ids=[3]).requests[0].stop_ids == (3,)
    assert refusal("completions", stop_ids=[3], stop_token_ids=[4]).param == "stop_token_ids"


def test_lengths() -> None:
    left = wire.CONTEXT - 3
    assert read("completions", max_tokens=left).requests[0].max_tokens == left
    for most in (left + 1, 10**15):
        over = refusal("completions", max_tokens=most)
        assert (over.param, over.code, over.status) == ("max_tokens", "context_length_exceeded", 400)
    assert read("completions", prompt=[0] * (wire.CONTEXT - 1)).requests[0].max_tokens == 1
    for route, name in (("completions", "prompt"), ("chat", "messages")):
        long = {"prompt": "a" * wire.CONTEXT} if route == "completions" else {"messages": [{"role": "user", "content": "a" * wire.CONTEXT}]}
        full = refusal(route, **long)
        assert (full.param, full.code) == (name, "context_length_exceeded")
    small = wire.served(limits=Limits(max_tokens=7))
    assert read("chat", small).requests[0].max_tokens == read("completions", small).requests[0].max_tokens == 7
    assert refusal("chat", small, max_tokens=8).param == "max_tokens"


def test_text_that_cannot_fit_is_refused_before_it_is_encoded() -> None:
    longest = max(map(len, wire.PIECES))
    assert choices.longest(wire.tokenizer()) == longest
    assert choices.longest(wire.tokenizer()._replace(token_bytes=None)) is None
    holds = wire.CONTEXT * longest

    def never(*about: Any, **more: Any) -> list[int]:
        raise AssertionError("the text is encoded")

    unread = wire.served(longest=longest, tokenizer=wire.tokenizer()._replace(encode=never, chat=never))
    say = [{"role": "user", "content": "a" * (holds // 2)}, {"role": "user", "content": [{"type": "text", "text": "é" * (holds // 4 + 1)}]}]
    over: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("completions", "prompt", {"prompt": "a" * (holds + 1)}),
        ("completions", "prompt", {"prompt": "é" * (holds // 2 + 1)}),
        ("completions", "prompt[1]", {"prompt": ["a" * holds, "é" * (holds // 2 + 1)]}),
        ("chat", "messages", {"messages": say}),
    )
    for route, param, body in over:
        served = unread if param != "prompt[1]" else wire.served(longest=longest, tokenizer=wire.tokenizer()._replace(encode=lambda text: [0]))
        found = refusal(route, served, **body)
        assert (found.status, found.param, found.code) == (400, param, "context_length_exceeded")
        assert f"expected at most {holds}, what a context of {wire.CONTEXT} tokens of at most {longest} bytes can hold" in found.message
    for route, body in (("completions", {"prompt": "a" * holds}), ("chat", {"messages": [{"role": "user", "content": "a" * holds}]})):
        with pytest.raises(AssertionError, match="encoded"):
            read(route, unread, **body)  # as long as could be: only its tokens can tell


def test_as_many_messages_and_parts_as_are_taken() -> None:
    few, part = wire.served(limits=Limits(messages=3)), {"type": "text", "text": "a"}
    assert read("chat", few, messages=[{"role": "user", "content": [part] * 3}] * 3)
    assert (
        refusal("chat", few, messages=[{"role": "user", "content": "a"}] * 4).message == "messages is a list of 4; expected a list of 1 to 3 messages"
    )
    assert refusal("chat", few, messages=[{"role": "user", "content": [part] * 4}]).param == "messages[0].content"


@pytest.mark.parametrize(
    ("body", "entries"),
    [
        ({"max_tokens": 10}, 10),
        ({"max_tokens": 10, "n": 3}, 30),
        ({"max_tokens": 10, "n": 2, "prompt": ["a", "bc"]}, 40),
        ({"max_tokens": 10, "logprobs": 0}, 10),
        ({"max_tokens": 10, "logprobs": 4}, 50),
        ({"max_tokens": 10, "logprobs": 4, "echo": True, "n": 2}, (10 + 3) * 5 * 2),
        ({"max_tokens": 10, "echo": True, "prompt": ["a", "bc"]}, 10 + 1 + 10 + 2),
        ({"max_tokens": 10, "logprobs": 1, "speculation": {"k": 6, "explain": True}}, 10 * (1 + 1 + 6)),
        ({"max_tokens": 10, "speculation": {"k": 6}}, 10),
    ],
)
def test_the_size_of_an_answer_is_limited(body: dict[str, Any], entries: int) -> None:
    assert read("completions", wire.served(limits=Limits(entries=entries)), **body).requests[0].max_tokens == 10
    found = refusal("completions", wire.served(limits=Limits(entries=entries - 1)), **body)
    assert (found.status, found.param) == (400, "max_tokens")
    assert f"expected at most {entries - 1} entries, as with max_tokens 9" in found.message
    assert read("completions", wire.served(limits=Limits(entries=entries - 1)), **{**body, "max_tokens": 9}).requests[0].max_tokens == 9


def test_an_answer_of_open_length_ends_where_the_limit_is() -> None:
    small = wire.served(limits=Limits(entries=100))
    assert [one.max_tokens for one in read("chat", small, n=2, logprobs=True, top_logprobs=4).requests] == [10, 10]
    assert refusal("chat", small, n=2, logprobs=True, top_logprobs=4, max_completion_tokens=11).param == "max_completion_tokens"
    full = refusal("completions", small, prompt=[0] * 60, echo=True, n=2)
    assert full.message == "the answer may have 122 tokens, of 1 entries each; expected at most 100 entries"
    huge = wire.served(context=10**6, limits=Limits())
    assert refusal("completions", huge, n=16, max_tokens=8000, logprobs=20).message == (
        "the answer may have 128000 tokens, of 21 entries each; expected at most 200000 entries, as with max_tokens 595"
    )


def test_a_tokenizer_with_a_bos_takes_an_empty_prompt() -> None:
    plain = wire.tokenizer()
    bos = wire.served(tokenizer=plain._replace(encode=lambda text, special=False: [wire.END, *plain.encode(text)]))
    assert read("completions", bos, prompt="").prompts == ((wire.END,),)
    assert refusal("completions", prompt="").param == "prompt"


def test_speculation() -> None:
    assert read("chat", speculation={"proposer": "ngram+suffix"}).requests[0].proposer == "ngram+suffix"
    assert read("chat", temperature=0, speculation={"verifier": "greedy"}).requests[0].verifier == "greedy"
    assert read("chat", speculation={"proposer": "ngram_tree", "verifier": "tree"}).requests[0].proposer == "ngram_tree"
    lossy = wire.served(limits=Limits(lossy=True))
    assert read("chat", lossy, speculation={"verifier": "typical"}).requests[0].verifier is verifiers.all["typical"]
    greedy = wire.served(verifier="greedy")
    assert read("chat", greedy, temperature=0).requests[0].verifier == "greedy"
    assert refusal("chat", greedy).param == "temperature"
    tree = wire.served(proposer="ngram_tree", verifier="tree")
    assert refusal("chat", tree, speculation={"verifier": "token"}).param == "speculation.verifier"
    assert read("chat", wire.served(k=40), speculation={"k": 40}).requests[0].k == 40


# --- what is refused: the field, by its path, in one sentence

DEEP: Any = []
for _ in range(5000):
    DEEP = [DEEP]
WRONG: tuple[tuple[str, Any, str], ...] = (
    *(("n", value, "n") for value in (0, 7, 1.0, "1", True, 10**400, [], DEEP, {})),
    *(("max_tokens", value, "max_tokens") for value in (0, -1, 1.5, "5", False, 2**63)),
    *(("temperature", value, "temperature") for value in (-0.1, 101, math.nan, math.inf, "1", True, 1e-9, 10**400)),
    *((name, 0, name) for name in ("top_p", "typical_p", "repetition_penalty")),
    *((name, 1.1, name) for name in ("top_p", "typical_p", "min_p", "seed", "priority", "min_tokens", "top_k")),
    *((name, 1e308, name) for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")),
    *(("seed", value, "seed") for value in (2**63, -(2**63) - 1, 1.0, "7", True)),
    *(("stream", value, "stream") for value in (1, "true", [], 0.0)),
    *(("stop", value, "stop") for value in ("", "x" * 13, 5, ["a"] * 5, {}, True)),
    ("stop", ["a", ""], "stop[1]"),
    ("stop", ["a", "\ud800"], "stop[1]"),
    ("stop", [["a"]], "stop[0]"),
    *(("logit_bias", value, "logit_bias") for value in ([], [[3, 1]], {str(i): 1 for i in range(9)}, 5)),
    *(("logit_bias", {name: 1}, f"logit_bias.{shown}") for name, shown in ((str(wire.SIZE), wire.SIZE),)),
    *(("logit_bias", {"3": value}, "logit_bias.3") for value in (101, -100.1, math.inf, "1", None, True)),
    *(("logit_bias", {name: 1}, "logit_bias") for name in ("x", "-1", "03", "1.0", "", "٣", "3\n")),
    *((name, [wire.SIZE], f"{name}[0]") for name in ("stop_ids", "stop_token_ids", "allowed_ids", "bad_words")),
    ("allowed_ids", [], "allowed_ids"),
    ("bad_words", [[]], "bad_words[0]"),
    ("bad_words", [True], "bad_words[0]"),
    ("min_tokens", 97, "min_tokens"),
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("stream_options", {"x": 1}, "stream_options.x"),
    *(("speculation", {"proposer": name}, "speculation.proposer") for name in ("quantized", "draft_model", "ngram+none", "ngram+", "", 5, "ngram\n")),
    *(("speculation", {"proposer": name}, "speculation.proposer") for name in ("ngram+ngram", "ngram+suffix+ngram", "none+none", "suffix+" * 5000)),
    ("speculation", {"proposer": "ngram_tree"}, "speculation.proposer"),
    *(("speculation", {"verifier": name}, "speculation.verifier") for name in ("typical", "lenient", "tokens", 5, ["token"])),
    ("speculation", {"verifier": "greedy"}, "temperature"),
    *(("speculation", {"k": value}, "speculation.k") for value in (-1, 9, 2.0, True)),
    ("speculation", {"K": 3}, "speculation.K"),
    ("speculation", "ngram", "speculation"),
    ("response_format", {}, "response_format.type"),
    ("response_format", {"type": "xml"}, "response_format.type"),
    ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
    ("response_format", {"type": "text", "json_schema": {"schema": {}}}, "response_format.json_schema"),
    ("response_format", {"type": "json_object"}, "response_format"),
    ("grammar", {"type": "regex"}, "grammar.value"),
    ("grammar", {"type": "regex", "value": "a"}, "grammar"),
    ("user", 5, "user"),
    ("model", 5, "model"),
    ("model", None, "model"),
    ("temprature", 1, "temprature"),
    ("", 1, None),
)  # fmt: skip


@both
@pytest.mark.parametrize(("name", "value", "param"), WRONG)
def test_wrong_values(route: str, name: str, value: Any, param: str) -> None:
    found = refusal(route, **{name: value})
    assert (found.status, found.param) == (400, param or "")
    assert "expected" in found.message
    assert found.message.isprintable()
    assert len(found.message) < 600


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        *(("prompt", value, "prompt") for value in (None, "", [], 5, {}, True, "\ud800", [["a"]] * 0)),
        *(("prompt", value, "prompt[0]") for value in ([None], [1.0], [True], [wire.SIZE], [-1], [[]], [""], [{}]) if value not in ([None], [{}])),
        *(("prompt", [0, value], "prompt[1]") for value in ("a", [0], None, 1.5)),
        *(("prompt", ["a", value], "prompt[1]") for value in (0, ["a"], None, "")),
        ("prompt", [[0], ["a"]], "prompt[1][0]"),
        ("prompt", ["a"] * 7, "prompt"),
        *(("logprobs", value, "logprobs") for value in (6, -1, True, "1")),
        ("best_of", 2, "best_of"),
        *(("suffix", value, "suffix") for value in ("", "x", [])),
        ("echo", 1, "echo"),
        ("max_completion_tokens", 5, "max_completion_tokens"),
        ("messages", [], "messages"),
        ("top_logprobs", 1, "top_logprobs"),
    ],
)
def test_wrong_values_of_completions(name: str, value: Any, param: str) -> None:
    assert (refusal("completions", **{name: value}).param, refusal("completions", **{name: value}).status) == (param, 400)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        *((value, "messages") for value in (None, [], "Hi", {}, 5)),
        *(([value], "messages[0]") for value in (None, "Hi", [])),
        ([{"content": "a"}], "messages[0].role"),
        *(([{"role": role, "content": "a"}], "messages[0].role") for role in ("tool", "function", "", 5, ["user"])),
        *(([{"role": "user", "content": value}], "messages[0].content") for value in (None, 5, [], {}, "\udfff")),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"text": "a"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "a", "name": "Ann"}], "messages[0].name"),
        ([{"role": "user", "content": "a", "refusal": []}], "messages[0].refusal"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "a", "tool_calls": [{}]}], "messages[1].tool_calls"),
        ([{"role": "user", "content": "a", "weight": 1}], "messages[0].weight"),
    ],
)
def test_wrong_messages(messages: Any, param: str) -> None:
    assert refusal("chat", messages=messages).param == param


@pytest.mark.parametrize(
    ("harmless", "refused"),
    [
        ({"tools": [], "functions": [], "audio": {}, "tool_choice": "none", "store": False, "service_tier": "auto", "modalities": ["text"]}, None),
        ({"metadata": {"a": "b"}, "user": "u", "parallel_tool_calls": True, "reasoning_effort": "none", "verbosity": "medium"}, None),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"store": True}, "store"),
        ({"store": 0}, "store"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"prediction": {"type": "content", "content": "a"}}, "prediction"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"prompt": "a"}, "prompt"),
    ],
)
def test_fields_of_other_services(harmless: dict[str, Any], refused: str | None) -> None:
    if refused is None:
        assert read("chat", **harmless) == read("chat")
    else:
        assert refusal("chat", **harmless).param == refused


def test_unknown_names_and_models() -> None:
    assert refusal("chat", temprature=1).message == 'the field "temprature" is unknown; expected temperature'
    assert refusal("chat", topP=1).message.endswith("expected top_p")
    assert refusal("chat", **{"\ud800" * 99: 1}).message.isascii() is False
    other = refusal("chat", model="gpt-4", zzz=1)
    assert (other.status, other.code, other.param) == (404, "model_not_found", "model")
    for body in ([], None, "x", 5):
        with pytest.raises(Refusal):
            chat.asked(body, SERVED, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"allowed_ids": [wire.END], "min_tokens": 1}, "allowed_ids"),
        ({"allowed_ids": [3], "bad_words": [[3, 3]]}, "allowed_ids"),
        ({"allowed_ids": [3, 4], "stop_ids": [3, 4], "min_tokens": 1}, "allowed_ids"),
        ({"stop_ids": list(range(wire.SIZE)), "min_tokens": 1}, "min_tokens"),
        ({"bad_words": list(range(wire.SIZE))}, "bad_words"),
    ],
)
def test_controls_that_leave_no_token(body: dict[str, Any], param: str) -> None:
    assert refusal("completions", wire.served(limits=Limits()), **body).param == param
    assert read("completions", allowed_ids=[wire.END], min_tokens=1, ignore_eos=True)


# --- one source of truth


@both
def test_every_field_is_read_and_described(route: str) -> None:
    """A field that is accepted and read nowhere would be a control that is silently ignored."""
    table = {field.name for field in ROUTES[route].table(SERVED)}
    name = {"completions": "CompletionBody", "chat": "ChatCompletionBody"}[route]
    schema = openapi.description(SERVED, keys=False)["components"]["schemas"][name]
    assert set(schema["properties"]) == table
    assert schema["additionalProperties"] is False
    Draft202012Validator.check_schema(schema)
    rooms = ("chat" if route == "chat" else "completion", "choices", "constraints", "controls", "speculating")
    said = set()
    for room in rooms:
        for node in ast.walk(ast.parse((Path(chat.__file__).parent / f"{room}.py").read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and _of_given(node.func.value):
                said |= {one.value for one in node.args[:1] if isinstance(one, ast.Constant)}
            if isinstance(node, ast.Subscript) and _of_given(node.value) and isinstance(node.slice, ast.Constant):
                said.add(node.slice.value)
    said |= {*controls.PLAIN, *controls.LISTS, "model", "max_tokens", "max_completion_tokens"}
    nothing = {"metadata", "store", "service_tier", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
               "safety_identifier", "reasoning_effort", "verbosity", "modalities", "tools", "functions", "tool_choice", "function_call", "audio",
               "prediction", "web_search_options", "moderation", "user", "suffix"}  # fmt: skip
    assert table - said - nothing == set()
    assert said - table <= {"max_completion_tokens", "role", "content"}  # the last two are of a message


def _of_given(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "given"


# --- whatever comes

TOKENS = st.integers(0, wire.SIZE - 1)
MEANT: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(1, 12),
    "n": st.integers(1, 3),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": st.text("abc é", min_size=1, max_size=4) | st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
    "stop_ids": st.lists(TOKENS, max_size=3),
    "ignore_eos": st.booleans(),
    "temperature": st.just(0) | st.floats(1e-6, 100) | st.integers(0, 2),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(0, 2**31 - 1),
    "min_p": st.floats(0, 1),
    "typical_p": st.floats(0, 1, exclude_min=True),
    "repetition_penalty": st.floats(0.01, 100),
    "presence_penalty": st.floats(-100, 100),
    "frequency_penalty": st.floats(-100, 100),
    "logit_bias": st.dictionaries(TOKENS.map(str), st.floats(-100, 100), max_size=5),
    "bad_words": st.lists(TOKENS | st.lists(TOKENS, min_size=1, max_size=3), max_size=3),
    "allowed_ids": st.lists(TOKENS, min_size=1, max_size=6),
    "min_tokens": st.integers(0, 12),
    "priority": st.integers(0, 5),
    "logprobs": st.integers(0, 5),
    "echo": st.booleans(),
    "stream": st.booleans(),
    "prompt": st.one_of(
        st.text("abc é한", min_size=1, max_size=9),
        st.lists(TOKENS, min_size=1, max_size=9),
        st.lists(st.text("ab", min_size=1), min_size=1, max_size=2),
    ),
    "speculation": st.fixed_dictionaries(
        {},
        optional={
            "proposer": st.sampled_from(["none", "ngram", "suffix", "ngram_tree", "ngram+suffix", "suffix+ngram_tree"]),
            "verifier": st.sampled_from(list(verifiers.all)),
            "k": st.integers(0, 8),
            "explain": st.booleans(),
        },
    ),
}  # fmt: skip
bodies = st.fixed_dictionaries({"model": st.just("toy"), "prompt": MEANT["prompt"]}, optional={n: s for n, s in MEANT.items() if n != "prompt"})
LOSSY = wire.served(limits=Limits(stop=4, stop_length=12, logit_bias=8, top_logprobs=5, choices=6, k=8, lossy=True))


@settings(max_examples=300, deadline=None)
@given(bodies)
def test_what_the_wire_lets_in_the_engine_takes_and_serves(body: dict[str, Any]) -> None:
    try:
        asked = completion.asked(body, LOSSY, 3)
    except Refusal:
        return
    state = STATE
    for request in asked.requests:
        state, _ = engine.submit(state, request)


@settings(max_examples=60, deadline=None)
@given(bodies)
def test_and_ends_without_an_error(body: dict[str, Any]) -> None:
    try:
        asked = completion.asked({**body, "n": 1}, LOSSY, 3)
    except Refusal:
        return
    ends = [event.finish_reason for _, event in wire.ran(MODEL, asked) if event.finish_reason]
    assert len(ends) == len(asked.requests)
    assert set(ends) <= {"stop", "length"}


@settings(max_examples=300, deadline=None)
@given(bodies)
def test_a_body_with_what_it_left_open_comes_to_the_same(body: dict[str, Any]) -> None:
    """What the log keeps is read again by a server with other settings."""
    try:
        asked = completion.asked(body, LOSSY, 3)
    except Refusal:
        return
    other = LOSSY._replace(proposer="suffix", verifier="coupled", k=1)
    assert logged.unlogged(Entry("a", "completions", b"", 0, logged.logged(body, asked)), other) == asked


leaves = (
    st.none() | st.booleans() | st.integers() | st.integers(-3, 40) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["ngram", "token", "text", "user", "json_object", "\ud800", "a" * 500, 10**400, -(10**400), 1e-320, 2**63])
)  # fmt: skip
known = {field.name for room in ROUTES.values() for field in room.table(SERVED)}
names = st.sampled_from(sorted(known | {"role", "content", "type", "k", "proposer", "verifier", "value", "schema", "x", ""}))
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | st.text(max_size=4), inner, max_size=3), max_leaves=6
)
CHECKS = {
    route: Draft202012Validator(openapi.description(SERVED, keys=False)["components"]["schemas"][name])
    for route, name in (("completions", "CompletionBody"), ("chat", "ChatCompletionBody"))
}


@settings(max_examples=2000, deadline=None)
@given(st.sampled_from(sorted(ROUTES)), st.dictionaries(names, values, min_size=1, max_size=3), st.booleans())
def test_nothing_but_refusals_comes_of_other_bodies(route: str, changes: dict[str, Any], whole: bool) -> None:
    body = {**(GOOD[route] if whole else {"model": "toy"}), **changes}
    refusal = None
    try:
        ROUTES[route].asked(body, SERVED, 0)
    except Refusal as error:
        refusal = error
    if refusal is None:
        assert CHECKS[route].is_valid(body), list(CHECKS[route].iter_errors(body))
        return
    assert 400 <= refusal.status < 500
    assert refusal.param is not None
    assert refusal.message.isprintable()
    json.dumps(refusal.body(), ensure_ascii=False).encode()
