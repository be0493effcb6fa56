"""The server through OpenAI's own client, over real sockets: what it says is what the engine alone gives."""

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx2 as http
import openai
import pytest
from jsonschema import Draft202012Validator

from specdec_fn import SamplingParams
from specdec_fn.batch import seed_of

from .house import END, LETTERS, NAME, House, alone, house, tokenizer

PROMPT = "the cat sat on the mat, the cat"


@pytest.fixture(scope="module")
def served() -> Iterator[House]:
    with house() as made:
        yield made
        assert made.load().free_pages == made.load().pages


def test_a_completion_is_what_generate_gives(served: House) -> None:
    for seed in range(6):
        done = served.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=24, seed=seed)
        expected = alone(PROMPT, seed=seed, max_tokens=24)
        assert (done.choices[0].text, done.choices[0].finish_reason) == (expected.text, expected.finish_reason)
        assert done.usage is not None
        assert (done.usage.completion_tokens, done.usage.prompt_tokens) == (len(expected.tokens), len(PROMPT))
        details = done.usage.completion_tokens_details
        assert details is not None
        assert details.accepted_prediction_tokens == expected.stats.accepted
        assert details.rejected_prediction_tokens == expected.stats.proposed - expected.stats.accepted


@pytest.mark.parametrize("verifier", ["token", "block", "coupled", "multi_draft", "k_seq", "tree", "traversal"])
@pytest.mark.parametrize("proposer", ["none", "ngram", "suffix"])
def test_how_a_request_speculates_is_its_own_choice(served: House, proposer: str, verifier: str) -> None:
    how = {"proposer": proposer, "verifier": verifier, "k": 3}
    done = served.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=20, seed=4, extra_body={"speculation": how})
    assert done.choices[0].text == alone(PROMPT, seed=4, max_tokens=20, **how).text


def test_every_control_reaches_the_law(served: House) -> None:
    controls: dict[str, Any] = {
        "temperature": 0.8,
        "top_p": 0.9,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "logit_bias": {"3": -100, "7": 2},
    }
    extra = {"top_k": 12, "min_p": 0.01, "typical_p": 0.95, "repetition_penalty": 1.2, "bad_words": [[1], [2, 4]], "min_tokens": 5}
    done = served.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=30, seed=9, extra_body=extra, **controls)
    sampling = SamplingParams(**{**controls, **extra, "logit_bias": [(3, -100.0), (7, 2.0)]})
    expected = alone(PROMPT, seed=9, max_tokens=30, sampling=sampling)
    assert done.choices[0].text == expected.text
    assert expected.text != alone(PROMPT, seed=9, max_tokens=30).text  # the controls do change it
    for name, value in {**controls, **extra}.items():  # and each of them is read
        got = served.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=40, seed=1, extra_body={name: value})
        own = SamplingParams(**({"logit_bias": [(3, -100.0), (7, 2.0)]} if name == "logit_bias" else {name: value}))
        assert got.choices[0].text == alone(PROMPT, seed=1, max_tokens=40, sampling=own).text, name


def test_choices_have_seeds_of_their_own_and_the_first_has_the_requests(served: House) -> None:
    done = served.client.completions.create(model=NAME, prompt=[PROMPT, "a dog"], max_tokens=12, seed=3, n=2)
    prompts = [PROMPT, PROMPT, "a dog", "a dog"]
    assert [one.index for one in done.choices] == [0, 1, 2, 3]
    expected = [alone(prompt, seed=3 if i == 0 else seed_of(3, i), max_tokens=12).text for i, prompt in enumerate(prompts)]
    assert [one.text for one in done.choices] == expected
    assert done.usage is not None
    assert done.usage.prompt_tokens == len(PROMPT) + len("a dog")


def test_a_stream_says_what_the_whole_answer_says(served: House) -> None:
    for k in (0, 4):
        how: dict[str, Any] = {"model": NAME, "prompt": PROMPT, "max_tokens": 24, "seed": 2, "logprobs": 2}
        how["extra_body"] = {"speculation": {"k": k}}
        whole = served.client.completions.create(**how)
        chunks = list(served.client.completions.create(**how, stream=True, stream_options={"include_usage": True}))
        last = chunks.pop()
        assert (last.choices, last.usage) == ([], whole.usage)
        choices = [chunk.choices[0] for chunk in chunks]
        assert "".join(one.text for one in choices) == whole.choices[0].text
        assert [one.finish_reason for one in choices if one.finish_reason] == [whole.choices[0].finish_reason]
        tokens = [token for one in choices if one.logprobs for token in one.logprobs.tokens or []]
        assert whole.choices[0].logprobs is not None
        assert tokens == whole.choices[0].logprobs.tokens
        assert whole.usage is not None
        assert len(tokens) == whole.usage.completion_tokens


def test_log_probabilities_are_those_of_the_unprocessed_logits(served: House) -> None:
    done = served.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=16, seed=5, logprobs=3, temperature=0.5)
    expected = alone(PROMPT, seed=5, max_tokens=16, sampling=SamplingParams(0.5))
    told = done.choices[0].logprobs
    assert told is not None
    assert told.token_logprobs == pytest.approx(expected.logprobs, abs=1e-12)
    assert [LETTERS.index(token) if token in LETTERS else END for token in told.tokens or []] == expected.tokens
    assert all(len(top) in (3, 4) and max(top.values()) == max(top.values()) for top in told.top_logprobs or [])


def test_echo_gives_the_prompt_and_its_log_probabilities(served: House) -> None:
    done = served.client.completions.create(model=NAME, prompt="the cat", max_tokens=3, seed=5, logprobs=0, echo=True)
    choice = done.choices[0]
    assert choice.text == "the cat" + alone("the cat", seed=5, max_tokens=3).text
    assert choice.logprobs is not None
    first, *rest = choice.logprobs.token_logprobs or []
    assert first is None
    from specdec_fn import models

    from .house import model

    ids = tokenizer().encode("the cat")
    laws = models.logits(model(), ids).double().log_softmax(-1)
    assert rest[: len(ids) - 1] == pytest.approx([float(laws[i, token]) for i, token in enumerate(ids[1:])], abs=1e-9)


def test_chat_goes_through_the_template_and_streams_deltas(served: House) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hello"}]
    prompt = tokenizer().chat(messages)
    expected = alone(prompt, seed=8, max_tokens=20)
    done = served.client.chat.completions.create(model=NAME, messages=messages, max_tokens=20, seed=8)
    assert (done.choices[0].message.content, done.choices[0].message.role) == (expected.text, "assistant")
    chunks = list(served.client.chat.completions.create(model=NAME, messages=messages, max_tokens=20, seed=8, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text
    assert chunks[0].choices[0].delta.role == "assistant"


def test_stops_end_a_text_and_do_not_show(served: House) -> None:
    text = alone(PROMPT, seed=1, max_tokens=60).text
    stop = text[10:12]
    done = served.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=60, seed=1, stop=[stop, "never"])
    assert done.choices[0].text == text[: text.index(stop)]
    assert done.choices[0].finish_reason == "stop"
    ids = alone(PROMPT, seed=1, max_tokens=60).tokens
    done = served.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=60, seed=1, extra_body={"stop_ids": [ids[5]]})
    assert done.choices[0].text == tokenizer().decode(ids[: ids.index(ids[5])])


def test_an_unseeded_request_tells_its_seed_which_gives_it_again(served: House) -> None:
    first = served.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=20)
    second = served.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=20)
    seed = first.to_dict()["seed"]
    assert seed != second.to_dict()["seed"]
    assert first.choices[0].text == alone(PROMPT, seed=int(str(seed)), max_tokens=20).text


def test_explained_tokens_say_how_they_came_to_be(served: House) -> None:
    how = {"proposer": "ngram", "verifier": "token", "k": 4, "explain": True}
    body: dict[str, Any] = {"model": NAME, "prompt": PROMPT, "max_tokens": 30, "seed": 6, "stream": True, "extra_body": {"speculation": how}}
    chunks = list(served.client.completions.create(**body))
    told = [chunk.choices[0].to_dict().get("speculation") for chunk in chunks if chunk.choices]
    passes: list[Any] = [one for one in told if one]
    expected = alone(PROMPT, seed=6, max_tokens=30, k=4)
    assert len(passes) == expected.stats.passes
    assert sum(len(one["proposed"]) for one in passes) == expected.stats.proposed
    assert sum(node["kind"] == "accepted" for one in passes for node in one["proposed"]) == expected.stats.accepted
    for one in passes:
        for node in one["proposed"]:
            if node["kind"] in ("accepted", "rejected"):
                assert (node["u"] < node["bound"]) == (node["kind"] == "accepted")
                assert math.isclose(node["bound"], min(1.0, node["p"] / node["q"]), rel_tol=1e-12)


def test_a_grammar_holds_under_speculation(served: House) -> None:
    shape = {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}}
    schema = {"type": "object", "properties": shape, "required": ["a", "b"], "additionalProperties": False}
    whole = {f'{{"a":"{a}","b":{b}}}' for a in ("x", "yy") for b in ("true", "false")}
    form: Any = {"type": "json_schema", "json_schema": {"name": "t", "schema": schema, "strict": True}}
    words = {"type": "choice", "value": ["yes", "no", "maybe not"]}
    seen = set()
    for seed in range(8):
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        done = served.client.chat.completions.create(model=NAME, messages=messages, seed=seed, max_tokens=40, response_format=form)
        seen.add(done.choices[0].message.content)
        assert done.choices[0].finish_reason == "stop"
        chosen = served.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=20, seed=seed, extra_body={"grammar": words})
        assert (chosen.choices[0].text in words["value"], chosen.choices[0].finish_reason) == (True, "stop")
    assert seen <= whole
    assert len(seen) > 1
    for wrong in ({"type": "nothing"}, {"$ref": "https://example.org/schema"}):
        spoiled: Any = {"type": "json_schema", "json_schema": {"name": "t", "schema": wrong}}
        with pytest.raises(openai.BadRequestError) as caught:
            served.client.chat.completions.create(model=NAME, messages=messages, response_format=spoiled)
        assert "response_format" in str(caught.value.param)


def test_what_is_known_of_the_model_and_of_the_server(served: House) -> None:
    listed = served.client.models.list().data[0]
    assert listed.id == NAME
    assert served.client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        served.client.models.retrieve("another")
    health = http.get(f"{served.url}/health")
    assert (health.status_code, health.json()["status"]) == (200, "ok")
    text = http.get(f"{served.url}/metrics").text
    assert "specdec_emitted_tokens_total" in text
    assert http.get(f"{served.url}/openapi.json").json()["openapi"].startswith("3.1")


def test_what_is_answered_follows_the_description(served: House) -> None:
    description = http.get(f"{served.url}/openapi.json").json()
    done = http.post(f"{served.url}/v1/completions", json={"model": NAME, "prompt": PROMPT, "max_tokens": 3, "logprobs": 1}).json()
    explained = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "speculation": {"explain": True}}
    for method, path, route, body in (
        ("get", "/health", "/health", None),
        ("get", "/v1/models", "/v1/models", None),
        ("get", f"/v1/models/{NAME}", "/v1/models/{model}", None),
        ("get", f"/v1/requests/{done['id']}", "/v1/requests/{id}", None),
        ("post", "/v1/completions", "/v1/completions", {"model": NAME, "prompt": PROMPT, "max_tokens": 3, "logprobs": 2, "echo": True}),
        ("post", "/v1/chat/completions", "/v1/chat/completions", explained),
    ):
        answer = http.request(method, f"{served.url}{path}", json=body)
        schema = description["paths"][route][method]["responses"][str(answer.status_code)]["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": description["components"]}).validate(answer.json())


def test_a_result_can_be_read_again_and_a_background_request_outlives_its_connection(served: House) -> None:
    done = served.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=20, seed=3)
    told = http.get(f"{served.url}/v1/requests/{done.id}").json()
    assert told["status"] == "finished"
    assert told["answer"]["choices"][0]["text"] == done.choices[0].text
    begun = http.post(f"{served.url}/v1/completions", json={"model": NAME, "prompt": PROMPT, "max_tokens": 20, "seed": 3, "background": True})
    assert begun.status_code == 202
    while (told := http.get(f"{served.url}/v1/requests/{begun.json()['id']}").json())["status"] in ("queued", "running"):
        pass
    assert told["answer"]["choices"][0]["text"] == done.choices[0].text
    assert http.get(f"{served.url}/v1/requests/cmpl-unknown").status_code == 404


def test_raw_bytes_of_a_stream(served: House) -> None:
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 9, "seed": 1, "stream": True, "stream_options": {"include_usage": True}}
    raw = http.post(f"{served.url}/v1/completions", json=body).content
    events = raw.split(b"\n\n")
    assert events[-1] == b""
    assert events[-2] == b"data: [DONE]"
    assert all(event.startswith(b"data: {") and b"\n" not in event for event in events[:-2])
    last = json.loads(events[-3][6:])
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 9
    reasons = [choice["finish_reason"] for event in events[:-3] for choice in json.loads(event[6:])["choices"]]
    assert [reason for reason in reasons if reason] == ["length"]
    ends = alone(PROMPT, seed=1, max_tokens=9)
    assert END not in ends.tokens
