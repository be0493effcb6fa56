"""Stage 18, the draft model: the target's own weights in four bits draft for it, on text that quotes nothing."""

import statistics
from typing import Any

from specdec_fn.doors import generate
from specdec_fn.sampling import SamplingParams
from specdec_fn.stages.ngram_proposer import decode_ms
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, spread

__all__ = ["stage"]

K = 4
KIND = "int4"  # groups of 64 with an offset: not the grid on which the embedded model's file came


def _run(setup: Setup, progress: Progress) -> Result:
    from specdec_fn.speculate.proposers import early_exit, quantized

    sampling = SamplingParams(0.0)
    progress.say("packing the weights")
    drafts: dict[str, Any] = {"plain": {}, KIND: {"proposer": quantized.proposer(setup.model, kind=KIND, sampling=sampling), "k": K}}
    if not setup.quick:
        drafts["first layers"] = {"proposer": early_exit.proposer(setup.model, sampling=sampling), "k": K}
    prompts = setup.prose[: setup.pick(4, 2)]
    found: dict[str, list[Any]] = {name: [] for name in drafts}
    for number, ids in enumerate(prompts):
        for name, how in list(drafts.items())[:: 1 if number % 2 else -1]:
            progress.say(f"prompt {number + 1} of {len(prompts)}, {name}")
            found[name].append(generate(setup.model, ids, sampling=sampling, max_tokens=setup.pick(48, 32), ignore_eos=True, **how))
    times = {name: [decode_ms(made) for made in several] for name, several in found.items()}
    net = {name: [_net(made) for made in several] for name, several in found.items() if name != "plain"}
    gains = {name: [slow / fast for slow, fast in zip(times["plain"], times[name], strict=True)] for name in net}
    each = {name: sum(made.stats.emitted for made in several) / sum(made.stats.passes for made in several) for name, several in found.items()}
    kept = {name: sum(made.stats.accepted for made in found[name]) / max(1, sum(made.stats.proposed for made in found[name])) for name in net}
    return Result(
        statistics.median(net[KIND]),
        f"{spread(net[KIND])} of {each[KIND]:.2f}, {statistics.median(gains[KIND]):.2f} times as fast",
        (("token, plain", statistics.median(times["plain"])), ("token, drafted", statistics.median(times[KIND]))),
        Plot(
            "prompt",
            "tokens a pass, net of what the draft took",
            tuple(Line(name, tuple(range(len(values))), tuple(values), points=True) for name, values in net.items()),
            (1.0, "plain decoding"),
            names=tuple(map(str, range(1, len(prompts) + 1))),
        ),
        ("draft", "tokens a pass", "accepted of proposed", "net of its cost", "milliseconds a token", "times as fast"),
        (
            ("none", f"{each['plain']:.2f}", "", "", spread(times["plain"], 1), ""),
            *((name, f"{each[name]:.2f}", f"{kept[name]:.0%}", spread(net[name]), spread(times[name], 1), spread(gains[name])) for name in net),
        ),
    )


def _net(made: Any) -> float:
    """Emitted tokens for each pass's worth of time, drafting included: tokens a pass times the target's share of both."""
    seconds = made.stats.seconds
    forward, drafting = seconds.get("forward", 0.0), seconds.get("propose", 0.0)
    return made.stats.tokens_per_pass * forward / (forward + drafting) if forward else 0.0


stage = Stage(
    "draft model",
    "tokens per pass on prose, net of draft cost",
    Gate(1.2, least=True),
    "The draft is the target itself, packed in int4 (4 bits, groups of 64 with an offset; embedding and head int8). The embedded weights began as "
    "4-bit on another grid (Q4_1): on that grid the draft would be the target.",
    _run,
)
