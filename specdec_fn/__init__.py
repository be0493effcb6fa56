"""Lossless speculative decoding as pure functions on PyTorch, and proofs of the code that ships.

    from specdec_fn import generate, load

    model, tokenizer = load("smollm2-135m")
    print(generate(model, "The capital of France is", tokenizer=tokenizer, proposer="ngram").text)

The names here are loaded on first use, so that a piece such as ``specdec_fn.speculate`` brings in only what it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_fn.doors import generate, stream
    from specdec_fn.engine.generation import Generation, Piece, Stats
    from specdec_fn.load import load
    from specdec_fn.sampling import SamplingParams

__all__ = ["Generation", "Piece", "SamplingParams", "Stats", "generate", "load", "stream"]

_ROOMS = {
    "Generation": "specdec_fn.engine.generation",
    "Piece": "specdec_fn.engine.generation",
    "SamplingParams": "specdec_fn.sampling",
    "Stats": "specdec_fn.engine.generation",
    "generate": "specdec_fn.doors",
    "load": "specdec_fn.load",
    "stream": "specdec_fn.doors",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'specdec_fn' has no attribute {name!r}")
    value = getattr(import_module(_ROOMS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
