"""``specdec bench lookup``: drafts looked up in the text so far, on prompts that quote, beside plain decoding and transformers' prompt lookup."""

import json
import statistics
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.bench import figures
from specdec_fn.cli.bench.turns import Contest, Decode, speedups, together
from specdec_fn.cli.bench.variants import Dtype, Quantize
from specdec_fn.cli.status import wide_console

__all__ = ["lookup"]

GATED = "smollm2-135m"  # the figures are of this model in bfloat16, on our own prompts
OVER_PLAIN, OVER_PEER = 1.8, 2.0
PLAIN = "plain"


class Found(NamedTuple):
    """One prompt."""

    name: str
    contest: Contest


def lookup(
    model: o.ModelName = GATED,
    dtype: Dtype = "bfloat16",
    quantize: Quantize = "none",
    proposers: Annotated[str, typer.Option("--proposers", help="Who looks up, as ngram,suffix.")] = "ngram,suffix",
    k: o.K = 10,
    peer_k: Annotated[str, typer.Option("--peer-k", help="Lengths of transformers' prompt lookup to try; none leaves it out.")] = "2,3,5,8,10",
    max_tokens: o.MaxTokens = 160,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Times each prompt is decoded each way, in turns.")] = 3,
    prompts: Annotated[str | None, typer.Option("--prompts", help="Another file: one JSON object a line, with name and text.")] = None,
    json_: o.Json = False,
) -> int:
    """Speed-up of n-gram and suffix drafts over plain decoding, and over transformers at its best K; exits 1 if a figure is missed."""
    import torch

    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.variants import load_variant, named
    from specdec_fn.cli.prompts import read

    chosen, variant, lengths = read(prompts or "quoting"), named(dtype, quantize), _lengths(peer_k)
    names = _names(proposers)
    target, tokenizer = load_variant(model, variant)
    found = _measured(target, tokenizer, chosen, names, k, lengths, max_tokens, repeats)
    total = _whole(found, names, lengths)
    gated = model == GATED and variant == "bfloat16" and prompts is None
    held = _figures(total) if gated else []
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "weights": variant, "k": k, "set": total}
        print(json.dumps(facts | {"rows": [_told(one, names) for one in found], "figures": figures.as_rows(held)}))
    else:
        threads = f"{torch.get_num_threads()} threads"
        wide_console().print(_table(f"looked-up drafts, {variant}, K = {k}, temperature 0, {threads}, {repeats} runs in turns", found, names, total))
        print("\n".join(figures.lines(held)))
    return figures.code(held)


def _names(text: str) -> list[str]:
    """Names of proposers that look up, each once."""
    from specdec_fn.speculate import proposers

    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        proposers.named(name)
    return names


def _lengths(text: str) -> list[int]:
    try:
        lengths = [] if text == "none" else [int(part) for part in text.split(",")]
    except ValueError:
        lengths = [0]
    if lengths and min(lengths) < 1:
        raise ValueError(f"--peer-k is {text!r}; expected lengths of a draft such as 2,3,5, or none")
    return lengths


def _peer(length: int) -> str:
    return f"transformers, K = {length}"


def _measured(
    target: Any, tokenizer: Any, chosen: list[Any], names: list[str], k: int, lengths: list[int], max_tokens: int, repeats: int
) -> list[Found]:
    """Every prompt, decoded by all in turns, as many tokens by each as plain decoding emits up to its end."""
    from specdec_fn.cli.bench.serving import Watch
    from specdec_fn.cli.bench.theirs import decoder, llama_of
    from specdec_fn.cli.bench.turns import contest, ours
    from specdec_fn.doors import generate
    from specdec_fn.sampling import SamplingParams

    theirs = llama_of(target) if lengths else None
    found: list[Found] = []
    with Watch("looking up") as status:
        for number, prompt in enumerate(chosen, start=1):
            status.say(f"prompt {number} of {len(chosen)}: {prompt.name}")
            ids = tokenizer.chat([{"role": "user", "content": prompt.text}])
            settings: dict[str, Any] = {"tokenizer": tokenizer, "sampling": SamplingParams(0.0)}
            count = len(generate(target, ids, max_tokens=max_tokens, **settings).tokens)
            settings |= {"max_tokens": count, "ignore_eos": True}
            decoders: dict[str, Decode] = {PLAIN: ours(target, ids, **settings)}
            decoders |= {name: ours(target, ids, proposer=name, k=k, **settings) for name in names}
            decoders |= {_peer(length): decoder(theirs, ids, count, lookup=length) for length in lengths}
            found.append(Found(prompt.name, contest(decoders, repeats)))
    return found


def _whole(found: list[Found], names: list[str], lengths: list[int]) -> dict[str, Any]:
    """Over all prompts: medians of the paired ratios, and the counts together."""
    contests = [one.contest for one in found]
    best = min(map(_peer, lengths), key=lambda name: statistics.median(speedups(contests, name, PLAIN)), default=None)
    total: dict[str, Any] = {"transformers_best": best, "proposers": {}}
    for name in names:
        stats = together(contests, name)
        total["proposers"][name] = {
            "over_plain": statistics.median(speedups(contests, PLAIN, name)),
            "over_transformers": None if best is None else statistics.median(speedups(contests, best, name)),
            "ms": statistics.median(statistics.median(one.ms[name]) for one in contests),
            "tokens_per_pass": stats.tokens_per_pass,
            "acceptance_rate": stats.acceptance_rate,
        }
    total |= {"plain_ms": statistics.median(statistics.median(one.ms[PLAIN]) for one in contests)}
    total |= {"transformers_ms": {name: statistics.median(statistics.median(one.ms[name]) for one in contests) for name in map(_peer, lengths)}}
    return total


def _figures(total: dict[str, Any]) -> list[figures.Figure]:
    by_name = total["proposers"]
    best = max(by_name, key=lambda name: by_name[name]["over_plain"])
    held = [figures.at_least(f"{best}: times as fast as plain decoding", by_name[best]["over_plain"], OVER_PLAIN)]
    if total["transformers_best"] is not None:
        held.append(figures.at_least(f"{best}: times as fast as {total['transformers_best']}", by_name[best]["over_transformers"], OVER_PEER))
    return held


def _told(one: Found, names: list[str]) -> dict[str, Any]:
    stats = {name: together([one.contest], name) for name in names}
    return {
        "name": one.name,
        "tokens": len(one.contest.last[PLAIN].tokens),
        "ms": one.contest.ms,
        "ratios": {name: one.contest.ratios(PLAIN, name) for name in names},
        "tokens_per_pass": {name: counts.tokens_per_pass for name, counts in stats.items()},
        "acceptance_rate": {name: counts.acceptance_rate for name, counts in stats.items()},
        "same_tokens": {name: one.contest.same(name, PLAIN) for name in one.contest.ms},
    }


def _table(title: str, found: list[Found], names: list[str], total: dict[str, Any]) -> Any:
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread

    best = total["transformers_best"]
    table = Table(title=title)
    for column in ("prompt", "who", "tokens a pass", "ms a token", "plain ms", "times plain", f"times {best or 'transformers'}"):
        table.add_column(column, justify="left" if column in ("prompt", "who") else "right")
    for one in found:
        plain = f"{statistics.median(one.contest.ms[PLAIN]):.1f}"
        for name in names:
            over = spread(one.contest.ratios(best, name)) if best else ""
            cells = (f"{together([one.contest], name).tokens_per_pass:.2f}", f"{statistics.median(one.contest.ms[name]):.1f}", plain)
            table.add_row(one.name if name == names[0] else "", name, *cells, spread(one.contest.ratios(PLAIN, name)), over)
    table.add_section()
    for name, row in total["proposers"].items():
        over = "" if best is None else f"{row['over_transformers']:.2f}, {total['transformers_ms'][best]:.1f} ms"
        summed = (f"{row['tokens_per_pass']:.2f}", f"{row['ms']:.1f}", f"{total['plain_ms']:.1f}", f"{row['over_plain']:.2f}", over)
        table.add_row("median of the prompts", name, *summed)
    return table
