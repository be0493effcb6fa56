"""Tensors in, tensors out: the operations under the engine. See kernels/README.md."""
