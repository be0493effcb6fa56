"""What an engine is told: its settings, and the requests it serves. Both are checked when they are made, as far as they can be without a model."""

import operator
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import Proposer, Verifier
from specdec_fn.typing import Bool, Int, Tensor

__all__ = ["Config", "Constraint", "Request"]


class Constraint(NamedTuple):
    """A grammar as pure functions: what may come next, and what follows once it came.

    Attributes:
        init: the state before the first token.
        mask: ``mask(state) -> Bool [V]``, True where an id may come.
        advance: ``advance(state, id) -> state``, for an id that the mask allowed.
    """

    init: Any
    mask: Callable[[Any], Bool[Tensor, "vocab"]]
    advance: Callable[[Any, int], Any]


@dataclass(frozen=True)
class Config:
    """The settings of an engine; frozen, so that a state can carry them.

    Attributes:
        page_size: slots of a page, each for the key and value of one token.
        num_pages: pages of the pool.
        max_batch: most requests that run at once.
        prefill_chunk: most prompt rows that a step computes; decoding requests come on top.
        context: most tokens of a request, prompt and output; None takes the model's.
        proposer, verifier, k: how a request speculates that does not say.
        prefix_cache: keep full pages of verified tokens for requests that begin the same way.
        invariant: compute logits whose bits do not depend on who shares a pass: a seed then gives one token sequence, whatever the
            batch, the chunks, the pages, preemption or the prefix cache do.
        seed: of the requests that have none.

    Raises:
        TypeError, ValueError: a setting out of range.

    >>> Config(page_size=0)
    Traceback (most recent call last):
    ...
    ValueError: page_size is 0; expected a whole number of 1 or more
    """

    page_size: int = 16
    num_pages: int = 1024
    max_batch: int = 16
    prefill_chunk: int = 256
    context: int | None = None
    proposer: Proposer | str | None = None
    verifier: Verifier | str = "token"
    k: int = 5
    prefix_cache: bool = True
    invariant: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("page_size", "num_pages", "max_batch", "prefill_chunk"):
            _keep(self, name, least=1)
        if self.context is not None:
            _keep(self, "context", least=2)
        _keep(self, "k", least=0)
        for name in ("prefix_cache", "invariant"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} is {getattr(self, name)!r}; expected True or False")
        _keep(self, "seed", least=-(2**63))


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        prompt: ids, or text where the engine has a tokenizer (taken literally: control tokens in it are plain text).
        max_tokens: most tokens to emit; the context may leave fewer.
        sampling: controls that make p from the logits.
        seed: of its tokens; None derives a key from the engine's seed and the request's number.
        stop_ids, stop: ids and strings that end it, besides the tokenizer's own end ids.
        ignore_eos: go on past the tokenizer's end ids.
        k, proposer, verifier: how it speculates; None takes the engine's setting, and the proposer "none" decodes plainly.
        priority: requests of a lower number are served first; equals in the order they came.
        logprobs: how many of the likeliest ids to report at every position, with their log-probabilities.
        prompt_logprobs: report the log-probability of every prompt token after the first; such a request does not read the prefix cache.
        constraint: a grammar; any tuple ``(init, mask, advance)`` will do.
        salt: requests share cached prefixes only under equal salts.
        explain: say with every event how its tokens came to be: p, q and the uniforms that decided.

    Raises:
        TypeError, ValueError: a setting out of range. What needs the model is checked by ``submit``.

    >>> Request([1, 2], max_tokens=0)
    Traceback (most recent call last):
    ...
    ValueError: max_tokens is 0; expected a whole number of 1 or more
    """

    prompt: str | Sequence[int] | Int[Tensor, "prompt"]
    max_tokens: int
    sampling: SamplingParams = SamplingParams()  # noqa: RUF009 (frozen)
    seed: int | None = None
    stop_ids: Sequence[int] = ()
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    k: int | None = None
    proposer: Proposer | str | None = None
    verifier: Verifier | str | None = None
    priority: int = 0
    logprobs: int = 0
    prompt_logprobs: bool = False
    constraint: Constraint | None = None
    salt: bytes = b""
    explain: bool = False

    def __post_init__(self) -> None:
        _keep(self, "max_tokens", least=1)
        for name, least in (("seed", -(2**63)), ("k", 0)):
            if getattr(self, name) is not None:
                _keep(self, name, least=least)
        _keep(self, "priority", least=-(2**63))
        _keep(self, "logprobs", least=0)
        if not isinstance(self.salt, bytes):
            raise TypeError(f"salt is {self.salt!r:.80}; expected bytes")
        for name in ("ignore_eos", "prompt_logprobs", "explain"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} is {getattr(self, name)!r}; expected True or False")
        given: Any = self.constraint
        if given is not None:
            if not isinstance(given, tuple) or len(given) != 3 or not callable(given[1]) or not callable(given[2]):
                raise TypeError(f"constraint is {given!r:.80}; expected (init, mask, advance), a state and two functions")
            object.__setattr__(self, "constraint", Constraint(*given))
        for name in ("prompt", "stop_ids", "stop"):
            object.__setattr__(self, name, _own(name, getattr(self, name)))


def _own(name: str, given: Any) -> Any:
    """A copy of a collection that nobody else can change, its numbers plain integers; what is no sequence is left for ``submit`` to refuse."""
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Iterable):
        return given
    if isinstance(given, Set):
        raise TypeError(f"{name} is {given!r:.80}; expected a sequence, which has an order")
    items = given.tolist() if hasattr(given, "tolist") else given
    return tuple(operator.index(item) if hasattr(item, "__index__") else item for item in items) if isinstance(items, Iterable) else items


def _keep(owner: Any, name: str, *, least: int) -> None:
    """Stores a setting as the plain integer it is, or says in one sentence why it is none."""
    value = getattr(owner, name)
    expected = f"expected a whole number of {least} or more" if least > -(2**63) else "expected a whole number in [-2**63, 2**63)"
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; {expected}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; {expected}")
    if not least <= number < 2**63:
        raise ValueError(f"{name} is {number}; {expected}")
    object.__setattr__(owner, name, number)
