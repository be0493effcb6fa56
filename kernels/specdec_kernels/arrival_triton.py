"""How the programs of one launch hand over to the last of them, as functions that kernels call: no second launch, and no wait.

Each program stores one number or two, then counts itself in; the one that finds all others counted reads what they stored. A scalar is stored by
the same thread that counts, so the release of the count publishes it, on both makers' memory models; the reader's loads follow its acquire, and
bypass the first-level cache.
"""

from typing import no_type_check

import triton
import triton.language as tl

from specdec_kernels.variant import Variant

__all__ = ["variants"]


@triton.jit
@no_type_check
def is_last(counter, programs):
    """Counts this program in; whether all ``programs`` have now arrived. The counter starts at 0."""
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == programs - 1


@triton.jit
@no_type_check
def fetched(pointer, mask, other):
    """Loads what other programs stored before they arrived."""
    return tl.load(pointer, mask=mask, other=other, cache_modifier=".cg")


def variants() -> tuple[Variant, ...]:
    """Nothing is launched from this room: its functions are called by the kernels of several programs.

    >>> variants()
    ()
    """
    return ()
