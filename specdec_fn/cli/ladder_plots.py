"""The plot of a stage: series in, one inline SVG out, drawn as the reports of the proofs are."""

import math
from typing import TYPE_CHECKING

from specdec_proofs import plots

if TYPE_CHECKING:
    from specdec_fn.stages.stage import Plot

__all__ = ["svg"]

COLOURS = (plots.FIRST, plots.SECOND, plots.MUTED, plots.INK)
DASHES = ("solid", "solid", (0, (5, 1.5)), (0, (1.2, 1.5)))


def svg(name: str, title: str, plot: "Plot") -> str:
    """One picture as an ``svg`` element; every id in it begins with the name."""
    figure = plots._figure(7.2, 3.2)
    axes = figure.subplots()
    for place, line in enumerate(plot.lines):
        colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
        axes.plot(
            line.x,
            line.y,
            color=colour,
            linestyle="none" if line.points else dash,
            marker="o",
            markersize=6 if line.points else 3.5,
            label=line.label,
        )
    if plot.limit is not None:
        axes.axhline(plot.limit[0], color=plots.ALARM, linewidth=1, linestyle=(0, (5, 3)), label=plot.limit[1])
    axes.set(xlabel=plot.x, ylabel=plot.y)
    if plot.log_x:
        axes.set_xscale("log", base=2 if max((max(line.x) for line in plot.lines), default=1) <= 1024 else 10)
    if plot.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if plot.names:
        axes.set_xticks(range(len(plot.names)), plot.names)
        axes.set_xlim(-0.5, len(plot.names) - 0.5)
    elif plot.log_x:
        places = sorted({x for line in plot.lines for x in line.x})
        axes.set_xticks(places, [f"{x:,g}" for x in places])
        axes.minorticks_off()
    axes.legend(loc="best", frameon=False, labelcolor=plots.INK, fontsize=8.5)
    plots._plain(axes)
    return plots._svg(figure, name, title, _words(plot))


def _words(plot: "Plot") -> str:
    """What the picture shows, for those who do not see it."""
    said = []
    for line in plot.lines:
        points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
        places = [plot.names[int(x)] if plot.names else f"{x:g}" for x, _ in points]
        said.append(f"{line.label}: " + ", ".join(f"{y:.4g} at {place}" for place, (_, y) in zip(places, points, strict=True)))
    return f"{plot.y}, over {plot.x or 'the cases'}. " + ". ".join(said) + "."
