"""Exact laws, statistics and mutants of the code that ships, and the same proofs for anyone's sampler.

``claims.quick()`` checks what fits in a minute, ``claims.run(level)`` more. To judge a rule of your own, hand its ``decide`` to
``integrate.measure`` with a world from ``worlds`` (``measure_tree`` where drafts branch); for a sampler that draws for itself there is ``audit``.

Reading order: ``worlds``, ``enumerate``, ``trees``; the rules on paper ``block_rule``, ``coupling``, ``siblings``, ``tree_rules``, ``lossy``,
``bounds``; the law of code ``cells``, ``integrate``, ``race_grid``, ``large``; ``mutants.catalogue``; statistics ``power``, ``chi2``, ``sample``,
``eprocess``, ``families``; ``claims`` with the rooms that it lists; then ``deep``, ``audit`` and ``report``.
"""

__all__ = [
    "audit",
    "block_rule",
    "bounds",
    "cells",
    "chi2",
    "claims",
    "coupling",
    "deep",
    "enumerate",
    "eprocess",
    "families",
    "integrate",
    "large",
    "lossy",
    "mutants",
    "one_sequence",
    "power",
    "race_grid",
    "report",
    "sample",
    "siblings",
    "strategies",
    "suspects",
    "tree_rules",
    "trees",
    "worlds",
]
