"""Drafting with a second, smaller model: each token is drawn from that model's own law, and the law goes along with it.

The state is a dense cache of the drafting model and the tokens whose keys it holds. Before a pass these begin with committed tokens, and may end
with drafted ones that were not accepted: the cache goes back to what the two have in common and reads the committed tokens that it lacks,
whether those are one bonus token or all that was emitted in passes without a draft. Then it drafts, a row a forward. The last drafted token is
not read; a later pass does that, if it stays. With ``race`` a token is not drawn by a number of the draft's own: it is the winner of the race that
the verifier ``coupled`` runs at its position, on the drafting model's law, so the two agree as far as their laws do (arXiv 2408.07978).

A state is a value: ``propose`` copies what it keeps of a cache before it writes, so a state may be used again, by a fork or a replay, and two
that have gone apart share no slot. The copy moves the cache once; each forward of a draft moves all weights and the cache as well.
"""

import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from specdec_fn.kv import dense
from specdec_fn.models import Model
from specdec_fn.models.model import parameter
from specdec_fn.pytree import donates
from specdec_fn.random import Key, uniform
from specdec_fn.sampling import SamplingParams, distribution, draw
from specdec_fn.sampling.processors import checked_ids
from specdec_fn.speculate.draft import Draft, chain
from specdec_fn.speculate.proposer import Drafter, Proposer
from specdec_fn.speculate.race import noise, winner
from specdec_fn.speculate.tape import DRAFT, address
from specdec_fn.typing import Float, Tensor

__all__ = ["Controls", "Held", "drawn", "proposer", "sharing"]

CHUNK = 256  # rows a forward takes at once: bounds the memory of a long prompt


class Held(NamedTuple):
    """What the drafting model has read.

    Attributes:
        kv: its keys and values, or None before the first draft. Nothing is ever written into it.
        tokens: the ids whose keys the cache holds.
        prompt: how many of a sequence's tokens are its prompt, which penalties tell apart.
    """

    kv: dense.DenseCache | None
    tokens: tuple[int, ...]
    prompt: int


class Controls(NamedTuple):
    """What makes laws of a drafting model's logits.

    Attributes:
        sampling: the controls.
        prompt: how many of a sequence's tokens are its prompt.
        vocab_size: the target's number of ids.
    """

    sampling: SamplingParams
    prompt: int
    vocab_size: int


def proposer(
    model: Model,
    *,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    vocab_size: int | None = None,
    race: bool = False,
) -> Proposer:
    """A proposer that draws its tokens from a model's laws, and hands over the very laws that it drew from.

    The law of drafted token i is ``distribution`` of the logits in float64 at that token's own prefix, with the prompt and, as generated, the
    tokens emitted and drafted before it; the token stands at height u of it, u being lane i of ``tape.address(key, DRAFT, position)``. At
    temperature 0 the laws are one-hot. ``min_tokens`` forbids nothing here, since what ends a request is the target's affair.

    A draft is shorter than asked, and may be empty, where the model's context ends (no drafted token stands at or past it), where its logits
    give no law, and once a token was committed that the model has no row for. A model in its invariant form is attended to in the invariant
    way, and its laws then depend in no bit on what a state held before.

    Args:
        model: the drafting model; its ids must be the target's.
        sampling: the controls of the drafts, best those of the request. Any are lossless.
        vocab_size: the target's number of ids, where it differs from the model's: the laws have that size. Ids that the model lacks have
            probability 0; ids past the target's are never drafted, and the laws of the others are renormalised. None is the model's own.
        race: for the verifier ``coupled`` and no other: whether token i of a draft is the winner of the race at position + i on its law, in
            place of the token at height u. What settles a request (``generate``, an engine) sets it by the request's verifier.

    Returns:
        a proposer with a ``drafter``, whose drafts are chains of float64 laws, on the CPU.

    Raises:
        TypeError: not a Model, not SamplingParams, or a size that is no integer. ValueError: a size below 1, or controls that name an id past
            it. ``propose`` raises ValueError for a negative ``k``.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> circle = proposer(toy.bigram(torch.eye(3).roll(1, dims=1)))  # 0 -> 1 -> 2 -> 0
    >>> circle.propose(key(0), circle.init([0, 1]), [0, 1], 3, position=2)[1].tokens
    tensor([2, 0, 1])
    """
    vocab = _checked(model, sampling, vocab_size)
    attend = dense.attend_invariant if model.invariant is not None and model.apply is model.invariant.apply else dense.attend

    def init(prompt: Sequence[int]) -> Held:
        return Held(None, (), len(prompt))

    def propose(key: Key, state: Held, tokens: Sequence[int], k: int, *, position: int) -> tuple[Held, Draft]:
        if k < 0:
            raise ValueError(f"k is {k}; expected 0 or more tokens to propose")
        line, shared = list(tokens), _shared(state.tokens, tokens)
        most = min(k, model.config.context - len(line)) if line and max(line[shared:]) < model.config.vocab_size else 0
        if most <= 0:
            return state, chain((), 0, torch.empty(0, vocab, dtype=torch.float64))
        cache = _room(model, state.kv, shared, len(line) + most - 1)
        controls = Controls(sampling, state.prompt, vocab)
        draft, cache = drawn(key, model, cache, line, most, controls, attend, position=position, race=race)
        held = (*line, *draft.tokens.tolist())[: cache.length]
        return Held(cache, tuple(held), state.prompt), draft

    def again(model: Model, vocab_size: int, *, race: bool = race) -> Proposer:
        return proposer(model, sampling=sampling, vocab_size=vocab_size, race=race)

    return Proposer("draft_model", init, propose, Drafter(model, sampling, again=again, race=race))


def sharing(
    name: str,
    model: Model,
    *,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    vocab_size: int | None = None,
    race: bool = False,
) -> Proposer:
    """The proposer of a model that has the target's first layers, in some form: where a loop or an engine runs it, it shares the target's cache.

    ``propose`` itself keeps a cache of its own, as that of ``proposer``.

    Args:
        name: of the proposer.
        model, sampling, vocab_size, race: as for ``proposer``.

    Raises:
        TypeError, ValueError: as ``proposer``.

    >>> from specdec_fn.models import toy
    >>> sharing("own", toy.bigram(torch.eye(3))).drafter.shares
    True
    """
    plain = proposer(model, sampling=sampling, vocab_size=vocab_size, race=race)

    def again(model: Model, vocab_size: int, *, race: bool = race) -> Proposer:
        return sharing(name, model, sampling=sampling, vocab_size=vocab_size, race=race)

    return plain._replace(name=name, drafter=Drafter(model, sampling, shares=True, again=again, race=race))


@donates("cache")
def drawn(
    key: Key,
    model: Model,
    cache: dense.DenseCache,
    tokens: Sequence[int],
    k: int,
    controls: "Controls",
    attend: dense.Attend,
    *,
    position: int,
    race: bool = False,
) -> tuple[Draft, dense.DenseCache]:
    """Draws a draft from a model's own laws, a row a forward. DONATES ``cache``.

    Args:
        key: the request's key.
        model: the drafting model.
        cache: its keys and values of the first of the tokens, with room for all of them and for ``k - 1`` more.
        tokens: the committed ids, at least one; all of them have a row in the model.
        k: most tokens to draft; its context may leave fewer.
        controls: what makes laws of its logits.
        attend: how it attends to the cache.
        position: the base of the pass.
        race: as for ``proposer``.

    Returns:
        The draft, a chain with float64 laws, and the cache, which has read all tokens and all of the draft but its last token.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> circle = toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> cache = dense.init(circle.config, 8, dtype=torch.float32)
    >>> drawn(key(0), circle, cache, [0, 1], 3, Controls(SamplingParams(), 2, 3), dense.attend, position=2)[0].tokens
    tensor([2, 0, 1])
    """
    line, laws = list(tokens), []
    for place, u in enumerate(uniform(address(key, DRAFT, position), (min(k, max(model.config.context - len(line), 0)),))):
        row, cache = _read(model, cache, line, attend)
        law = _law(row, controls.vocab_size, controls.sampling, line, controls.prompt)
        token = int(winner(noise(key, position + place, controls.vocab_size), law) if race else draw(u, law))
        if token < 0:
            break
        laws.append(law)
        line.append(token)
    made = line[len(tokens) :]
    return chain(made, len(made), torch.stack(laws) if laws else torch.empty(0, controls.vocab_size, dtype=torch.float64)), cache


def _checked(model: Model, sampling: SamplingParams, vocab_size: int | None) -> int:
    """The size of the laws."""
    if not isinstance(model, Model):
        raise TypeError(f"the drafting model is {model!r:.80}; expected a Model, such as load(...)[0]")
    if not isinstance(sampling, SamplingParams):
        raise TypeError(f"sampling is {sampling!r:.80}; expected a SamplingParams")
    try:
        vocab = operator.index(model.config.vocab_size if vocab_size is None else vocab_size)
    except TypeError:
        raise TypeError(f"vocab_size is {vocab_size!r:.80}; expected the target's number of ids, or None") from None
    if vocab < 1:
        raise ValueError(f"vocab_size is {vocab}; expected the target's number of ids, or None")
    checked_ids(sampling, vocab)
    return vocab


def _shared(held: tuple[int, ...], tokens: Sequence[int]) -> int:
    """How many of the tokens need not be read again: those held, but never the last one, whose logits are wanted."""
    most = min(len(held), max(len(tokens) - 1, 0))
    if held[:most] == tuple(tokens[:most]):
        return most
    return next(place for place, (one, other) in enumerate(zip(held, tokens, strict=False)) if one != other)


def _room(model: Model, cache: dense.DenseCache | None, shared: int, slots: int) -> dense.DenseCache:
    """A cache of this sequence's own with the first ``shared`` slots of another."""
    if cache is None:
        own = parameter(model)
        return dense.init(model.config, slots, dtype=own.dtype, device=own.device)
    return dense.grow(dense.truncate(cache, shared), slots)


@torch.inference_mode()
def _read(model: Model, cache: dense.DenseCache, line: Sequence[int], attend: dense.Attend) -> tuple[Float[Tensor, "vocab"], dense.DenseCache]:
    """Feeds what the cache lacks of a line, and gives the logits after the last token."""
    device = parameter(model).device
    for start in range(cache.length, len(line), CHUNK):
        chunk = line[start : start + CHUNK]
        ids, positions = torch.tensor(chunk, device=device), torch.arange(start, start + len(chunk), device=device)
        if model.prefill is not None and start + len(chunk) < len(line):
            cache = model.prefill(model.params, ids, positions, cache, attend)
        else:
            logits, cache = model.apply(model.params, ids, positions, cache, attend)
        cache = dense.advance(cache, len(chunk))
    return logits[-1], cache


def _law(row: Float[Tensor, "vocab"], vocab: int, sampling: SamplingParams, line: Sequence[int], prompt: int) -> Float[Tensor, "sized"]:
    """The law of the token after a line. A row is padded, or cut, before anything else: what is cut was never there."""
    wide = row.to("cpu", torch.float64)
    sized = wide if vocab == row.shape[0] else F.pad(wide, (0, vocab - row.shape[0]), value=-torch.inf)
    first, later = (line[:prompt], line[prompt:]) if sampling.history else ((), ())
    return distribution(sized, sampling, prompt=torch.tensor(first, dtype=torch.int64), generated=torch.tensor(later, dtype=torch.int64))
