"""The command line ``specdec``: every command prints text to stdout, progress to stderr, and has ``--json``.

Exit codes: 0 done, 1 a claim failed, 2 bad usage or input (one line on stderr), 130 interrupted.
"""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Runs ``specdec`` on the process's arguments and exits."""
    import typer

    from specdec_fn.cli.app import app

    try:
        code = app(standalone_mode=False) or 0
    except typer.TyperException as error:
        code = _refuse(error.format_message() if hasattr(error, "format_message") else str(error))
    except (ValueError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
        code = _refuse(str(error))
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code)


def _refuse(message: str) -> int:
    print(f"specdec: {' '.join(message.split())}", file=sys.stderr)
    return 2
