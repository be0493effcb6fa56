"""What a stage is: the number that must move, its gate, and the measurement; and what a measurement gives."""

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:  # the command line reads this room before it knows whether a model is wanted
    from specdec_fn.models import Model
    from specdec_fn.text import Tokenizer

__all__ = ["Gate", "Line", "Mute", "NeedsGpuError", "Plot", "Progress", "Result", "Setup", "Stage", "ratios", "spread"]


class Progress(Protocol):
    """Who is told what is being done."""

    def say(self, line: str) -> None: ...


class NeedsGpuError(RuntimeError):
    """A stage of which nothing can be measured without a GPU."""


class Mute:
    """Tells nobody."""

    def say(self, line: str) -> None:
        """Forgets the line."""


class Setup(NamedTuple):
    """What all stages measure on.

    Attributes:
        model, tokenizer: the target and its text.
        prose: ids of conversations whose answers quote nothing.
        quoting: ids of conversations whose answers repeat a given text.
        text: some pages of text.
        quick: shorter contexts and fewer repetitions, for the same gates.
        seed: of whatever is drawn.
    """

    model: "Model"
    tokenizer: "Tokenizer"
    prose: tuple[tuple[int, ...], ...]
    quoting: tuple[tuple[int, ...], ...]
    text: str
    quick: bool = False
    seed: int = 0

    def pick(self, whole: Any, quick: Any) -> Any:
        """The first, or the second where the run is quick."""
        return quick if self.quick else whole

    def ids(self, count: int, start: int = 0) -> list[int]:
        """So many ids of the text, from a place in it on; it begins again at its end."""
        found = self.tokenizer.encode(self.text)
        start %= len(found)
        return (found[start:] + found * (count // len(found) + 1))[:count]

    def room(self, wanted: int, spare: int = 0) -> int:
        """The wanted number of tokens, or what the model's context leaves beside ``spare``."""
        return max(1, min(wanted, self.model.config.context - spare))


class Gate(NamedTuple):
    """The limit of a stage's number.

    Attributes:
        limit: that it must keep.
        least: whether the number must be at least the limit, not at most.
    """

    limit: float
    least: bool = False

    def holds(self, figure: float) -> bool:
        """Whether a figure keeps the limit; NaN never does."""
        return figure >= self.limit if self.least else figure <= self.limit

    def __str__(self) -> str:
        return f"at {'least' if self.least else 'most'} {self.limit:g}"


class Line(NamedTuple):
    """One series of a plot.

    Attributes:
        label: what it shows.
        x, y: its points.
        points: whether they are drawn without a line between them.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    points: bool = False


class Plot(NamedTuple):
    """A picture as numbers: the command line draws it.

    Attributes:
        x, y: names of the axes, with units.
        lines: the series.
        limit: a level to draw across, with its name; None for none.
        log_x, log_y: logarithmic axes.
        names: of the places on the x axis, which are then 0, 1, ...; empty where x is a number.
    """

    x: str
    y: str
    lines: tuple[Line, ...]
    limit: tuple[float, str] | None = None
    log_x: bool = False
    log_y: bool = False
    names: tuple[str, ...] = ()


class Result(NamedTuple):
    """What a measurement found.

    Attributes:
        figure: the number that the gate is held against.
        shown: the figure as a table shows it, with its spread where it has one.
        milliseconds: what each side of the ratio took, by its name.
        plot: the picture.
        columns, rows: of a table with everything that was measured.
        also: what must hold besides, each a sentence and whether it does.
        needs_gpu: what of the stage cannot be measured on this machine; empty where nothing is left out.
    """

    figure: float
    shown: str
    milliseconds: tuple[tuple[str, float], ...]
    plot: Plot
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    also: tuple[tuple[str, bool], ...] = ()
    needs_gpu: str = ""


class Stage(NamedTuple):
    """A step in building an engine, gated on a measurement.

    Attributes:
        name: of the stage.
        number: what must move, in words.
        gate: how far.
        about: why it must, in a sentence or two.
        run: ``run(setup, progress) -> Result``. An ImportError of a part of ours means that the part is not built.
    """

    name: str
    number: str
    gate: Gate
    about: str
    run: Callable[[Setup, Progress], Result]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and range, as tables show them.

    Args:
        values: at least one.
        digits: after the point.

    >>> spread([1.5, 1.25, 3.0])
    '1.50 (1.25 to 3.00)'
    """
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Ratios of figures that were taken in the same rounds, in order; as a rule their median is the stage's number.

    >>> ratios([2.0, 3.0], [1.0, 2.0])
    [2.0, 1.5]
    """
    return [a / b for a, b in zip(over, under, strict=True)]
