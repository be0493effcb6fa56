"""``specdec bench``: the measured figures, each a ratio taken in one process, interleaved, with its spread."""

import typer

from specdec_fn.cli.bench.arrivals import arrivals
from specdec_fn.cli.bench.batching import batching
from specdec_fn.cli.bench.chunks import chunks
from specdec_fn.cli.bench.clients import clients
from specdec_fn.cli.bench.constrained import constrained
from specdec_fn.cli.bench.continuous import continuous
from specdec_fn.cli.bench.coupled import coupled
from specdec_fn.cli.bench.crash import crash
from specdec_fn.cli.bench.equality import equality
from specdec_fn.cli.bench.graphs import graphs
from specdec_fn.cli.bench.http import http
from specdec_fn.cli.bench.invariant import invariant
from specdec_fn.cli.bench.lookup import lookup
from specdec_fn.cli.bench.malformed import malformed
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
# What a list of commands says of each: a line is cut at the width of a terminal, and docstrings are whole sentences.
COMMANDS = (
    (quoting, "speed on prompts that quote a text"),
    (prose, "cost on prompts that quote nothing"),
    (overhead, "a step outside the model, over a pass"),
    (equality, "greedy ids with and without speculation"),
    (peers, "plain decoding against other engines"),
    (transformers, "milliseconds a token here and there"),
    (rows, "a pass of many rows over one of one row"),
    (lookup, "n-gram and suffix drafts on quoting prompts"),
    (selfdraft, "drafts of the target's own rounded weights"),
    (spec, "a set of prompts by category, with entropy of p"),
    (startup, "first token and C build, cold and warm"),
    (rounds, "seconds for 1e6 verify rounds"),
    (coupled, "noise of the race over a pass"),
    (invariant, "invariant mode over the ordinary one"),
    (batching, "tokens a second by batch size"),
    (continuous, "continuous batching over static batching"),
    (chunks, "gaps between tokens while a prompt is read"),
    (prefix, "time to first token with a cached prefix"),
    (together, "a set of prompts through a small engine"),
    (pages, "taking and giving back pages"),
    (paged, "attention over pages over dense attention"),
    (scheduling, "time of a decision at 1,000 requests"),
    (arrivals, "latency at a load, by choice of K (simulated)"),
    (graphs, "captured steps over eager ones"),
    (http, "tokens a second through HTTP"),
    (clients, "a crowd of clients, and memory"),
    (malformed, "malformed requests, all refused"),
    (crash, "a server killed and started again"),
    (constrained, "JSON schemas under speculation, all valid"),
    (soak, "random requests for memory and pages"),
)
for command, short in COMMANDS:
    app.command(short_help=short)(command)
