"""``specdec bench invariant``: what logits cost whose bits do not depend on the rows of a pass."""

import json
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["invariant"]


def invariant(
    model: o.ModelName = "smollm2-135m",
    rows: Annotated[str, typer.Option("--rows", help="Rows of the passes, as 1,2,4.")] = "1,2,4,6,9",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each pass, in turns.")] = 9,
    json_: o.Json = False,
) -> int:
    """Time of a target pass in invariant mode over that of the ordinary pass; exits 1 if a row's bits depend on how many share the pass."""
    import torch
    from rich.table import Table

    from specdec_fn import models
    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.cli.bench.passes import in_turns, load_average, target_pass
    from specdec_fn.kv import dense

    counts = _counts(rows)
    target, _ = o.load_model(model)
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
    code = 0 if all(one["same_bits"] for one in found) else 1
    if json_:
        print(json.dumps({"threads": torch.get_num_threads(), "load": load_average(), "passes": found}))
        return code
    title = f"invariant mode, {str(alone.dtype).removeprefix('torch.')}, {torch.get_num_threads()} threads, {repeats} runs in turns"
    table = Table(title=title)
    for column in ("rows", "ordinary, ms", "invariant, ms", "times as long", "first row's bits as alone"):
        table.add_column(column, justify="right")
    for one in found:
        table.add_row(str(one["rows"]), *(spread(one[name]) for name in ("ordinary_ms", "invariant_ms", "ratios")), str(one["same_bits"]))
    wide_console().print(table)
    return code


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise ValueError(f"--rows is {text!r}; expected numbers of rows such as 1,2,4")
    return counts
