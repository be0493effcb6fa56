"""The verifiers: this package is the mapping from a name to its ``Verifier`` (see ``registry``).

>>> from specdec_fn.speculate import verifiers
>>> [name for name, verifier in verifiers.items() if not verifier.lossless]
['typical', 'lenient']
"""

import sys
from types import MappingProxyType

from specdec_fn.speculate.registry import Registry
from specdec_fn.speculate.verifiers import block, coupled, greedy, k_seq, lossy, multi_draft, token, traversal, tree

__all__ = ["all", "block", "coupled", "greedy", "k_seq", "lossy", "multi_draft", "token", "traversal", "tree"]

all = MappingProxyType(
    {
        verifier.name: verifier
        for verifier in (
            greedy.verifier,
            token.verifier,
            block.verifier,
            coupled.verifier,
            multi_draft.verifier,
            multi_draft.without_replacement,
            k_seq.verifier,
            tree.verifier,
            traversal.verifier,
            lossy.typical(),
            lossy.lenient(),
        )
    }
)
sys.modules[__name__].__class__ = Registry
