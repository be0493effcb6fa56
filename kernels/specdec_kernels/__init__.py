"""Tensors in, tensors out: the operations under the engine. See kernels/README.md."""

from specdec_kernels.paged_attention import paged_attention
from specdec_kernels.paged_write import copy_pages, paged_write

__all__ = ["copy_pages", "paged_attention", "paged_write"]
