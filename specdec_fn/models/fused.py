"""The row-wise steps of a pass as single launches on a GPU: norm, rotation, gate.

Written in operators they are some fifteen launches a block, which cost a captured pass of one row a fifth of its time (``rms_norm`` has the
arithmetic); here they are four. On a CPU an operator costs no launch, and ``llama`` keeps its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from specdec_fn.models.config import Config
from specdec_fn.typing import Float, Int, Tensor
from specdec_kernels.gate import gate
from specdec_kernels.rms_norm import rms_norm
from specdec_kernels.rope import rope

__all__ = ["Steps", "steps"]


class Steps(NamedTuple):
    """Norm, rotation and gate with the arguments of those in ``llama``, and the rotation's cos and sin as its kernel wants them."""

    norm: Callable[..., Tensor]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    gate: Callable[[Tensor], Tensor]
    rotation: Callable[..., tuple[Tensor, Tensor]]


def steps(config: Config, *, impl: str = "auto") -> Steps:
    """Gives the row-wise steps of a model as kernels.

    Args:
        config: the model's; its ``norm_eps`` and heads are constants of the steps.
        impl: "auto", "torch" or "triton".

    >>> config = Config("llama", vocab_size=5, context=8, width=4, layers=1, heads=2, kv_heads=1, head_dim=2, ffn=3, tied=True)
    >>> steps(config).gate(torch.tensor([[0.0, 30.0, 5.0, 2.0]]))
    tensor([[ 0., 60.]])
    """
    turned = config.heads + config.kv_heads

    def norm(x: Float[Tensor, "*rows width"], weight: Float[Tensor, "width"], unit: Any) -> Float[Tensor, "*rows width"]:
        del unit
        made = rms_norm(x.flatten(0, -2), weight, config.norm_eps, impl=impl)
        assert isinstance(made, Tensor), "no residual was given"
        return made.view(x.shape)

    def rotate(heads: Float[Tensor, "tokens all_heads head_dim"], cos: Float[Tensor, "tokens half"], sin: Float[Tensor, "tokens half"]) -> Tensor:
        return rope(heads, cos, sin, heads=turned, impl=impl)

    def rotation(
        positions: Int[Tensor, "tokens"], frequencies: Float[Tensor, "half"], factor: float, dtype: torch.dtype, parts: Any
    ) -> tuple[Float[Tensor, "tokens half"], Float[Tensor, "tokens half"]]:
        del parts
        angle = positions.to(torch.float64).unsqueeze(1) * frequencies  # float64, so that far positions keep their digits
        wide = dtype if dtype is torch.float64 else torch.float32
        return angle.cos().mul_(factor).to(wide), angle.sin().mul_(factor).to(wide)

    return Steps(norm, rotate, lambda rows: gate(rows, impl=impl), rotation)
