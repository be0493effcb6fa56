"""vLLM's rejection sampler in torch, ``vllm.model_executor.layers.rejection_sampler.RejectionSampler`` (vLLM up to 0.9)."""

import importlib
from typing import Any

import torch

from specdec_proofs.suspects.suspect import Round, Suspect, SuspectError

__all__ = ["NAME", "WHAT", "adapt", "load"]

NAME = "vllm"
WHAT = "vllm.model_executor.layers.rejection_sampler.RejectionSampler"
MODULE, CLASS = WHAT.rsplit(".", 1)


def load(checkout: str | None = None) -> Suspect:
    """The sampler that is installed; SuspectError where there is none.

    >>> load.__name__
    'load'
    """
    try:
        version = importlib.import_module("vllm").__version__
    except ImportError as error:
        raise SuspectError(f"vllm is not installed ({error}); expected the package vllm, up to 0.9, with {WHAT}") from error
    try:
        made = getattr(importlib.import_module(MODULE), CLASS)
    except (ImportError, AttributeError) as error:
        raise SuspectError(f"vllm {version} has no {WHAT}; expected vllm up to 0.9, whose rejection sampler is written in torch") from error
    try:
        sampler = made(use_flashinfer=False)
    except TypeError:  # older ones know no FlashInfer
        sampler = made()
    return Suspect(NAME, f"vllm {version}, {CLASS}", adapt(sampler))


def adapt(sampler: Any) -> Round:
    """The sampler as a round: it wants the bonus token drawn beforehand, and pads what it gives with -1.

    >>> give = adapt(lambda **named: torch.tensor([[1, -1]]))
    >>> give(torch.eye(2), torch.eye(2)[:1], torch.tensor([0]))
    tensor([1])
    """

    def rounds(p: torch.Tensor, q: torch.Tensor | None, tokens: torch.Tensor) -> Any:
        if q is None:
            raise SuspectError("needs the draft's laws; received none")
        bonus = torch.multinomial(p[-1], 1)[None]
        given = sampler(target_with_bonus_probs=p[None], bonus_token_ids=bonus, draft_probs=q[None], draft_token_ids=tokens[None])[0]
        return given[given >= 0]

    return rounds
