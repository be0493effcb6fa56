"""The report as one text, and as JSON."""

from typing import Any

from gpu_machine import Best, Report, Table

__all__ = ["as_json", "shown"]


def shown(device: dict[str, Any], best: Best | None, report: Report, seconds: float) -> str:
    """Everything that was found, to be read from top to bottom."""
    parts = [", ".join(f"{name} {value}" for name, value in device.items())]
    if best is not None:
        parts.append(f"copy {best.bandwidth / 1e9:.0f} GB/s (read and written); bf16 product {best.flops / 1e12:.0f} TFLOP/s")
    parts += [_lines(table) for table in report.tables.values()]
    if report.figures:
        rows = [(what, value, target, met) for what, value, target, met in report.figures]
        parts.append(_lines(Table("What the project promises", ("figure", "measured", "target", "met"), rows)))
    parts += [
        "\n".join((f"{title}:", *(f"  {line}" for line in lines))) for title, lines in (("Left out", report.cut), ("Faults", report.faults)) if lines
    ]
    parts.append(f"{len(report.faults)} faults, {len(report.cut)} parts left out, {seconds:.0f} s")
    return "\n\n".join(parts)


def as_json(device: dict[str, Any], best: Best | None, report: Report, seconds: float, *, rehearsal: bool) -> dict[str, Any]:
    """The same for programs."""
    return {
        "rehearsal": rehearsal,
        "device": device,
        "copy_bytes_per_second": None if best is None else best.bandwidth,
        "product_flops_per_second": None if best is None else best.flops,
        "tables": {
            name: {"title": table.title, "notes": table.notes, "rows": [_named(table.columns, row) for row in table.rows]}
            for name, table in report.tables.items()
        },
        "figures": [_named(("figure", "measured", "target", "met"), figure) for figure in report.figures],
        "left_out": report.cut,
        "faults": report.faults,
        "seconds": seconds,
    }


def _named(columns: tuple[str, ...], row: tuple[Any, ...]) -> dict[str, Any]:
    """A row as an object; JSON has no NaN."""
    return {name: None if value != value else value for name, value in zip(columns, row, strict=True)}


def _lines(table: Table) -> str:
    cells = [table.columns, *(tuple(map(_cell, row)) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    words = [all(isinstance(row[place], str) for row in table.rows) for place in range(len(table.columns))]
    laid = (
        "  ".join(f"{cell:<{width}}" if left else f"{cell:>{width}}" for cell, width, left in zip(line, widths, words, strict=True)).rstrip()
        for line in cells
    )
    return "\n".join((table.title, *(f"  {line}" for line in laid), *(f"  ({note})" for note in table.notes)))


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
