"""``specdec bench invariant``: what logits cost whose bits do not depend on the rows of a pass, and what is left of the tokens a second."""

import json
import statistics
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.bench import figures
from specdec_fn.cli.bench.turns import Contest, together
from specdec_fn.cli.bench.variants import Dtype, Quantize
from specdec_fn.cli.status import Status, wide_console

__all__ = ["counted", "invariant"]

GATED = "smollm2-135m"  # the figure is of this model
LEAST = 0.9  # tokens a second, invariant / default
TEXT = "The keeper counts the waves, and the waves count the keeper. " * 6  # goes on as it began, so that drafts are kept
DEFAULT, FIXED = "default", "invariant"


def invariant(
    model: o.ModelName = GATED,
    dtype: Dtype = "float32",
    quantize: Quantize = "none",
    rows: Annotated[str, typer.Option("--rows", help="Rows of the passes, as 1,2,4.")] = "1,2,4,6,9",
    k: o.K = 4,
    max_tokens: o.MaxTokens = 64,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each pass, and decodings, in turns.")] = 9,
    json_: o.Json = False,
) -> int:
    """Passes and decoding in invariant mode beside the ordinary ones; exits 1 if a row's bits depend on its company, or a figure is missed."""
    import torch
    from rich.table import Table

    from specdec_fn import models
    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import in_turns, load_average, target_pass
    from specdec_fn.cli.bench.variants import load_variant, named
    from specdec_fn.kv import dense

    counts, weights = counted(rows), named(dtype, quantize)
    target, tokenizer = load_variant(model, weights)
    fixed = models.invariant(target)
    found: list[dict[str, Any]] = []
    with Status("invariant passes") as status:
        alone = target_pass(fixed, 1, dense.attend_invariant)()[0]
        for count in counts:
            status.say(f"passes of {count} rows")
            ordinary, held = target_pass(target, count), target_pass(fixed, count, dense.attend_invariant)
            times = in_turns({"ordinary": ordinary, "invariant": held}, repeats)
            ratios = [slow / fast for slow, fast in zip(times["invariant"], times["ordinary"], strict=True)]
            same = torch.equal(held()[0], alone)
            found.append({"rows": count, "ordinary_ms": times["ordinary"], "invariant_ms": times["invariant"], "ratios": ratios, "same_bits": same})
        status.say(f"decoding with K = {k}")
        decoded = _decoded(target, tokenizer, k, max_tokens, repeats)
    rates = decoded.ratios(DEFAULT, FIXED)
    gates = [figures.at_least(f"tokens a second with K = {k}, invariant / default", statistics.median(rates), LEAST)] if model == GATED else []
    code = figures.code(gates) if all(one["same_bits"] for one in found) else 1
    per_pass = {name: together([decoded], name).tokens_per_pass for name in (DEFAULT, FIXED)}
    if json_:
        decode = {"k": k, "ms": decoded.ms, "ratios": rates, "tokens_per_pass": per_pass, "same_tokens": decoded.same(DEFAULT, FIXED)}
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "weights": weights}
        print(json.dumps(facts | {"passes": found, "decode": decode, "figures": figures.as_rows(gates)}))
        return code
    title = f"invariant mode, {weights}, {torch.get_num_threads()} threads, {repeats} runs in turns"
    table = Table(title=title)
    for column in ("rows", "ordinary, ms", "invariant, ms", "times as long", "first row's bits as alone"):
        table.add_column(column, justify="right")
    for one in found:
        table.add_row(str(one["rows"]), *(spread(one[name]) for name in ("ordinary_ms", "invariant_ms", "ratios")), str(one["same_bits"]))
    wide_console().print(table)
    each = "; ".join(f"{name} {spread(decoded.ms[name])} ms a token, {per_pass[name]:.2f} tokens a pass" for name in (DEFAULT, FIXED))
    print(f"decoding with n-gram drafts, K = {k}: {each}\ntokens a second, invariant / default: {spread(rates)}")
    print("\n".join(figures.lines(gates)))
    return code


def _decoded(target: Any, tokenizer: Any, k: int, max_tokens: int, repeats: int) -> Contest:
    """The same text with n-gram drafts that always draft, in both modes, in turns."""
    from specdec_fn.cli.bench.turns import contest, ours
    from specdec_fn.sampling import SamplingParams
    from specdec_fn.speculate.proposers import ngram

    ids = tokenizer.encode(TEXT)[: max(1, target.config.context - max_tokens)]
    settings = {"sampling": SamplingParams(0.0), "proposer": ngram.proposer(), "k": k, "max_tokens": max_tokens}
    decoders = {name: ours(target, ids, invariant=name == FIXED, **settings) for name in (DEFAULT, FIXED)}
    return contest(decoders, repeats)


def counted(text: str) -> list[int]:
    """The numbers of rows that ``--rows`` lists, or one sentence."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise ValueError(f"--rows is {text!r}; expected numbers of rows such as 1,2,4")
    return counts
