"""Rows times weights: the one operator whose speed decides what a pass costs."""

import torch
import torch.nn.functional as F

from specdec_fn.typing import Float, Tensor
from specdec_kernels.packed import Packed
from specdec_kernels.rows import rows as packed_rows

__all__ = ["product", "tiled"]

BLOCK = 32
FEW = range(4, 16)
SOME = range(16, 49)


def product(rows: Float[Tensor, "tokens inputs"], weight: Float[Tensor, "outputs inputs"] | Packed) -> Float[Tensor, "tokens outputs"]:
    """Multiplies every row by a weight matrix: rows @ weight.T.

    A float32 product of 4 to 15 rows on a CPU is cut into blocks of 32 weight rows, each multiplied while it is in the cache. Whole, it
    costs up to half as much again from the fourth row on (all products of a pass of SmolLM2-135M on two cores: 1 row 17 ms, 3 rows 24; 4 rows 28
    in blocks and 37 whole, 6 rows 29 and 41, 12 rows 39 and 61). From 16 to 48 rows a weight with more inputs than outputs is multiplied by the
    rows, and the result turned: 0.5 to 0.75 of the time for 576 outputs of 1536 inputs (which saves 7 % of all products of such a pass), 0.85 to
    1.0 for wider ones. Every other product is the library's.

    >>> product(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    tensor([[1., 2., 3.]])
    """
    if isinstance(weight, Packed):
        return packed_rows(rows, weight)
    count, (outputs, inputs) = rows.shape[0], weight.shape
    plain = weight.dtype is torch.float32 and weight.device.type == "cpu"
    if plain and count in FEW and outputs % BLOCK == 0:
        blocks = weight.reshape(-1, BLOCK, inputs)
        return torch.bmm(rows.expand(blocks.shape[0], -1, -1), blocks.mT).transpose(0, 1).flatten(1)
    if plain and count in SOME and inputs > outputs:
        return F.linear(weight, rows).mT.contiguous()
    return F.linear(rows, weight)


def tiled(rows: Float[Tensor, "tokens inputs"], weight: Float[Tensor, "outputs inputs"] | Packed, tile: int = 8) -> Float[Tensor, "tokens outputs"]:
    """Multiplies rows by a weight matrix in tiles of a fixed number of rows, the last one filled up with zeros.

    A library's product adds in an order that depends on how many rows it is given, so a row's last bits change with its company. At one
    fixed number of rows they depend neither on the other rows nor on the row's place.

    >>> tiled(torch.eye(2), torch.tensor([[1.0, 2.0]]))
    tensor([[1.],
            [2.]])
    """
    # Filled up even where full: each tile is then its own allocation, at one alignment.
    tiles = (F.pad(part, (0, 0, 0, tile - part.shape[0])) for part in rows.split(tile))
    return torch.cat([product(part, weight) for part in tiles])[: rows.shape[0]]
