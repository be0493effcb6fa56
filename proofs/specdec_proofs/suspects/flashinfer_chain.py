"""FlashInfer's chain kernel, ``flashinfer.sampling.chain_speculative_sampling``: it draws on the GPU, so only its statistics can be had."""

import importlib
from typing import Any

import torch

from specdec_proofs.suspects.suspect import Round, Suspect, SuspectError

__all__ = ["NAME", "WHAT", "adapt", "load"]

NAME = "flashinfer"
WHAT = "flashinfer.sampling.chain_speculative_sampling"
MODULE, FUNCTION = WHAT.rsplit(".", 1)


def load(checkout: str | None = None) -> Suspect:
    """The kernel that is installed; SuspectError where there is none, or no GPU.

    >>> load.__name__
    'load'
    """
    try:
        version = getattr(importlib.import_module("flashinfer"), "__version__", "of unknown version")
        function = getattr(importlib.import_module(MODULE), FUNCTION)
    except ImportError as error:
        raise SuspectError(f"flashinfer is not installed ({error}); expected the package flashinfer-python with {WHAT}") from error
    except AttributeError as error:
        raise SuspectError(f"flashinfer {version} has no {WHAT}; expected 0.2.3 or newer") from error
    if not torch.cuda.is_available():
        raise SuspectError(f"{WHAT} is a kernel for a GPU; expected a machine with one")
    return Suspect(NAME, f"flashinfer {version}, {FUNCTION}", adapt(function, "cuda"))


def adapt(function: Any, device: str = "cpu") -> Round:
    """The kernel as a round: a batch of one, ids padded with -1.

    >>> give = adapt(lambda q, tokens, p: (torch.tensor([[1, -1]]), 0, 0))
    >>> give(torch.eye(2), torch.eye(2)[:1], torch.tensor([0]))
    tensor([1])
    """

    def rounds(p: torch.Tensor, q: torch.Tensor | None, tokens: torch.Tensor) -> Any:
        if q is None:
            raise SuspectError("needs the draft's laws; received none")
        given = function(q[None].float().to(device), tokens[None].int().to(device), p[None].float().to(device))[0][0].cpu()
        return given[given >= 0]

    return rounds
