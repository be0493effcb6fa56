"""The one page that names every axis.

Shapes stand in signatures as jaxtyping annotations, for example ``Float[Tensor, "rows vocab"]``. They are documentation at run time; the
test command checks them with a pytest hook. These names mean the same thing everywhere:

========== =====================================================================================================================
axis       meaning
========== =====================================================================================================================
batch      independent sequences, or repetitions of an experiment; single-sequence functions have none and are lifted by ``vmap``
K          proposed (drafted) tokens of a pass
rows       rows of a pass: K + 1; row 0 is the law after the context, row i + 1 the law after drafted token i
vocab      token ids (V)
tokens     positions that pass through one forward (T)
prompt     tokens of the prompt (P)
generated  tokens emitted so far (G)
layers     transformer blocks
heads      query heads (H)
kv_heads   key-value heads (HK); ``heads`` is a multiple of it
head_dim   width of one head (D)
width      the residual stream
slots      places for one key and one value each
========== =====================================================================================================================
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Bool", "Float", "Int", "Tensor"]
