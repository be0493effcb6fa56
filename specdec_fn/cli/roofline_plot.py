"""The picture of ``specdec roofline``: time of a pass over its rows, predicted and measured, with the ridge marked. Drawn by matplotlib."""

from pathlib import Path

from specdec_fn.cli.rooflines import Setup, named, ridge_rows

__all__ = ["draw"]

PREDICTED, MEASURED, RIDGE = "#3b6fb6", "#c2571a", "#777777"


def draw(setup: Setup, path: Path) -> None:
    """Writes the picture; the ending of the name says which kind."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    ridge = ridge_rows(setup)
    last = max(setup.k + 1, min(round(1.3 * ridge), 4 * (setup.k + 1)))
    rows = range(1, last + 1)
    passes = [setup.rows(count) for count in rows]
    figure = Figure((7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    least, most = ([1e3 * getattr(one, name) for one in passes] for name in ("least", "most"))
    axes.fill_between(rows, least, most, color=PREDICTED, alpha=0.15, linewidth=0)
    axes.plot(rows, least, color=PREDICTED, label="predicted, reading and products overlap")
    axes.plot(rows, most, color=PREDICTED, linestyle="--", label="predicted, they do not")
    if setup.measured is not None:
        times = [1e3 * one for one in setup.measured.seconds]
        axes.plot(range(1, len(times) + 1), times, color=MEASURED, marker="o", markersize=3.5, label="measured")
    if ridge <= last:
        axes.axvline(ridge, color=RIDGE, linewidth=1)
        axes.annotate(f"ridge: {ridge:.1f} rows", (ridge, 0), (4, 6), textcoords="offset points", color=RIDGE, fontsize=8.5)
    axes.set(xlabel="rows of each sequence (K + 1)", ylabel="time of a pass, ms", ylim=(0, None), xlim=(0.5, last + 0.5))
    axes.set_title(f"{setup.model}, {setup.dtype}, on {named(setup)}: batch {setup.batch}, context {setup.context}", fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best", frameon=False, fontsize=8.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "roofline"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
