"""Stage 16, the rejection sampler: whatever is proposed, the law of what is emitted is the target's; and it is small beside a pass."""

import statistics
from fractions import Fraction

import torch

from specdec_fn import random
from specdec_fn.engine.law import law
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import Draft, verifiers
from specdec_fn.stages.passes import in_turns, target_pass
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, spread
from specdec_proofs.claim import one_thread
from specdec_proofs.integrate import measure
from specdec_proofs.worlds import chain_reference, declared_one_hot, mixed_tables, softmax, stopping

__all__ = ["stage"]

K = 4
RULES = ("token", "block")


def _run(setup: Setup, progress: Progress) -> Result:
    size = (4, 2) if setup.quick else (5, 3)
    worlds = (
        ("soft drafts", softmax(setup.seed, *size)),
        ("drafts declared one-hot", declared_one_hot(softmax(setup.seed, *size))),
        ("drafts of varying length", stopping(softmax(setup.seed, *size))),
        ("zeros and ties", mixed_tables(setup.seed, *size)),
        ("reference chain", chain_reference()),
    )
    found: dict[tuple[str, str], Fraction] = {}
    sound = True
    with one_thread():
        for rule in RULES:
            for name, world in worlds:
                progress.say(f"the law of {rule}, {name}")
                one = measure(verifiers.all[rule].decide, world)
                found[rule, name] = one.tv
                sound &= not one.violations and one.impossible == 0
    worst = float(max(found.values()))
    progress.say("the time of a decision and of a pass")
    passed = target_pass(setup.model, K + 1)
    probs = law(SamplingParams())(passed().cpu(), [], [0] * K)
    draft = Draft(probs[:K].argmax(-1), probs[:K], torch.tensor(K))
    jobs = {rule: lambda rule=rule: verifiers.all[rule].verify(random.key(setup.seed), probs, draft) for rule in RULES}
    times = in_turns({"pass": passed, **jobs}, setup.pick(15, 9))
    middle = {name: statistics.median(values) for name, values in times.items()}
    share = middle["token"] / middle["pass"]
    return Result(
        worst,
        f"{worst:.1e}, {share:.0%} of a pass",
        (("decision of token", middle["token"]), (f"pass of {K + 1} rows", middle["pass"])),
        Plot(
            "",
            "exact total variation (1e-18 stands for 0)",
            tuple(
                Line(rule, tuple(range(len(worlds))), tuple(max(float(found[rule, name]), 1e-18) for name, _ in worlds), points=True)
                for rule in RULES
            ),
            (1e-12, "gate"),
            log_y=True,
            names=tuple(name for name, _ in worlds),
        ),
        ("rule", "world", "exact TV", "milliseconds of a decision", "of a pass"),
        tuple((rule, name, f"{float(tv):.1e}", spread(times[rule]), f"{middle[rule] / middle['pass']:.1%}") for (rule, name), tv in found.items()),
        (
            ("no mass on what the target cannot produce, and nothing contradicts the measurement", sound),
            ("a decision takes less than half a pass", share < 0.5),
        ),
    )


stage = Stage(
    "rejection sampler",
    "exact total variation between the law of what is emitted and p; its share of a pass",
    Gate(1e-12),
    "The function that ships is integrated over its tape, not sampled: accept, correct or add, and the emitted tokens follow the target's law.",
    _run,
)
