"""Where keys and values live, and the attention that reads them there."""

from specdec_fn.kv import dense
from specdec_fn.kv.dense import DenseCache

__all__ = ["DenseCache", "dense"]
