"""The cost curve of a model on this machine: real passes over a few numbers of rows, timed in turns; of each, the lower quartile.

What disturbs a pass only ever adds to its time, so the quick ones say what it costs; with few repetitions the quickest.

A pass is timed as the speculative loop runs it: rows, forward, laws, decision. What is in the cache does not matter for its time, so the context
is not read but taken as zeros. Times of the rows between the measured ones are read off straight lines, after ``cost.curve.smoothed``.
"""

import time
from collections.abc import Callable
from functools import partial

import torch

from specdec_fn.cost.curve import Curve, interpolated
from specdec_fn.engine.attention import CAUSAL, INVARIANT, Attention, of_draft
from specdec_fn.engine.job import SILENT
from specdec_fn.engine.law import law
from specdec_fn.engine.running import Running, judged, rows
from specdec_fn.kv import dense
from specdec_fn.models import Model
from specdec_fn.models.model import parameter
from specdec_fn.random import key
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import Proposer, Verifier, verifiers
from specdec_fn.speculate.draft import chain
from specdec_kernels import native

__all__ = ["curve", "points"]

MEASURED = (1, 2, 3, 4, 5, 6, 8, 11, 16)  # every step where drafts are short: kernels have cliffs
DRAFT = 0  # the place of a drafting model's pass among the passes


def points(most: int) -> tuple[int, ...]:
    """The numbers of rows that are measured for a curve of ``most`` rows.

    >>> points(7), points(17)
    ((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6, 8, 11, 16, 17))
    """
    return tuple(sorted({*(count for count in MEASURED if count < most), most}))


def curve(
    model: Model,
    *,
    rows: int = 17,
    context: int = 256,
    repetitions: int = 7,
    seconds: float = 1.5,
    proposer: Proposer | None = None,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    verifier: Verifier | None = None,
    attention: Attention = CAUSAL,
    bare: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Curve:
    """Measures seconds of a pass by its rows, and of a drafted token.

    Args:
        model: the target.
        rows: most rows of a pass, K + 1; fewer where the model's context is short.
        context: committed tokens before a pass, likewise.
        repetitions: most rounds of all passes, after one that warms up.
        seconds: after which no further round begins, once there is one.
        proposer: who will draft: where it drafts with a model, a drafted token costs a pass of that model of one row, else nothing.
        sampling, verifier, attention: as the passes will have them; the verifier is "token" unless given.
        bare: time the forward alone, without laws and decision.
        clock: seconds.

    Raises:
        ValueError: fewer rows, context or repetitions than one, or a model whose context leaves no pass.

    >>> from specdec_fn.models import toy
    >>> measured = curve(toy.bigram(torch.eye(3)), rows=3, context=4, repetitions=2)
    >>> len(measured.seconds), measured.draft
    (3, 0.0)
    """
    for name, value in (("rows", rows), ("context", context), ("repetitions", repetitions)):
        if value < 1:
            raise ValueError(f"{name} is {value}; expected 1 or more")
    if model.config.context < 2:
        raise ValueError(f"the model's context is {model.config.context}; expected at least 2, a token and a pass")
    native.wait()  # what is built in the background would make later passes faster than the curve says
    most = min(rows, model.config.context - 1)
    rule = verifiers.all["token"] if verifier is None else verifier
    jobs = _passes(model, points(most), min(context, model.config.context - most), sampling, rule, attention, bare)
    drafter = None if proposer is None else proposer.drafter
    if drafter is not None:
        room = max(min(context, drafter.model.config.context - 1), 1)
        own = INVARIANT if attention is INVARIANT else CAUSAL
        jobs[DRAFT] = _passes(drafter.model, (1,), room, drafter.sampling, verifiers.all["token"], own, bare)[1]
    times = _quartiles(jobs, repetitions, seconds, clock)
    return Curve(interpolated({count: one for count, one in times.items() if count != DRAFT}, most), times.get(DRAFT, 0.0))


def _quartiles(jobs: dict[int, Callable[[], None]], repetitions: int, seconds: float, clock: Callable[[], float]) -> dict[int, float]:
    """Lower quartile of the times of each job, in turns, the order turned round each time."""
    times: dict[int, list[float]] = {name: [] for name in jobs}
    begin = clock()
    for repetition in range(repetitions + 1):
        if repetition > 1 and clock() - begin > seconds:
            break
        for name, job in list(jobs.items())[:: 1 if repetition % 2 else -1]:
            start = clock()
            job()
            if repetition:
                times[name].append(clock() - start)
    return {name: max(sorted(found)[(len(found) - 1) // 4], 1e-9) for name, found in times.items()}


def _passes(
    model: Model, counts: tuple[int, ...], context: int, sampling: SamplingParams, verifier: Verifier, attention: Attention, bare: bool
) -> dict[int, Callable[[], None]]:
    """Passes of so many rows each behind ``context`` tokens, which can be run again and again; all use one cache."""
    weight = parameter(model)
    kv = dense.init(model.config, context + counts[-1], dtype=weight.dtype, device=weight.device)
    held = [dense.advance(kv, context - 1)]
    ids = [place * 101 % model.config.vocab_size for place in range(context + counts[-1])]
    line = tuple(ids[:context])
    laws = law(sampling, line, (), None)

    @torch.inference_mode()
    def go(count: int) -> None:
        draft = chain(ids[context : context + count - 1], count - 1)
        run = Running(key(0), laws, line, context, count, SILENT, verifier, count - 1, (), None)
        given, positions = (part.to(weight.device) for part in rows(run, draft))
        logits, kv = model.apply(model.params, given, positions, held.pop(), of_draft(attention, draft))
        logits = logits.cpu()  # waits for a device
        after = None if bare else judged(run, draft, logits, kv)[0].kv
        held.append(kv if after is None else dense.truncate(after, context - 1))

    return {count: partial(go, count) for count in counts}
