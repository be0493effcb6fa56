"""The plots of a report: arrays in, inline SVG out, in the colours of the page that holds it.

matplotlib (the extra ``plots``) draws them. Its colours are written as names of CSS variables, so that one picture serves a light and a dark
page; its text stays text; every id gets the plot's own prefix, so that several can stand in one page.
"""

import importlib.util
import io
import math
import re
from collections.abc import Sequence
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from specdec_proofs.eprocess import LONG
from specdec_proofs.eprocess import minimum_detectable as sequential
from specdec_proofs.power import ALPHA, minimum_detectable, pool

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Path", "available", "detectable", "law_against_p", "paths"]

# What matplotlib writes, and the variable of the page that takes its place.
INK, MUTED, GRID, FIRST, SECOND, ALARM = "#010101", "#020202", "#030303", "#040404", "#050505", "#060606"
VARIABLES = MappingProxyType({INK: "--ink", MUTED: "--muted", GRID: "--grid", FIRST: "--first", SECOND: "--second", ALARM: "--alarm"})
LN10 = math.log(10)
REFERENCES = (1295, 49_151)  # degrees of freedom: every sequence at V=6 K=3; one token of a real vocabulary
DASHES = ((), (5, 1.5), (1.2, 1.5), (6, 1.5, 1.2, 1.5))
HEIGHT_OF_E = 12.0  # log10 E at which the plot of paths ends; a wrong law goes on rising


class Path(NamedTuple):
    """The walk of one e-process: a label, (passes, log E) points, and whether it is of code that is meant to be wrong."""

    label: str
    points: Sequence[tuple[int, float]]
    wrong: bool = False


def available() -> bool:
    """Whether matplotlib is installed.

    >>> available()
    True
    """
    return importlib.util.find_spec("matplotlib") is not None


def law_against_p(name: str, title: str, counts: ArrayLike, p: ArrayLike, words: str) -> str:
    """Bars of the target's law over its cells, likeliest first, with what was measured; below, the distance of each in standard errors.

    Args:
        name: prefix of the ids in the picture.
        title: said above it, and by whoever reads the page aloud.
        counts: int [cells].
        p: float [cells]; cells are pooled for these counts as the test pools them.
        words: what the picture shows, for those who do not see it.

    >>> svg = law_against_p("one", "A coin", [510, 490], [0.5, 0.5], "Both bars are alike.")
    >>> svg.startswith("<svg"), "A coin" in svg
    (True, True)
    """
    seen, law = np.asarray(counts, np.float64), np.asarray(p, np.float64)
    cells = pool(law, int(seen.sum()))
    inside = cells.group >= 0
    n, measured = float(seen.sum()), np.bincount(cells.group[inside], seen[inside], minlength=len(cells.p))
    order = np.argsort(-cells.p, kind="stable")
    expected, found = n * cells.p[order], measured[order]
    score = (found - expected) / np.sqrt(expected * np.maximum(1 - cells.p[order], 1e-12))
    figure = _figure(7.2, 3.7)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
    at = np.arange(len(order))
    above.bar(at, expected / n, width=0.84, color=FIRST, alpha=0.35, linewidth=0, label="target's law p")
    above.plot(at, found / n, linestyle="none", marker="o", markersize=3.6, color=SECOND, label=f"measured, N = {int(n):,}")
    above.set_ylabel("probability")
    handles, labels = above.get_legend_handles_labels()
    above.legend(handles[::-1], labels[::-1], loc="upper right", frameon=False, labelcolor=INK)
    limit = max(4.5, 1.12 * float(np.abs(score).max(initial=0)))
    below.axhspan(-3, 3, color=GRID, alpha=0.5, linewidth=0)
    below.vlines(at, 0, score, color=SECOND, linewidth=1.6)
    below.axhline(0, color=MUTED, linewidth=0.8)
    below.set(ylim=(-limit, limit), ylabel="std errors", xlabel=f"{len(order)} cells: sequences of tokens, likeliest first", xticks=[])
    for axes in (above, below):
        _plain(axes)
    return _svg(figure, name, title, words)


def paths(name: str, title: str, walks: Sequence[Path], limit: float, words: str) -> str:
    """log10 E over passes, with the threshold: correct code stays below it, wrong code crosses it.

    Args:
        limit: log E of the threshold.

    >>> svg = paths("two", "Paths", [Path("token", [(0, 0.0), (100, -1.0)])], 13.8, "It falls.")
    >>> "token" in svg
    True
    """
    figure = _figure(7.2, 3.9)
    axes = figure.subplots()
    most = max((n for walk in walks for n, _ in walk.points), default=1)
    least = min((n for walk in walks for n, _ in walk.points if n), default=1)
    right = [walk for walk in walks if not walk.wrong]
    faults = [walk for walk in walks if walk.wrong]
    for i, walk in enumerate((*right, *faults)):
        x, y = zip(*((max(n, least / 2), score / LN10) for n, score in walk.points if math.isfinite(score)), strict=True)
        if walk.wrong:
            dashes = DASHES[(i - len(right)) % len(DASHES)]
            axes.plot(x, y, color=SECOND, linewidth=1.6, linestyle=(0, dashes) if dashes else "solid", marker="o", markersize=2.4, label=walk.label)
        else:
            axes.plot(x, y, color=FIRST, linewidth=1.1, alpha=0.6, marker="o", markersize=1.5)
    if right:
        label = right[0].label if len(right) == 1 else f"the code as shipped, {len(right)} rows"
        axes.plot([], [], color=FIRST, linewidth=1.4, label=label)
    axes.legend(loc="center right", bbox_to_anchor=(1, 0.42), frameon=False, labelcolor=INK, fontsize=8.5, handlelength=3)
    axes.axhline(limit / LN10, color=ALARM, linewidth=1.2, linestyle=(0, (5, 3)))
    axes.text(most * 4.8, limit / LN10 + 0.25, f"proved wrong above E = {math.exp(limit):.1e}", ha="right", color=ALARM, fontsize=8.5)
    axes.set(xscale="log", xlim=(least / 2, most * 5), ylim=(-2, HEIGHT_OF_E), xlabel="passes", ylabel="log10 of E")
    _plain(axes)
    return _svg(figure, name, title, words)


def detectable(name: str, title: str, tests: Sequence[tuple[int, int]], limit: float, words: str) -> str:
    """Power curves: the least total variation that is sure to be seen, over the number of passes, for tests of several sizes.

    Args:
        tests: (degrees of freedom, passes) of each test that the report has; each is a point on its curve.
        limit: log E that a sequential test must reach.

    >>> "26 degrees" in detectable("three", "Power", [(26, 200_000)], 13.8, "It falls.")
    True
    """
    figure = _figure(7.2, 3.9)
    axes = figure.subplots()
    ns = np.geomspace(1e3, max(1e8, 2 * max((n for _, n in tests), default=1)), 60)
    for df in _apart([*(df for df, _ in tests), *REFERENCES]):
        line = np.array([minimum_detectable(df, n) for n in ns])
        axes.plot(ns, line, color=FIRST, alpha=0.8, linewidth=1.4)
        axes.annotate(f"{df:,} degrees", (ns[-1], line[-1]), xytext=(5, -2), textcoords="offset points", fontsize=8, color=INK)
    for df in _apart([df for df, _ in tests]):
        axes.plot(ns, [sequential(df, n, limit, kappas=LONG) for n in ns], color=SECOND, alpha=0.8, linewidth=1.2, linestyle=(0, (4, 2)))
        here = sorted({n for size, n in tests if size == df})
        axes.plot(here, [sequential(df, n, limit, kappas=LONG) for n in here], linestyle="none", marker="o", markersize=5, color=SECOND)
    axes.plot([], [], color=FIRST, label=f"chi-squared test of fixed size, level {ALPHA:g}")
    axes.plot([], [], color=SECOND, linestyle=(0, (4, 2)), marker="o", markersize=4, label="e-process, stopped at any time (points: this run)")
    axes.legend(loc="upper right", frameon=False, labelcolor=INK)
    axes.set(xscale="log", yscale="log", ylim=(None, 1), xlabel="passes N", ylabel="total variation seen with power .999")
    axes.grid(True, which="major", color=GRID, linewidth=0.6)
    _plain(axes)
    return _svg(figure, name, title, words)


def _apart(sizes: Sequence[int]) -> list[int]:
    """The sizes, largest first, without those that are within a third of one already kept: their curves would lie on one another."""
    kept: list[int] = []
    for size in sorted(set(sizes), reverse=True):
        if not kept or size < 0.75 * kept[-1]:
            kept.append(size)
    return kept[::-1]


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure((width, height), layout="constrained")


def _plain(axes: "Axes") -> None:
    """Ink for text, a muted frame on two sides, nothing else."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.tick_params(which="both", color=MUTED, labelcolor=INK, labelsize=8.5)
    axes.set_facecolor("none")
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=INK, fontsize=9)


def _svg(figure: "Figure", name: str, title: str, words: str) -> str:
    """The figure as one ``svg`` element, the same bytes for the same data."""
    import matplotlib

    figure.patch.set_alpha(0)
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9, "mathtext.fontset": "dejavusans"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    drawn = file.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    for colour, variable in VARIABLES.items():
        drawn = drawn.replace(colour, f"var({variable})")
    drawn = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 var(--font)", drawn)
    drawn = re.sub(r'\bid="', f'id="{name}-', drawn)
    drawn = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", drawn)
    drawn = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", drawn, flags=re.S)  # its style would hold for the whole page
    drawn = re.sub(r'\s(?:width|height)="[\d.]+pt"', "", drawn[: drawn.index(">")], count=2) + drawn[drawn.index(">") :]
    head = f'<svg role="img" stroke-linejoin="round" aria-labelledby="{name}-title {name}-words"'
    told = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-words">{escape(words)}</desc>'
    first = drawn.index(">") + 1
    return head + drawn[len("<svg") : first] + told + drawn[first:].rstrip()
