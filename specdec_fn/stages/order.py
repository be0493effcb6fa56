"""The twenty stages in the order in which an engine is built."""

from importlib import import_module

from specdec_fn.stages.stage import Stage

__all__ = ["ROOMS", "stages"]

ROOMS = (
    "naive_loop",
    "kv_cache",
    "roofline",
    "static_batching",
    "continuous_batching",
    "block_allocator",
    "paged_attention",
    "paged_attention_triton",
    "prefix_caching",
    "scheduler",
    "chunked_prefill",
    "graphs",
    "sampler",
    "detokenizer",
    "server",
    "rejection_sampler",
    "ngram_proposer",
    "draft_model",
    "choice_of_k",
    "speculation_batching",
)


def stages() -> tuple[Stage, ...]:
    """All stages; stage n stands at place n - 1.

    >>> [stage.name for stage in stages()[:3]]
    ['naive loop', 'KV cache', 'roofline']
    """
    return tuple(import_module(f"specdec_fn.stages.{room}").stage for room in ROOMS)
