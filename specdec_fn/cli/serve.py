"""``specdec serve``: an OpenAI-compatible server, its metrics, and a page to play with."""

import errno
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.offline import pages_for
from specdec_fn.cli.status import Status

__all__ = ["serve"]


def serve(
    model: o.ModelName = "smollm2-135m",
    name: Annotated[
        str | None, typer.Option("--name", help="What clients call the model; unless given, what --model says or its file's name.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Numbers of the weights: float32, bfloat16, float16 or float64.")] = "float32",
    quantize: Annotated[
        str | None, typer.Option("--quantize", help="Pack the weights: int8, int4, q8_0, q4_0, q4_1, or file for the file's own blocks.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen at; any but this machine's own needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            envvar="SPECDEC_API_KEY",
            help="A key that clients must say; may be given several times. Others on this machine can "
            "read options: better in the environment, as SPECDEC_API_KEY, or in --api-key-file.",
            show_envvar=False,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="A file of keys, one a line; lines that begin with # are left out.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="Another name that requests may be sent to, as behind a proxy; may be given several times."),
    ] = None,
    proposer: o.ProposerName = "ngram",
    draft_model: o.DraftModel = None,
    allow_proposer: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-proposer",
            help="Another proposer that requests may name: quantized or early_exit, which take memory; may be given several times.",
        ),
    ] = None,
    verifier: o.VerifierName = "token",
    lossy: o.Lossy = False,
    k: Annotated[int, typer.Option("--k", min=0, help="Most drafted tokens of a pass, unless a request says otherwise.")] = 5,
    invariant: Annotated[
        bool,
        typer.Option("--invariant/--no-invariant", help="Logits whose bits do not depend on who shares a pass, so that a seed gives one text."),
    ] = True,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Choices that run at once; others wait.")] = 16,
    pages: Annotated[
        int | None, typer.Option("--pages", min=1, help="Pages of the cache of keys and values; as many as fit 1 GiB, unless given.")
    ] = None,
    page_size: Annotated[int, typer.Option("--page-size", min=1, help="Tokens of a page.")] = 16,
    chunk: Annotated[int, typer.Option("--chunk", min=1, help="Most prompt tokens of a pass.")] = 256,
    context: Annotated[
        int | None, typer.Option("--context", min=2, help="Most tokens of a request, prompt and answer; the model's, unless given.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Most tokens that a choice may ask for; what the context leaves, unless given.")
    ] = None,
    max_requests: Annotated[
        int, typer.Option("--max-requests", min=1, help="Most choices that run or wait at once; more are told to come again (429).")
    ] = 256,
    max_per_key: Annotated[
        int | None, typer.Option("--max-per-key", min=1, help="Most of them that one key may have; --max-requests alone, unless given.")
    ] = None,
    max_body: Annotated[int, typer.Option("--max-body", min=1024, help="Most bytes of a request's body.")] = 1 << 20,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Most seconds that a request may take.")] = 600,
    stalled: Annotated[
        float, typer.Option("--stalled", min=1, help="Most seconds that a client may read nothing of its answer before it is cut off.")
    ] = 30,
    grace: Annotated[float, typer.Option("--grace", min=0, help="Seconds that requests have to end when the server is stopped.")] = 30,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="A file: log every request there before it is acknowledged, and finish what is unfinished when started again. "
            "Prompts and answers stand in it; only its owner can read it.",
        ),
    ] = None,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Print what is asked; without, no word of it is printed.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no line for each request.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print where the server listens as a JSON object, once it does.")] = False,
) -> int:
    """Serve the model to clients of OpenAI's API, with a page to play with at /.

    What is served: /v1/completions, /v1/chat/completions, /v1/models, /v1/requests/{id}, /health, /metrics (Prometheus), /openapi.json, and the page.
    A request may say how it speculates: "speculation": {"proposer": "ngram", "verifier": "block", "k": 4, "explain": true}.

    With a seed the text of a request is the same whoever else is there. Ctrl-C or a TERM signal ends it: what runs has --grace seconds; with
    --state what is cut off then, or by a kill, is finished when the server is started again, and read at /v1/requests/{id}.
    """
    keys = _keys(api_key or [], api_key_file)
    from specdec_fn.serve.access import is_loopback
    from specdec_fn.serve.server import serve as run
    from specdec_fn.serve.server import url

    if not keys and not is_loopback(host):
        raise ValueError(f"--host is {host!r} without a key; expected 127.0.0.1, or --api-key (SPECDEC_API_KEY, --api-key-file) as well")
    drafter = o.proposer_name(proposer, draft_model)
    o.verifier_of(verifier, lossy)
    with _bound(host, port) as listener:
        target, tokenizer = _loaded(model, dtype, quantize)
        from specdec_fn.engine import Config
        from specdec_fn.serve.assembly import Settings, assembled
        from specdec_fn.serve.limits import Limits

        offered = tuple(dict.fromkeys([*Limits.proposers, *(o.proposer_name(one, draft_model) for one in allow_proposer or ())]))
        most = {"body": max_body, "max_tokens": max_tokens, "k": max(k, Limits.k), "requests": max_requests, "per_key": max_per_key}
        limits = Limits(**most, seconds=timeout, stalled=stalled, proposers=offered, lossy=lossy)  # type: ignore[arg-type]
        settings = Settings(
            name or _name(model),
            drafter,
            verifier,
            k,
            limits,
            keys=keys,
            hosts=None if keys else (host, *(allow_host or ())),
            state=state,
            draft=o.load_draft(draft_model, tokenizer),
            prompts=log_prompts,
        )
        config = Config(page_size, pages or pages_for(target, batch, page_size), batch, chunk, context, invariant=invariant)
        if state is not None and not invariant:
            _to_stderr("--state without --invariant: what is run again after a restart may differ in its text, though not in its law")
        served = assembled(target, tokenizer, config, settings, log=_silent if quiet else _to_stderr)

        def ready() -> None:
            place = url(listener)
            if json_:
                told = {"url": place, "model": settings.name, "pid": os.getpid(), "resumed": served.unfinished}
                print(json.dumps(told), flush=True)
                return
            print(f"{settings.name} at {place}/v1, a page to play with at {place}/", flush=True)
            if served.unfinished:
                print(f"{len(served.unfinished)} unfinished request(s) of {state} go on", flush=True)

        asked, cut = run(served, listener, grace=grace, up=ready)
        if cut:
            rest = "they go on when it is started again" if state else "they are lost (--state would keep them)"
            print(f"specdec: {cut} request(s) were cut off; {rest}", file=sys.stderr)
        return 130 if asked == signal.SIGINT else 0


def _keys(given: list[str], file: Path | None) -> list[str]:
    try:
        keys = [*given, *(file.read_text("utf-8-sig").splitlines() if file is not None else ())]
    except UnicodeDecodeError:
        raise ValueError(f"--api-key-file {str(file)!r} is not UTF-8; expected one key a line, in UTF-8") from None
    keys = [key.strip() for key in keys if key.strip() and not key.lstrip().startswith("#")]
    if file is not None and not keys:
        raise ValueError(f"--api-key-file {str(file)!r} has no key; expected one a line")
    return keys


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; ValueError says which option is at fault."""
    from specdec_fn.serve.server import bound

    try:
        return bound(host, port)
    except (socket.gaierror, UnicodeError):
        raise ValueError(f"--host is {host!r:.80}, which has no address; expected an address or a name of this machine") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"--port is {port}, which is in use; expected another, or 0 for a free one") from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise ValueError(f"--host is {host!r:.80}, which is no address of this machine; expected one that is, such as 127.0.0.1") from None
        if error.errno == errno.EACCES:
            raise ValueError(f"--port is {port}, which this user may not take; expected 1024 or more, or 0 for a free one") from None
        raise


def _loaded(model: str, dtype: str, quantize: str | None) -> tuple[Any, Any]:
    """The model, and the library of its kernels: which one runs must not change while a text is made."""
    from specdec_fn.load import load
    from specdec_kernels import native

    with Status(f"loading {model}"):
        loaded = load(model, dtype=dtype, quantize=quantize)
        native.wait()
    return loaded


def _name(model: str) -> str:
    return Path(model).stem if os.path.exists(model) else model


def _silent(line: str) -> None:
    """Nothing is printed."""


def _to_stderr(line: str) -> None:
    print(f"specdec: {line}", file=sys.stderr, flush=True)
