"""Language models as pure functions of their parameters: the Llama family, and toys whose law is known."""

from specdec_fn.models import llama, toy
from specdec_fn.models.config import Config, RopeConfig
from specdec_fn.models.model import Forward, Model, causal, invariant, logits

__all__ = ["Config", "Forward", "Model", "RopeConfig", "causal", "invariant", "llama", "logits", "toy"]
