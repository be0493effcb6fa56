"""Offline batches: prompts come from a file of JSON lines, results go to another, and a run that was killed goes on where it stopped.

What draws a line's tokens is a seed of its own, made of the run's seed and the line's number alone, so neither order, batch nor restarts change it.
"""

from specdec_fn.batch.input import Line, Prompts, prompts
from specdec_fn.batch.output import Results, results
from specdec_fn.batch.serve import Outcome, as_result, seed_of, served

__all__ = ["Line", "Outcome", "Prompts", "Results", "as_result", "prompts", "results", "seed_of", "served"]
