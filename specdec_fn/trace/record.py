"""The passes of one generation as values, from the events of a request that asked for reasons."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from specdec_fn.engine.event import Event
from specdec_fn.speculate.explain import Why
from specdec_fn.text import Tokenizer, detokenizer
from specdec_fn.trace.words import because, rule, spelled

__all__ = ["Node", "Row", "Trace", "as_json", "record"]


class Node(NamedTuple):
    """A drafted node or a final token; the fields of ``speculate.explain.Why``, and what they mean.

    Attributes:
        token, kind, p, q, u, bound, noise, parent: as in ``Why``.
        text: of the token alone, with white space that can be seen.
        because: what decided, in one line.
        depth: place in the draft, from 1 on; of a final token one more than that of the last accepted node.
    """

    token: int
    text: str
    kind: str
    p: float
    q: float | None
    u: float | None
    bound: float | None
    noise: float | None
    parent: int
    because: str
    depth: int


class Row(NamedTuple):
    """One pass.

    Attributes:
        number: from 1 on.
        base: tokens committed before it.
        proposed: the draft, in its order.
        final: the recovered, bonus or plain token; None where an end came before it.
        tokens, kinds, pieces: of what was emitted, in order: ids, how each came to be, the text that each adds.
        branches: whether the draft is a tree.
    """

    number: int
    base: int
    proposed: tuple[Node, ...]
    final: Node | None
    tokens: tuple[int, ...]
    kinds: tuple[str, ...]
    pieces: tuple[str, ...]
    branches: bool


class Trace(NamedTuple):
    """One generation.

    Attributes:
        about: what it was asked for by: model, proposer, verifier, k, seed, sampling and whatever else, for the head of the page.
        prompt: its text, or ids where there is no tokenizer.
        rule: how its verifier decides.
        rows: the passes.
        text: what was generated, without a stop string.
        finish_reason: "stop", "length" or "abort".
        per_position: for each place in the draft ``(passes that drafted so far, passes that kept it)``.
    """

    about: Mapping[str, Any]
    prompt: str
    rule: str
    rows: tuple[Row, ...]
    text: str
    finish_reason: str
    per_position: tuple[tuple[int, int], ...]

    @property
    def proposed(self) -> int:
        """Drafted tokens that were verified."""
        return sum(len(row.proposed) for row in self.rows)

    @property
    def accepted(self) -> int:
        """Drafted tokens that were kept."""
        return sum(row.kinds.count("accepted") for row in self.rows)

    @property
    def emitted(self) -> int:
        """Tokens."""
        return sum(len(row.tokens) for row in self.rows)

    @property
    def tokens_per_pass(self) -> float:
        """Emitted / passes; 0 before the first pass."""
        return self.emitted / len(self.rows) if self.rows else 0.0


def record(
    events: Iterable[Event],
    tokenizer: Tokenizer | None,
    prompt: Sequence[int],
    verifier: str,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> Trace:
    """Makes a trace of a generation's events.

    Args:
        events: of one request that has ``explain``, in their order; the last may be missing, where it was called off.
        tokenizer: spells the tokens, or None.
        prompt: its ids.
        verifier: the name of its rule.
        about: for the head of the page.

    Raises:
        ValueError: an event that has tokens and no reasons.

    >>> from specdec_fn.speculate.explain import Explained, Why
    >>> why = Explained(2, (Why(7, "rejected", 0.25, 1.0, 0.75, 0.25, None, -1),), Why(5, "recovered", 0.5, None, 0.5, None, None, -1))
    >>> trace = record([Event(0, [5], [-0.7], None, kinds=["recovered"], why=why, proposed=1)], None, [1, 2], "token")
    >>> trace.rows[0].proposed[0].because, trace.per_position, trace.finish_reason
    ('u = .750 ≥ p/q = .250', ((1, 0),), 'abort')
    """
    spelling = None if tokenizer is None else detokenizer.init(tokenizer, prompt, skip_special=False)
    rows: list[Row] = []
    texts: list[str] = []
    reason = "abort"
    for event in events:
        reason = event.finish_reason or reason
        texts.append(event.text)
        if not event.tokens:
            continue
        if event.why is None:
            raise ValueError("an event of the request has no reasons; expected those of a request with explain=True")
        pieces = []
        for token in event.tokens:
            piece = spelled(tokenizer, token)
            if spelling is not None:
                spelling, piece = detokenizer.feed(spelling, [token])
            pieces.append(piece)
        depths = _depths(event.why.nodes)
        nodes = tuple(_node(tokenizer, verifier, why, depth) for why, depth in zip(event.why.nodes, depths, strict=True))
        last = event.why.final
        final = None if last is None else _node(tokenizer, verifier, last, 1 + (depths[last.parent] if last.parent >= 0 else 0))
        branches = any(node.parent != place - 1 for place, node in enumerate(nodes))
        emitted = tuple(event.tokens), tuple(event.kinds), tuple(pieces)
        rows.append(Row(len(rows) + 1, event.why.base, nodes, final, *emitted, branches))
    shown = " ".join(map(str, prompt)) if tokenizer is None else tokenizer.decode(prompt, skip_special=False)
    return Trace(about, shown, rule(verifier), tuple(rows), "".join(texts), reason, _per_position(rows))


def as_json(trace: Trace) -> dict[str, Any]:
    """A trace as JSON values.

    >>> as_json(Trace({"seed": 3}, "so", "by chance", (), "", "abort", ()))["seed"]
    3
    """
    stats = {
        "passes": len(trace.rows),
        "proposed": trace.proposed,
        "accepted": trace.accepted,
        "emitted": trace.emitted,
        "tokens_per_pass": trace.tokens_per_pass,
        "per_position": [list(pair) for pair in trace.per_position],
    }
    rows = [
        {
            **row._asdict(),
            "proposed": [node._asdict() for node in row.proposed],
            "final": None if row.final is None else row.final._asdict(),
        }
        for row in trace.rows
    ]
    tokens = [token for row in trace.rows for token in row.tokens]
    told = {"prompt": trace.prompt, "text": trace.text, "tokens": tokens, "finish_reason": trace.finish_reason}
    return {**trace.about, **told, "rule": trace.rule, "stats": stats, "passes": rows}


def _node(tokenizer: Tokenizer | None, verifier: str, why: Why, depth: int) -> Node:
    text = spelled(tokenizer, why.token)
    return Node(why.token, text, why.kind, why.p, why.q, why.u, why.bound, why.noise, why.parent, because(verifier, why), depth)


def _depths(nodes: Sequence[Why]) -> list[int]:
    depths: list[int] = []
    for node in nodes:
        depths.append(1 + (depths[node.parent] if node.parent >= 0 else 0))
    return depths


def _per_position(rows: Sequence[Row]) -> tuple[tuple[int, int], ...]:
    deep = [max((node.depth for node in row.proposed), default=0) for row in rows]
    kept = [row.kinds.count("accepted") for row in rows]
    return tuple((sum(depth > place for depth in deep), sum(count > place for count in kept)) for place in range(max(deep, default=0)))
