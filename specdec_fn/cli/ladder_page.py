"""The ladder as one HTML file that needs nothing else: a table of all stages, then each with its plot and what was measured."""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from specdec_fn.cli.ladder_plots import svg

if TYPE_CHECKING:
    from specdec_fn.stages.settle import Outcome

__all__ = ["page"]


def page(outcomes: "Sequence[Outcome]", facts: Mapping[str, Any]) -> str:
    """The page; every text in it is escaped."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from specdec_fn.stages.record import counts

    drawn = {one.number: Markup(svg(f"stage-{one.number}", one.name, one.result.plot)) for one in outcomes if one.result is not None}
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("specdec_fn.cli").joinpath("ladder.html.j2").read_text("utf-8")
    return made.from_string(source).render(outcomes=outcomes, facts=facts, counts=counts(outcomes), drawn=drawn, digits=_digits)


def _digits(ms: float) -> str:
    return f"{ms:.3g}" if ms < 100 else f"{ms:,.0f}"
