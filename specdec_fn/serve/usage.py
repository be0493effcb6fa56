"""What an answer cost: tokens read, tokens written, and how many of them came from drafts."""

from collections.abc import Sequence
from typing import Any

from specdec_fn.engine.generation import Generation
from specdec_fn.serve.asked import Asked

__all__ = ["usage"]


def usage(asked: Asked, generations: Sequence[Generation]) -> dict[str, Any]:
    """The counts, as OpenAI names them: a prompt counts once, whatever n is; accepted and rejected are drafted tokens.

    >>> from specdec_fn.engine.generation import Stats
    >>> asked = Asked("text_completion", (), 1, ((1, 2),), (), 0, False, False, False, 0, False, False)
    >>> usage(asked, [Generation([5, 6], "ab", "length", [], Stats(1, 4, 1, 2))])["completion_tokens_details"]
    {'accepted_prediction_tokens': 1, 'rejected_prediction_tokens': 3}
    """
    read, made = sum(map(len, asked.prompts)), sum(len(one.tokens) for one in generations)
    accepted, proposed = (sum(getattr(one.stats, name) for one in generations) for name in ("accepted", "proposed"))
    drafts = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": proposed - accepted}
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made, "completion_tokens_details": drafts}
