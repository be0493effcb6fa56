"""Sample arguments for the public functions that reckon costs, and for the proposer that chooses K by them."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import torch

from specdec_fn import random
from specdec_fn.cost import Curve, Machine, chapter, curve, machines, queue, roofline, shapes, yields
from specdec_fn.models import toy
from specdec_fn.speculate import proposers
from specdec_fn.speculate.proposers import adaptive

from .purity_samples import Sample, call

STAIRS = Curve((1.0, 1.25, 1.4, 1.7, 1.78), draft=0.1)
FRESH = adaptive.Record((), -1, 0, 0, 0, adaptive.LATER, adaptive.FIRST, adaptive.LATER, False, 1.0, 0, 0)


def samples() -> Iterator[Sample]:
    return itertools.chain(cost_rooms(), curve_room(), adaptive_room())


def cost_rooms() -> Iterator[Sample]:
    yield Sample(yields.tokens_per_pass, lambda: call(0.7, 5))
    yield Sample(yields.tokens_per_pass, lambda: call(1.7, 5), ValueError)
    yield Sample(yields.mixture, lambda: call([0.9, 0.5], 4))
    yield Sample(yields.mixture, lambda: call([], 4), ValueError)
    yield Sample(yields.speed_up, lambda: call(0.7, 5, 0.05, 0.01))
    yield Sample(yields.speed_up, lambda: call(0.7, 5, -1.0), ValueError)
    yield Sample(yields.best, lambda: call(0.7, 0.05))
    yield Sample(yields.best, lambda: call(0.7, 0.05, most=-1), ValueError)
    yield Sample(yields.needed, lambda: call(1.5, 4, 0.05))
    yield Sample(machines.known, lambda: call("A100"))
    yield Sample(machines.known, lambda: call("abacus"), ValueError)
    yield Sample(machines.bits, lambda: call("q4_0"))
    yield Sample(machines.bits, lambda: call("one"), ValueError)
    yield Sample(machines.flops, lambda: call(machines.machines["H100"], "q4_1"))
    yield Sample(machines.flops, lambda: call(Machine("odd", 1.0, ()), "int8"), ValueError)
    yield Sample(machines.ridge, lambda: call(machines.machines["H200"], "float32"))
    yield Sample(shapes.of, lambda: call(SimpleNamespace(vocab_size=9, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, ffn=6)))
    yield Sample(shapes.key_value_bytes, lambda: call(shapes.SEVEN_B, 32))
    yield Sample(roofline.of_pass, lambda: call(chapter.MACHINE, shapes.SEVEN_B, batch=2, rows=5, context=7))
    yield Sample(roofline.of_pass, lambda: call(chapter.MACHINE, shapes.SEVEN_B, batch=0), ValueError)
    for part in (roofline.Pass.intensity, roofline.Pass.least, roofline.Pass.most, roofline.Pass.bound):
        yield Sample(part.fget, lambda: call(roofline.Pass(2, 3.0, 4.0, 5.0, 6.0)))  # type: ignore[arg-type]
    yield Sample(roofline.free_rows, lambda: call(chapter.MACHINE, shapes.SEVEN_B, batch=2, context=7))
    yield Sample(roofline.tokens_per_second, lambda: call(roofline.Pass(2, 3.0, 4.0, 5.0, 6.0), 2, 1.5, 0.1))
    for seconds in (0.1, 0.25):
        yield Sample(queue.latency, lambda seconds=seconds: call(4, seconds))
    yield Sample(queue.latency, lambda: call(-1, 1), ValueError)
    yield Sample(queue.service, lambda: call(queue.Load(), graphs=True, speculate=True))
    yield Sample(queue.options, lambda: call(queue.Load()))
    yield Sample(queue.order, lambda: call(queue.Load()))
    yield Sample(queue.served_within, lambda: call(4, 0.21))
    yield Sample(queue.served_within, lambda: call(4, 0), ValueError)
    yield Sample(chapter.figures, call)
    yield Sample(chapter.holds, lambda: call(chapter.Figure("", "", 3.1988, "3.19", 0.01)))


def curve_room() -> Iterator[Sample]:
    for rows in (1, 5, 9):
        yield Sample(curve.seconds, lambda rows=rows: call(STAIRS, rows))
    yield Sample(curve.seconds, lambda: call(STAIRS, 0), ValueError)
    for acceptance in (0.5, [0.9, 0.2]):
        yield Sample(curve.rates, lambda acceptance=acceptance: call(STAIRS, acceptance, 6))
        yield Sample(curve.best_k, lambda acceptance=acceptance: call(STAIRS, acceptance, 6))
    yield Sample(curve.rates, lambda: call(STAIRS, 2.0, 6), ValueError)
    yield Sample(curve.smoothed, lambda: call([1.0, 3.0, 2.0, 2.0], [1.0, 2.0, 3.0, 1.0]))
    yield Sample(curve.interpolated, lambda: call({1: 1.0, 4: 0.5, 6: 9.0}, 6))
    yield Sample(curve.interpolated, lambda: call({1: 1.0}, 6), ValueError)
    yield Sample(curve.to_json, lambda: call(STAIRS))
    yield Sample(curve.from_json, lambda: call({"seconds": [1.0, 2], "draft": 0.5}))
    yield Sample(curve.from_json, lambda: call("no curve"), ValueError)


def adaptive_room() -> Iterator[Sample]:
    yield Sample(adaptive.Rate.mean.fget, lambda: call(adaptive.LATER))  # type: ignore[attr-defined]
    yield Sample(adaptive.Rate.add, lambda: call(adaptive.LATER, 2, 3))
    yield Sample(adaptive.Rate.fade, lambda: call(adaptive.Rate(9.0, 10.0), adaptive.FIRST))
    noted = FRESH._replace(base=10, rows=3, depth=3, drawn=3)
    for committed in (10, 11, 12, 14):
        yield Sample(adaptive.settled, lambda committed=committed: call(noted, STAIRS, committed))
    yield Sample(adaptive.settled, lambda: call(noted._replace(cold=adaptive.Rate(0.1, 9.0)), STAIRS, 11))
    for ledger in (0.0, 0.5, 5.0):
        yield Sample(adaptive.chosen, lambda ledger=ledger: call(FRESH._replace(ledger=ledger), STAIRS, 4))
    guesses = (proposers.ngram.proposer(), proposers.ngram_tree.proposer(), proposers.draft_model.proposer(toy.bigram(torch.eye(3))))
    for guess in (*guesses, proposers.paying.proposer(guesses[0])):
        yield Sample(adaptive.proposer, lambda guess=guess: call(guess, STAIRS))
        watching = adaptive.proposer(guess, STAIRS)
        state, line = watching.init([1, 2, 1, 2, 1]), [1, 2, 1, 2, 1]
        yield Sample(watching.init, lambda line=line: call(list(line)))
        for resting in (0, 2):
            at = state._replace(wait=resting)
            yield Sample(watching.propose, lambda at=at, line=line: call(random.key(1), at, list(line), 3, position=5))
            if watching.drafter is not None:
                yield Sample(watching.drafter.ask, lambda at=at, line=line: call(random.key(1), at, list(line), 3, position=5))
        if watching.drafter is not None:
            draft = watching.propose(random.key(1), state, line, 3, position=5)[1]
            yield Sample(watching.drafter.told, lambda state=state, line=line, draft=draft: call(state, list(line), draft))
            yield Sample(watching.drafter.again, lambda: call(toy.bigram(torch.eye(3)), 3))
    yield Sample(adaptive.proposer, lambda: call("ngram", STAIRS), TypeError)
