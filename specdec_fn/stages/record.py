"""What was found, as JSON values, and back: a ladder that was interrupted goes on from its record."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_fn.stages.settle import STATUSES, Outcome
from specdec_fn.stages.stage import Line, Plot, Result

__all__ = ["counts", "from_json", "to_json"]


def to_json(outcomes: Sequence[Outcome], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run: facts, how many stages ended how, and each of them with all that was measured.

    Args:
        outcomes: of the stages that were run.
        facts: of the run: the model, whether it was quick, the threads.

    >>> to_json([], {"model": "toy"})
    {'model': 'toy', 'counts': {'passed': 0, 'failed': 0, 'not built yet': 0, 'needs a GPU': 0}, 'stages': []}
    """
    return {**facts, "counts": counts(outcomes), "stages": [_plain(one) for one in outcomes]}


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many stages ended in each way.

    >>> counts([])["failed"]
    0
    """
    return {status: sum(one.status == status for one in outcomes) for status in STATUSES}


def from_json(written: Any) -> list[Outcome]:
    """The outcomes of a record.

    Raises:
        ValueError: something that is no record.

    >>> from_json(to_json([Outcome(1, "a", "b", "at most 1", "", "failed", None, "why", 0.5)], {}))[0].reason
    'why'
    """
    try:
        return [_outcome(one) for one in written["stages"]]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"the record is {written!r:.60}; expected the JSON object that the ladder writes") from None


def _plain(value: Any) -> Any:
    """Named tuples as objects, other sequences as lists, and null for a number that JSON does not have."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _outcome(one: Mapping[str, Any]) -> Outcome:
    result = one["result"]
    if one["status"] not in STATUSES or not isinstance(one["number"], int):
        raise ValueError("no outcome")
    return Outcome(**{**one, "result": None if result is None else _result(result)})


def _result(one: Mapping[str, Any]) -> Result:
    plot = one["plot"]
    lines = tuple(Line(line["label"], _numbers(line["x"]), _numbers(line["y"]), line["points"]) for line in plot["lines"])
    limit = None if plot["limit"] is None else (float(plot["limit"][0]), str(plot["limit"][1]))
    return Result(
        _number(one["figure"]),
        one["shown"],
        tuple((name, _number(ms)) for name, ms in one["milliseconds"]),
        Plot(**{**plot, "lines": lines, "limit": limit, "names": tuple(plot["names"])}),
        tuple(one["columns"]),
        tuple(tuple(row) for row in one["rows"]),
        tuple((sentence, holds) for sentence, holds in one["also"]),
        one["needs_gpu"],
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _numbers(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(map(_number, values))
