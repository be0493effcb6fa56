"""How tokens came to be, as JSON: the extension that ``speculation.explain`` asks for."""

import math
from collections.abc import Sequence
from typing import Any

from specdec_fn.serve.logprobs import written
from specdec_fn.speculate.explain import Explained, Why
from specdec_fn.text import Tokenizer

__all__ = ["emitted", "told"]


def emitted(why: Explained) -> int:
    """How many tokens a pass emitted.

    >>> emitted(Explained(7, (), Why(4, "plain", 0.5, None, 0.5, None, None, -1)))
    1
    """
    return sum(node.kind == "accepted" for node in why.nodes) + (why.final is not None)


def told(tokenizer: Tokenizer, why: Explained, pieces: Sequence[str]) -> dict[str, Any]:
    """A pass.

    Args:
        tokenizer: spells drafted tokens, special ones too.
        why: the pass.
        pieces: what each emitted token adds to the text.

    >>> tokenizer = Tokenizer(None, lambda ids, skip_special=True: bytes(ids).decode(), None, (), 256)
    >>> told(tokenizer, Explained(7, (), Why(65, "plain", 0.5, None, 0.25, None, None, -1)), ["A"])["final"]["text"]
    'A'
    """
    nodes = [_node(tokenizer, node) for node in why.nodes]
    final = None if why.final is None else _node(tokenizer, why.final)
    return {"base": why.base, "proposed": nodes, "final": final, "pieces": list(pieces)}


def _node(tokenizer: Tokenizer, node: Why) -> dict[str, Any]:
    numbers = {name: _finite(getattr(node, name)) for name in ("p", "q", "u", "bound", "noise")}
    return {"token": node.token, "text": written(tokenizer, node.token)[0], "kind": node.kind, **numbers, "parent": node.parent}


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
