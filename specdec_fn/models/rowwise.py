"""The steps of a pass that treat its rows apart, in torch: product, norm, rotation, gate, and what lies between two attentions as their sequence.

``Between`` is what a forward needs besides attention. It is made of steps here (``of_steps``), and is one call of the C library in ``native``.
"""

import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.linalg import vector_norm

from specdec_fn.models.config import Config
from specdec_fn.typing import Float, Int, Tensor
from specdec_kernels.packed import Packed, taken

if TYPE_CHECKING:
    from specdec_fn.models.llama import Layer, Params

__all__ = ["Between", "Rowwise", "Unit", "each", "embedded", "gate", "norm", "of_steps"]

WIDER = MappingProxyType({torch.bfloat16: torch.float32, torch.float16: torch.float32})


class Unit(NamedTuple):
    """What a norm of rows of one width needs besides its weight: 0, sqrt(width eps) and sqrt(width)."""

    zero: Tensor
    floor: Tensor
    root: float


class Rowwise(NamedTuple):
    """The steps of a pass that treat rows apart."""

    product: Callable[[Tensor, Tensor | Packed], Tensor]
    norm: Callable[[Tensor, Tensor, Unit], Tensor]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    gate: Callable[[Tensor], Tensor]
    rotation: Callable[..., tuple[Tensor, Tensor]]


class Between(NamedTuple):
    """What a forward does between attentions; every function treats its rows apart.

    Attributes:
        turn: (positions) -> what ``begin`` turns heads by; once a pass.
        begin: (x, layer, turn) -> heads [tokens, heads + 2 kv_heads, head_dim]: norm, query-key-value product, rotation.
        between: (x, attended, layer, next layer or None, turn) -> (x, heads or None): the end of a block, and the beginning of the next.
        head: (x, params) -> logits.
    """

    turn: Callable[[Tensor], Any]
    begin: Callable[..., Tensor]
    between: Callable[..., tuple[Tensor, Tensor | None]]
    head: Callable[..., Tensor]


def embedded(embedding: "Tensor | Packed", tokens: Int[Tensor, "tokens"]) -> Float[Tensor, "tokens width"]:
    """The rows of an embedding; float32 where it is packed.

    >>> embedded(torch.eye(3), torch.tensor([2]))
    tensor([[0., 0., 1.]])
    """
    return taken(embedding, tokens) if isinstance(embedding, Packed) else F.embedding(tokens, embedding)


def of_steps(config: Config, do: Rowwise, unit: Unit, head_unit: Unit, angles: Tensor, factor: float, dtype: torch.dtype) -> Between:
    """What lies between attentions, step by step.

    Args:
        config: sizes.
        do: the steps.
        unit, head_unit: of norms of the model's width, and of heads.
        angles: frequencies of the rotation, and ``factor``, what it is multiplied by.
        dtype: of the rotation.

    >>> config = Config("llama", vocab_size=5, context=8, width=4, layers=1, heads=2, kv_heads=1, head_dim=2, ffn=3)
    >>> do = Rowwise(lambda x, weight: x @ weight.mT, norm, lambda heads, turn: heads + turn, gate, lambda positions, *sizes: (positions.sum(),))
    >>> unit = Unit(torch.tensor(0.0), torch.tensor(0.0), 2.0)
    >>> of_steps(config, do, unit, unit, torch.ones(1), 1.0, torch.float32).turn(torch.tensor([1, 2]))
    (tensor(3),)
    """
    parts = (config.heads, config.kv_heads, config.kv_heads)

    def turn(positions: Int[Tensor, "tokens"]) -> Any:
        return do.rotation(positions, angles, factor, dtype, parts)

    def begin(x: Float[Tensor, "tokens width"], layer: "Layer", turn: Any) -> Float[Tensor, "tokens all_heads head_dim"]:
        rows = do.product(do.norm(x, layer.attention_norm, unit), layer.qkv)
        if layer.qkv_bias is not None:
            rows = rows + layer.qkv_bias
        heads = rows.reshape(-1, sum(parts), config.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            query, key, value = heads.split_with_sizes(parts, 1)
            heads = torch.cat((do.norm(query, layer.q_norm, head_unit), do.norm(key, layer.k_norm, head_unit), value), 1)
        return do.rotate(heads, *turn)

    def between(
        x: Float[Tensor, "tokens width"], attended: Float[Tensor, "tokens heads head_dim"], layer: "Layer", following: "Layer | None", turn: Any
    ) -> tuple[Float[Tensor, "tokens width"], Tensor | None]:
        x = do.product(attended.flatten(1), layer.output).add_(x)
        x = do.product(do.gate(do.product(do.norm(x, layer.ffn_norm, unit), layer.gate_up)), layer.down).add_(x)
        return x, None if following is None else begin(x, following, turn)

    def head(x: Float[Tensor, "rows width"], params: "Params") -> Float[Tensor, "rows vocab"]:
        logits = do.product(do.norm(x, params.norm, unit), params.embedding if params.head is None else params.head)
        return logits.to(WIDER.get(logits.dtype, logits.dtype))  # laws are made of float32 at least, and so the library gives them

    return Between(turn, begin, between, head)


def norm(x: Float[Tensor, "*rows width"], weight: Float[Tensor, "width"], unit: Unit) -> Float[Tensor, "*rows width"]:
    """Divides rows by their root mean square, in float32 at least: x / sqrt(mean(x^2) + eps) * weight (arXiv 1910.07467).

    Written sqrt(width) x / hypot(|x|, sqrt(width eps)) * weight: few operators, since on a few rows each costs more than its arithmetic.
    A pass has 61 norms in a model of 30 blocks; torch's rms_norm takes about twice the time on a CPU.

    >>> norm(torch.tensor([[3.0, 3.0, 3.0, 3.0]]), torch.ones(4), Unit(torch.tensor(0.0), torch.tensor(0.0), 2.0))
    tensor([[1., 1., 1., 1.]])
    """
    length = vector_norm(x, 2, -1, True, dtype=WIDER.get(x.dtype)).hypot(unit.floor)
    scaled = torch.addcdiv(unit.zero, x, length, value=unit.root) * weight
    return scaled if scaled.dtype is x.dtype else scaled.to(x.dtype)


def gate(rows: Float[Tensor, "tokens twice_ffn"]) -> Float[Tensor, "tokens ffn"]:
    """Gates the second half of each row by the first: silu(gate) * up (arXiv 2002.05202).

    >>> gate(torch.tensor([[0.0, 100.0, 3.0, 0.5]]))
    tensor([[ 0., 50.]])
    """
    first, second = rows.chunk(2, -1)
    return F.silu(first).mul_(second)


def each(step: Callable[..., Any], rowwise: int = 1) -> Callable[..., Any]:
    """The step with every row passed alone: the same call on the same shape gives the same bits, whatever the other rows.

    The first ``rowwise`` arguments have a row for each token; a step may return one tensor or a pair.

    >>> each(lambda row: row * row.shape[0])(torch.ones(3, 1)).flatten()
    tensor([1., 1., 1.])
    """
    return functools.partial(_apart, step, rowwise)


def _apart(step: Callable[..., Any], rowwise: int, *args: Any) -> Any:
    done = [step(*row, *args[rowwise:]) for row in zip(*(rows.split(1) for rows in args[:rowwise]), strict=True)]
    return torch.cat(done) if isinstance(done[0], Tensor) else tuple(map(torch.cat, zip(*done, strict=True)))
