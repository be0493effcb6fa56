"""What a request may ask of the sampler: one frozen value, checked once, when it is made."""

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

__all__ = ["SamplingParams", "ids_of"]

Number = float | int  # what may be given; a float is kept


@dataclass(frozen=True)
class SamplingParams:
    """The controls that turn logits into the law a token is drawn from; the defaults leave ``softmax(logits)`` alone.

    They act in the order that `distribution` states. Equal settings are equal and hash alike, whatever collections they were given in.

    Attributes:
        temperature: divides the logits; 0 takes the most probable token. Finite, at least 0.
        top_k: keeps the k largest logits, and those that tie with the k-th; 0 keeps all.
        top_p: keeps the shortest prefix of the tokens in falling order of probability that holds this mass, in (0, 1]; 1 keeps all.
        min_p: keeps tokens of at least this multiple of the largest probability, in [0, 1]; 0 keeps all.
        typical_p: as top_p, but in order of the distance of a token's surprise from the entropy (arXiv 2202.00666), in (0, 1]; 1 keeps all.
        repetition_penalty: divides positive logits, and multiplies negative ones, of tokens in the prompt or the generated text, once each; over 0.
        presence_penalty: subtracted from the logits of tokens that were generated, once each; finite.
        frequency_penalty: subtracted once for each time that a token was generated; finite.
        logit_bias: added to logits: a mapping from ids, or pairs (id, bias); kept as pairs sorted by id. A bias of -inf forbids its token.
        bad_words: what must not appear: an id, or a sequence of ids, which forbids its last id wherever the prompt and the generated text
            end with the ids before it. Kept as a tuple of ids and tuples.
        allowed_ids: the only ids that may appear, kept sorted; None allows all.
        min_tokens: while fewer tokens than this were generated, the end and stop ids given to `distribution` are forbidden.

    Raises:
        TypeError: a value of another kind than the field takes, such as a bool for a number or a string for ids.
        ValueError: a value out of its range, a negative id, an id biased twice, or an empty collection where that could allow no token.

    >>> SamplingParams(temperature=0.7, logit_bias={5: 1, 2: -1}).logit_bias
    ((2, -1.0), (5, 1.0))
    >>> SamplingParams(top_p=0)
    Traceback (most recent call last):
    ...
    ValueError: top_p must lie in (0, 1], received 0.0
    """

    temperature: Number = 1.0
    top_k: int = 0
    top_p: Number = 1.0
    min_p: Number = 0.0
    typical_p: Number = 1.0
    repetition_penalty: Number = 1.0
    presence_penalty: Number = 0.0
    frequency_penalty: Number = 0.0
    logit_bias: Mapping[int, Number] | Iterable[tuple[int, Number]] = ()
    bad_words: Iterable[int | Iterable[int]] = ()
    allowed_ids: Iterable[int] | None = None
    min_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            self._keep(name, _number(name, getattr(self, name)))
        for name in ("top_k", "min_tokens"):
            self._keep(name, _integer(name, getattr(self, name)))
            _require(getattr(self, name) >= 0, name, "be at least 0", getattr(self, name))
        _require(0 <= self.temperature < math.inf, "temperature", "be finite and at least 0", self.temperature)
        _require(0 < self.top_p <= 1, "top_p", "lie in (0, 1]", self.top_p)
        _require(0 <= self.min_p <= 1, "min_p", "lie in [0, 1]", self.min_p)
        _require(0 < self.typical_p <= 1, "typical_p", "lie in (0, 1]", self.typical_p)
        _require(0 < self.repetition_penalty < math.inf, "repetition_penalty", "be finite and over 0", self.repetition_penalty)
        for name in ("presence_penalty", "frequency_penalty"):
            _require(math.isfinite(getattr(self, name)), name, "be finite", getattr(self, name))
        self._keep("logit_bias", _bias(self.logit_bias))
        self._keep("bad_words", tuple(_word(word) for word in _items("bad_words", self.bad_words)))
        if self.allowed_ids is not None:
            ids = tuple(sorted(set(ids_of("allowed_ids", self.allowed_ids))))
            _require(len(ids) > 0, "allowed_ids", "name at least one id, or be None to allow all", ids)
            self._keep("allowed_ids", ids)

    @property
    def greedy(self) -> bool:
        """Whether every law is one-hot on the most probable token (temperature 0).

        >>> SamplingParams(temperature=0).greedy
        True
        """
        return self.temperature == 0

    @property
    def history(self) -> bool:
        """Whether the law looks at the tokens of the prompt or the generated text; if not, they may be left empty.

        >>> SamplingParams(top_k=5).history, SamplingParams(bad_words=[7]).history, SamplingParams(bad_words=[(7, 8)]).history
        (False, False, True)
        """
        penalties = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        sequences = any(isinstance(word, tuple) and len(word) > 1 for word in self.bad_words)
        return penalties or sequences or self.min_tokens > 0

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def ids_of(name: str, values: Any) -> tuple[int, ...]:
    """Checks that ``values`` is a collection of ids and returns them as plain integers; ``name`` is what an error calls it.

    Raises:
        TypeError: not a collection, or an item that is not an integer.
        ValueError: a negative id.

    >>> ids_of("eos_ids", [2, 0])
    (2, 0)
    """
    return tuple(_id(name, value) for value in _items(name, values))


def _require(met: bool, name: str, what: str, received: Any) -> None:
    if not met:
        raise ValueError(f"{name} must {what}, received {received!r}")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, received {value!r} of type {type(value).__name__}")
    try:
        return float(value) + 0.0  # turns -0.0 into 0.0
    except OverflowError:
        raise ValueError(f"{name} must be a number that a float can hold, received one of {len(str(value))} characters") from None


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an integer, received {value!r} of type {type(value).__name__}")


def _id(name: str, value: Any) -> int:
    number = _integer(f"an id in {name}", value)
    _require(number >= 0, f"an id in {name}", "be at least 0", number)
    return number


def _items(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a collection, received {value!r} of type {type(value).__name__}")
    return tuple(value)


def _word(word: Any) -> int | tuple[int, ...]:
    if not isinstance(word, Iterable):
        return _id("bad_words", word)
    ids = ids_of("a sequence in bad_words", word)
    _require(len(ids) > 0, "a sequence in bad_words", "name at least one id", ids)
    return ids


def _bias(given: Any) -> tuple[tuple[int, float], ...]:
    pairs: dict[int, float] = {}
    for pair in given.items() if isinstance(given, Mapping) else _items("logit_bias", given):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"logit_bias must be a mapping or pairs (id, bias), received {pair!r} as a pair")
        token, bias = _id("logit_bias", pair[0]), _number("a bias in logit_bias", pair[1])
        _require(bias < math.inf, "a bias in logit_bias", "be finite, or -inf", bias)
        _require(token not in pairs, "logit_bias", "name each id once", token)
        pairs[token] = bias
    return tuple(sorted(pairs.items()))
