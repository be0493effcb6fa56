"""A trace as one HTML file that needs nothing else: the text in colour, how often each place was kept, and a row for every pass."""

from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any

from specdec_fn.trace.record import Row, Trace
from specdec_fn.trace.words import digits

__all__ = ["page"]

SIGNS: Mapping[str, str] = MappingProxyType({"accepted": "✓", "rejected": "✗", "unread": "–", "recovered": "R", "bonus": "B", "plain": "P"})
LEGEND = (
    ("accepted", "drafted and kept"),
    ("rejected", "drafted, judged and refused"),
    ("unread", "drafted, not judged: something before it had decided"),
    ("recovered", "the target's own, in place of a rejected one"),
    ("bonus", "the target's own, after a draft that was kept to its end"),
    ("plain", "the target's own, where nothing was drafted"),
)


def page(trace: Trace) -> str:
    """The page; every text in it is escaped, and it names no host.

    >>> made = page(Trace({"model": "<toy>"}, "a <i>", "by chance", (), "", "abort", ()))
    >>> "&lt;toy&gt;" in made, "<i>" in made
    (True, False)
    """
    from jinja2 import Environment, StrictUndefined

    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("specdec_fn.trace").joinpath("page.html.j2").read_text("utf-8")
    about = {name: _shown(value) for name, value in trace.about.items() if value or (value in (0, 0.0) and value is not False)}
    share = trace.accepted / trace.proposed if trace.proposed else None
    return made.from_string(source).render(trace=trace, about=about, share=share, signs=SIGNS, legend=LEGEND, digits=digits, sort=_sort)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(inner)}" for name, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _sort(row: Row) -> str:
    """What the filter knows a pass by."""
    kinds = {node.kind for node in row.proposed}
    return "plain" if not row.proposed else "rejected" if "rejected" in kinds else "whole"
