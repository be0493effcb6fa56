"""From buffers to tensors: the formats in which weights are stored, and the names they go by. Files are opened in ``specdec_fn.load``."""

from specdec_fn.weights import gguf, gguf_quants, names, safetensors

__all__ = ["gguf", "gguf_quants", "names", "safetensors"]
