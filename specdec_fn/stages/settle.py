"""How a stage ended: passed, failed, not built yet, or in need of a GPU. One that raises has failed, and the others still run."""

import time
from typing import NamedTuple

from specdec_fn.stages.stage import NeedsGpuError, Progress, Result, Setup, Stage

__all__ = ["FAILED", "NEEDS_GPU", "NOT_BUILT", "OURS", "PASSED", "STATUSES", "Outcome", "settle"]

PASSED, FAILED, NOT_BUILT, NEEDS_GPU = STATUSES = ("passed", "failed", "not built yet", "needs a GPU")
OURS = ("specdec_fn", "specdec_kernels", "specdec_proofs")


class Outcome(NamedTuple):
    """A stage that was run.

    Attributes:
        number: its place, from 1.
        name, moves, gate, about: of the stage; ``moves`` is the number that must move, in words.
        status: one of ``STATUSES``.
        result: what was measured; None where nothing was.
        reason: why it is not passed, in a line; empty where it is.
        seconds: wall time.
    """

    number: int
    name: str
    moves: str
    gate: str
    about: str
    status: str
    result: Result | None
    reason: str
    seconds: float


def settle(number: int, stage: Stage, setup: Setup, progress: Progress) -> Outcome:
    """Runs a stage and says how it ended.

    Args:
        number: its place, from 1.
        stage: the stage.
        setup: what it measures on.
        progress: is told what is being done.

    >>> from specdec_fn.stages.stage import Gate, Mute
    >>> def unbuilt(setup, progress):
    ...     import specdec_fn.nowhere
    >>> settle(3, Stage("a stage", "a number", Gate(1.0), "", unbuilt), None, Mute())[5:8]
    ('not built yet', None, "No module named 'specdec_fn.nowhere'")
    """
    start = time.perf_counter()
    result: Result | None = None
    try:
        result = stage.run(setup, progress)
        status, reason = _judged(stage, result)
    except NeedsGpuError as error:
        status, reason = NEEDS_GPU, _line(error)
    except ImportError as error:
        missing = (error.name or "").split(".")[0] in OURS
        status, reason = (NOT_BUILT, str(error)) if missing else (FAILED, f"{type(error).__name__}: {_line(error)}")
    except Exception as error:  # a stage that cannot be measured has not passed, and must not hide the others
        status, reason = FAILED, f"{type(error).__name__}: {_line(error)}"
    return Outcome(number, stage.name, stage.number, str(stage.gate), stage.about, status, result, reason, time.perf_counter() - start)


def _judged(stage: Stage, result: Result) -> tuple[str, str]:
    broken = [] if stage.gate.holds(result.figure) else [f"{result.figure:.4g} is not {stage.gate}"]
    broken += [f"it does not hold that {sentence}" for sentence, holds in result.also if not holds]
    if broken:
        return FAILED, "; ".join(broken)
    return (NEEDS_GPU, result.needs_gpu) if result.needs_gpu else (PASSED, "")


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]
