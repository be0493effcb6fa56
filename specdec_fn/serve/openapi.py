"""The description of every route, as OpenAPI 3.1, made of the tables that the bodies are read by."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from specdec_fn.serve import chat, completion, fields
from specdec_fn.serve.asked import Served
from specdec_fn.serve.schemas import schemas

__all__ = ["description"]

JSON = "application/json"
PLACE = (403, 421)  # any request may come from a page of another origin, or to another name
WORK = (400, 404, 408, 409, 413, 415, 429, 500, 503, 504)
MEANS = (
    (202, "It runs in the background; ask for it by its id."),
    (400, "It cannot be served; the message says why, and param where."),
    (401, "There is no key, or not one of this server's."),
    (403, "It comes from a page of another origin."),
    (404, "There is no such model, request or route."),
    (408, "The body did not come in time."),
    (409, "It was cancelled while it ran."),
    (413, "The body is too large."),
    (415, "The body is not JSON."),
    (421, "It was sent to a name that is not this server's."),
    (429, "Too much runs or waits; Retry-After says when to come again."),
    (500, "The server failed."),
    (503, "The server is shutting down, or its engine has stopped."),
    (504, "It took too long."),
)


def description(served: Served, *, keys: bool) -> dict[str, Any]:
    """What the server serves, for programs.

    Args:
        served: what is served.
        keys: whether requests need a key.

    >>> from specdec_fn.serve.limits import Limits
    >>> made = description(Served("m", None, 8, 4, Limits(), "ngram", "token", 5), keys=False)
    >>> sorted(made["paths"])[:3]
    ['/', '/health', '/metrics']
    """
    completions = _work("Completion", "Text that goes on from a prompt.")
    chats = _work("ChatCompletion", "The answer to messages.")
    own: dict[str, Any] = {"responses": _responses(_content(_ref("Request")), 404)}
    id, model = _parameter("id", "Of the request, as its answer or its header X-Request-Id tells."), _parameter("model", "Its name.")
    paths: dict[str, Any] = {
        "/v1/completions": {"post": completions},
        "/v1/chat/completions": {"post": chats},
        "/v1/models": {"get": {"summary": "The model that is served.", "responses": _responses(_content(_ref("Models")))}},
        "/v1/models/{model}": {
            "get": {"summary": "The same by its name.", "parameters": [model], "responses": _responses(_content(_ref("Model")), 404)}
        },
        "/v1/requests/{id}": {
            "get": {"summary": "What a request has come to.", "parameters": [id], **own},
            "delete": {"summary": "Calls a request off.", "parameters": [id], **own},
        },
        "/health": {"get": {"summary": "Whether requests are taken.", "responses": _health()}},
        "/metrics": {"get": {"summary": "For Prometheus.", "responses": _responses({"text/plain": {"schema": {"type": "string"}}})}},
        "/openapi.json": {"get": {"summary": "This.", "responses": _responses(_content({"type": "object"}))}},
        "/": {"get": {"summary": "A page to play with.", "responses": _responses({"text/html": {"schema": {"type": "string"}}})}},
    }
    bodies = {name: dict(fields.record(room.table(served)).schema) for name, room in (("CompletionBody", completion), ("ChatCompletionBody", chat))}
    components: dict[str, Any] = {"schemas": {**bodies, **schemas()}}
    if keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in paths.items():
            for operation in operations.values() if path.startswith("/v1/") or path == "/metrics" else ():
                operation["security"] = [{"key": []}]
                operation["responses"] |= _refusals(401)
    about = {"title": f"specdec_fn serving {served.model}", "version": _version(), "description": "Names that are not here are refused, not ignored."}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": components}


def _work(name: str, summary: str) -> dict[str, Any]:
    stream = f"Events, each with a {name}Chunk as its data, then [DONE]; an error in the middle comes as an event too."
    good = {**_content(_ref(name)), "text/event-stream": {"schema": {"type": "string", "description": stream}}}
    later = {"202": {"description": dict(MEANS)[202], "content": _content(_ref("Request"))}}
    body = {"required": True, "content": _content(_ref(f"{name}Body"))}
    return {"summary": summary, "requestBody": body, "responses": {**_responses(good, *WORK), **later}}


def _responses(content: Mapping[str, Any], *statuses: int) -> dict[str, Any]:
    return {"200": {"description": "As asked.", "content": content}, **_refusals(*statuses, *PLACE)}


def _refusals(*statuses: int) -> dict[str, Any]:
    meanings = dict(MEANS)
    return {str(status): {"description": meanings[status], "content": _content(_ref("Error"))} for status in statuses}


def _health() -> dict[str, Any]:
    closed = {"503": {"description": "No requests are taken.", "content": _content(_ref("Health"))}}
    return {**_responses(_content(_ref("Health"))), **closed}


def _content(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {JSON: {"schema": schema}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _parameter(name: str, about: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "description": about, "schema": {"type": "string", "minLength": 1}}


def _version() -> str:
    try:
        return version("specdec_fn")
    except PackageNotFoundError:  # run from a folder that was never installed
        return "0"
