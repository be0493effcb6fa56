"""What the records of questions come to, by category: speed-ups with their intervals, predictions, counts and entropies."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from specdec_fn.cost.curve import Curve, seconds

__all__ = ["ALL", "PLAIN", "Row", "summary"]

PLAIN, ALL = "plain", "all"


class Row(NamedTuple):
    """One category and one way to decode.

    Attributes:
        category: its name, or ``ALL``.
        who: the way.
        questions: how many.
        plain_ms, ms: milliseconds a token, medians over the questions.
        ratio: median of the questions' speed-ups over our plain decoding, each the median of its repetitions.
        interval: of that median, 95 %, by bootstrap over the questions.
        predicted: speed-up by counts and T(rows) alone; None for other engines.
        tokens_per_pass, acceptance_rate: by totals; None for other engines.
        entropy: mean of p after all processors along the plain text, in nats a token.
        softmax: the same of the unprocessed softmax.
    """

    category: str
    who: str
    questions: int
    plain_ms: float
    ms: float
    ratio: float
    interval: tuple[float, float]
    predicted: float | None
    tokens_per_pass: float | None
    acceptance_rate: float | None
    entropy: float
    softmax: float


def summary(records: Iterable[Mapping[str, Any]], curves: Mapping[str, Curve]) -> list[Row]:
    """A row for each category and way, then for all questions together.

    The predicted speed-up is tokens x T(1) / sum over passes of (T(rows) + (rows - 1) d), with T and d from the curve of the way.

    A way that some record lacks is left out.

    Args:
        records: of the questions: ``category``, ``tokens`` (of the plain text), ``ms`` by way, ``counts`` by proposer, ``entropy``.
        curves: by proposer.
    """
    known = list(records)
    groups = {category: [one for one in known if one["category"] == category] for category in dict.fromkeys(one["category"] for one in known)}
    if len(groups) > 1:
        groups[ALL] = known
    ways = [who for who in (known[0]["ms"] if known else ()) if who != PLAIN and all(who in one["ms"] for one in known)]
    return [_row(category, who, group, curves) for category, group in groups.items() for who in ways]


def _row(category: str, who: str, group: Sequence[Mapping[str, Any]], curves: Mapping[str, Curve]) -> Row:
    from specdec_fn.cli.bench.counted import predicted_seconds
    from specdec_fn.cli.bench.intervals import interval

    ratios = [statistics.median(plain / own for plain, own in zip(one["ms"][PLAIN], one["ms"][who], strict=True)) for one in group]
    plain_ms, ms = (statistics.median(statistics.median(one["ms"][name]) for one in group) for name in (PLAIN, who))
    weight = sum(one["tokens"] for one in group)
    law, softmax = (sum(one["entropy"][name] * one["tokens"] for one in group) / weight for name in ("law", "softmax"))
    predicted = per_pass = accepted = None
    if who in curves:
        counts = [one["counts"][who] for one in group]
        emitted, passes, proposed, kept = (sum(one[name] for one in counts) for name in ("emitted", "passes", "proposed", "accepted"))
        by_rows = [{int(rows): count for rows, count in one["by_rows"].items()} for one in counts]
        spent = sum(predicted_seconds(one, curves[who]) for one in by_rows)
        predicted = emitted * seconds(curves[who], 1) / spent
        per_pass, accepted = emitted / passes, kept / proposed if proposed else 0.0
    return Row(category, who, len(group), plain_ms, ms, statistics.median(ratios), interval(ratios), predicted, per_pass, accepted, law, softmax)
