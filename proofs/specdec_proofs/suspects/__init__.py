"""Suspects: samplers under audit, of this house and of others, brought to one form. Nothing of theirs is copied here; they are imported."""

from specdec_proofs.suspects.find import find, named
from specdec_proofs.suspects.suspect import Round, Suspect, SuspectError, emitted

__all__ = ["Round", "Suspect", "SuspectError", "emitted", "find", "named"]
