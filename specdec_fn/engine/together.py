"""Several sequences that share every forward: the rows of all of them lie side by side, and each is judged alone.

A static batch: all start together, and one that is done leaves its place empty. Under an invariant model and attention no bit of a sequence's
logits depends on who shares its passes.
"""

from collections.abc import Iterator, Sequence

import torch

from specdec_fn.engine.attention import CAUSAL, Attention, of_draft
from specdec_fn.engine.generate import NoLawError
from specdec_fn.engine.generation import Pass
from specdec_fn.engine.running import Running, drafted, judged, no_law, rows
from specdec_fn.kv import side_by_side
from specdec_fn.models import Model
from specdec_fn.pytree import donates

__all__ = ["together"]


@donates("runs")
def together(model: Model, runs: Sequence[Running], attention: Attention = CAUSAL) -> Iterator[tuple[int, Pass]]:
    """Runs sequences to their ends, one forward for all of them at a time.

    Args:
        model: the target.
        runs: sequences whose caches hold their prompts but the last token; ``generate.begin`` makes them. DONATED, with their caches.
        attention: how the model attends to each cache.

    Yields:
        The place in ``runs`` and the pass, in the order of ``runs`` for each forward.

    Raises:
        NoLawError: logits of NaN, or that allow nothing, where a token is needed.

    >>> from specdec_fn.engine.generate import begin
    >>> from specdec_fn.engine.law import law
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> from specdec_fn.sampling import SamplingParams
    >>> from specdec_fn.speculate import proposers, verifiers
    >>> circle = toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> parts = 2, proposers.scripted.proposer(lambda context: [2]), verifiers["token"], 1
    >>> runs = [begin(circle, key(0), law(SamplingParams()), [start], *parts) for start in (0, 1)]
    >>> [(place, one.tokens) for place, one in together(circle, runs)]
    [(0, [1]), (1, [2, 0]), (0, [2])]
    """
    alive = dict(enumerate(runs))
    while alive := {place: run for place, run in alive.items() if run.left > 0}:
        drafts = {place: drafted(run, model.config.vocab_size) for place, run in alive.items()}
        ids, positions = zip(*(rows(*pair) for pair in drafts.values()), strict=True)
        counts = [len(part) for part in ids]
        attend = side_by_side.attend([of_draft(attention, draft) for _, draft in drafts.values()], counts)
        with torch.inference_mode():
            caches = tuple(run.kv for run, _ in drafts.values())
            logits, caches = model.apply(model.params, torch.cat(ids), torch.cat(positions), caches, attend)
            parts = zip(drafts.items(), logits.split(counts), caches, strict=True)
            judgements = {place: judged(run, draft, own, cache) for (place, (run, draft)), own, cache in parts}
        for place, (run, one) in judgements.items():
            alive[place] = run
            yield place, one
            if run.lawless:
                raise NoLawError(no_law(run))
