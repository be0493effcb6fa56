"""The shape of a model as a pass sees it: weights to read and multiply by, and keys and values to read."""

from typing import NamedTuple, Protocol

__all__ = ["SEVEN_B", "Shape", "Sizes", "key_value_bytes", "of"]


class Sizes(Protocol):
    """The sizes of a model of the Llama family, by the names that a model's config has."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn(self) -> int: ...


class Shape(NamedTuple):
    """What a pass reads and multiplies by.

    Attributes:
        weights: numbers in the matrices that every row is multiplied by: all layers and the head, without the rows that are only looked up.
        layers, kv_heads, head_dim: of the keys and values.
        heads: query heads; 0 leaves the products of attention out of the count.
    """

    weights: float
    layers: int
    kv_heads: int
    head_dim: int
    heads: int = 0


SEVEN_B = Shape(7e9, 32, 32, 128)  # the model of the chapter from which the project started: 14 GB in 16 bits, 0.5 MiB of keys and values a token


def of(sizes: Sizes) -> Shape:
    """The shape of a Llama-family model: per layer q, k, v, o and three matrices of the feed-forward block, and the head once.

    >>> from types import SimpleNamespace
    >>> small = SimpleNamespace(vocab_size=49152, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, ffn=1536)
    >>> int(of(small).weights)
    134479872
    """
    attention = sizes.width * sizes.head_dim * (2 * sizes.heads + 2 * sizes.kv_heads)
    block = attention + 3 * sizes.width * sizes.ffn
    return Shape(float(sizes.layers * block + sizes.vocab_size * sizes.width), sizes.layers, sizes.kv_heads, sizes.head_dim, sizes.heads)


def key_value_bytes(shape: Shape, bits: float = 16) -> float:
    """Bytes that the keys and values of one token take.

    Args:
        shape: of the model.
        bits: of one number.

    >>> key_value_bytes(SEVEN_B) / 2**20
    0.5
    """
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * bits / 8
