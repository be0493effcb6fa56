"""JSON Schemas of what the server answers: bodies, chunks, errors. Each object is closed: what is not named here is not sent."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["schemas"]

WHOLE: Mapping[str, Any] = MappingProxyType({"type": "integer", "minimum": 0})
TEXT: Mapping[str, Any] = MappingProxyType({"type": "string"})
REASON: Mapping[str, Any] = MappingProxyType({"enum": ("stop", "length")})


def schemas() -> dict[str, Any]:
    """The schemas by their names.

    >>> schemas()["Error"]["properties"]["error"]["required"]
    ['message', 'type', 'param', 'code']
    """
    made: dict[str, Any] = _plain({**_errors(), **_parts(), **_answers(), **_others()})
    return made


def _plain(value: Any) -> Any:
    """Copies, in types that can be written as JSON."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _object(optional: tuple[str, ...] = (), /, **properties: Mapping[str, Any]) -> dict[str, Any]:
    needed = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _maybe(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _errors() -> dict[str, Any]:
    inner = _object(message=TEXT, type=TEXT, param=_maybe(TEXT), code=_maybe(TEXT))
    return {"Error": _object(error=inner)}


def _parts() -> dict[str, Any]:
    number, entry = {"type": "number"}, {"token": TEXT, "logprob": {"type": "number"}, "bytes": _maybe(_list({**WHOLE, "maximum": 255}))}
    decided = {name: _maybe(number) for name in ("p", "q", "u", "bound", "noise")}
    kinds = {"enum": ["accepted", "rejected", "unread", "recovered", "bonus", "plain"]}
    accepted = _object(accepted_prediction_tokens=WHOLE, rejected_prediction_tokens=WHOLE)
    return {
        "Usage": _object(prompt_tokens=WHOLE, completion_tokens=WHOLE, total_tokens=WHOLE, completion_tokens_details=accepted),
        "CompletionLogprobs": _object(
            tokens=_list(TEXT),
            token_logprobs=_list(_maybe(number)),
            top_logprobs=_maybe(_list(_maybe({"type": "object", "additionalProperties": number}))),
            text_offset={
                **_list(WHOLE),
                "description": "Where each token begins in the choice's text; behind its end for what a stop cut off.",
            },
        ),
        "ChatLogprobs": _object(content=_list(_object(**entry, top_logprobs=_list(_object(**entry)))), refusal={"type": "null"}),
        "Node": _object(token=WHOLE, text=TEXT, kind=kinds, **decided, parent={"type": "integer", "minimum": -1}),
        "Pass": _object(base=WHOLE, proposed=_list(_ref("Node")), final=_maybe(_ref("Node")), pieces=_list(TEXT)),
    }


def _answers() -> dict[str, Any]:
    common = {"id": TEXT, "created": WHOLE, "model": TEXT, "seed": {"type": "integer"}}
    message = _object(role={"const": "assistant"}, content=TEXT, refusal={"type": "null"})
    delta = _object(("role", "content"), role={"const": "assistant"}, content=TEXT)
    lists, entries = _maybe(_ref("CompletionLogprobs")), _maybe(_ref("ChatLogprobs"))
    told, passes = ("speculation",), _list(_ref("Pass"))

    def body(kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        return _object(**common, object={"const": kind}, choices=_list(choice), usage=_ref("Usage"))

    def chunk(kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        return _object(("usage",), **common, object={"const": kind}, choices=_list(choice), usage=_maybe(_ref("Usage")))

    return {
        "Completion": body("text_completion", _object(told, index=WHOLE, text=TEXT, logprobs=lists, finish_reason=REASON, speculation=passes)),
        "CompletionChunk": chunk(
            "text_completion", _object(told, index=WHOLE, text=TEXT, logprobs=lists, finish_reason=_maybe(REASON), speculation=_ref("Pass"))
        ),
        "ChatCompletion": body(
            "chat.completion", _object(told, index=WHOLE, message=message, logprobs=entries, finish_reason=REASON, speculation=passes)
        ),
        "ChatCompletionChunk": chunk(
            "chat.completion.chunk", _object(told, index=WHOLE, delta=delta, logprobs=entries, finish_reason=_maybe(REASON), speculation=_ref("Pass"))
        ),
    }


def _others() -> dict[str, Any]:
    names = _list(TEXT)
    speculation = _object(proposers=names, verifiers=names, proposer=TEXT, verifier=TEXT, k=WHOLE, max_k=WHOLE)
    model = _object(id=TEXT, object={"const": "model"}, created=WHOLE, owned_by=TEXT, context_length=WHOLE, speculation=speculation)
    answer = {"anyOf": [_ref("Completion"), _ref("ChatCompletion"), {"type": "null"}]}
    error = _maybe(_object(message=TEXT, type=TEXT, param=_maybe(TEXT), code=_maybe(TEXT)))
    status = {"enum": ["queued", "running", "finished", "failed", "cancelled"]}
    health = {"enum": ["ok", "closing", "failed"]}
    return {
        "Model": model,
        "Models": _object(object={"const": "list"}, data=_list(_ref("Model"))),
        "Request": _object(id=TEXT, object={"const": "request"}, created=WHOLE, status=status, answer=answer, error=error),
        "Health": _object(status=health, requests=WHOLE, waiting=WHOLE, running=WHOLE, free_pages=WHOLE, pages=WHOLE),
    }
