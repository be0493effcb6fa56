"""``specdec bench``: the measured figures, each a ratio taken in one process, interleaved, with its spread."""

import typer

from specdec_fn.cli.bench.arrivals import arrivals
from specdec_fn.cli.bench.batching import batching
from specdec_fn.cli.bench.chunks import chunks
from specdec_fn.cli.bench.continuous import continuous
from specdec_fn.cli.bench.coupled import coupled
from specdec_fn.cli.bench.equality import equality
from specdec_fn.cli.bench.graphs import graphs
from specdec_fn.cli.bench.invariant import invariant
from specdec_fn.cli.bench.lookup import lookup
from specdec_fn.cli.bench.overhead import overhead
from specdec_fn.cli.bench.paged import paged
from specdec_fn.cli.bench.pages import pages
from specdec_fn.cli.bench.peers import peers, transformers
from specdec_fn.cli.bench.prefix import prefix
from specdec_fn.cli.bench.rounds import rounds
from specdec_fn.cli.bench.rows import rows
from specdec_fn.cli.bench.scheduling import scheduling
from specdec_fn.cli.bench.selfdraft import selfdraft
from specdec_fn.cli.bench.soak import soak
from specdec_fn.cli.bench.spec import spec
from specdec_fn.cli.bench.speedup import prose, quoting
from specdec_fn.cli.bench.startup import startup
from specdec_fn.cli.bench.together import together

__all__ = ["app"]

app = typer.Typer(help="Measure: every ratio is taken in one process, interleaved, with its spread and its milliseconds.", no_args_is_help=True)
app.command()(quoting)
app.command()(prose)
app.command()(overhead)
app.command()(equality)
app.command()(peers)
app.command()(transformers)
app.command()(rows)
app.command()(lookup)
app.command()(selfdraft)
app.command()(spec)
app.command()(startup)
app.command()(rounds)
app.command()(coupled)
app.command()(invariant)
app.command()(batching)
app.command()(continuous)
app.command()(chunks)
app.command()(prefix)
app.command()(together)
app.command()(pages)
app.command()(paged)
app.command()(scheduling)
app.command()(arrivals)
app.command()(graphs)
app.command()(soak)
