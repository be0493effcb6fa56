"""Rotary positions: which frequencies a model turns its heads by, and the turn itself.

A head of width D is D/2 planes; plane i is spanned by components i and i + D/2 (the "half-split" form, in which the weights of safetensors
folders are stored; the loader brings GGUF rows into it). At position t plane i turns by the angle t * f_i.
"""

import math
from dataclasses import dataclass

import torch

from specdec_fn.typing import Float, Int, Tensor

__all__ = ["RopeConfig", "attention_factor", "frequencies", "rotate", "rotation"]

SCALINGS = ("none", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """How a model encodes positions: frozen and hashable.

    Attributes:
        base: the wavelengths are 2 pi * base ** (2i / D).
        scaling: "none", "linear" (every frequency divided by factor), "llama3" or "yarn".
        factor: by how much the context was stretched.
        original_context: the context before stretching, in tokens ("llama3" and "yarn").
        low_freq_factor: "llama3": wavelengths above original_context / low_freq_factor are stretched in full.
        high_freq_factor: "llama3": wavelengths below original_context / high_freq_factor are left alone.
        beta_fast: "yarn": planes that turn more often than this within original_context are left alone.
        beta_slow: "yarn": planes that turn less often are stretched in full.
        attention_factor: "yarn": cos and sin are multiplied by it; None = 0.1 ln(factor) + 1.
        truncate: "yarn": whether the two borders are rounded to whole planes.
        divisors: a divisor for each of the D/2 frequencies, applied last; () = none. GGUF files carry Llama 3's stretching in this form.

    Raises:
        ValueError: an unknown scaling, a base or factor that is not a positive finite number, or "llama3"/"yarn" without original_context.

    >>> RopeConfig(base=1e5).scaling
    'none'
    """

    base: float = 10_000.0
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise ValueError(f"rope scaling {self.scaling!r} is not supported; expected one of {', '.join(SCALINGS)}")
        for name in ("base", "factor"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"rope {name} must be a positive finite number, received {value!r}")
        if self.scaling in ("llama3", "yarn") and self.original_context < 1:
            raise ValueError(f"rope scaling {self.scaling!r} needs original_context of at least 1, received {self.original_context!r}")


def frequencies(rope: RopeConfig, head_dim: int) -> Float[Tensor, "half_head"]:
    """Gives the angle by which each plane of a head turns from one position to the next.

    f_i = base ** (-2i / D), then scaled: "linear" f / factor; "llama3" and "yarn" (arXiv 2309.00071) leave fast planes alone, divide slow ones
    by factor, and blend between, "llama3" linearly in the frequency, "yarn" linearly in the plane's index.

    Returns:
        float64 radians a position, one for each of head_dim / 2 planes.

    Raises:
        ValueError: head_dim is odd or below 2, or rope.divisors has another length than head_dim / 2.

    >>> frequencies(RopeConfig(base=100.0), 4)
    tensor([1.0000, 0.1000], dtype=torch.float64)
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"rotary positions need an even head_dim of at least 2, received {head_dim}")
    half = head_dim // 2
    plain = [rope.base ** (-2.0 * i / head_dim) for i in range(half)]
    kept = _kept(rope, plain, head_dim)
    scaled = [f * keep + f / rope.factor * (1.0 - keep) for f, keep in zip(plain, kept, strict=True)]
    if rope.divisors:
        if len(rope.divisors) != half:
            raise ValueError(f"rope divisors must be one for each of the {half} planes of a head, received {len(rope.divisors)}")
        scaled = [f / divisor for f, divisor in zip(scaled, rope.divisors, strict=True)]
    return torch.tensor(scaled, dtype=torch.float64)


def _kept(rope: RopeConfig, plain: list[float], head_dim: int) -> list[float]:
    """How much of each plane's own frequency is kept: 1 leaves it alone, 0 divides it by the factor."""
    if rope.scaling == "none":
        return [1.0] * len(plain)
    if rope.scaling == "linear":
        return [0.0] * len(plain)
    turns = [rope.original_context * f / (2 * math.pi) for f in plain]
    if rope.scaling == "llama3":
        low, high = rope.low_freq_factor, rope.high_freq_factor
        return [_clip((t - low) / (high - low)) for t in turns]

    def plane_that_turns(times: float) -> float:
        return head_dim * math.log(rope.original_context / (times * 2 * math.pi)) / (2 * math.log(rope.base))

    first, last = plane_that_turns(rope.beta_fast), plane_that_turns(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first if last != first else 1e-3
    return [1.0 - _clip((i - first) / width) for i in range(len(plain))]


def _clip(x: float) -> float:
    return min(max(x, 0.0), 1.0)


def attention_factor(rope: RopeConfig) -> float:
    """Gives the number that cos and sin are multiplied by: 1 but for "yarn", whose default is 0.1 ln(factor) + 1.

    >>> attention_factor(RopeConfig(scaling="linear", factor=4.0))
    1.0
    """
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.scaling == "yarn" and rope.factor > 1 else 1.0


def rotation(
    positions: Int[Tensor, "tokens"],
    frequencies: Float[Tensor, "half_head"],
    factor: float,
    dtype: torch.dtype,
    parts: tuple[int, int, int],
) -> tuple[Float[Tensor, "tokens all_heads head_dim"], Float[Tensor, "tokens all_heads head_dim"]]:
    """Computes cos and signed sin of every position's angles, once a pass.

    Angles are float64, so that far positions keep their digits; the second half of sin carries a plus, the first a minus, which makes
    ``rotate`` two products and a sum.

    Args:
        positions: one for each token.
        frequencies: radians a position (``frequencies``).
        factor: what cos and sin are multiplied by (``attention_factor``).
        dtype: of the result.
        parts: how many query, key and value heads lie side by side; value heads get cos 1 and sin 0, so that they pass ``rotate`` unchanged
            and need not be cut off before it.

    >>> cos, sin = rotation(torch.tensor([0, 1]), torch.tensor([torch.pi / 2], dtype=torch.float64), 1.0, torch.float32, (1, 0, 1))
    >>> cos[1].round(), sin[1]
    (tensor([[0., 0.],
            [1., 1.]]), tensor([[-1.,  1.],
            [ 0.,  0.]]))
    """
    angle = positions.to(torch.float64).unsqueeze(1) * torch.cat((-frequencies, frequencies))
    cos, sin = (x.mul(factor).to(dtype).unsqueeze(1).expand(-1, parts[0] + parts[1], -1) for x in (angle.cos(), angle.sin()))
    blank = cos.new_zeros((cos.shape[0], parts[2], cos.shape[2]))
    return torch.cat((cos, blank + 1), 1), torch.cat((sin, blank), 1)


def rotate(
    heads: Float[Tensor, "tokens all_heads head_dim"],
    cos: Float[Tensor, "tokens all_heads head_dim"],
    sin: Float[Tensor, "tokens all_heads head_dim"],
) -> Float[Tensor, "tokens all_heads head_dim"]:
    """Turns every head of every token by its position's angles: (a, b) -> (a cos - b sin, b cos + a sin) in each plane.

    >>> cos, sin = rotation(torch.tensor([1]), torch.tensor([torch.pi / 2], dtype=torch.float64), 1.0, torch.float32, (1, 0, 0))
    >>> rotate(torch.tensor([[[2.0, 0.0]]]), cos, sin).round()
    tensor([[[0., 2.]]])
    """
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)
