"""Stage 15, the server: tokens a second through HTTP against the same engine in the process."""

import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, ratios, spread

if TYPE_CHECKING:
    from specdec_fn.models import Model
    from specdec_fn.text import Tokenizer

__all__ = ["WAYS", "Rounds", "rounds", "stage"]

WAYS = ("in process", "HTTP")


class Rounds(NamedTuple):
    """The same requests, served both ways in turns.

    Attributes:
        speeds: tokens a second of each round, by way.
        same: whether every text was the same both ways.
        events: that the streams of a round had, in the median.
    """

    speeds: dict[str, list[float]]
    same: bool
    events: float


def rounds(
    model: "Model",
    tokenizer: "Tokenizer",
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    repeats: int,
    seed: int,
    progress: Progress,
    **speculation: Any,
) -> Rounds:
    """Streams the prompts through a server on this machine, and runs them through an engine of the same settings, in turns.

    Both have one engine thread, in this process. The clients are raw sockets in a process of their own. The first round warms up.

    Args:
        model, tokenizer: the target.
        prompts: ids; all are asked for at once.
        max_tokens: of each; the model's own ends are ignored.
        repeats: rounds that count.
        seed: of the first round's first request; others follow.
        progress: is told which round is next.
        speculation: proposer, verifier and k, for both.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> from specdec_fn.stages.stage import Mute
    >>> from specdec_fn.text import Tokenizer
    >>> letters = Tokenizer(None, lambda ids, skip_special=True: "".join(chr(65 + id) for id in ids), None, (), 32)
    >>> rounds(toy.llama(key(0)), letters, [[1, 2], [3]], max_tokens=4, repeats=1, seed=0, progress=Mute()).same
    True
    """
    from specdec_fn import engine, serve
    from specdec_fn.stages.serving import engine_for

    how: dict[str, Any] = {"proposer": "none", "verifier": "token", "k": 0} | speculation

    def seeds(number: int) -> range:
        return range(seed + number * len(prompts), seed + (number + 1) * len(prompts))

    def requests(number: int) -> list[engine.Request]:
        own = zip(prompts, seeds(number), strict=True)
        return [engine.Request(prompt, max_tokens, seed=one, ignore_eos=True, **how) for prompt, one in own]

    def bodies(number: int) -> list[dict[str, Any]]:
        common = {"model": "served", "max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        own = zip(prompts, seeds(number), strict=True)
        return [{**common, "prompt": list(prompt), "seed": one, "speculation": how} for prompt, one in own]

    state = engine_for(model, requests(0), tokenizer, invariant=model.invariant is not None)
    served = serve.assembled(model, tokenizer, state.config, serve.Settings("served", "none", "token", 0))
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    same, counts = True, []
    with serve.in_thread(served) as url, _Clients(url) as clients:
        for number in range(repeats + 1):
            texts: dict[str, list[str]] = {}
            for way in WAYS[:: 1 if number % 2 else -1]:
                progress.say(f"{way}, round {number} of {repeats}")
                if way == "HTTP":
                    found = clients.round(bodies(number))
                    seconds, texts[way] = found["seconds"], [one["text"] for one in found["answers"]]
                    tokens = sum(one["tokens"] for one in found["answers"])
                    counts.append(sum(one["events"] for one in found["answers"]))
                else:
                    start, numbers = time.perf_counter(), []
                    for request in requests(number):
                        state, id = engine.submit(state, request)
                        numbers.append(id)
                    state, done = engine.run(model, state)
                    seconds = time.perf_counter() - start
                    texts[way] = [done[id].text for id in numbers]
                    tokens = sum(len(done[id].tokens) for id in numbers)
                if number:
                    speeds[way].append(tokens / seconds)
            same = same and texts["HTTP"] == texts["in process"]
    return Rounds(speeds, same, statistics.median(counts))


class _Clients:
    """The process of the clients."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._place = {"host": place.hostname, "port": place.port, "path": "/v1/completions"}

    def __enter__(self) -> "_Clients":
        script = importlib.import_module("specdec_fn.stages.http_clients").__file__
        self._process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *about: object) -> None:
        self._process.communicate()

    def round(self, bodies: list[dict[str, Any]]) -> dict[str, Any]:
        """One round of theirs."""
        assert self._process.stdin is not None, "it was asked for"
        assert self._process.stdout is not None, "it was asked for"
        self._process.stdin.write(json.dumps({**self._place, "bodies": bodies}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the clients have failed; their traceback says why")
        return dict(json.loads(answer))


def _run(setup: Setup, progress: Progress) -> Result:
    clients, repeats = 16, setup.pick(5, 3)
    length = setup.room(24, spare=setup.pick(64, 32))
    prompts = [setup.ids(length, 40 * place) for place in range(clients)]
    most = setup.room(setup.pick(64, 32), spare=length)
    found = rounds(setup.model, setup.tokenizer, prompts, max_tokens=most, repeats=repeats, seed=setup.seed, progress=progress)
    shares = ratios(found.speeds["HTTP"], found.speeds["in process"])
    middle = {way: statistics.median(found.speeds[way]) for way in WAYS}
    turns = tuple(float(turn) for turn in range(1, repeats + 1))
    return Result(
        statistics.median(shares),
        spread(shares),
        tuple((f"{clients * most} tokens, {way}", 1e3 * clients * most / middle[way]) for way in WAYS),
        Plot("round", "tokens a second", tuple(Line(way, turns, tuple(found.speeds[way])) for way in WAYS)),
        ("way", "tokens a second", "of the speed in process"),
        tuple((way, spread(found.speeds[way], 0), spread(shares) if way == "HTTP" else "") for way in WAYS),
        (("every text is the same both ways", found.same),),
    )


stage = Stage(
    "server",
    "tokens a second through HTTP / in process",
    Gate(0.9, least=True),
    "What a request pays for sockets, text and JSON around the engine.",
    _run,
)
