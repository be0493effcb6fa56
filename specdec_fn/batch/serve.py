"""Lines through an engine: each becomes a request with a seed of its own, and each request's end becomes a result."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from specdec_fn.batch.input import Line
from specdec_fn.engine import EngineState, Request, step, submit
from specdec_fn.engine.generation import Generation
from specdec_fn.models import Model
from specdec_fn.random import bits, fold_in, key

__all__ = ["Outcome", "as_result", "seed_of", "served"]

COUNTED = ("passes", "proposed", "accepted", "emitted")


class Outcome(NamedTuple):
    """What became of a line.

    Attributes:
        line: which.
        seed: of its request; None where the engine refused it.
        generation: what it came to; None where the engine refused it.
        error: why it was refused, or why the generation ended with "error"; else None.
    """

    line: Line
    seed: int | None
    generation: Generation | None
    error: str | None


def seed_of(seed: int, index: int) -> int:
    """The seed of a line's request: a number of 53 bits, which every reader of JSON keeps exactly.

    Args:
        seed: of the whole run, in [-2**63, 2**63).
        index: the line's, in [0, 2**32).

    Raises:
        TypeError, ValueError: a number out of range.

    >>> 0 <= seed_of(0, 7) < 2**53, seed_of(0, 7) == seed_of(0, 8)
    (True, False)
    """
    return int(bits(fold_in(key(seed), index), width=64)) >> 11 & (2**53 - 1)


def served(
    model: Model, state: EngineState, lines: Iterable[Line], request_of: Callable[[Line], Request], *, ahead: int
) -> Iterator[tuple[EngineState, list[Outcome]]]:
    """Runs lines through an engine; they are asked for only as the engine has use for them.

    Args:
        model: the one that ``state`` was made for.
        state: an engine, given up.
        lines: read one by one.
        request_of: a line's request, with a seed; a TypeError or ValueError of it, or of ``submit``, fails the line alone.
        ahead: most requests that wait or run at once; a few times the batch keeps the engine busy.

    Yields:
        After every pass, and after every refusal, the state and the outcomes that are new. The state is to be looked at, not to be stepped.

    Raises:
        PassError: the forward failed.

    >>> import torch
    >>> from specdec_fn.engine import Config, init
    >>> from specdec_fn.models import toy
    >>> circle = toy.bigram(torch.eye(3).roll(1, dims=1))  # 0 -> 1 -> 2 -> 0
    >>> lines = [Line(i, i, {"prompt": [i]}) for i in range(4)]
    >>> request_of = lambda line: Request(line.fields["prompt"], max_tokens=2, seed=seed_of(0, line.number))
    >>> for _, outcomes in served(circle, init(circle, Config()), lines, request_of, ahead=2):
    ...     for one in outcomes:
    ...         print(one.line.id, one.error or one.generation.tokens)
    0 [1, 2]
    1 [2, 0]
    3 prompt[0] is 3; expected an id in [0, 3)
    2 [0, 1]
    """
    coming = iter(lines)
    flying: dict[int, tuple[Line, int | None]] = {}
    while True:
        while len(flying) < ahead and (line := next(coming, None)) is not None:
            try:
                request = request_of(line)
                state, number = submit(state, request)
            except (TypeError, ValueError) as error:
                yield state, [Outcome(line, None, None, str(error))]
            else:
                flying[number] = line, request.seed
        if not flying:
            return
        state, events = step(model, state)
        ended = [(flying.pop(event.request_id), event.generation) for event in events if event.generation is not None]
        yield state, [Outcome(line, seed, done, done.error) for (line, seed), done in ended]


def as_result(outcome: Outcome, *, logprobs: bool = False) -> dict[str, Any]:
    """An outcome as the JSON object that stands in the output.

    Args:
        logprobs: with the log-probability of every token (nats; null where it is not finite).

    >>> as_result(Outcome(Line(4, "b", {}), None, None, "too long"))["error"]
    'too long'
    """
    done = outcome.generation
    result: dict[str, Any] = {
        "id": outcome.line.id,
        "index": outcome.line.number,
        "text": "" if done is None else done.text,
        "tokens": [] if done is None else done.tokens,
        "finish_reason": "error" if done is None else done.finish_reason,
        "stats": {name: 0 if done is None else getattr(done.stats, name) for name in COUNTED},
        "seed": outcome.seed,
    }
    if logprobs:
        result["logprobs"] = [] if done is None else [value if math.isfinite(value) else None for value in done.logprobs]
    return result if outcome.error is None else {**result, "error": outcome.error}
