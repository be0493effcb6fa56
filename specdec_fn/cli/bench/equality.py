"""``specdec bench equality``: greedy ids with and without speculation, in float64 and float32."""

import json
import sys
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o

__all__ = ["equality"]

NEAR_TIE = 1e-3  # logits: below this margin between the first two, float32 may order them either way


class Difference(NamedTuple):
    """Where two greedy runs part.

    Attributes:
        name: of the prompt.
        place: index of the first token that differs.
        margin: of the plain run's two largest logits there.
    """

    name: str
    place: int
    margin: float


def equality(
    model: o.ModelName = "smollm2-135m",
    dtypes: Annotated[str, typer.Option("--dtypes", help="Which to run, as float64,float32.")] = "float64,float32",
    proposer: o.NamedProposer = "ngram",
    k: o.K = 5,
    max_tokens: o.MaxTokens = 128,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="How many prompts, quoting and prose in turns.")] = 20,
    json_: o.Json = False,
) -> int:
    """Compare greedy ids with and without speculation; exits 1 on a difference that is not a near tie (in float64: on any)."""
    from itertools import chain, zip_longest

    from rich.console import Console
    from rich.progress import Progress

    from specdec_fn.cli.prompts import read
    from specdec_fn.load import load

    both = zip_longest(read("quoting"), read("prose"))
    chosen = [prompt for prompt in chain.from_iterable(both) if prompt is not None][:prompts]
    results: dict[str, Any] = {}
    for dtype in dtypes.split(","):
        target, tokenizer = load(model, dtype=dtype)
        differences, proposed = [], 0
        with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
            for prompt in progress.track(chosen, description=f"greedy, {dtype}"):
                difference, drafted = _compare(target, tokenizer, prompt, proposer, k, max_tokens)
                proposed += drafted
                differences += [difference] if difference else []
        limit = 0.0 if dtype == "float64" else NEAR_TIE
        results[dtype] = {
            "prompts": len(chosen),
            "proposed": proposed,
            "equal": len(chosen) - len(differences),
            "differences": [difference._asdict() for difference in differences],
            "passed": all(difference.margin <= limit for difference in differences) and (limit > 0 or not differences),
        }
    if json_:
        print(json.dumps(results))
    else:
        for dtype, found in results.items():
            print(f"{dtype}: {found['equal']} of {found['prompts']} prompts x {max_tokens} tokens equal; {found['proposed']} tokens were proposed")
            for difference in found["differences"]:
                print(f"  {difference['name']}: first difference at token {difference['place']}, plain top-two margin {difference['margin']:.2e}")
    return 0 if all(found["passed"] for found in results.values()) else 1


def _compare(target: Any, tokenizer: Any, prompt: Any, proposer: str, k: int, max_tokens: int) -> tuple[Difference | None, int]:
    from specdec_fn.doors import generate
    from specdec_fn.models import logits
    from specdec_fn.sampling import SamplingParams

    ids = tokenizer.chat([{"role": "user", "content": prompt.text}])
    shared = {"tokenizer": tokenizer, "sampling": SamplingParams(0.0), "max_tokens": max_tokens, "ignore_eos": True}
    plain = generate(target, ids, **shared).tokens
    fast = generate(target, ids, proposer=proposer, k=k, **shared)
    place = next((i for i, (a, b) in enumerate(zip(plain, fast.tokens, strict=True)) if a != b), None)
    if place is None:
        return None, fast.stats.proposed
    top = logits(target, [*ids, *plain[:place]])[-1].topk(2).values
    return Difference(prompt.name, place, float(top[0] - top[1])), fast.stats.proposed
