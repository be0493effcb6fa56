"""Stage 15, the server: tokens a second through HTTP against the same engine in the process."""

import importlib

from specdec_fn.stages.stage import Gate, Progress, Result, Setup, Stage

__all__ = ["stage"]


def _run(setup: Setup, progress: Progress) -> Result:
    serving = importlib.import_module("specdec_fn.serve")
    raise ImportError("the server is there, its measurement is not", name=f"{serving.__name__}.measure")


stage = Stage(
    "server",
    "tokens a second through HTTP / in process",
    Gate(0.9, least=True),
    "What a request pays for sockets, text and JSON around the engine.",
    _run,
)
