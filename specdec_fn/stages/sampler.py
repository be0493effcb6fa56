"""Stage 13, the sampler: its law is p to the last digits of a float, at the model's own vocabulary, and it is small beside a pass."""

import statistics
from functools import partial
from typing import Any

import torch

from specdec_fn import models, random
from specdec_fn.engine.law import law
from specdec_fn.sampling import SamplingParams, draw
from specdec_fn.stages.passes import in_turns, target_pass
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, spread
from specdec_proofs.claim import one_thread
from specdec_proofs.large import row_law, total_variation_of_row

__all__ = ["stage"]

WAYS = (
    ("temperature 1", SamplingParams()),
    ("temperature 0.8, top-k 50, top-p 0.95", SamplingParams(0.8, 50, 0.95)),
    ("temperature 0", SamplingParams(0.0)),
)


def _run(setup: Setup, progress: Progress) -> Result:
    with torch.inference_mode():
        logits = models.logits(setup.model, setup.ids(setup.room(64)))[-1:].cpu()
    uniform = random.uniform(random.key(setup.seed))
    rows, worst, steps = [], 0.0, {"pass": target_pass(setup.model, 1)}
    for name, params in WAYS:
        progress.say(f"the law of the sampler at {name}, V = {setup.model.config.vocab_size:,}")
        rule = law(params)
        probs = rule(logits, [], [])[0]
        with one_thread():
            found = row_law(probs)
        off = float(total_variation_of_row(found.counts.tolist(), probs.tolist())) if not found.violations else 1.0
        rows.append((name, off, int((probs > 0).sum())))
        worst = max(worst, off)
        steps[name] = partial(_drawn, rule, uniform, logits)
    progress.say("the time of a draw and of a pass")
    times = in_turns(steps, setup.pick(15, 9))
    middle = {name: statistics.median(values) for name, values in times.items()}
    share = middle[WAYS[0][0]] / middle["pass"]
    return Result(
        worst,
        f"{worst:.1e}, {share:.0%} of a pass",
        (("law and draw", middle[WAYS[0][0]]), ("pass of one row", middle["pass"])),
        Plot(
            "",
            "milliseconds",
            (Line("law and draw", tuple(range(len(WAYS))), tuple(middle[name] for name, _ in WAYS), points=True),),
            (middle["pass"], "a pass of one row"),
            log_y=True,
            names=tuple(name for name, _ in WAYS),
        ),
        ("controls", "tokens that may come", "exact TV", "milliseconds", "of a pass"),
        tuple((name, f"{support:,}", f"{off:.1e}", spread(times[name]), f"{middle[name] / middle['pass']:.1%}") for name, off, support in rows),
        (("law and draw at temperature 1 take less than half a pass", share < 0.5),),
    )


def _drawn(rule: Any, uniform: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return draw(uniform, rule(logits, [], [])[0])


stage = Stage(
    "sampler",
    "exact total variation between the sampler's law and p; its share of a pass",
    Gate(1e-9),
    "Every one of the 2^53 uniforms is accounted for: how many give each token of a row of the model, against the row itself.",
    _run,
)
