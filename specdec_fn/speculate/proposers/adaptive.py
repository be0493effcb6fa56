"""Choosing K from a measured cost curve and the request's own acceptance: a wrapper that drafts as many tokens as emit most a second, or none.

What it watches is how many drafted tokens each pass kept. Acceptance comes in runs (a text that quotes goes on quoting), so three rates are
kept, each a mean with fading memory that begins with a hopeful guess: of a first drafted token after a draft that was kept whole, of one after
any other draft, and of every later token of a draft. From these the curve gives the best K. One draft kept whole is enough to jump.

Two rules keep it from costing what plain decoding would not. A ledger, in plain passes of the curve: what was emitted would have cost so much
plainly, and has cost so much; a draft is made only if, were all of it rejected, the whole would still have cost no more than ``1 + share`` of
plain decoding plus ``start`` passes. That holds for any text: of n tokens, at least 1 / (1 + share + start / n) of plain speed, which is 0.97 from
63 tokens on. And once the best K is 0, it rests for 1, 2, 4, ... passes between probes of the cheapest draft, up to ``longest_pause`` or, where
probes are cheap, until they cost a third of ``share``. What the curve does not price is outside that: a drafting model with a cache of its own reads
the prompt before its first draft, and after a rest what was emitted meanwhile; one that shares the target's cache reads neither.

Lossless: K is decided before the draft is made, from the lengths of earlier passes, so nothing that this draft draws can have a say in whether
it is verified. (Were K chosen by the drawn tokens, a soft law q would no longer be the law of what is verified.) Pure: the
curve is a value, so the same tokens give the same choices, and no clock is read.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from specdec_fn.cost import curve as costs
from specdec_fn.cost.curve import Curve
from specdec_fn.random import Key
from specdec_fn.speculate import tree
from specdec_fn.speculate.draft import Draft, chain
from specdec_fn.speculate.proposer import Proposer, raced

__all__ = ["Rate", "Record", "chosen", "proposer", "settled"]

GUESS = 2.0  # tokens that a guess counts for
MEMORY = 0.98  # weight that what was seen keeps with each new draft
FADE = 0.98  # and with each draft that says nothing about it
NEARLY = 0.02  # of a plain pass: a probe that costs no more than this above the cheapest may be longer
SPARE = 8.0  # most worst cases that the ledger saves up: a good past must not pay for a bad present at length


class Rate(NamedTuple):
    """A mean with fading memory: tokens ``kept`` of those ``seen``, of which the first few are a guess."""

    kept: float
    seen: float

    @property
    def mean(self) -> float:
        """Share of tokens kept."""
        return self.kept / self.seen

    def add(self, kept: int, seen: int) -> "Rate":
        """The rate after one more draft, in which ``kept`` of ``seen`` tokens were kept."""
        return Rate(MEMORY * self.kept + kept, MEMORY * self.seen + seen)

    def fade(self, guess: "Rate") -> "Rate":
        """The rate after a draft that says nothing about it: a little nearer to the guess."""
        return Rate(FADE * self.kept + (1 - FADE) * guess.kept, FADE * self.seen + (1 - FADE) * guess.seen)


FIRST, LATER = Rate(0.6 * GUESS, GUESS), Rate(0.8 * GUESS, GUESS)  # hopeful guesses: of a draft's first token, and of all others


class Record(NamedTuple):
    """What the wrapper remembers.

    Attributes:
        inner: the wrapped proposer's state.
        base: committed tokens before the last pass; -1 before the first.
        rows: drafted nodes of the last pass; ``depth``, the most that it could keep; ``drawn``, those that a model drew.
        hot, cold: first tokens of drafts after one that was kept whole, and of all others; ``later``, all other tokens of drafts.
        streak: whether the last draft was kept whole.
        ledger: plain passes that may still be lost.
        pause: passes of the current or last rest; ``wait``: passes of it that are left.
    """

    inner: Any
    base: int
    rows: int
    depth: int
    drawn: int
    hot: Rate
    cold: Rate
    later: Rate
    streak: bool
    ledger: float
    pause: int
    wait: int


def proposer(inner: Proposer, curve: Curve, *, share: float = 0.015, start: float = 1.0, longest_pause: int = 64) -> Proposer:
    """Wraps a proposer so that it drafts the K that emits most tokens a second on a measured machine.

    Args:
        inner: who drafts. A wrapper that limits drafts by a rule of its own, such as ``paying``, is taken off first. This wrapper stands
            outermost, since it reckons with every pass; within ``first``, parts may keep a ``paying`` of their own.
        curve: seconds of passes by rows, and of a drafted token.
        share: part of plain decoding's time that probing may cost in the long run.
        start: plain passes that it may cost at the start besides.
        longest_pause: most passes without a probe.

    Returns:
        A proposer of the inner one's name, with its ``drafter``, for which it decides K too.

    Raises:
        TypeError, ValueError: what is no Proposer or Curve, or a setting out of range.

    >>> from specdec_fn.random import key
    >>> from specdec_fn.speculate.proposers import scripted
    >>> wrong = proposer(scripted.proposer(lambda context: [9] * 4), Curve((1.0, 1.1, 1.2, 1.3, 1.4)))
    >>> state, tokens, lengths = wrong.init([]), [1], []
    >>> for _ in range(12):
    ...     state, draft = wrong.propose(key(0), state, tokens, 4, position=len(tokens))
    ...     tokens, lengths = [*tokens, 1], [*lengths, int(draft.length)]
    >>> lengths
    [4, 4, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    """
    if not isinstance(inner, Proposer):
        raise TypeError(f"the inner proposer is {inner!r:.80}; expected a Proposer")
    if not isinstance(curve, Curve):
        raise TypeError(f"curve is {curve!r:.80}; expected a Curve, such as measure.curve(model)")
    if not (share >= 0 and start >= 0 and longest_pause >= 1):
        raise ValueError(f"received share {share}, start {start}, longest_pause {longest_pause}; expected 0, 0 and 1 or more")
    bare = inner if inner.inner is None else inner.inner

    def init(prompt: Sequence[int]) -> Record:
        return Record(bare.init(prompt), -1, 0, 0, 0, LATER, FIRST, LATER, False, start, 0, 0)

    def budget(state: Record, tokens: Sequence[int], k: int) -> tuple[Record, int]:
        record = settled(state, curve, len(tokens), share=share, start=start, longest_pause=longest_pause)
        most = 0 if record.wait > 0 else chosen(record, curve, k)
        return record._replace(base=len(tokens), rows=0, depth=0, drawn=0, wait=max(record.wait - 1, 0)), most

    def propose(key: Key, state: Record, tokens: Sequence[int], k: int, *, position: int) -> tuple[Record, Draft]:
        record, most = budget(state, tokens, k)
        if not most:
            return record, chain((), k)
        held, draft = bare.propose(key, record.inner, tokens, most, position=position)
        return _noted(record._replace(inner=held), draft), draft

    drafter = bare.drafter
    if drafter is None:
        return Proposer(bare.name, init, propose, inner=bare)

    def again(model: Any, vocab_size: int, *, race: bool = drafter.race) -> Proposer:
        renewed = raced(bare, race, vocab_size) if drafter.again is None else drafter.again(model, vocab_size, race=race)
        return proposer(renewed, curve, share=share, start=start, longest_pause=longest_pause)

    def ask(key: Key, state: Record, tokens: Sequence[int], k: int, *, position: int) -> tuple[Record, Draft | int]:
        record, most = budget(state, tokens, k)
        if not most:
            return record, chain((), k)
        held, wanted = drafter.ask(key, record.inner, tokens, most, position=position)
        record = record._replace(inner=held)
        return (_noted(record, wanted), wanted) if isinstance(wanted, Draft) else (record, wanted)

    def told(state: Record, tokens: Sequence[int], draft: Draft) -> Record:
        return _noted(state._replace(inner=drafter.told(state.inner, tokens, draft)), draft)

    return Proposer(bare.name, init, propose, drafter._replace(again=again, ask=ask, told=told), bare)


def _noted(record: Record, draft: Draft) -> Record:
    """The record with the draft that its next pass verifies."""
    rows = int(draft.length)
    depth = rows if draft.parents is None or not rows else int(tree.depths(draft.parents[:rows]).amax())
    return record._replace(rows=rows, depth=depth, drawn=0 if draft.probs is None else rows)


def settled(record: Record, curve: Curve, committed: int, *, share: float = 0.015, start: float = 1.0, longest_pause: int = 64) -> Record:
    """The record once the last pass is known: a pass emits what it kept of its draft and one token more.

    Args:
        record: as it was before that pass, its draft noted.
        curve, share, start, longest_pause: as in ``proposer``.
        committed: tokens that are committed now.

    >>> fresh = Record((), 10, 4, 4, 0, LATER, FIRST, LATER, False, 1.0, 0, 0)
    >>> after = settled(fresh, Curve((1.0, 1.1, 1.2, 1.3, 1.4)), 13)
    >>> round(after.cold.mean, 2), round(after.later.mean, 2), after.streak, round(after.ledger, 3)
    (0.74, 0.65, False, 2.645)
    """
    emitted = committed - record.base
    if record.base < 0 or emitted < 1:
        return record
    plain, most = curve.seconds[0], max(_loss(curve, k) for k in range(len(curve.seconds)))
    spent = (costs.seconds(curve, record.rows + 1) + record.drawn * curve.draft) / plain
    ledger = min(record.ledger + (1 + share) * emitted - spent, start + SPARE * most)
    kept = min(emitted - 1, record.depth)
    if not record.depth:
        return record._replace(ledger=ledger)
    tried = min(kept + 1, record.depth)  # the first token that was rejected is the last that was looked at
    first, rest = min(kept, 1), max(kept - 1, 0)
    hot, cold = (record.hot.add(first, 1), record.cold) if record.streak else (record.hot, record.cold.add(first, 1))
    later = record.later.add(rest, tried - 1) if tried > 1 else record.later.fade(LATER)
    record = record._replace(hot=hot, cold=cold, later=later, streak=kept == record.depth, ledger=ledger)
    if _best(record, curve, len(curve.seconds) - 1):
        return record._replace(pause=0, wait=0)
    probe = _loss(curve, _probe(curve, len(curve.seconds) - 1))
    enough = longest_pause if 3 * probe >= share * longest_pause else max(math.ceil(3 * probe / share), 1)  # the rarer probes are not worth it
    pause = min(max(2 * record.pause, 1), enough)
    return record._replace(pause=pause, wait=pause)


def chosen(record: Record, curve: Curve, k: int) -> int:
    """How many tokens to draft, at most ``k``: the best by the rates, or after a rest the cheapest probe, as far as the ledger allows.

    >>> fresh = Record((), -1, 0, 0, 0, LATER, FIRST, LATER, False, 1.0, 0, 0)
    >>> chosen(fresh, Curve((1.0, 1.1, 1.2, 1.3, 1.4)), 4), chosen(fresh._replace(ledger=0.25), Curve((1.0, 1.1, 1.2, 1.3, 1.4)), 4)
    (4, 2)
    """
    most = min(_best(record, curve, k) or _probe(curve, k), k)
    while most and _loss(curve, most) > record.ledger:
        most -= 1
    return most


def _best(record: Record, curve: Curve, k: int) -> int:
    first = record.hot if record.streak else record.cold
    return costs.best_k(curve, (first.mean, record.later.mean), k)


def _probe(curve: Curve, k: int) -> int:
    """The longest of the nearly cheapest drafts."""
    return max((most for most in range(1, k + 1) if _loss(curve, most) <= _loss(curve, 1) + NEARLY), default=0)


def _loss(curve: Curve, k: int) -> float:
    """Plain passes that are lost if all of a draft is rejected."""
    return (costs.seconds(curve, k + 1) + k * curve.draft) / curve.seconds[0] - 1
