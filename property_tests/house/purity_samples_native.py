"""Sample arguments for the C library's rooms: packed weights, products, attention, whole passes, and what a model lays out for them."""

from collections.abc import Iterator

from .purity_samples import Sample


def samples() -> Iterator[Sample]:
    return iter(())
