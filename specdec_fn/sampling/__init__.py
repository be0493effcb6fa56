"""From logits to a token: `SamplingParams` (what is asked), `distribution` (the law), `draw` (the token)."""

from specdec_fn.sampling.distribution import distribution
from specdec_fn.sampling.draw import draw
from specdec_fn.sampling.params import SamplingParams

__all__ = ["SamplingParams", "distribution", "draw"]
