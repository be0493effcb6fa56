"""Proposing only while it pays: a wrapper that watches how much of its drafts was kept, drafts short until they are, and rests when they are not.

A pass with drafted rows costs more than a pass with one row, by a factor that depends on the machine and grows with the rows. So a first draft
is short, a draft that was kept whole lets the next be twice as long, and one that was not makes the next as short as what was kept. A running
mean of tokens kept a draft says whether it pays at all: while it is below ``least`` the wrapper proposes nothing for 1, 2, 4, ... passes up to
``longest_pause``, then tries one short draft again. The rule looks only at committed tokens, so it is lossless.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from specdec_fn.random import Key
from specdec_fn.speculate.draft import Draft, chain
from specdec_fn.speculate.proposer import Proposer, raced

__all__ = ["Record", "proposer"]


class Record(NamedTuple):
    """What the wrapper remembers.

    Attributes:
        inner: the wrapped proposer's state.
        drafted: the ids of the last draft, and ``base``, the number of tokens it followed.
        kept: running mean of tokens kept a draft.
        reach: most tokens of the next draft.
        pause: passes of the current or last pause; ``wait``: passes of it that are left.
    """

    inner: Any
    drafted: tuple[int, ...]
    base: int
    kept: float
    reach: int
    pause: int
    wait: int


def proposer(
    inner: Proposer, *, least: float = 0.5, start: float = 0.75, memory: float = 0.75, shortest: int = 2, longest_pause: int = 32
) -> Proposer:
    """Wraps a proposer so that it drafts no more than pays.

    Args:
        inner: the proposer that is asked.
        least: tokens a draft must save on average: above (time of a short drafted pass / time of a plain pass) - 1.
        start: the mean it begins with, before anything is known.
        memory: weight of the past in the running mean, in [0, 1).
        shortest: tokens of the first draft, and of one after a rest.
        longest_pause: most passes without a draft.

    Raises:
        ValueError: a setting out of range.

    >>> from specdec_fn.random import key
    >>> from specdec_fn.speculate.proposers import scripted
    >>> wrong = proposer(scripted.proposer(lambda context: [9, 9]))
    >>> state, tokens, lengths = wrong.init([]), [1], []
    >>> for _ in range(8):
    ...     state, draft = wrong.propose(key(0), state, tokens, 2, position=len(tokens))
    ...     tokens, lengths = [*tokens, 1], [*lengths, int(draft.length)]
    >>> lengths
    [2, 2, 0, 2, 0, 0, 2, 0]
    """
    if not (least >= 0 and start >= 0 and 0 <= memory < 1 and shortest >= 1 and longest_pause >= 1):
        received = f"least {least}, start {start}, memory {memory}, shortest {shortest}, longest_pause {longest_pause}"
        raise ValueError(f"received {received}; expected least and start of 0 or more, memory in [0, 1), shortest and longest_pause of 1 or more")

    def init(prompt: Sequence[int]) -> Record:
        return Record(inner.init(prompt), (), len(prompt), start, shortest, 0, 0)

    def propose(key: Key, state: Record, tokens: Sequence[int], k: int, *, position: int) -> tuple[Record, Draft]:
        record = _look_back(state, tokens)
        if record.wait > 0:
            return record._replace(drafted=(), wait=record.wait - 1), chain((), k)
        held, draft = inner.propose(key, record.inner, tokens, min(k, record.reach), position=position)
        return _noted(record._replace(inner=held), tokens, draft), draft

    def _noted(record: Record, tokens: Sequence[int], draft: Draft) -> Record:
        return record._replace(drafted=tuple(draft.tokens[: int(draft.length)].tolist()), base=len(tokens))

    def _look_back(record: Record, tokens: Sequence[int]) -> Record:
        """Settles the last draft against what was committed since, and decides whether to rest."""
        if not record.drafted or len(tokens) <= record.base:
            return record
        agreed = 0
        for drafted, committed in zip(record.drafted, tokens[record.base :], strict=False):
            if drafted != committed:
                break
            agreed += 1
        kept = memory * record.kept + (1 - memory) * agreed
        reach = 2 * record.reach if agreed == len(record.drafted) else max(agreed, shortest)
        settled = record._replace(drafted=(), kept=kept, reach=reach, pause=0, wait=0)
        if kept >= least:
            return settled
        pause = min(max(2 * record.pause, 1), longest_pause)
        return settled._replace(reach=shortest, pause=pause, wait=pause)

    drafter = inner.drafter
    if drafter is None:
        return Proposer(inner.name, init, propose, inner=inner)

    def again(model: Any, vocab_size: int, *, race: bool = drafter.race) -> Proposer:
        renewed = raced(inner, race, vocab_size) if drafter.again is None else drafter.again(model, vocab_size, race=race)
        return proposer(renewed, least=least, start=start, memory=memory, shortest=shortest, longest_pause=longest_pause)

    def ask(key: Key, state: Record, tokens: Sequence[int], k: int, *, position: int) -> tuple[Record, Draft | int]:
        record = _look_back(state, tokens)
        if record.wait > 0:
            return record._replace(drafted=(), wait=record.wait - 1), chain((), k)
        held, wanted = drafter.ask(key, record.inner, tokens, min(k, record.reach), position=position)
        record = record._replace(inner=held)
        return (_noted(record, tokens, wanted), wanted) if isinstance(wanted, Draft) else (record, wanted)

    def told(state: Record, tokens: Sequence[int], draft: Draft) -> Record:
        return _noted(state._replace(inner=drafter.told(state.inner, tokens, draft)), tokens, draft)

    return Proposer(inner.name, init, propose, drafter._replace(again=again, ask=ask, told=told), inner)
