"""``specdec bench arrivals``: which technique to have first at a light load, simulated on the scheduler itself beside the arithmetic.

Requests arrive at random, a few a second, each with so many tokens to emit. What a pass costs is given, whoever shares it; the prompt's cost is
left out. The scheduler plans every pass, so a batch of one is its ``max_batch`` of 1, a reservation of the longest context is a page of that many
slots, and the queue is its own. Time is a number that each pass adds to: the same seed gives the same figures.

The arithmetic: a request's service is its passes times the cost of one, ``(weights + launch) (1 + c K)`` with K drafts, whose mean yield is
``(1 - a^(K+1)) / (1 - a)`` tokens. Without batching, requests queue: the wait is that of M/D/1, ``rate s^2 / 2 (1 - rate s)``, and there is no
steady state where ``rate s >= 1``. With batching nobody queues. Where it and the simulation differ, the reason is in a column of its own:
the passes of a request are a random whole number, and the last may be cut short (M/G/1: a wait of ``rate E[s^2] / 2 (1 - rate E[s])``).
"""

import json
import math
import statistics
from itertools import product
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["Case", "arrivals", "latency", "passes_of", "service", "simulated"]

MANY = 1_000_000
FREE_BYTES, BYTES_A_TOKEN, LONGEST = 66e9, 0.5 * 2**20, 2048  # room for keys and values, what a token takes of it, and the reserved context
PROMPT = 200  # tokens of the prompt: no time, but memory


class Case(NamedTuple):
    """A load and the techniques that meet it.

    Attributes:
        rate: arrivals a second.
        tokens: that each request emits.
        weights_ms, launch_ms: of a pass; the launch is 0 with graphs.
        batching: whether requests share passes.
        k: drafted rows of a pass, 0 without speculation.
        acceptance: chance that a drafted token is accepted, if those before it were.
        draft_cost: of one drafted token, as a share of a pass.
    """

    rate: float
    tokens: int
    weights_ms: float
    launch_ms: float
    batching: bool
    k: int
    acceptance: float
    draft_cost: float

    @property
    def pass_ms(self) -> float:
        """Milliseconds of a pass."""
        return (self.weights_ms + self.launch_ms) * (1 + self.draft_cost * self.k)


def service(case: Case) -> float:
    """Milliseconds that a request takes by itself, with the mean yield of a pass."""
    return case.tokens * case.pass_ms / sum(case.acceptance**i for i in range(case.k + 1))


def latency(case: Case, mean: float, square: float) -> float | None:
    """Mean milliseconds from arrival to the last token: the service, and without batching the wait in the queue; None where that has no bound.

    Args:
        mean, square: of the service, in ms and ms squared.
    """
    rate = case.rate / 1e3
    if case.batching:
        return mean
    return mean + rate * square / (2 * (1 - rate * mean)) if rate * mean < 1 else None


def passes_of(case: Case) -> dict[int, float]:
    """The law of the number of passes of a request: each drafts at most what can still be emitted before its last token."""
    law = {case.tokens: {0: 1.0}}  # by tokens left: chances of the passes so far
    for left in range(case.tokens, 0, -1):
        k, a = min(case.k, left - 1), case.acceptance
        for accepted in range(k + 1):
            chance = a**accepted * (1 - a if accepted < k else 1)
            after = law.setdefault(left - accepted - 1, {})
            for passes, so_far in law[left].items():
                after[passes + 1] = after.get(passes + 1, 0.0) + so_far * chance
    return law[0]


def simulated(case: Case, run: Any, requests: int, warm: int, page_size: int, num_pages: int) -> float:
    """Mean milliseconds from arrival to the last token, over the requests behind the first ``warm``.

    Args:
        run: the key of the run. Arrivals and acceptances belong to the request and to its pass, so all techniques meet the same ones.
    """
    from specdec_fn.random import split, uniform
    from specdec_fn.schedule import Done, Limits, commit, init, schedule, submit

    of_arrivals, of_accepted = split(run)
    arrived = (-uniform(of_arrivals, (requests,)).neg().log1p() * (1e3 / case.rate)).cumsum(0).tolist()
    # The i-th draft is accepted if those before it were, with chance a: so i are with chance a^i, as the logarithm of 1 - u in base a exceeds i.
    accepted = (uniform(of_accepted, (requests, case.tokens)).neg().log1p() / math.log(case.acceptance)).long().tolist()
    turns, left = [0] * requests, [0.0] * requests
    state = init(Limits(page_size, num_pages, MANY if case.batching else 1, prefix_cache=False))
    clock, come, gone = 0.0, 0, 0
    while gone < requests:
        while come < requests and arrived[come] <= clock:
            state = submit(state, id=come, tokens=range(PROMPT), limit=PROMPT + case.tokens, k=case.k)
            come += 1
        state, plan = schedule(state, MANY)
        if not plan.lanes:
            clock = arrived[come]
            continue
        clock += case.pass_ms
        done = []
        for lane in plan.lanes:
            kept = min(lane.k, accepted[lane.id][turns[lane.id]])
            turns[lane.id] += 1
            finished = lane.stop + kept + 1 == PROMPT + case.tokens
            done.append(Done(lane, kept, (0,) * (kept + 1), finished))
            if finished:
                left[lane.id] = clock
                gone += 1
        state = commit(state, done)
    return statistics.fmean(end - start for end, start in zip(left[warm:], arrived[warm:], strict=True))


def arrivals(
    rate: Annotated[float, typer.Option("--rate", min=0.001, help="Arrivals a second.")] = 4.0,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens that each request emits.")] = 30,
    launch_ms: Annotated[float, typer.Option("--launch-ms", min=0, help="Milliseconds of a pass that graphs save.")] = 2.0,
    weights_ms: Annotated[float, typer.Option("--weights-ms", min=0.001, help="Milliseconds of a pass besides.")] = 7.0,
    k: Annotated[int, typer.Option("--k", min=1, help="Drafted tokens of a pass, with speculation.")] = 4,
    acceptance: Annotated[float, typer.Option("--acceptance", min=0.001, max=0.999, help="Chance that a drafted token is accepted.")] = 0.7,
    draft_cost: Annotated[float, typer.Option("--draft-cost", min=0, help="Cost of a drafted token, as a share of a pass.")] = 0.05,
    requests: Annotated[int, typer.Option("--requests", min=2, help="Requests of a run; the first fifth only warms up.")] = 300,
    runs: Annotated[int, typer.Option("--runs", min=4, help="Independent runs, from which the standard error comes.")] = 8,
    seed: o.Seed = 0,
    json_: o.Json = False,
) -> int:
    """Mean latency at a light load, for each choice of batching, graphs, speculation and paging; exits 1 if simulation and arithmetic disagree."""
    from rich.table import Table

    page_size, num_pages = 16, int(FREE_BYTES / BYTES_A_TOKEN / 16)
    found: list[dict[str, Any]] = []
    with Status("arrivals") as status:
        for batching, graphs, speculation in product((False, True), repeat=3):
            status.say(f"batching {batching}, graphs {graphs}, speculation {speculation}")
            launch = 0.0 if graphs else launch_ms
            case = Case(rate, tokens, weights_ms, launch, batching, k if speculation else 0, acceptance, draft_cost)
            names = {"batching": batching, "graphs": graphs, "speculation": speculation}
            found.append({**names, **_figures(case, seed, requests, runs, page_size, num_pages)})
        case = Case(rate, tokens, weights_ms, 0.0, True, k, acceptance, draft_cost)
        memory = []
        for paging, slots in ((True, page_size), (False, LONGEST)):
            pages = int(FREE_BYTES / BYTES_A_TOKEN / slots)
            fit = pages // -(-(PROMPT + tokens) // slots)
            memory.append({"paging": paging, "fit": fit, **_figures(case, seed, requests, runs, slots, pages)})
    gain = memory[1]["simulated_ms"] - memory[0]["simulated_ms"]
    code = 0 if all(row["agrees"] is not False for row in found) else 1
    if json_:
        print(json.dumps({"seed": seed, "requests": requests, "runs": runs, "rows": found, "memory": memory, "paging_gain_ms": gain}))
        return code
    title = f"{rate:g} requests a second, {tokens} tokens each; {runs} runs of {requests} requests, seed {seed}"
    table = Table(title=title)
    for column in ("batching", "graphs", "speculation", "service, ms", "load", "arithmetic, ms", "random passes, ms", "simulated, ms", "agrees"):
        table.add_column(column, justify="right")
    for row in found:
        choices = ("x" if row[name] else "-" for name in ("batching", "graphs", "speculation"))
        figures = (f"{row['service_ms']:.1f}", f"{row['load']:.3f}", _or_unstable(row["arithmetic_ms"]), _or_unstable(row["model_ms"]))
        table.add_row(
            *choices, *figures, f"{row['simulated_ms']:.1f} ± {row['standard_error_ms']:.1f}", {None: "-", True: "yes", False: "NO"}[row["agrees"]]
        )
    console = wide_console()
    console.print(table)
    for line in (
        "arithmetic: every pass yields the mean (M/D/1 without batching); random passes: a whole number of them, the last one cut (M/G/1).",
        "Simulated and random passes agree within 5 standard errors; with batching, an arrival also waits for the pass under way, at most one more.",
        "unstable: more work arrives than can be served, so the mean grows with the length of the run.",
        f"Paging: {memory[0]['fit']} requests fit in pages of {page_size} slots, {memory[1]['fit']} with {LONGEST} reserved for each; "
        f"mean latency {memory[0]['simulated_ms']:.1f} and {memory[1]['simulated_ms']:.1f} ms: gain {gain:.1f} ms at this load.",
    ):
        console.print(line, highlight=False)
    return code


def _figures(case: Case, seed: int, requests: int, runs: int, page_size: int, num_pages: int) -> dict[str, Any]:
    """Arithmetic, model and simulation of a case, and whether the last two agree."""
    from specdec_fn.random import fold_in, key

    means = [simulated(case, fold_in(key(seed), run), requests, requests // 5, page_size, num_pages) for run in range(runs)]
    mean, error = statistics.fmean(means), statistics.stdev(means) / math.sqrt(runs)
    alone, law = service(case), passes_of(case)
    first, second = (sum(chance * (passes * case.pass_ms) ** power for passes, chance in law.items()) for power in (1, 2))
    model = latency(case, first, second)
    slack = 5 * error + 1e-6
    under_way = case.pass_ms if case.batching else 0.0  # at most so long an arrival waits for the pass under way, which the model leaves out
    agrees = None if model is None else model - slack <= mean <= model + under_way + slack
    return {
        "service_ms": alone,
        "load": case.rate * alone / 1e3,
        "arithmetic_ms": latency(case, alone, alone**2),
        "model_ms": model,
        "simulated_ms": mean,
        "standard_error_ms": error,
        "agrees": agrees,
    }


def _or_unstable(value: float | None) -> str:
    return "unstable" if value is None else f"{value:.1f}"
