"""Decoders of the same prompt, one after the other in turns, each timed by its own means."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from specdec_fn.engine.generation import Stats

__all__ = ["Contest", "Decode", "Decoded", "contest", "ours", "speedups", "together"]


class Decoded(NamedTuple):
    """One decoding.

    Attributes:
        tokens: emitted ids.
        ms: milliseconds for each of them, the prefill not counted.
        stats: counts, where it was ours.
    """

    tokens: list[int]
    ms: float
    stats: "Stats | None" = None


Decode = Callable[[], Decoded]


class Contest(NamedTuple):
    """What came of it.

    Attributes:
        ms: milliseconds a token of each repetition, by decoder.
        last: the last decoding of each.
    """

    ms: dict[str, list[float]]
    last: dict[str, Decoded]

    def ratios(self, slow: str, fast: str) -> list[float]:
        """How many times as fast the second is, in each repetition."""
        return [theirs / own for theirs, own in zip(self.ms[slow], self.ms[fast], strict=True)]

    def median(self, slow: str, fast: str) -> float:
        """The median of these."""
        return statistics.median(self.ratios(slow, fast))

    def same(self, one: str, other: str) -> bool:
        """Whether two emitted the same tokens."""
        return self.last[one].tokens == self.last[other].tokens


def contest(decoders: Mapping[str, Decode], repeats: int, *, warm: bool = True) -> Contest:
    """Runs all of them ``repeats`` times, after one round that warms up unless ``warm`` is off; the order is turned round each time.

    >>> contest({"a": lambda: Decoded([1], 4.0), "b": lambda: Decoded([1], 2.0)}, 2).ratios("a", "b")
    [2.0, 2.0]
    """
    found = Contest({name: [] for name in decoders}, {})
    for repeat in range(repeats + warm):
        for name, decode in list(decoders.items())[:: 1 if repeat % 2 else -1]:
            found.last[name] = decode()
            if repeat >= warm:
                found.ms[name].append(found.last[name].ms)
    return found


def speedups(contests: Iterable[Contest], slow: str, fast: str) -> list[float]:
    """The median ratio of each prompt: how many times as fast the second decoder is."""
    return [one.median(slow, fast) for one in contests]


def together(contests: Iterable[Contest], name: str) -> "Stats":
    """The counts of one of our decoders, added up over prompts; of the seconds and places nothing is kept."""
    from specdec_fn.engine.generation import Stats

    counts = [one.last[name].stats or Stats() for one in contests]
    passes, proposed, accepted, emitted = (sum(getattr(one, field) for one in counts) for field in Stats._fields[:4])
    return Stats(passes, proposed, accepted, emitted)


def ours(model: Any, ids: list[int], **settings: Any) -> Decode:
    """Our own decoding under the settings of ``generate``; the prefill is not counted."""
    from specdec_fn.cli.bench.paired import decode_seconds
    from specdec_fn.doors import generate

    def decode() -> Decoded:
        made = generate(model, ids, **settings)
        return Decoded(made.tokens, 1e3 * decode_seconds(made) / len(made.tokens), made.stats)

    return decode
