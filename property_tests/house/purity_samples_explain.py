"""Sample arguments for what explains a pass: the bounds of every verifier, and what is made of them."""

import functools
from collections.abc import Iterator

import torch

from specdec_fn import random
from specdec_fn.speculate import Draft, explain, threshold, verifiers

from .purity_samples import Sample, call, chain_of, ids, laws


def drafts(*, trees: bool) -> list[Draft]:
    soft = chain_of(1, 2, 3, soft=True)
    branching = [soft._replace(parents=ids(-1, -1, 0)), chain_of(1, 2, 3)._replace(parents=ids(-1, -1, 0))] if trees else []
    return [chain_of(1, 2, 3), chain_of(1, soft=True), soft, chain_of(k=0), *branching]


def samples() -> Iterator[Sample]:
    low = torch.tensor([0.1, 0.5], dtype=torch.float64)
    yield Sample(threshold.threshold, lambda: call(lambda u: u * 0.5 < low, low.clone()))
    yield Sample(threshold.where_judged, lambda: call(torch.tensor([True, False]), low.clone()))
    node = explain.Why(5, "accepted", 0.5, 1.0, 0.25, 0.5, None, -1)
    for size in (0, 2):
        yield Sample(explain.cut_at, lambda size=size: call(explain.Explained(7, (node,), node._replace(kind="bonus", parent=0)), size))
    for rule in verifiers.values():
        for draft in drafts(trees=rule.trees):
            k = draft.tokens.shape[0]
            tape = functools.partial(rule.tape, random.key(2), k, 4)
            verdict = rule.decide(tape(), laws(k + 1, 4), draft)
            given = functools.partial(lambda tape, k, draft, verdict: (tape(), laws(k + 1, 4), draft, verdict), tape, k, draft, verdict)
            yield Sample(explain.explained, lambda rule=rule, given=given: call(rule, *given(), base=7))
            yield Sample(threshold.tried, lambda draft=draft, verdict=verdict: call(draft, verdict))
            if rule.bounds is not None:
                yield Sample(rule.bounds, lambda given=given: call(*given()))
