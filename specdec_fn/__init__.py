"""Lossless speculative decoding as pure functions, and proofs of the code that ships."""
