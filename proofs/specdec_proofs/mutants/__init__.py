"""Mutants: the source that ships, with one fault put in."""

from specdec_proofs.mutants.catalogue import FAMILIES, below_gate, catalogue, equivalents
from specdec_proofs.mutants.edit import Edit, decide, modules
from specdec_proofs.mutants.mutant import BOTH, EXACT, SAMPLED, Mutant

__all__ = ["BOTH", "EXACT", "FAMILIES", "SAMPLED", "Edit", "Mutant", "below_gate", "catalogue", "decide", "equivalents", "modules"]
