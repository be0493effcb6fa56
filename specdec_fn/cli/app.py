"""The commands of ``specdec``, gathered."""

import typer

from specdec_fn.cli.audit import audit
from specdec_fn.cli.bench import app as bench
from specdec_fn.cli.chat import chat
from specdec_fn.cli.demo import demo
from specdec_fn.cli.generate import generate
from specdec_fn.cli.ladder import ladder
from specdec_fn.cli.prove import prove
from specdec_fn.cli.roofline import roofline

__all__ = ["app"]

app = typer.Typer(
    help="Lossless speculative decoding, shown to be lossless.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(chat)
app.command()(prove)
app.command()(audit)
app.command()(demo)
app.command()(roofline)
app.command()(ladder)
app.add_typer(bench, name="bench")
