"""``specdec bench rows``: what a pass over a few rows costs beside one over one row, and how near the one comes to reading its bytes."""

import json
import statistics
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.bench import figures
from specdec_fn.cli.status import Status, wide_console

__all__ = ["rows"]

GATED = "smollm2-135m"  # the figures are of this model at the default context
RATIO = (("float32", 1.2), ("bfloat16", 1.2), ("int8", 1.5))  # a pass of 5 rows / 1 row, at most
SHARE = (("float32", 0.75), ("bfloat16", 0.65))  # of the byte bound that a pass of 1 row reaches, at least
INT8_MS, INT8_GBS = 6.0, 26  # a pass of 1 row, on a machine that reads so many GB/s: stated beside what is found, and no gate elsewhere
FIVE = 5


class Found(NamedTuple):
    """What was measured of one variant.

    Attributes:
        variant: its name.
        size: bytes that a pass reads of the weights.
        ms: milliseconds of each repetition, by rows.
        reading: milliseconds to read as many bytes, by the way.
    """

    variant: str
    size: int
    ms: dict[int, list[float]]
    reading: dict[str, list[float]]

    def ratios(self, count: int) -> list[float]:
        """A pass of so many rows over one of one row, in each repetition."""
        return [many / one for many, one in zip(self.ms[count], self.ms[1], strict=True)]

    @property
    def way(self) -> str:
        """The fastest way to read."""
        from specdec_fn.cli.bench.bandwidth import best

        return best(self.reading)

    @property
    def shares(self) -> list[float]:
        """Reading the bytes over a pass of one row, in each repetition."""
        return [bound / one for bound, one in zip(self.reading[self.way], self.ms[1], strict=True)]

    @property
    def gigabytes(self) -> float:
        """Bytes a second of the fastest way, in 10^9, by its median."""
        return self.size / 1e6 / statistics.median(self.reading[self.way])


def rows(
    model: o.ModelName = GATED,
    variants: Annotated[str, typer.Option("--variants", help="Precisions of the weights, such as q4_0,file.")] = "float32,bfloat16,int8",
    counts: Annotated[str, typer.Option("--rows", help="Rows of the passes, as 1,2,4.")] = "1,2,3,4,5,6,7,8,16",
    context: Annotated[int, typer.Option("--context", min=1, help="Committed tokens before the pass.")] = 256,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each pass, in turns.")] = 9,
    json_: o.Json = False,
) -> int:
    """Time of a pass over its rows, and the share of the byte bound that a pass of one row reaches; exits 1 if a figure is missed."""
    import torch

    from specdec_fn.cli.bench.invariant import counted
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.variants import listed

    names, numbers = listed("--variants", variants), sorted({1, *counted(counts)})
    found = _measured(model, names, numbers, context, repeats)
    held, stated = (_gates(found), _stated(found)) if model == GATED else ([], [])
    if json_:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "context": context}
        print(json.dumps(facts | {"variants": [_told(one) for one in found], "figures": figures.as_rows(held), "stated": stated}))
    else:
        wide_console().print(_passes(found, numbers, f"passes at context {context}, {torch.get_num_threads()} threads, {repeats} runs in turns"))
        wide_console().print(_bound(found))
        print("\n".join((*figures.lines(held), *map(_line, stated))))
    return figures.code(held)


def _measured(model: str, names: list[str], numbers: list[int], context: int, repeats: int) -> list[Found]:
    """All passes and all ways to read, in turns."""
    from specdec_fn.cli.bench.bandwidth import readers
    from specdec_fn.cli.bench.passes import in_turns, target_pass
    from specdec_fn.cli.bench.variants import load_variant, weight_bytes

    jobs: dict[str, Callable[[], Any]] = {}
    sizes: dict[str, int] = {}
    for name in names:
        target, _ = load_variant(model, name)
        sizes[name] = weight_bytes(target)
        jobs |= {f"{name} {count}": target_pass(target, count, context=context) for count in numbers}
        jobs |= {f"{name} {way}": read for way, read in readers(sizes[name]).items()}
    with Status("passes in turns"):
        times = in_turns(jobs, repeats)
    ways = readers(1)
    return [
        Found(name, sizes[name], {count: times[f"{name} {count}"] for count in numbers}, {way: times[f"{name} {way}"] for way in ways})
        for name in names
    ]


def _gates(found: list[Found]) -> list[figures.Figure]:
    by_name = {one.variant: one for one in found}
    held = []
    for name, bound in RATIO:
        if name in by_name and FIVE in by_name[name].ms:
            held.append(figures.at_most(f"{name}: {FIVE} rows / 1 row", statistics.median(by_name[name].ratios(FIVE)), bound))
    for name, bound in SHARE:
        if name in by_name:
            held.append(figures.at_least(f"{name}: share of the byte bound", statistics.median(by_name[name].shares), bound))
    return held


def _stated(found: list[Found]) -> list[dict[str, Any]]:
    """Times that are stated for a machine of some bandwidth, beside this machine's own."""
    return [
        {
            "what": "int8: milliseconds of 1 row",
            "value": statistics.median(one.ms[1]),
            "bound": statistics.median(one.reading[one.way]),
            "gigabytes_per_second": one.gigabytes,
            "stated": INT8_MS,
            "stated_for_gigabytes_per_second": INT8_GBS,
        }
        for one in found
        if one.variant == "int8"
    ]


def _line(one: dict[str, Any]) -> str:
    where = f"{one['stated']:g} ms is what we aim at where memory gives {INT8_GBS} GB/s; this machine reads {one['gigabytes_per_second']:.3g} GB/s"
    return f"stated: {one['what']} is {one['value']:.3g}, reading the bytes alone {one['bound']:.3g} ({where})"


def _told(one: Found) -> dict[str, Any]:
    return {
        "variant": one.variant,
        "bytes": one.size,
        "ms": one.ms,
        "ratios": {count: one.ratios(count) for count in one.ms},
        "reading_ms": one.reading,
        "read_by": one.way,
        "gigabytes_per_second": one.gigabytes,
        "share_of_bound": one.shares,
    }


def _passes(found: list[Found], numbers: list[int], title: str) -> Any:
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread

    table = Table(title=title)
    table.add_column("rows", justify="right")
    for one in found:
        table.add_column(f"{one.variant}, ms", justify="right")
        table.add_column("times 1 row", justify="right")
    for count in numbers:
        table.add_row(str(count), *(text for one in found for text in (spread(one.ms[count]), spread(one.ratios(count)))))
    return table


def _bound(found: list[Found]) -> Any:
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread

    table = Table(title="a pass of 1 row against reading as many bytes, in the fastest of several ways")
    for column in ("weights", "MB", "read by", "reading, ms", "GB/s", "1 row, ms", "share of the bound, %"):
        table.add_column(column, justify="right")
    for one in found:
        shares = spread([100 * share for share in one.shares])
        reading = spread(one.reading[one.way])
        table.add_row(one.variant, f"{one.size / 1e6:.1f}", one.way, reading, f"{one.gigabytes:.1f}", spread(one.ms[1]), shares)
    return table
