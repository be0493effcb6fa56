"""``specdec bench clients``: a crowd of streaming clients, some of which go away or hardly read, and then two thousand requests in a row."""

import asyncio
import json
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["clients"]

GONE, SLOW = 6, 9  # every so manieth client goes after a few chunks, or reads slowly
GATE = 8.0  # MiB that two thousand requests may add, once the first quarter has been served


class Crowd(NamedTuple):
    """What became of the crowd.

    Attributes:
        right, wrong: clients that stayed, by whether their text is that of the same request alone.
        gone: clients that went away.
        slow: of those that stayed, the slow readers.
        pages: free ones before and after.
        live: requests that the engine still had after the last client.
    """

    right: int
    wrong: int
    gone: int
    slow: int
    pages: tuple[int, int]
    live: int


def clients(
    model: o.ModelName = "smollm2-135m",
    crowd: Annotated[int, typer.Option("--clients", min=1, help="Clients at once.")] = 200,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Tokens of each answer.")] = 24,
    requests: Annotated[int, typer.Option("--requests", min=8, help="Requests in a row after that, for memory.")] = 2000,
    proposer: o.NamedProposer = "ngram",
    k: o.K = 5,
    seed: o.Seed = 0,
    json_: o.Json = False,
) -> int:
    """Stream to a crowd: every 6th client goes away after two chunks, every 9th reads slowly; then many requests in a row, for memory.

    Exits 1 if a text of the others is not that of the same request alone, if a page is not given back, or if memory grows.
    """
    from rich.table import Table

    from specdec_fn import engine, serve
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.serving import Watch
    from specdec_fn.cli.prompts import read
    from specdec_fn.serve.limits import Limits

    target, tokenizer = o.load_model(model)
    ids = tokenizer.encode("\n\n".join(one.text for one in read("quoting")))
    asked = [engine.Request(ids[11 * i % (len(ids) - 24) :][:24], max_tokens, seed=seed + i, proposer=proposer, k=k) for i in range(crowd)]
    config = engine.Config(num_pages=1024, max_batch=16, invariant=True)
    settings = serve.Settings("served", proposer, "token", k, Limits(requests=max(crowd, 64)))
    with Watch(f"{crowd} requests, alone") as watch:
        state = engine.init(target, config, tokenizer)
        for request in asked:
            state, _ = engine.submit(state, request)
        _, alone = engine.run(target, state)
        texts = [alone[number].text for number in range(crowd)]
        assembly = serve.assembled(target, tokenizer, config, settings)
        with serve.in_thread(assembly) as url:
            watch.say(f"{crowd} clients at once")
            found = asyncio.run(_together(url, assembly.desk, asked, texts))
            sizes = asyncio.run(_in_a_row(url, asked, requests, watch))
            free = assembly.desk.load().free_pages
    growth = (sizes[-1] - sizes[len(sizes) // 4]) / 2**20
    even = found.pages[0] == found.pages[1] == free and not found.live
    passed = not found.wrong and even and growth <= GATE
    facts = {"clients": crowd, "max_tokens": max_tokens, "requests": requests, "proposer": proposer, "k": k, "seed": seed, "load": load_average()}
    if json_:
        print(json.dumps(facts | found._asdict() | {"growth_mib": growth, "passed": passed}))
        return 0 if passed else 1
    table = Table(title=f"{crowd} streaming clients at once, {max_tokens} tokens each, proposer {proposer}; then {requests:,} requests, 16 at a time")
    for column in ("what", "figure", "expected"):
        table.add_column(column, justify="left" if column == "what" else "right")
    stayed = crowd - found.gone
    table.add_row("clients that stayed, text as alone", f"{found.right}", f"{stayed}")
    table.add_row("slow readers among them", f"{found.slow}", "")
    table.add_row("clients that went away after two chunks", f"{found.gone}", "")
    table.add_row("requests that the engine still had", f"{found.live}", "0")
    table.add_row("free pages before, after, and at the end", f"{found.pages[0]}, {found.pages[1]}, {free}", "the same")
    table.add_row(f"memory from request {requests // 4:,} to {requests:,}, MiB", f"{growth:+.1f}", f"at most {GATE:g}")
    wide_console().print(table)
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


async def _together(url: str, desk: Any, asked: list[Any], texts: list[str]) -> Crowd:
    from specdec_fn.cli.bench.wire import streamed

    before, jobs = desk.load().free_pages, []
    for number, request in enumerate(asked):
        how: dict[str, Any] = {"chunks": 2} if number % GONE == GONE - 1 else {"pause": 0.02} if number % SLOW == SLOW - 1 else {}
        jobs.append(streamed(url, "/v1/completions", body_of(request), **how))
    got = await asyncio.gather(*jobs)
    gone = [number % GONE == GONE - 1 for number in range(len(asked))]
    right = sum(one.text == text and one.finish_reason is not None for one, text, left in zip(got, texts, gone, strict=True) if not left)
    slow = sum(number % SLOW == SLOW - 1 and not gone[number] for number in range(len(asked)))
    for _ in range(200):  # the last ones to go are noticed at the next step
        load = desk.load()
        if not load.waiting + load.running:
            break
        await asyncio.sleep(0.05)
    return Crowd(right, len(asked) - sum(gone) - right, sum(gone), slow, (before, load.free_pages), load.waiting + load.running)


async def _in_a_row(url: str, asked: list[Any], requests: int, watch: Any) -> list[int]:
    """Bytes of this process in memory, a hundred times while requests are served."""
    from specdec_fn.cli.bench.wire import streamed

    room, sizes, every = asyncio.Semaphore(16), [resident()], max(1, requests // 100)
    done = 0

    async def one(number: int) -> None:
        nonlocal done
        async with room:
            body = {**body_of(asked[number % len(asked)]), "max_tokens": 2, "stream": number % 2 == 0}
            await streamed(url, "/v1/completions", body)
        done += 1
        if done % every == 0:
            sizes.append(resident())
            watch.say(f"{done:,} of {requests:,} requests, {sizes[-1] / 2**20:,.0f} MiB")

    await asyncio.gather(*(one(number) for number in range(requests)))
    return sizes


def body_of(request: Any) -> dict[str, Any]:
    """The body that asks a server for what the engine is asked for."""
    how = {"proposer": request.proposer, "k": request.k}
    return {
        "model": "served",
        "prompt": list(request.prompt),
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "stream": True,
        "speculation": how,
    }


def resident() -> int:
    """Bytes of this process in memory; its peak, where the system does not tell what it has now."""
    from pathlib import Path

    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * 4096
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
