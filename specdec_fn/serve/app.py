"""The routes: what is at which address, and what every answer has in common."""

import asyncio
import json
import secrets
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specdec_fn.serve import openapi, page
from specdec_fn.serve.access import Access
from specdec_fn.serve.body import parsed, received
from specdec_fn.serve.desk import Desk
from specdec_fn.serve.logged import PARSERS
from specdec_fn.serve.metrics import ROUTES
from specdec_fn.serve.refusal import Refusal
from specdec_fn.serve.results import as_object
from specdec_fn.serve.stream import Stream, whole
from specdec_fn.serve.ticket import Ticket
from specdec_fn.speculate import verifiers

__all__ = ["application"]

SMALL = 1 << 14  # bytes of a body that is read and understood faster than a thread is asked to
SLOW = ("response_format", "grammar")  # fields that take long to understand, whatever their size


def application(desk: Desk, access: Access, *, log: Callable[[str], None], prompts: bool = False) -> ASGIApp:
    """The application that a server of ASGI runs.

    Args:
        desk: takes the requests.
        access: says who may ask.
        log: told a line of every request.
        prompts: whether the line has what was asked.

    >>> from specdec_fn.serve.assembly import example
    >>> callable(application(example().desk, Access([], b""), log=print))
    True
    """
    served, limits = desk.served, desk.served.limits

    def endpoint(route: str) -> Callable[[Request], Any]:
        async def complete(request: Request) -> Response:
            owner = access.owner(request.headers)
            content = await received(request, most=limits.body, seconds=limits.stalled)
            small, seed = len(content) < SMALL, _seed()
            body = parsed(content) if small else await asyncio.to_thread(parsed, content)
            if small and not any(body.get(name) for name in SLOW):
                asked = PARSERS[route](body, served, seed)
            else:
                asked = await asyncio.to_thread(PARSERS[route], body, served, seed)
            if prompts:
                log(f"asked: {json.dumps(body.get('messages', body.get('prompt')))}")
            ticket = await desk.accept(route, body, asked, owner)
            if asked.stream:
                return Stream(desk, ticket)
            if asked.background:
                return _json(as_object(ticket.id, ticket.created, ticket.status), 202, {"x-request-id": ticket.id})
            return await whole(desk, ticket, request.receive)

        return complete

    async def models(request: Request) -> Response:
        access.owner(request.headers)
        return _json({"object": "list", "data": [about]})

    async def model(request: Request) -> Response:
        access.owner(request.headers)
        if request.path_params["model"] != served.model:
            raise Refusal(
                f"the model is {request.path_params['model']!r:.80}; expected {served.model!r}", status=404, param="model", code="model_not_found"
            )
        return _json(about)

    async def requests(request: Request) -> Response:
        owner, id = access.owner(request.headers), request.path_params["id"]
        found = desk.find(id, owner)
        if found is None:
            raise Refusal(f"no request has the id {id!r:.80}; expected that of one of the last {limits.kept}", status=404, code="request_not_found")
        if request.method == "DELETE" and isinstance(found, Ticket):
            desk.withdraw(found)
            found = desk.find(id, owner) or found
        if isinstance(found, Ticket):
            return _json(as_object(found.id, found.created, "running" if found.status == "finished" else found.status))
        known = json.loads(found.body) if found.body else None
        failure = None if known is None else known.get("error")
        return _json(as_object(found.id, found.created, found.status, None if failure else known, failure))

    async def health(request: Request) -> Response:
        load = desk.load()
        return _json(load._asdict(), 200 if load.status == "ok" else 503)

    async def metrics(request: Request) -> Response:
        access.owner(request.headers)
        text, kind = desk.metrics.render()
        return Response(text, 200, {"content-type": kind})

    async def described(request: Request) -> Response:
        return _json(description)

    about, files = _about(desk), page.files()
    description = openapi.description(served, keys=access.keyed)
    routes = [
        Route("/v1/completions", endpoint("completions"), methods=["POST"]),
        Route("/v1/chat/completions", endpoint("chat"), methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{model:path}", model),
        Route("/v1/requests/{id}", requests, methods=["GET", "DELETE"]),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/openapi.json", described),
        *(Route(path, _file(content, kind)) for path, (content, kind) in files.items()),
    ]
    handlers: Mapping[Any, Any] = {Refusal: _refused, HTTPException: _no_such, ClientDisconnect: _left, Exception: _fault}
    inner = Starlette(routes=routes, exception_handlers=handlers)
    inner.router.redirect_slashes = False  # a redirect has no shape of ours, and repeats the host that a client said
    return _Around(inner, access, desk, log, frozenset(files))


class _Around:
    """What every request has in common: it is checked where it came to, counted, logged, and answered in OpenAI's shape whatever happens."""

    def __init__(self, inner: ASGIApp, access: Access, desk: Desk, log: Callable[[str], None], files: frozenset[str]) -> None:
        self._inner, self._access, self._desk, self._log, self._files = inner, access, desk, log, files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        route, start, status = "/" if scope["path"] in self._files else _route(scope["path"]), time.monotonic(), 0

        async def sending(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._desk.metrics.arrived(route)
        try:
            request = Request(scope)
            self._access.check_place(request.headers)
            await self._inner(scope, receive, sending)
        except Refusal as refusal:
            await _refused(None, refusal)(scope, receive, sending)
        except ConnectionError:
            raise
        except Exception:
            self._log(traceback.format_exc())
            if not status:
                await _fault()(scope, receive, sending)
            elif status != 500:  # in the middle of an answer
                raise
        finally:
            seconds = time.monotonic() - start
            self._desk.metrics.answered(route, status or 499, seconds)
            self._log(f"{_method(scope)} {route} {status or 'gone'} {seconds * 1e3:.0f} ms")


def _refused(request: Any, refusal: Any) -> Response:
    return _json(refusal.body(), refusal.status, refusal.headers)


def _fault(*about: Any) -> Response:
    return _refused(None, Refusal("the server failed; its log says why", status=500, kind="server_error"))


def _no_such(request: Request, error: Any) -> Response:
    """The framework's own refusals, in the shape of ours."""
    what = {404: f"nothing is at {request.url.path!r:.80}; expected one of {', '.join(ROUTES)}", 405: f"the method is {_method(request.scope)}"}
    allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
    message = what.get(error.status_code, str(error.detail)) + (f"; expected {allowed}" if allowed else "")
    return _refused(request, Refusal(message, status=error.status_code, headers=error.headers or {}))


def _left(request: Request, error: Any) -> Response:
    """The client has gone before its request was read; nobody will see this."""
    return Response(status_code=400)


def _about(desk: Desk) -> dict[str, Any]:
    """A model as the list of models tells of it."""
    served, limits = desk.served, desk.served.limits
    rules = [name for name, rule in verifiers.all.items() if rule.lossless or limits.lossy]
    names = list(dict.fromkeys([served.proposer, *limits.proposers]))
    speculation = {"proposers": names, "verifiers": rules, "proposer": served.proposer, "verifier": served.verifier, "k": served.k, "max_k": limits.k}
    common = {"id": served.model, "object": "model", "created": int(time.time()), "owned_by": "specdec_fn"}
    return {**common, "context_length": served.context, "speculation": speculation}


def _file(content: bytes, kind: str) -> Callable[[Request], Any]:
    async def sent(request: Request) -> Response:
        return Response(content, 200, {**page.HEADERS, "content-type": kind})

    return sent


def _method(scope: Scope) -> str:
    """A method of HTTP as it may be printed; clients may say anything."""
    method: str = scope["method"]
    return method if method.isalpha() and len(method) < 20 else "?"


def _route(path: str) -> str:
    """A path as the metrics name it: few, whatever clients ask for."""
    return next((route for route in ROUTES if path == route or (len(route) > 1 and path.startswith(f"{route}/"))), "other")


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(text, status, dict(headers or {}), "application/json")


def _seed() -> int:
    """A seed for a request that has none: 53 bits, which every reader of JSON keeps exactly."""
    return secrets.randbits(53)
