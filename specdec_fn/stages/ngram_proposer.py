"""Stage 17, the n-gram proposer: text that quotes itself is drafted for nothing."""

import statistics
from typing import Any

from specdec_fn.doors import generate
from specdec_fn.engine.generation import Generation
from specdec_fn.sampling import SamplingParams
from specdec_fn.stages.stage import Gate, Line, Plot, Progress, Result, Setup, Stage, spread

__all__ = ["decode_ms", "stage"]

K = 10


def decode_ms(made: Generation) -> float:
    """Milliseconds a token of a generation, without its prefill.

    >>> from specdec_fn.engine.generation import Stats
    >>> decode_ms(Generation([1, 2], "", "length", [], Stats(seconds={"prefill": 1.0, "forward": 0.5})))
    250.0
    """
    return 1e3 * sum(seconds for part, seconds in made.stats.seconds.items() if part != "prefill") / len(made.tokens)


def _run(setup: Setup, progress: Progress) -> Result:
    prompts = setup.quoting[: setup.pick(5, 2)]
    how: dict[str, Any] = {"sampling": SamplingParams(0.0), "max_tokens": setup.pick(64, 40), "ignore_eos": True}
    ways: tuple[dict[str, Any], ...] = ({}, {"proposer": "ngram", "k": K})
    pairs = []
    for number, ids in enumerate(prompts):
        progress.say(f"prompt {number + 1} of {len(prompts)}")
        made = {which: generate(setup.model, ids, **how, **ways[which]) for which in ((0, 1) if number % 2 else (1, 0))}
        pairs.append((made[0], made[1]))
    emitted, passes = (sum(getattr(fast.stats, name) for _, fast in pairs) for name in ("emitted", "passes"))
    plain, quick = ([decode_ms(pair[which]) for pair in pairs] for which in (0, 1))
    gains = [slow / fast for slow, fast in zip(plain, quick, strict=True)]
    figure = emitted / passes if passes else 0.0
    return Result(
        figure,
        f"{figure:.2f}, {statistics.median(gains):.2f} times as fast",
        (("token, plain", statistics.median(plain)), ("token, n-gram", statistics.median(quick))),
        Plot(
            "prompt",
            "tokens a pass",
            (Line("n-gram", tuple(range(len(pairs))), tuple(fast.stats.tokens_per_pass for _, fast in pairs), points=True),),
            (1.0, "plain decoding"),
            names=tuple(map(str, range(1, len(pairs) + 1))),
        ),
        ("prompt", "tokens a pass", "accepted of proposed", "plain, ms a token", "n-gram, ms a token", "times as fast"),
        (
            *(
                (str(i + 1), f"{fast.stats.tokens_per_pass:.2f}", f"{fast.stats.acceptance_rate:.0%}", f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}")
                for i, ((_, fast), a, b) in enumerate(zip(pairs, plain, quick, strict=True))
            ),
            ("all", f"{figure:.2f}", "", spread(plain, 1), spread(quick, 1), spread(gains)),
        ),
    )


stage = Stage(
    "n-gram proposer",
    "tokens per pass on text that quotes itself",
    Gate(2.0, least=True),
    "The last few ids are looked up in what is there, and what followed them is drafted. Where an answer repeats the prompt, that is right.",
    _run,
)
