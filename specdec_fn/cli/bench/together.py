"""``specdec bench together``: speculation in a batch against the same batch without it."""

import json
import statistics
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["together"]

GATE, GATED = 1.3, ("quoting", 4)  # times the plain batch, at these prompts and this batch
PLAIN = "plain"


class Served(NamedTuple):
    """One way of serving all prompts.

    Attributes:
        seconds: from its first step to its last, prefill included.
        tokens: of each prompt.
        passes: target passes of each prompt, summed.
        proposed, accepted: drafted tokens.
    """

    seconds: float
    tokens: list[list[int]]
    passes: int
    proposed: int
    accepted: int


def together(
    model: o.ModelName = "smollm2-135m",
    prompts: Annotated[str, typer.Option("--prompts", help="quoting, prose, or a file: one JSON object a line, with name and text.")] = GATED[0],
    batch: Annotated[int, typer.Option("--batch", min=1, help="Requests that share a pass.")] = GATED[1],
    proposer: o.NamedProposer = "ngram",
    k: Annotated[list[int] | None, typer.Option("--k", min=1, help="Most drafted tokens of a pass; several may be given; else 3, 5 and 8.")] = None,
    temperature: o.Temperature = 0.0,
    max_tokens: o.MaxTokens = 160,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds, in each of which the ways take steps in turns.")] = 3,
    json_: o.Json = False,
) -> int:
    """All prompts of a set through an engine with few places, with and without drafts; exits 1 if no K gives 1.3 times the plain tokens a second."""
    import torch
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.serving import Watch, conversations, ratios

    target, tokenizer = o.load_model(model)
    asked = conversations(tokenizer, prompts)
    drafts = {f"K = {one}": one for one in dict.fromkeys(k or (3, 5, 8))}
    ways = {PLAIN: ("none", 0)} | {name: (proposer, count) for name, count in drafts.items()}
    found: dict[str, list[Served]] = {name: [] for name in ways}
    with Watch(f"{prompts}, batches of {batch}") as watch:
        for repeat in range(repeats + 1):
            served = _round(target, tokenizer, asked, ways, batch, temperature, max_tokens if repeat else 4, repeat, watch)
            if repeat:  # the first round warms up
                for name in ways:
                    found[name].append(served[name])
    rates = {name: [sum(map(len, one.tokens)) / one.seconds for one in found[name]] for name in ways}
    times = {name: ratios(rates[name], rates[PLAIN]) for name in drafts}
    best = max(drafts, key=lambda name: statistics.median(times[name]))
    gated = (prompts, batch, temperature) == (*GATED, 0.0)
    passed = not gated or statistics.median(times[best]) >= GATE
    same = {name: _same(found[name], found[PLAIN]) for name in drafts}
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "prompts": prompts, "batch": batch, "temperature": temperature}
        rows = [
            {"way": name, "rates": rates[name], "ratios": times.get(name), "same_as_plain": same.get(name), **_counts(found[name])} for name in ways
        ]
        print(json.dumps(facts | {"ways": rows, "best": best, "passed": passed}))
        return 0 if passed else 1
    how = f"batch {batch}, {proposer}, temperature {temperature:g}, {torch.get_num_threads()} threads, {repeats} rounds"
    table = Table(title=f"{len(asked)} prompts of {prompts}, {how}")
    for column in ("", "tokens", "tokens a pass", "accepted", "same ids as plain", "ms a token", "tokens a second", "times plain"):
        table.add_column(column, justify="right" if column else "left")
    for name in ways:
        counts = _counts(found[name])
        drafted = (f"{counts['acceptance_rate']:.0%}", f"{same[name]} of {len(asked)}", spread(times[name])) if name in drafts else ("", "", "")
        token_ms = [1e3 / rate for rate in rates[name]]
        shown = (str(counts["tokens"]), f"{counts['tokens_per_pass']:.2f}", *drafted[:2], spread(token_ms), spread(rates[name]), drafted[2])
        table.add_row(name, *shown)
    wide_console().print(table)
    if gated:
        print(f"gate: at least {GATE:g} times plain, by the median, at the best K ({best}): {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


def _round(
    target: Any,
    tokenizer: Any,
    prompts: list[list[int]],
    ways: dict[str, tuple[str, int]],
    batch: int,
    temperature: float,
    max_tokens: int,
    seed: int,
    watch: Any,
) -> dict[str, Served]:
    from specdec_fn.cli.bench.serving import Service, abreast, engine_for
    from specdec_fn.engine import Request
    from specdec_fn.sampling import SamplingParams

    services = {}
    for name, (proposer, k) in ways.items():
        how: dict[str, Any] = {"sampling": SamplingParams(temperature), "proposer": proposer, "k": k}
        requests = [Request(ids, max_tokens, seed=seed * len(prompts) + place, **how) for place, ids in enumerate(prompts)]
        state = engine_for(target, requests, tokenizer, max_batch=batch, prefix_cache=False)
        services[name] = Service(target, state, [requests])
    seconds = abreast(dict(services), watch)
    return {name: _served(seconds[name], service) for name, service in services.items()}


def _served(seconds: float, service: Any) -> Served:
    done = [service.ended[number] for number in sorted(service.ended)]
    proposed, accepted = service.state.counters.proposed, service.state.counters.accepted
    return Served(seconds, [one.tokens for one in done], sum(one.stats.passes for one in done), proposed, accepted)


def _same(speculative: list[Served], plain: list[Served]) -> int:
    """Prompts whose ids are those of the plain batch in every round."""
    pairs = [zip(one.tokens, two.tokens, strict=True) for one, two in zip(speculative, plain, strict=True)]
    return sum(all(a == b for a, b in prompt) for prompt in zip(*pairs, strict=True))


def _counts(rounds: list[Served]) -> dict[str, Any]:
    tokens, passes = (sum(counts) for counts in zip(*((sum(map(len, one.tokens)), one.passes) for one in rounds), strict=True))
    proposed, accepted = sum(one.proposed for one in rounds), sum(one.accepted for one in rounds)
    shares = {"tokens_per_pass": tokens / passes, "acceptance_rate": accepted / proposed if proposed else 0.0}
    return {"tokens": tokens // len(rounds), "proposed": proposed // len(rounds), **shares}
