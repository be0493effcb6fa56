"""What makes soft drafts lossless, of every proposer that has laws: a drafted token stands at the height of its law that its own address gives,
or, under ``coupled``, wins the race at its position on that law; and how many are drafted is settled before the first of them is drawn.

The verifiers are proved for any p and q, so long as q is the law that was drawn from. A law that is off by little biases what is emitted by too
little for statistics, and is seen here in the first pass.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
import torch

from specdec_fn import SamplingParams, generate
from specdec_fn.cost.curve import Curve
from specdec_fn.engine import Config, Request, init, propose, run, running, sharing, submit
from specdec_fn.models import toy
from specdec_fn.random import Key, key, uniform
from specdec_fn.sampling import draw
from specdec_fn.speculate import Draft, Proposer, race
from specdec_fn.speculate.proposers import adaptive, draft_model, early_exit, first, ngram, paying, quantized, suffix
from specdec_fn.speculate.tape import DRAFT, address

VOCAB, K = 12, 4
SIZES = {"width": 32, "heads": 2, "head_dim": 32, "ffn": 32, "dtype": torch.float32}
TARGET = toy.llama(key(5), vocab_size=VOCAB, context=64, layers=3, **SIZES)
OTHER = toy.llama(key(9), vocab_size=VOCAB + 3, context=20, layers=1, **SIZES)  # pads its vocabulary, and reads less
WARM = SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.2)
CURVE = Curve((1.0, 1.05, 1.1, 1.15, 1.3), 0.05)
BARE = MappingProxyType(
    {
        "draft_model": draft_model.proposer(OTHER, sampling=WARM, vocab_size=VOCAB),
        "early_exit": early_exit.proposer(TARGET, 2, sampling=WARM),
        "quantized": quantized.proposer(TARGET, sampling=WARM),
    }
)
WRAPPED = MappingProxyType(
    {
        **BARE,
        **{f"paying {name}": paying.proposer(one) for name, one in BARE.items()},
        **{f"adaptive {name}": adaptive.proposer(one, CURVE) for name, one in BARE.items()},
        **{f"adaptive ngram {name}": adaptive.proposer(first.proposer(paying.proposer(ngram.proposer()), one), CURVE) for name, one in BARE.items()},
        **{f"suffix {name}": first.proposer(suffix.proposer(2), paying.proposer(one)) for name, one in BARE.items()},
    }
)
PROMPT = [1, 2, 3, 1, 2]


def check_drawn(own: Key, base: int, draft: Draft, verifier: str = "token") -> None:
    """Each token stands at height u of the law that goes along with it, u being its lane of the pass's address; or it wins the race there."""
    count = int(draft.length)
    if draft.probs is None or not count:
        return
    heights = uniform(address(own, DRAFT, base), (count,))
    drawn = [int(draw(u, law)) for u, law in zip(heights, draft.probs, strict=False)]
    won = [int((race.noise(own, base + lane, VOCAB) / law).argmin()) for lane, law in enumerate(draft.probs[:count])]
    assert (won if verifier == "coupled" else drawn) == draft.tokens[:count].tolist()
    assert draft.probs[:count].sum(-1).tolist() == pytest.approx([1.0] * count, abs=1e-12)


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Watches what the loop and the engine are about to verify; the counts of soft drafts."""
    seen: list[int] = []
    usable = running.usable

    def watched(one: running.Running, draft: Draft, vocab_size: int) -> Draft:
        check_drawn(one.key, len(one.tokens), draft, one.verifier.name)
        seen.extend([int(draft.length)] if draft.probs is not None and int(draft.length) else [])
        return usable(one, draft, vocab_size)

    for room in (running, propose, sharing):
        monkeypatch.setattr(room, "usable", watched)
    yield seen
    assert sum(seen) > 3


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("verifier", ["token", "coupled"])
def test_what_is_verified_was_drawn_from_the_law_that_goes_along(name: str, verifier: str, drafts: list[int]) -> None:
    """In the loop and in the engine, which run a drafting model in their own ways; and both draft as many."""
    asked: dict[str, Any] = {"seed": 3, "sampling": WARM, "proposer": WRAPPED[name], "verifier": verifier, "k": K}
    alone = generate(TARGET, PROMPT, max_tokens=14, invariant=True, **asked)
    by_loop = drafts.copy()
    drafts.clear()
    state = init(TARGET, Config(page_size=3, num_pages=40, prefill_chunk=2, invariant=True))
    state, number = submit(state, Request(PROMPT, 14, **asked))
    assert run(TARGET, state)[1][number].tokens == alone.tokens
    assert drafts == by_loop


@pytest.mark.parametrize("name", WRAPPED)
def test_how_many_are_drafted_is_settled_before_they_are_drawn(name: str) -> None:
    """The same past under other keys: other drafts, and as many of them. Else q would not be the law of what is verified."""
    guess: Proposer = WRAPPED[name]
    tokens, state, drawn, counts = PROMPT.copy(), guess.init(PROMPT), 0, []
    while len(tokens) < OTHER.config.context - K:
        futures = [guess.propose(key(seed), state, tokens, K, position=len(tokens)) for seed in range(4)]
        assert len({int(draft.length) for _, draft in futures}) == 1
        drawn += len({tuple(draft.tokens[: int(draft.length)].tolist()) for _, draft in futures}) > 1
        state, draft = futures[0]
        counts.append(int(draft.length))
        kept = (len(tokens) * 7) % (counts[-1] + 1)
        tokens = [*tokens, *draft.tokens[:kept].tolist(), (3 * len(tokens)) % VOCAB]
    assert drawn
    assert max(counts) > 1


@pytest.mark.parametrize("share", [0.05, 1e-6])
def test_a_proposer_that_lies_about_its_law_is_seen(share: float) -> None:
    """The check itself: a law tilted by a twentieth, too little for thousands of outputs to show, or by far less."""
    honest = BARE["quantized"]
    seen = 0
    for seed in range(40 if share > 1e-3 else 4):
        draft = honest.propose(key(seed), honest.init(PROMPT), PROMPT, K, position=len(PROMPT))[1]
        check_drawn(key(seed), len(PROMPT), draft)
        assert draft.probs is not None
        tilted = draft.probs.clone()
        tilted[:, 1] *= 1 - share
        try:
            check_drawn(key(seed), len(PROMPT), draft._replace(probs=tilted))
        except AssertionError:
            seen += 1
    assert seen
