"""Stage 19, the choice of K: how many tokens to draft follows from a measured curve and from what was accepted so far."""

import statistics
from typing import Any

from specdec_fn.doors import stream
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate.proposers import ngram
from specdec_fn.stages import serving
from specdec_fn.stages.stage import Gate, Line, Mute, Plot, Progress, Result, Setup, Stage, ratios, spread

__all__ = ["stage"]

FIXED = (0, 2, 5, 10)
CHOSEN = "chosen"


def _run(setup: Setup, progress: Progress) -> Result:
    from specdec_fn.measure import curve
    from specdec_fn.speculate.proposers import adaptive

    progress.say("the time of a pass by its rows")
    most = FIXED[-1]
    measured = curve(setup.model, rows=most + 1, context=setup.room(128, spare=most + 2))
    own = adaptive.proposer(ngram.proposer(), measured)
    ways: dict[Any, dict[str, Any]] = {k: {"proposer": ngram.proposer(), "k": k} if k else {} for k in FIXED} | {CHOSEN: {"proposer": own, "k": most}}
    prompts = [ids for pair in zip(setup.quoting, setup.prose, strict=False) for ids in pair][: setup.pick(6, 4)]
    runs: dict[Any, list[_Passes]] = {way: [] for way in ways}
    ms: dict[Any, list[float]] = {way: [] for way in ways}
    for number, ids in enumerate(prompts):
        progress.say(f"prompt {number + 1} of {len(prompts)}")
        beside = {str(way): _Passes(setup, ids, how) for way, how in ways.items()}
        took = serving.abreast(beside, Mute())
        for way in ways:
            one = beside[str(way)]
            runs[way].append(one)
            ms[way].append(1e3 * took[str(way)] / max(1, one.tokens - one.first))
    rate = {way: 1e3 / statistics.fmean(values) for way, values in ms.items()}
    best = max(FIXED, key=lambda k: rate[k])
    against = ratios(ms[best], ms[CHOSEN])
    figure = rate[CHOSEN] / rate[best]
    per_pass = {way: sum(one.tokens for one in several) / sum(one.passes for one in several) for way, several in runs.items()}
    return Result(
        figure,
        f"{figure:.2f} ({min(against):.2f} to {max(against):.2f}), best fixed K = {best}",
        (("token, chosen K", 1e3 / rate[CHOSEN]), (f"token, K = {best}", 1e3 / rate[best])),
        Plot("K", "tokens a second", (Line("fixed", FIXED, tuple(rate[k] for k in FIXED)),), (rate[CHOSEN], "chosen by the curve")),
        ("K", "tokens a pass", "milliseconds a token", "tokens a second"),
        tuple((str(way), f"{per_pass[way]:.2f}", spread(ms[way], 1), f"{rate[way]:.1f}") for way in ways),
    )


class _Passes:
    """A generation, pass by pass; each ``next`` is a pass and gives the share of its tokens that are there."""

    def __init__(self, setup: Setup, ids: tuple[int, ...], how: dict[str, Any]) -> None:
        self._most = setup.pick(64, 32)
        self._pieces = stream(setup.model, ids, sampling=SamplingParams(0.0), max_tokens=self._most, ignore_eos=True, **how)
        self.tokens, self.passes = len(next(self._pieces).tokens), 1  # with the prompt, outside the clock
        self.first = self.tokens

    def __iter__(self) -> "_Passes":
        return self

    def __next__(self) -> float:
        self.tokens, self.passes = self.tokens + len(next(self._pieces).tokens), self.passes + 1
        return self.tokens / self._most


stage = Stage(
    "choice of K",
    "tokens a second at the chosen K / best fixed K",
    Gate(0.85, least=True),
    "Half of these prompts quote and half do not, so no fixed K is right for all. The best one is known only afterwards.",
    _run,
)
