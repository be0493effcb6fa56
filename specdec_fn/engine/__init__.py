"""Generation as functions: three loops (``generate``), and an engine of many requests as a value that is stepped (``step``)."""

from specdec_fn.engine.forward import PassError
from specdec_fn.engine.lifecycle import abort, fork, submit
from specdec_fn.engine.request import Config, Constraint, Request
from specdec_fn.engine.snapshots import restore, snapshot
from specdec_fn.engine.state import EngineState, clone, free_pages, init
from specdec_fn.engine.step import run, step

__all__ = [
    "Config",
    "Constraint",
    "EngineState",
    "PassError",
    "Request",
    "abort",
    "clone",
    "fork",
    "free_pages",
    "init",
    "restore",
    "run",
    "snapshot",
    "step",
    "submit",
]
