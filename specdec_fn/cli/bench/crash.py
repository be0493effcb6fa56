"""``specdec bench crash``: a server is killed while it streams, is started again on its log, and what it then finishes is compared."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["crash"]

PATIENCE = 600.0  # seconds for the second server to finish


class Found(NamedTuple):
    """What became of the requests.

    Attributes:
        acknowledged: those whose answer had begun when the server was killed.
        before: of them, those that had ended.
        same: whether each one's text, as the second server tells it, is that of the same request undisturbed, and begins as its stream did.
        mode: of the file of the log.
    """

    acknowledged: int
    before: int
    same: list[bool]
    mode: int


def crash(
    model: o.ModelName = "smollm2-135m",
    clients: Annotated[int, typer.Option("--clients", min=1, help="Streaming clients.")] = 12,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=8, help="Tokens of the longest answer; others are shorter.")] = 96,
    proposer: o.NamedProposer = "ngram",
    k: o.K = 5,
    seed: o.Seed = 0,
    json_: o.Json = False,
) -> int:
    """Kill a server (SIGKILL) in mid-stream, start it again with the same --state, and compare; exits 1 unless every text is the undisturbed one."""
    from rich.table import Table

    from specdec_fn import engine
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.serving import Watch
    from specdec_fn.cli.prompts import read

    target, tokenizer = o.load_model(model)
    ids = tokenizer.encode("\n\n".join(one.text for one in read("quoting")))
    asked = [
        engine.Request(ids[11 * i % (len(ids) - 24) :][:24], max(4, max_tokens * (i + 1) // clients), seed=seed + i, proposer=proposer, k=k)
        for i in range(clients)
    ]
    with Watch("the requests, undisturbed") as watch, tempfile.TemporaryDirectory() as folder:
        state = engine.init(target, engine.Config(max_batch=16, invariant=True), tokenizer)
        for request in asked:
            state, _ = engine.submit(state, request)
        _, alone = engine.run(target, state)
        found = _killed(model, asked, [alone[number].text for number in range(clients)], Path(folder) / "state", watch)
    passed = found.acknowledged > found.before and all(found.same) and len(found.same) == found.acknowledged and found.mode == 0o600
    facts = {"clients": clients, "max_tokens": max_tokens, "proposer": proposer, "k": k, "seed": seed, "load": load_average()}
    if json_:
        print(json.dumps(facts | found._asdict() | {"passed": passed}))
        return 0 if passed else 1
    table = Table(title=f"a server killed in mid-stream and started again on its log, {clients} clients, proposer {proposer}")
    for column in ("what", "requests"):
        table.add_column(column, justify="left" if column == "what" else "right")
    table.add_row("acknowledged before the kill", f"{found.acknowledged}")
    table.add_row("of them ended before it", f"{found.before}")
    table.add_row("of them with the text of an undisturbed run, from the second server", f"{sum(found.same)}")
    wide_console().print(table)
    print(f"mode of the log: {found.mode:04o}")
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


def _killed(model: str, asked: list[Any], texts: list[str], state: Path, watch: Any) -> Found:
    watch.say("the first server")
    process, url = started(model, state)
    try:
        got = asyncio.run(_until_half(url, asked, process))
    finally:
        process.kill()
        process.communicate()
    known = [(number, one) for number, one in enumerate(got) if one.id is not None]
    watch.say("the second server")
    process, url = started(model, state)
    try:
        same = []
        for number, one in known:
            answer = _finished(url, str(one.id))
            text = answer["choices"][0]["text"]
            same.append(text == texts[number] and text.startswith(one.text))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    return Found(len(known), sum(one.finish_reason is not None for _, one in known), same, os.stat(state).st_mode & 0o777)


def started(model: str, state: Path) -> tuple[subprocess.Popen[str], str]:
    """A server in a process of its own, and where it listens."""
    command = [sys.executable, "-m", "specdec_fn", "serve", "--model", model, "--port", "0", "--name", "served", "--quiet", "--json"]
    process = subprocess.Popen([*command, "--state", str(state)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None, "it was asked for"
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the server did not start; it ended with {process.wait()}")
    return process, json.loads(line)["url"]


async def _until_half(url: str, asked: list[Any], process: subprocess.Popen[str]) -> list[Any]:
    """Streams to all, and kills the server when the first has ended."""
    from specdec_fn.cli.bench.clients import body_of
    from specdec_fn.cli.bench.wire import streamed

    async def one(request: Any) -> Any:
        try:
            return await streamed(url, "/v1/completions", body_of(request))
        finally:
            process.kill()

    return await asyncio.gather(*(one(request) for request in asked))


def _finished(url: str, id: str) -> dict[str, Any]:
    """The answer to a request, once it is there."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{url}/v1/requests/{id}", timeout=60) as answer:
            told = json.load(answer)
        if told["status"] not in ("queued", "running"):
            return dict(told["answer"] or {"choices": [{"text": None}]})
        time.sleep(0.1)
    raise RuntimeError(f"request {id} did not end within {PATIENCE:g} seconds")
