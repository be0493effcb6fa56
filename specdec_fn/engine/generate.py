"""Three loops, each a few lines longer than the last: naive, cached, speculative. This is the reading order of the whole product.

All three draw the token at position ``base`` with the same number, so under the same key the naive and the cached loop, and the speculative
loop with nothing drafted, emit the same tokens. Every argument is a value or a pure function; nothing here knows text, time or stop rules.
"""

from collections.abc import Iterator, Sequence

import torch

from specdec_fn import models
from specdec_fn.engine import sharing
from specdec_fn.engine.attention import CAUSAL, Attention, of_draft
from specdec_fn.engine.generation import Pass
from specdec_fn.engine.law import Law
from specdec_fn.engine.running import Running, drafted, judged, no_law, rows
from specdec_fn.kv import dense
from specdec_fn.models import Model
from specdec_fn.models.model import Attend, parameter
from specdec_fn.random import Key, uniform
from specdec_fn.sampling import draw
from specdec_fn.speculate import Proposer, Verifier
from specdec_fn.speculate.tape import FINAL, address
from specdec_fn.typing import Float, Tensor

__all__ = ["NoLawError", "begin", "cached", "naive", "prefill", "speculative"]

PREFILL_CHUNK = 256  # prompt rows a forward takes at once: bounds the memory of a long prompt


class NoLawError(ValueError):
    """A row of logits that gives no law: NaN, or nothing that may be emitted."""


def naive(model: Model, key: Key, law: Law, prompt: Sequence[int], count: int) -> Iterator[int]:
    """Emits ``count`` tokens with one cold forward over everything for each: the cost of token n grows with n.

    >>> from specdec_fn.engine.law import law
    >>> from specdec_fn.random import key
    >>> from specdec_fn.sampling import SamplingParams
    >>> circle = models.toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> list(naive(circle, key(0), law(SamplingParams()), [0], 4))
    [1, 2, 0, 1]
    """
    tokens = list(prompt)
    for _ in range(count):
        probs = law(models.logits(model, tokens)[-1:].cpu(), tokens[len(prompt) :], ())
        tokens.append(_token(int(draw(uniform(address(key, FINAL, len(tokens))), probs[0])), len(tokens)))
        yield tokens[-1]


def cached(model: Model, key: Key, law: Law, prompt: Sequence[int], count: int) -> Iterator[int]:
    """Emits the same tokens with one row a forward: keys and values of the past are kept, and the cost of token n stays flat.

    >>> from specdec_fn.engine.law import law
    >>> from specdec_fn.random import key
    >>> from specdec_fn.sampling import SamplingParams
    >>> circle = models.toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> list(cached(circle, key(0), law(SamplingParams()), [0], 4))
    [1, 2, 0, 1]
    """
    tokens = list(prompt)
    cache = prefill(model, prompt, count)
    for _ in range(count):
        logits, cache = _forward(model, cache, tokens[-1:], len(tokens) - 1)
        cache = dense.advance(cache, 1)
        probs = law(logits, tokens[len(prompt) :], ())
        tokens.append(_token(int(draw(uniform(address(key, FINAL, len(tokens))), probs[0])), len(tokens)))
        yield tokens[-1]


def speculative(
    model: Model,
    key: Key,
    law: Law,
    prompt: Sequence[int],
    count: int,
    proposer: Proposer,
    verifier: Verifier,
    k: int,
    *,
    ends: frozenset[int] = frozenset(),
    attention: Attention = CAUSAL,
    explain: bool = False,
) -> Iterator[Pass]:
    """Emits ``count`` tokens in passes: propose, forward, verify, keep.

    Args:
        model, law, key, prompt, count: as in the loops above.
        proposer, verifier: values of ``specdec_fn.speculate``. A drafting model is to run the race (``proposer.raced``) under ``coupled``, under
            no other verifier: ``generate`` and an engine see to that.
        k: most drafted nodes of a pass; it drafts ``min(k, tokens left - 1)``.
        ends: ids behind which nothing need be drafted.
        attention: how the model attends to the cache.
        explain: say in every ``Pass.why`` how its tokens came to be.

    Raises:
        NoLawError: logits of NaN, or that allow nothing, where a token is needed.
        TypeError, ValueError: a draft that is malformed or too long, with ids outside the vocabulary, or with laws that are none.

    >>> from specdec_fn.engine.law import law
    >>> from specdec_fn.random import key
    >>> from specdec_fn.sampling import SamplingParams
    >>> from specdec_fn.speculate import proposers, verifiers
    >>> circle = models.toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> parts = circle, key(0), law(SamplingParams()), [0], 4, proposers.scripted.proposer(lambda context: [1, 2, 1])
    >>> [(one.tokens, one.kinds) for one in speculative(*parts, verifiers["token"], 3)]
    [([1, 2, 0], ['accepted', 'accepted', 'recovered']), ([1], ['plain'])]
    """
    run = begin(model, key, law, prompt, count, proposer, verifier, k, ends=ends, attention=attention)
    while run.left > 0:
        if sharing.shares(run.proposer):
            assert run.kv is not None, "a loop of its own has the cache"
            run, draft, kv = sharing.drafted(run._replace(kv=None), run.kv, model.config.vocab_size, attention.chain)
            run = run._replace(kv=kv)
        else:
            run, draft = drafted(run, model.config.vocab_size)
        ids, positions = (part.to(parameter(model).device) for part in rows(run, draft))
        with torch.inference_mode():
            logits, cache = model.apply(model.params, ids, positions, run.kv, of_draft(attention, draft))
            run, one = judged(run._replace(kv=None), draft, logits.cpu(), cache, explain=explain)
        yield one
        if run.lawless:
            raise NoLawError(no_law(run))


def begin(
    model: Model,
    key: Key,
    law: Law,
    prompt: Sequence[int],
    count: int,
    proposer: Proposer,
    verifier: Verifier,
    k: int,
    *,
    ends: frozenset[int] = frozenset(),
    attention: Attention = CAUSAL,
) -> Running:
    """The sequence before its first pass, its prompt prefilled; arguments as for ``speculative``.

    >>> from specdec_fn.engine.law import law
    >>> from specdec_fn.random import key
    >>> from specdec_fn.sampling import SamplingParams
    >>> from specdec_fn.speculate import proposers, verifiers
    >>> parts = key(0), law(SamplingParams()), [0, 1, 2], 4, proposers.ngram.proposer(), verifiers["token"], 3
    >>> run = begin(models.toy.bigram(torch.eye(3)), *parts)
    >>> run.left, run.kv.length
    (4, 2)
    """
    cache = prefill(model, prompt, count, attention.chain)
    return Running(key, law, tuple(prompt), len(prompt), count, proposer, verifier, k, proposer.init(list(prompt)), cache, ends)


@torch.inference_mode()
def prefill(model: Model, prompt: Sequence[int], count: int, attend: Attend = dense.attend) -> dense.DenseCache:
    """A cache with room for the prompt and ``count`` tokens, filled with all of the prompt but its last token, in chunks.

    >>> prefill(models.toy.bigram(torch.eye(3)), [0, 1, 2], 4).length
    2
    """
    weight = parameter(model)
    cache = dense.init(model.config, len(prompt) + count, dtype=weight.dtype, device=weight.device)
    for start in range(0, len(prompt) - 1, PREFILL_CHUNK):
        chunk = prompt[start : min(start + PREFILL_CHUNK, len(prompt) - 1)]
        cache = dense.advance(_fill(model, cache, chunk, start, attend), len(chunk))
    return cache


def _fill(model: Model, cache: dense.DenseCache, tokens: Sequence[int], start: int, attend: Attend) -> dense.DenseCache:
    ids, positions = _rows(model, tokens, start)
    if model.prefill is None:
        return model.apply(model.params, ids, positions, cache, attend)[1]
    return model.prefill(model.params, ids, positions, cache, attend)


@torch.inference_mode()
def _forward(
    model: Model, cache: dense.DenseCache, tokens: Sequence[int], start: int, attend: Attend = dense.attend
) -> tuple[Float[Tensor, "rows vocab"], dense.DenseCache]:
    ids, positions = _rows(model, tokens, start)
    logits, cache = model.apply(model.params, ids, positions, cache, attend)
    return logits.cpu(), cache


def _rows(model: Model, tokens: Sequence[int], start: int) -> tuple[Tensor, Tensor]:
    device = parameter(model).device
    return torch.tensor(tokens, device=device), torch.arange(start, start + len(tokens), device=device)


def _token(token: int, position: int) -> int:
    if token < 0:
        raise NoLawError(f"the logits for position {position} hold NaN or allow no token; expected a finite logit that the controls allow")
    return token
