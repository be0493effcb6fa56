"""What people watch: a line of progress on stderr, and a console for tables on stdout."""

import os
import sys
from types import TracebackType
from typing import Any

__all__ = ["Status", "wide_console"]


class Status:
    """A spinner with a line that changes; silent where stderr is no terminal."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._spinner: Any = None

    def __enter__(self) -> "Status":
        if sys.stderr.isatty():
            from rich.console import Console

            self._spinner = Console(stderr=True).status(self._line)
            self._spinner.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._spinner is not None:
            self._spinner.stop()

    def say(self, line: str) -> None:
        """Shows another line."""
        if self._spinner is not None:
            self._spinner.update(line)


def wide_console() -> Any:
    """A console for tables: as wide as the terminal, and wide enough for every column where output is no terminal."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=160)
