"""``--k auto``: the choice of K from a curve, measured at the start or read from a file, in which case no clock decides anything."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

__all__ = ["Choice", "CurveFile", "KOrAuto", "Setting", "choose", "setting", "whole"]

AUTO = "auto"
KOrAuto = Annotated[
    str,
    typer.Option(
        "--k",
        metavar="INTEGER|auto",
        help="Most drafted tokens of a pass; auto: as many as emit most tokens a second, by the measured times of passes and the text's own "
        "acceptance, and none where none pay.",
    ),
]
CurveFile = Annotated[
    Path | None,
    typer.Option("--curve", help="With --k auto: a recorded curve, or a result of --json that has one; then nothing is measured, and a run repeats."),
]


class Setting(NamedTuple):
    """What was asked for: a number, or None for auto; and the recorded curve."""

    k: int | None
    curve: Any


class Choice(NamedTuple):
    """What the doors are given.

    Attributes:
        proposer: a Proposer, a name, or None.
        k: most drafted tokens of a pass.
        curve: the one that decides, or None.
    """

    proposer: Any
    k: int
    curve: Any

    def as_json(self) -> dict[str, Any]:
        """The curve as JSON values, where there is one."""
        from specdec_fn.cost.curve import to_json

        return {} if self.curve is None else {"curve": to_json(self.curve)}


def setting(k: str, curve: Path | None) -> Setting:
    """Reads the options; ValueError in one line."""
    if k != AUTO:
        try:
            number = int(k)
        except ValueError:
            raise ValueError(f"--k is {k!r}; expected a whole number of 0 or more, or auto") from None
        if curve is not None:
            raise ValueError(f"--curve is given with --k {k}; expected it with --k auto")
        return Setting(number, None)
    if curve is None:
        return Setting(None, None)
    from specdec_fn.cost.curve import from_json

    try:
        return Setting(None, from_json(json.loads(curve.read_text("utf-8"))))
    except UnicodeDecodeError:
        raise ValueError(f"--curve {str(curve)!r} is no text; expected a JSON file") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"--curve {str(curve)!r} is no JSON ({error}); expected a recorded curve") from None


def whole(asked: Setting, where: str) -> int:
    """The number, where auto is not offered."""
    if asked.k is None:
        raise ValueError(f"--k is 'auto' with {where}; expected a whole number")
    return asked.k


def choose(asked: Setting, target: Any, proposer: Any, sampling: Any, verifier: Any, *, invariant: bool = False) -> Choice:
    """Measures the curve if that is wanted, says so on stderr, and wraps the proposer."""
    if asked.k is not None:
        return Choice(proposer, asked.k, None)
    if proposer is None:
        return Choice(None, 0, None)
    from specdec_fn.speculate import proposers

    guess = proposers.named(proposer, target, sampling)
    curve = asked.curve if asked.curve is not None else _measured(target, guess, sampling, verifier, invariant)
    return Choice(proposers.adaptive.proposer(guess, curve), len(curve.seconds) - 1, curve)


def _measured(target: Any, proposer: Any, sampling: Any, verifier: Any, invariant: bool) -> Any:
    from specdec_fn import measure, models
    from specdec_fn.cli.status import Status
    from specdec_fn.engine.attention import CAUSAL, INVARIANT
    from specdec_fn.speculate import Verifier, verifiers

    rule = verifier if isinstance(verifier, Verifier) else verifiers.all.get(verifier)
    model, attention = (models.invariant(target), INVARIANT) if invariant else (target, CAUSAL)
    start = time.perf_counter()
    with Status("measuring passes"):
        found = measure.curve(model, proposer=proposer, sampling=sampling, verifier=rule, attention=attention)
    took = time.perf_counter() - start
    most = len(found.seconds)
    shown = ", ".join(
        f"{count} {'row' if count == 1 else 'rows'} {1e3 * found.seconds[count - 1]:.1f} ms" for count in (1, 2, 5, most) if count <= most
    )
    drafting = f", a drafted token {1e3 * found.draft:.1f} ms" if found.draft else ""
    print(f"measured in {took:.1f} s: {shown}{drafting}", file=sys.stderr)
    return found
