"""The description: it is one, it names every route, its limits are the server's, and what it refuses is refused."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from specdec_fn.serve import chat, completion, openapi
from specdec_fn.serve.limits import Limits
from specdec_fn.serve.refusal import Refusal

from . import wire

MADE = openapi.description(wire.served(), keys=True)


def test_it_is_json_with_references_that_lead_somewhere() -> None:
    text = json.dumps(MADE, allow_nan=False)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(MADE["components"]["schemas"])
    assert set(MADE["components"]["schemas"]) - names <= {"CompletionChunk", "ChatCompletionChunk"}
    for schema in MADE["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_route_is_described() -> None:
    expected = {
        "/v1/completions": ["post"], "/v1/chat/completions": ["post"], "/v1/models": ["get"], "/v1/models/{model}": ["get"],
        "/v1/requests/{id}": ["delete", "get"], "/health": ["get"], "/metrics": ["get"], "/openapi.json": ["get"], "/": ["get"],
    }  # fmt: skip
    assert {path: sorted(operations) for path, operations in MADE["paths"].items()} == expected
    for path, operations in MADE["paths"].items():
        for operation in operations.values():
            keyed = path.startswith("/v1/") or path == "/metrics"
            assert ("security" in operation) == ("401" in operation["responses"]) == keyed
            assert {"200", "403", "421"} <= set(operation["responses"])
    assert "securitySchemes" not in openapi.description(wire.served(), keys=False)["components"]


def test_errors_have_the_shape_of_a_refusal() -> None:
    schema = Draft202012Validator(MADE["components"]["schemas"]["Error"])
    schema.validate(Refusal("no", param="n", code="x").body())
    schema.validate(Refusal("no").body())
    assert not schema.is_valid({"error": "no"})


def fields(name: str, **limits: Any) -> Any:
    tell = wire.served(limits=Limits(**limits))
    return openapi.description(tell, keys=False)["components"]["schemas"][name]["properties"]


def test_the_limits_are_the_servers() -> None:
    made = fields("CompletionBody", choices=3, max_tokens=9, logit_bias=2, top_logprobs=4, k=7, stop=5, stop_length=6)
    assert made["n"]["maximum"] == 3
    assert made["max_tokens"]["maximum"] == 9
    assert made["logit_bias"]["maxProperties"] == 2
    assert made["logprobs"]["maximum"] == 4
    assert made["stop"]["anyOf"][0]["anyOf"][1]["maxItems"] == 5
    assert made["stop"]["anyOf"][0]["anyOf"][0]["maxLength"] == 6
    assert made["speculation"]["properties"]["k"]["maximum"] == 7
    assert fields("ChatCompletionBody")["max_tokens"]["maximum"] == wire.CONTEXT - 1
    assert "typical" in fields("ChatCompletionBody", lossy=True)["speculation"]["properties"]["verifier"]["anyOf"][0]["enum"]


@pytest.mark.parametrize("proposers", [(), ("none",), ("none", "suffix"), ("suffix", "ngram_tree", "early_exit")])
def test_the_proposers_are_the_servers(proposers: tuple[str, ...]) -> None:
    tell = wire.served(limits=Limits(proposers=proposers), verifier="tree", proposer="ngram")
    check = Draft202012Validator(openapi.description(tell, keys=False)["components"]["schemas"]["CompletionBody"])
    offered = {"ngram", *proposers}
    for name in ("ngram", "none", "suffix", "ngram_tree", "early_exit", "quantized", "ngram+suffix", "suffix+ngram", "none+ngram", "ngram+", ""):
        body = {"model": "toy", "prompt": "a", "speculation": {"proposer": name}}
        parts = name.split("+")
        taken = set(parts) <= offered and (len(parts) == 1 or "none" not in parts)
        assert check.is_valid(body) == taken
        if taken:
            assert completion.asked(body, tell, 0).requests[0].proposer == name
        else:
            with pytest.raises(Refusal):
                completion.asked(body, tell, 0)


def test_descriptions_say_what_fields_mean() -> None:
    for room in (completion, chat):
        from_openai = {"store", "service_tier", "tools", "functions", "tool_choice", "function_call", "audio", "prediction", "web_search_options",
                       "moderation", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "verbosity", "modalities"}  # fmt: skip
        assert {field.name for field in room.table(wire.served()) if not field.about} <= from_openai
