"""Proposing tokens and verifying them: the rules that decide tokens, none of which needs a model to run.

Reading order: ``draft``, ``verifiers/token``, ``proposers/ngram``.
"""

from specdec_fn.speculate import proposers, verifiers
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.proposer import Proposer
from specdec_fn.speculate.race import Race
from specdec_fn.speculate.recover import residual
from specdec_fn.speculate.tape import Tape
from specdec_fn.speculate.verdict import Verdict
from specdec_fn.speculate.verifier import Verifier, batched

__all__ = ["Draft", "Proposer", "Race", "Tape", "Verdict", "Verifier", "batched", "proposers", "residual", "verifiers"]
