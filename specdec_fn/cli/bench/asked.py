"""The proposers that a measurement is asked for, by what stands on the command line."""

from collections.abc import Mapping
from typing import Any

from specdec_fn.cost.curve import Curve
from specdec_fn.speculate import Proposer

__all__ = ["adapts", "curves", "entries", "inner", "wrapped"]

ADAPTIVE, DRAFT = "adaptive:", "draft:"
CONTEXT = 256  # committed tokens before the passes of a curve


def entries(text: str) -> list[str]:
    """The entries of a list with commas, each once.

    Raises:
        ValueError: an empty list.

    >>> entries("ngram,adaptive:ngram")
    ['ngram', 'adaptive:ngram']
    """
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ValueError(f"--proposers is {text!r}; expected names such as ngram,suffix,adaptive:ngram,draft:PATH")
    return found


def adapts(entry: str) -> bool:
    """Whether the entry chooses K by itself.

    >>> adapts("adaptive:ngram"), adapts("ngram")
    (True, False)
    """
    return entry.startswith(ADAPTIVE)


def inner(entry: str, target: Any, sampling: Any, tokenizer: Any = None) -> Proposer:
    """Who drafts for an entry: a name, names joined by "+", or ``draft:PATH``, each perhaps behind ``adaptive:``.

    Raises:
        ValueError: an unknown name; a draft model that cannot be loaded, or whose tokens are not those of the target's ``tokenizer``.

    >>> inner("adaptive:ngram", None, None).name
    'ngram'
    """
    from specdec_fn.load import load
    from specdec_fn.speculate import proposers
    from specdec_fn.text import vocabulary

    name = entry.removeprefix(ADAPTIVE)
    if not name.startswith(DRAFT):
        return proposers.named(name, target, *([] if sampling is None else [sampling]))
    small, own = load(name.removeprefix(DRAFT))
    if tokenizer is not None:
        vocabulary.check_same(tokenizer, own)
    return proposers.draft_model.proposer(small, sampling=sampling, vocab_size=target.config.vocab_size)


def curves(who: Mapping[str, Proposer], target: Any, sampling: Any, rows: int) -> dict[str, Curve]:
    """The cost curve that each entry decides by, measured: one for all that look up, and one with the price of a token for each that drafts."""
    from specdec_fn import measure

    shape = {"rows": rows, "context": max(1, min(CONTEXT, target.config.context - rows)), "sampling": sampling}
    shared = measure.curve(target, **shape)
    return {entry: shared if proposer.drafter is None else measure.curve(target, proposer=proposer, **shape) for entry, proposer in who.items()}


def wrapped(who: Mapping[str, Proposer], by_entry: Mapping[str, Curve]) -> dict[str, Proposer]:
    """The proposers of all entries, with those that adapt wrapped."""
    from specdec_fn.speculate.proposers import adaptive

    return {entry: adaptive.proposer(proposer, by_entry[entry]) if adapts(entry) else proposer for entry, proposer in who.items()}
