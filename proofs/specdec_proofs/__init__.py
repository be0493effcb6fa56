"""Exact laws, statistics and mutants of the code that ships.

``claims.quick()`` checks everything that fits in a minute. To judge a rule of your own, hand its ``decide`` to ``integrate.measure`` with a
world from ``worlds``. Reading order: ``worlds``, ``enumerate``, ``cells``, ``integrate``, ``mutants.catalogue``, ``power``, ``chi2``,
``sample``, ``claims``.
"""

__all__ = ["cells", "chi2", "claims", "enumerate", "integrate", "mutants", "power", "report", "sample", "strategies", "worlds"]
