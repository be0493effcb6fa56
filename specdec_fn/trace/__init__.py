"""One generation, pass by pass: what was proposed, what became of it, and why; as values, as JSON and as a page."""

from specdec_fn.trace.page import page
from specdec_fn.trace.passes import traced
from specdec_fn.trace.record import Node, Row, Trace, as_json, record

__all__ = ["Node", "Row", "Trace", "as_json", "page", "record", "traced"]
