"""What the measurements of the engine share: prompts, a line of progress, and the ways of serving that the stages measure with."""

import sys
import time
from typing import Any

from specdec_fn.cli.prompts import read
from specdec_fn.cli.status import Status
from specdec_fn.stages.serving import Service, abreast, engine_for, shares, whole
from specdec_fn.stages.stage import ratios

__all__ = ["Service", "Watch", "abreast", "conversations", "engine_for", "ratios", "shares", "whole"]

QUIET = 30.0  # seconds between lines where stderr is no terminal


class Watch(Status):
    """A spinner with a line on a terminal, and a line now and then elsewhere: these measurements may take long."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self._shown = time.monotonic()

    def say(self, line: str) -> None:
        """Shows another line, or prints it if the last was long ago."""
        super().say(line)
        if not sys.stderr.isatty() and time.monotonic() - self._shown >= QUIET:
            self._shown = time.monotonic()
            print(line, file=sys.stderr, flush=True)


def conversations(tokenizer: Any, file: str, count: int | None = None) -> list[list[int]]:
    """Ids of conversations that open with the prompts of a file: one each, or ``count``, for which they come again in the same order."""
    prompts = read(file)
    return [tokenizer.chat([{"role": "user", "content": prompts[place % len(prompts)].text}]) for place in range(count or len(prompts))]
