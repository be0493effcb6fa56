"""Mutants: the source that ships, with one fault put in."""

from specdec_proofs.mutants.catalogue import Mutant, catalogue, equivalents
from specdec_proofs.mutants.edit import Edit, decide, modules

__all__ = ["Edit", "Mutant", "catalogue", "decide", "equivalents", "modules"]
