"""The command line ``specdec``: every command prints text to stdout, progress to stderr, and has ``--json``.

Exit codes: 0 done, 1 a claim failed, 2 bad usage or input (one line on stderr), 130 interrupted.
"""

import io
import os
import sys
import warnings
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Runs ``specdec`` on the process's arguments and exits."""
    import typer

    from specdec_fn.cli.app import app

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does it: a model may say what the terminal's encoding cannot
    warnings.formatwarning = _warned
    try:
        code = app(_or_help(sys.argv[1:]), prog_name="specdec", standalone_mode=False) or 0
        sys.stdout.flush()
    except typer.TyperException as error:
        code = _refuse(_usage(error))
    except BrokenPipeError:
        code = _unheard()
    except SystemExit as end:  # what typer and rich make of a broken pipe
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        code = _unheard()
    except OSError as error:
        code = _refuse(f"{error.filename!r}: {error.strerror}" if error.filename is not None else str(error))
    except ValueError as error:
        code = _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code)


def _or_help(arguments: list[str]) -> list[str]:
    """The arguments; where only a command that has others is named, a wish for its help."""
    return [*arguments, "--help"] if arguments in ([], ["bench"]) else arguments


def _usage(error: Any) -> str:
    """What is wrong with the arguments, with what typer leaves out: the value that does not parse, and the names of the commands."""
    message = str(error.format_message()).rstrip(".")
    failed: list[Any] = getattr(error.__cause__, "errors", list)()
    if failed and "input" in failed[0]:
        message += f"; received {failed[0]['input']!r}"
    if message.startswith("No such command"):
        message += f"; expected one of {', '.join(error.ctx.command.list_commands(error.ctx))}"
    return message


def _unheard() -> int:
    """The reader of our output has gone, as with ``| head``: that is no fault, and nobody is left to tell."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _warned(message: Any, *place: Any, **line: Any) -> str:
    """One line, without the place in a source that nobody at a command line has opened."""
    return f"specdec: {' '.join(str(message).split())}\n"


def _refuse(message: str) -> int:
    print(f"specdec: {' '.join(message.split())}", file=sys.stderr)
    return 2
