"""Plain and speculative decoding of the same prompt, timed in turns."""

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from specdec_fn.doors import generate
from specdec_fn.engine.generation import Generation

__all__ = ["Paired", "paired", "spread"]


class Paired(NamedTuple):
    """One prompt, decoded both ways several times.

    Attributes:
        name: of the prompt.
        plain, speculative: the last generation of each.
        plain_ms, speculative_ms: milliseconds a token of each repetition, without the prefill, which both share.
    """

    name: str
    plain: Generation
    speculative: Generation
    plain_ms: list[float]
    speculative_ms: list[float]

    @property
    def ratios(self) -> list[float]:
        """Speed-up of each repetition: plain over speculative time a token."""
        return [plain / fast for plain, fast in zip(self.plain_ms, self.speculative_ms, strict=True)]


def paired(name: str, model: Any, ids: list[int], *, repeats: int, speculation: Mapping[str, Any], **shared: Any) -> Paired:
    """Decodes ``ids`` plainly and with ``speculation``, ``repeats`` times, the order turned round each time."""
    assert repeats > 0, "at least one repetition"
    settings: tuple[Mapping[str, Any], ...] = ({}, speculation)
    times: tuple[list[float], list[float]] = ([], [])
    done: dict[int, Generation] = {}
    for repeat in range(repeats):
        for which in (0, 1) if repeat % 2 == 0 else (1, 0):
            made = generate(model, ids, **shared, **settings[which])
            times[which].append(1e3 * decode_seconds(made) / len(made.tokens))
            done[which] = made
    return Paired(name, done[0], done[1], *times)


def decode_seconds(made: Generation) -> float:
    """All that a generation took, but the prefill."""
    return sum(seconds for part, seconds in made.stats.seconds.items() if part != "prefill")


def spread(values: list[float]) -> str:
    """Median and range: ``1.52 (1.48 to 1.60)``."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
