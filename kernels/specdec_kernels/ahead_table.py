"""The table of what each compiled kernel takes of a target, kept in the repository as ``kernels/compiled.json``, and the budget above it.

One row for each kernel, configuration and target, one line a row, sorted, so that a change of a kernel is a change of its lines. A row fails
outright where a register is spilled to memory or the shared memory is more than the target has. Otherwise it is held to its row in the table,
with room above it: 10 % and 8 registers, 10 % and 1,024 bytes of shared memory. Scalar registers that an AMD target keeps in lanes of vector
registers touch no memory: they are counted by themselves, with the room of registers. That lets a kernel be edited, and stops one that has grown.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["Row", "judged", "parsed", "shown", "text"]

# The most shared memory of one block, bytes: CUDA programming guide, "technical specifications per compute capability"; MI300 has 64 KiB of LDS.
SHARED_LIMIT = MappingProxyType({"sm_80": 166_912, "sm_90": 232_448, "sm_100": 232_448, "gfx942": 65_536})
GROWTH = 0.10
MORE_REGISTERS = 8
MORE_SHARED = 1_024


class Row(NamedTuple):
    """What one kernel takes in one configuration on one target.

    Attributes:
        room: the module that the kernel is written in, such as "paged_write_triton".
        name: the name of its variant.
        target: "sm_80", "sm_90", "sm_100" or "gfx942".
        warps: warps of a program.
        stages: stages of the software pipeline.
        registers: 32-bit registers of a thread; of an AMD target, vector registers with the accumulation registers.
        spilled: bytes of a thread in local memory, which is where registers are spilled to.
        scalars: of an AMD target, scalar registers that are spilled to lanes of vector registers, which costs instructions and no memory.
        shared: shared memory of a program, bytes.
    """

    room: str
    name: str
    target: str
    warps: int
    stages: int
    registers: int
    spilled: int
    scalars: int
    shared: int

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from the other rows."""
        return self.room, self.name, self.target

    @property
    def label(self) -> str:
        """How a sentence calls it."""
        return f"{self.name} ({self.room}) on {self.target}"


def text(triton: str, rows: Iterable[Row]) -> str:
    """Writes the table: a JSON object with the version of triton and the rows, one a line, sorted.

    >>> print(text("3.7.1", [Row("add_triton", "add", "sm_80", 4, 2, 20, 0, 0, 512)]), end="")
    {
    "triton": "3.7.1",
    "rows": [
    {"room": "add_triton", "name": "add", "target": "sm_80", "warps": 4, "stages": 2, "registers": 20, "spilled": 0, "scalars": 0, "shared": 512}
    ]
    }
    """
    lines = ",\n".join(json.dumps(row._asdict()) for row in sorted(rows))
    return f'{{\n"triton": {json.dumps(triton)},\n"rows": [\n{lines}\n]\n}}\n'


def parsed(written: str) -> tuple[str, tuple[Row, ...]]:
    """Reads what ``text`` wrote: the version of triton, and the rows.

    Raises:
        ValueError: it is no such table.

    >>> parsed(text("3.7.1", []))
    ('3.7.1', ())
    """
    try:
        table = json.loads(written)
        rows = tuple(Row(**row) for row in table["rows"])
        triton = table["triton"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"the table is not readable ({error}); expected what --write makes") from error
    right = isinstance(triton, str) and all(isinstance(value, kind) for row in rows for value, kind in zip(row, (str,) * 3 + (int,) * 6, strict=True))
    if not right:
        raise ValueError("the table has values of another kind; expected what --write makes")
    return triton, rows


def judged(rows: Sequence[Row], table: Sequence[Row] | None, *, whole: bool = True) -> list[str]:
    """Says what is wrong with measured rows, one sentence for each fault; none where all is well.

    Args:
        rows: what was measured.
        table: the rows to hold them to; None: only spills, limits and names are judged.
        whole: whether everything was measured, so that a row of the table that was not measured is stale.

    >>> row = Row("add_triton", "add", "sm_80", 4, 2, 20, 0, 0, 512)
    >>> judged([row], [row])
    []
    >>> judged([row._replace(registers=31)], [row])
    ['add (add_triton) on sm_80 takes 31 registers; the table has 20, and at most 30 are expected']
    """
    said = [f"{room} has {count} variants of the name {name!r}; expected one" for (room, name), count in _counts(rows) if count > 1]
    for row in rows:
        if row.spilled:
            said.append(f"{row.label} spills {row.spilled} bytes; expected 0")
        if row.shared > SHARED_LIMIT[row.target]:
            said.append(f"{row.label} takes {row.shared} bytes of shared memory; the target has {SHARED_LIMIT[row.target]}")
    if table is None:
        return said
    kept = {row.key: row for row in table}
    for row in rows:
        said += _grown(row, kept[row.key]) if row.key in kept else [f"{row.label} is not in the table; expected a row (--write makes it)"]
    measured = {row.key for row in rows}
    stale = [row for row in table if row.key not in measured] if whole else []
    return said + [f"{row.label} is in the table and is no longer compiled; expected no such row (--write takes it out)" for row in stale]


def _counts(rows: Iterable[Row]) -> list[tuple[tuple[str, str], int]]:
    """How often a name stands in a room for one target."""
    found = Counter(row.key for row in rows)
    return sorted({(room, name): count for (room, name, _), count in found.items()}.items())


def _grown(row: Row, kept: Row) -> list[str]:
    said = []
    if (row.warps, row.stages) != (kept.warps, kept.stages):
        said.append(
            f"{row.label} has {row.warps} warps and {row.stages} stages; the table has {kept.warps} and {kept.stages}: the row is stale (--write)"
        )
    for what, now, before, more in (
        ("registers", row.registers, kept.registers, MORE_REGISTERS),
        ("scalar registers in lanes of vector registers", row.scalars, kept.scalars, MORE_REGISTERS),
        ("bytes of shared memory", row.shared, kept.shared, MORE_SHARED),
    ):
        most = int(before * (1 + GROWTH)) + more
        if now > most:
            said.append(f"{row.label} takes {now} {what}; the table has {before}, and at most {most} are expected")
    return said


def shown(rows: Iterable[Row]) -> str:
    """Lays rows out for a reader: a line for each variant, and for each target its registers / bytes spilled / KiB of shared memory.

    >>> print(shown([Row("add_triton", "add", "sm_80", 4, 2, 20, 0, 0, 512), Row("add_triton", "add", "gfx942", 4, 2, 9, 0, 0, 0)]))
    registers / bytes spilled / KiB shared  warps         sm_80     gfx942
    add                                         4  20 / 0 / 0.5  9 / 0 / 0
    """
    rows = list(rows)
    targets = [target for target in SHARED_LIMIT if any(row.target == target for row in rows)]
    lines = [("registers / bytes spilled / KiB shared", "warps", *targets)]
    cells = {row.key: f"{row.registers} / {row.spilled} / {row.shared / 1024:.3g}" for row in rows}
    for room, name, warps in sorted({(row.room, row.name, row.warps) for row in rows}):
        lines.append((name, str(warps), *(cells.get((room, name, target), "-") for target in targets)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{line[0]:<{widths[0]}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True)) for line in lines
    )
