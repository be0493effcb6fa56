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
from specdec_fn.cli.serve import serve
from specdec_fn.cli.trace import trace

__all__ = ["app"]

app = typer.Typer(
    help="Lossless speculative decoding, shown to be lossless.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command(short_help="text from a prompt, as it comes")(generate)
app.command(short_help="a conversation with the model")(chat)
app.command(short_help="an OpenAI-compatible server, and a page")(serve)
app.command(short_help="the law of the code that ships, computed")(prove)
app.command(short_help="the law of any sampler, found and compared")(audit)
app.command(short_help="speed, and the same tokens, in a minute")(demo)
app.command(short_help="what a pass should take on a machine")(roofline)
app.command(short_help="why every token is what it is, as a page")(trace)
app.command(short_help="the twenty stages, measured here")(ladder)
app.add_typer(bench, name="bench", short_help="every figure, as a ratio with its spread")
