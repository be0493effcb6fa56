"""SGLang's chain rule, ``sglang.srt.speculative.reject_sampling.chain_speculative_sampling_triton``: a Triton kernel, so it needs a GPU."""

import importlib
from typing import Any

import torch

from specdec_proofs.suspects.suspect import Round, Suspect, SuspectError

__all__ = ["NAME", "WHAT", "adapt", "load"]

NAME = "sglang"
WHAT = "sglang.srt.speculative.reject_sampling.chain_speculative_sampling_triton"
MODULE, FUNCTION = WHAT.rsplit(".", 1)


def load(checkout: str | None = None) -> Suspect:
    """The kernel that is installed; SuspectError where there is none, or no GPU.

    >>> load.__name__
    'load'
    """
    try:
        version = getattr(importlib.import_module("sglang"), "__version__", "of unknown version")
    except ImportError as error:
        raise SuspectError(f"sglang is not installed ({error}); expected the package sglang with {WHAT}") from error
    try:
        function = getattr(importlib.import_module(MODULE), FUNCTION)
    except (ImportError, AttributeError) as error:
        raise SuspectError(f"sglang {version} has no {WHAT}; expected a version that verifies chains by rejection") from error
    if not torch.cuda.is_available():
        raise SuspectError(f"{WHAT} is a kernel for a GPU; expected a machine with one")
    return Suspect(NAME, f"sglang {version}, {FUNCTION}", adapt(function, "cuda"))


def adapt(function: Any, device: str = "cpu") -> Round:
    """The kernel as a round: it writes its results into tensors that it is given, and takes its uniforms as arguments.

    >>> def accept_nothing(predicts, accept_index, accept_token_num, *rest):
    ...     predicts[0], accept_index[0, 0], accept_token_num[0] = 1, 0, 0
    >>> adapt(accept_nothing)(torch.eye(2), torch.eye(2)[:1], torch.tensor([0])).tolist()
    [1]
    """

    def rounds(p: torch.Tensor, q: torch.Tensor | None, tokens: torch.Tensor) -> Any:
        if q is None:
            raise SuspectError("needs the draft's laws; received none")
        k, place = len(tokens), {"device": device}
        predicts = torch.zeros(k + 1, dtype=torch.int32, **place)  # type: ignore[call-overload]
        index = torch.full((1, k + 1), -1, dtype=torch.int32, **place)  # type: ignore[call-overload]
        count = torch.zeros(1, dtype=torch.int32, **place)  # type: ignore[call-overload]
        candidates = torch.cat([torch.zeros(1, dtype=torch.int64), tokens])[None].to(device)  # the first is the token before the draft
        nodes = torch.arange(k + 1)[None].to(device)
        links = torch.full((1, k + 1), -1).to(device)
        coins, final = torch.rand(1, k + 1, dtype=torch.float32), torch.rand(1, dtype=torch.float32)
        laws = p[None].to(device), q[None].to(device)
        function(predicts, index, count, candidates, nodes, links, links, coins.to(device), final.to(device), *laws, 1.0, 1.0, True)
        return predicts[index[0, : int(count[0]) + 1].long()].cpu()

    return rounds
