"""``specdec bench malformed``: thousands of requests that are wrong in some way, each of which must be refused in one shape and hold nothing."""

import asyncio
import json
from collections import Counter
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.bench.wrongs import Wrong, wrongs
from specdec_fn.cli.status import wide_console

__all__ = ["malformed"]

GATE = 8.0  # MiB that the requests may add, once the first quarter has been refused


class Tally(NamedTuple):
    """What came back.

    Attributes:
        sent: requests.
        refused: of them, those that were answered with 4xx in OpenAI's shape.
        statuses: how often each was answered.
        others: the first few that were answered in another way, with the answer.
        pages: free pages before and after.
        live: requests that the engine still had.
        growth: MiB.
    """

    sent: int
    refused: int
    statuses: dict[int, int]
    others: list[str]
    pages: tuple[int, int]
    live: int
    growth: float


def malformed(
    model: o.ModelName = "smollm2-135m",
    count: Annotated[int, typer.Option("--count", min=1, help="Requests.")] = 10_000,
    seed: o.Seed = 0,
    json_: o.Json = False,
) -> int:
    """Send requests that break the server's own description, or HTTP's manners; exits 1 unless all are refused with 4xx and nothing leaks.

    What is wrong is decided by the description and the library jsonschema, not by the server.
    """
    from rich.table import Table

    from specdec_fn import engine, serve
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.serving import Watch

    target, tokenizer = o.load_model(model)
    assembly = serve.assembled(target, tokenizer, engine.Config(num_pages=256, invariant=True), serve.Settings("served"))
    with Watch("malformed requests") as watch, serve.in_thread(assembly) as url:
        found = asyncio.run(_sent(url, assembly.desk, count, seed, watch))
    passed = found.refused == found.sent and found.pages[0] == found.pages[1] and not found.live and found.growth <= GATE
    if json_:
        print(json.dumps({"count": count, "seed": seed, "load": load_average()} | found._asdict() | {"passed": passed}))
        return 0 if passed else 1
    table = Table(title=f"{count:,} malformed requests")
    for column in ("what", "figure", "expected"):
        table.add_column(column, justify="left" if column == "what" else "right")
    table.add_row("answered with 4xx in OpenAI's shape", f"{found.refused:,}", f"{found.sent:,}")
    for status, times in sorted(found.statuses.items()):
        table.add_row(f"  {status}", f"{times:,}", "")
    table.add_row("free pages before and after", f"{found.pages[0]}, {found.pages[1]}", "the same")
    table.add_row("requests that the engine has", f"{found.live}", "0")
    table.add_row("memory, MiB, after the first quarter", f"{found.growth:+.1f}", f"at most {GATE:g}")
    wide_console().print(table)
    for line in found.others:
        print(line)
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


async def _sent(url: str, desk: Any, count: int, seed: int, watch: Any) -> Tally:
    from specdec_fn.cli.bench.clients import resident
    from specdec_fn.cli.bench.wire import asked

    description = json.loads((await asked(url, "GET", "/openapi.json")).body)
    before, room, statuses, others, sizes = desk.load().free_pages, asyncio.Semaphore(16), Counter[int](), list[str](), [resident()]
    refused = 0

    async def one(wrong: Wrong) -> None:
        nonlocal refused
        async with room:
            got = await asked(url, wrong.method, wrong.path, wrong.content, wrong.headers)
        statuses[got.status] += 1
        if 400 <= got.status < 500 and in_shape(got.body, wrong.method):
            refused += 1
        elif len(others) < 10:
            others.append(f"{wrong.why}: {got.status} {got.body[:200]!r} to {wrong.method} {wrong.path} {wrong.content[:200]!r} {wrong.headers}")
        if statuses.total() % max(1, count // 100) == 0:
            sizes.append(resident())
            watch.say(f"{statuses.total():,} of {count:,} malformed requests")

    cases = wrongs(description, desk.served.limits.body, seed)
    for start in range(0, count, 1000):
        await asyncio.gather(*(one(next(cases)) for _ in range(min(1000, count - start))))
    load = desk.load()
    growth = (sizes[-1] - sizes[len(sizes) // 4]) / 2**20
    return Tally(count, refused, dict(statuses), others, (before, load.free_pages), load.waiting + load.running, growth)


def in_shape(body: bytes, method: str = "POST") -> bool:
    """Whether an answer is an error as OpenAI's clients read it; to HEAD there is no body."""
    if method == "HEAD":
        return not body
    try:
        error = json.loads(body)["error"]
    except (ValueError, LookupError, TypeError):
        return False
    return isinstance(error["message"], str) and bool(error["message"]) and isinstance(error["type"], str) and {"param", "code"} <= error.keys()
