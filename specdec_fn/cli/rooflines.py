"""What ``specdec roofline`` shows: the tables, the words under them, and the same as JSON values."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from specdec_fn.cost import chapter, curve, machines, queue, roofline, yields
from specdec_fn.cost.curve import Curve
from specdec_fn.cost.machines import Machine
from specdec_fn.cost.roofline import Pass
from specdec_fn.cost.shapes import SEVEN_B, Shape, key_value_bytes

__all__ = [
    "Setup",
    "as_json",
    "chapter_tables",
    "checked",
    "figure_json",
    "named",
    "ridge_rows",
    "table",
    "words",
    "yields_json",
    "yields_table",
    "yields_words",
]

WIDTH = 24  # characters of the longest bar
CAPPED = " (capped by --k)"


class Setup(NamedTuple):
    """A model on a machine: what is asked, and the curve where it was measured."""

    machine: Machine
    model: str
    shape: Shape
    dtype: str
    batch: int
    context: int
    k: int
    acceptance: float
    cost: float
    measured: Curve | None

    def rows(self, rows: int) -> Pass:
        """The pass with so many rows for each sequence."""
        return roofline.of_pass(self.machine, self.shape, dtype=self.dtype, batch=self.batch, rows=rows, context=self.context)

    def seconds(self, rows: int) -> tuple[float, ...]:
        """The measured time of a pass, where there is one."""
        return () if self.measured is None or rows > len(self.measured.seconds) else (self.measured.seconds[rows - 1],)

    def gain(self, k: int, time: float, plain: float) -> float:
        """Speed-up of K drafted tokens where such a pass and a plain one take so long."""
        return yields.tokens_per_pass(self.acceptance, k) * plain / (time + k * self.cost * plain)


def named(setup: Setup) -> str:
    """The machine in words."""
    return "this machine" if setup.machine.name == "this" else setup.machine.name


def ridge_rows(setup: Setup) -> float:
    """Rows of each sequence at which products take as long as reading: where "free" ends, as a fraction."""
    one = setup.rows(1)
    return one.memory / one.compute


def table(setup: Setup) -> Any:
    """A line for each K."""
    from rich.table import Table

    found = Table(title=f"{setup.model}, {setup.dtype}, on {named(setup)}: batch {setup.batch}, context {setup.context}")
    columns = ["K", "rows", "FLOP/byte", "reading, ms", "products, ms", "bound", "pass, ms", "tokens/pass", "tokens/s", "speed-up"]
    if setup.measured is not None:
        columns[3:7] = ["reading", "products", "bound", "pass, ms", "measured", "/ least"]
    for column in columns:
        found.add_column(column, justify="left" if column == "bound" else "right")
    found.add_column(f"{'pass' if setup.measured is None else 'measured'} (line: the ridge)", no_wrap=True)
    longest = max((setup.seconds(k + 1) or (setup.rows(k + 1).least,))[0] for k in range(setup.k + 1))
    ridge = ridge_rows(setup)
    for k in range(setup.k + 1):
        one, real = setup.rows(k + 1), setup.seconds(k + 1)
        time, plain = (real or (one.least,))[0], (setup.seconds(1) or (setup.rows(1).least,))[0]
        tokens = yields.tokens_per_pass(setup.acceptance, k)
        cells = [str(k), str(one.rows), f"{one.intensity:.1f}", _ms(one.memory), _ms(one.compute), one.bound, f"{_ms(one.least)} to {_ms(one.most)}"]
        if setup.measured is not None:
            cells += [_ms(real[0]), f"{real[0] / one.least:.2f}"] if real else ["", ""]
        cells += [f"{tokens:.3f}", f"{setup.batch * tokens / (time + k * setup.cost * plain):.0f}", f"{setup.gain(k, time, plain):.2f}"]
        found.add_row(*cells, "█" * max(round(WIDTH * time / longest), 1), end_section=k + 1 <= ridge < k + 2)
    return found


def words(setup: Setup) -> Iterator[str]:
    """The lines under the table."""
    where, dtype = setup.machine, setup.dtype
    ridge = machines.ridge(where, dtype)
    yield (f"{named(setup)}: {where.bandwidth / 1e9:.4g} GB/s, {machines.flops(where, dtype) / 1e12:.4g} TFLOP/s, ridge {ridge:.1f} FLOP a byte")
    free = roofline.free_rows(where, setup.shape, dtype=dtype, batch=setup.batch, context=setup.context)
    most = free // setup.batch - 1
    yield f"free rows of a pass: {free}; at batch {setup.batch} " + (f"K up to {most} is free" if most > 0 else "no drafted token is free")
    best, gain, capped = _best(setup)
    how = "predicted, with full overlap" if setup.measured is None else "by the measured times"
    asked = f"at acceptance {setup.acceptance:g}, a drafted token costing {setup.cost:g} of a pass"
    yield f"best K {asked}: {best}{CAPPED * capped}, speed-up {gain:.2f} ({how})"


def _best(setup: Setup) -> tuple[int, float, bool]:
    """The best K, its speed-up, and whether only ``--k`` keeps it from being larger; of measured times nothing is known beyond."""
    rows = range(1, setup.k + 2 + (setup.measured is None))
    times = Curve(tuple((setup.seconds(row) or (setup.rows(row).least,))[0] for row in rows))
    times = Curve(times.seconds, draft=setup.cost * times.seconds[0])
    best = curve.best_k(times, setup.acceptance, setup.k)
    capped = best == setup.k and (setup.measured is not None or curve.best_k(times, setup.acceptance, setup.k + 1) > best)
    return best, curve.rates(times, setup.acceptance, best)[best] * times.seconds[0], capped


def as_json(setup: Setup) -> dict[str, Any]:
    """The same as JSON values, seconds throughout."""
    best, gain, capped = _best(setup)
    passes = [
        {
            "k": k,
            **one._asdict(),
            "intensity": one.intensity,
            "bound": one.bound,
            "least": one.least,
            "most": one.most,
            "measured": (setup.seconds(k + 1) or (None,))[0],
            "tokens_per_pass": yields.tokens_per_pass(setup.acceptance, k),
        }
        for k in range(setup.k + 1)
        for one in (setup.rows(k + 1),)
    ]
    asked = {name: getattr(setup, name) for name in ("model", "dtype", "batch", "context", "acceptance", "cost")}
    return {
        **asked,
        "machine": {**setup.machine._asdict(), "compute": dict(setup.machine.compute)},
        "ridge": machines.ridge(setup.machine, setup.dtype),
        "free_rows": roofline.free_rows(setup.machine, setup.shape, dtype=setup.dtype, batch=setup.batch, context=setup.context),
        "passes": passes,
        "best": {"k": best, "speed_up": gain, "capped": capped},
        "curve": None if setup.measured is None else curve.to_json(setup.measured),
    }


def figure_json(figure: chapter.Figure) -> dict[str, Any]:
    """One figure as JSON values; what has no end is told as text."""
    value = figure.value
    plain = str(value) if isinstance(value, float) and not math.isfinite(value) else list(value) if isinstance(value, tuple) else value
    stated = list(figure.stated) if isinstance(figure.stated, tuple) else figure.stated
    return {"section": figure.section, "name": figure.name, "value": plain, "stated": stated, "holds": chapter.holds(figure)}


def checked(figures: tuple[chapter.Figure, ...]) -> Any:
    """Every figure beside the digits it is stated with."""
    from rich.table import Table

    found, section = Table(title="the chapter, recomputed"), None
    for column in ("section", "figure", "computed", "stated", ""):
        found.add_column(column, justify="right" if column in ("computed", "stated") else "left")
    for figure in figures:
        if section is not None and figure.section != section:
            found.add_section()
        heading, section = "" if figure.section == section else figure.section, figure.section
        found.add_row(heading, figure.name, _text(figure.value), _text(figure.stated), "as stated" if chapter.holds(figure) else "OFF")
    return found


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(map(str, value)) + "}" if all(isinstance(one, int) for one in value) else ", ".join(value)
    return value if isinstance(value, str) else f"{value:.7g}"


def chapter_tables() -> Iterator[Any]:
    """The chapter's machine and the answers to its four challenges, as tables."""
    yield yields_table(chapter.ACCEPTANCE, chapter.COST, (*range(9), 12, 16), limit=True)
    yield _best_ks()
    yield _challenge_1()
    yield _challenge_3()
    yield _challenge_4()


def _made(title: str, columns: list[str], lines: list[list[str]]) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    found = Table()
    for column in columns:
        found.add_column(column, justify="right")
    for line in lines:
        found.add_row(*line)
    return Group(Text(title, style="bold"), found)


def yields_table(a: float, c: float, ks: Iterable[int], *, limit: bool = False) -> Any:
    """Tokens of a pass and the speed-up for each K, where extra rows are free."""
    lines = [[str(k), f"{yields.tokens_per_pass(a, k):.4f}", f"{yields.speed_up(a, k, c):.6f}"] for k in ks]
    if limit:
        lines.append(["∞", f"{yields.tokens_per_pass(a, math.inf):.4f}", "0"])
    return _made(f"tokens of a pass at acceptance {a:g}, a drafted token costing {c:g} of a pass", ["K", "tokens/pass", "speed-up"], lines)


def yields_words(a: float, c: float, k: int) -> str:
    """The best K under that table."""
    found, capped = _best_of_yields(a, c, k)
    best = " or ".join(map(str, found.ks))
    return (
        f"best K at acceptance {a:g}, a drafted token costing {c:g} of a pass: {best}{CAPPED * capped}, speed-up {found.gain:.2f} (extra rows free)"
    )


def yields_json(a: float, c: float, k: int) -> dict[str, Any]:
    """The table and the best K as JSON values."""
    found, capped = _best_of_yields(a, c, k)
    lines = [{"k": each, "tokens_per_pass": yields.tokens_per_pass(a, each), "speed_up": yields.speed_up(a, each, c)} for each in range(k + 1)]
    return {"acceptance": a, "cost": c, "yields": lines, "best": {"k": list(found.ks), "speed_up": found.gain, "capped": capped}}


def _best_of_yields(a: float, c: float, k: int) -> tuple[yields.Best, bool]:
    found = yields.best(a, c, most=k)
    return found, k in found.ks and yields.speed_up(a, k + 1, c) > yields.speed_up(a, k, c)


def _best_ks() -> Any:
    lines = []
    for a, c in ((0.5, 0.05), (0.6, 0.05), (0.7, 0.05), (0.8, 0.05), (0.9, 0.05), (0.95, 0.05), (0.7, 0.02), (0.7, 0.1)):
        found = yields.best(a, c)
        lines.append([f"{a:g}", f"{c:g}", " or ".join(map(str, found.ks)), f"{found.gain:.2f}"])
    return _made("challenge 2: the best K (a tie where the gains differ by less than 1e-5)", ["acceptance", "cost", "best K", "speed-up"], lines)


def _challenge_1() -> Any:
    lines = []
    for batch, rows, context in ((1, 5, 0), (32, 1, 0), (31, 5, 0), (32, 5, 0), (32, 6, 0), (64, 5, 0), (32, 5, 512), (32, 5, 2048)):
        one = roofline.of_pass(chapter.MACHINE, SEVEN_B, batch=batch, rows=rows, context=context)
        plain = roofline.of_pass(chapter.MACHINE, SEVEN_B, batch=batch, context=context)
        over = f"{one.least / plain.least:.3f} to {one.most / plain.most:.3f}"
        cells = [str(batch), str(rows), str(context), f"{one.intensity:.0f}", _ms(one.memory), _ms(one.compute), one.bound]
        lines.append([*cells, f"{_ms(one.least)} to {_ms(one.most)}", over])
    columns = ["batch", "rows each", "context", "FLOP/byte", "reading, ms", "products, ms", "bound", "pass, ms", "over 1 row each"]
    return _made(f"challenge 1: where free ends (7b in 16 bits, 2 TB/s, 312 TFLOP/s, ridge 156); {_kv()}", columns, lines)


def _kv() -> str:
    return f"keys and values {key_value_bytes(SEVEN_B) / 2**20:g} MiB a token"


def _challenge_3() -> Any:
    lines = [[f"{a:g}", *(f"{yields.speed_up(a, k, chapter.COST):.2f}" for k in (2, 4, 8))] for a in (0.5, 0.7, 0.9)]
    return _made("challenge 3: one feature, many speed-ups: acceptance depends on the text", ["acceptance", "K = 2", "K = 4", "K = 8"], lines)


def _challenge_4() -> Any:
    load, lines = queue.Load(), []
    for one, other in zip(queue.options(load), queue.options(load._replace(overhead=0.0)), strict=True):
        marks = ["x" if on else "" for on in (one.batch, one.graphs, one.speculate)]
        latencies = ["unstable" if math.isinf(each.latency) else _ms(each.latency, 1) for each in (one, other)]
        lines.append([*marks, _ms(one.service, 1), "" if math.isnan(one.load) else f"{one.load:.3f}", *latencies])
    columns = ["batch", "graphs", "speculate", "service, ms", "load", "latency, ms", "without launches, ms"]
    order = ", ".join(queue.order(load))
    return _made(f"challenge 4: {load.rate:g} requests/s of {load.tokens} tokens, 2 ms of launches a pass; order: {order}", columns, lines)


def _ms(seconds: float, digits: int | None = None) -> str:
    """Milliseconds with so many decimals, or with four digits in all."""
    if digits is not None:
        return f"{1e3 * seconds:.{digits}f}"
    return f"{1e3 * seconds:.{max(3 - max(math.floor(math.log10(1e3 * seconds)), 0), 0)}f}"
