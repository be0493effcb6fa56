"""The verifiers: this package is the mapping from a name to its ``Verifier`` (see ``registry``).

>>> from specdec_fn.speculate import verifiers
>>> sorted(verifiers)
['greedy', 'token']
"""

import sys
from types import MappingProxyType

from specdec_fn.speculate.registry import Registry
from specdec_fn.speculate.verifiers import greedy, token

__all__ = ["all", "greedy", "token"]

all = MappingProxyType({verifier.name: verifier for verifier in (greedy.verifier, token.verifier)})
sys.modules[__name__].__class__ = Registry
