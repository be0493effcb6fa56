"""A grammar as pure functions of a state: what may come next, and what follows once it came."""

from typing import Any, NamedTuple

import numpy as np
import torch

from specdec_fn.engine import Constraint
from specdec_fn.grammar.trial import LIMITS, refusal, said
from specdec_fn.grammar.vocabulary import Vocabulary
from specdec_fn.typing import Bool, Tensor

__all__ = ["State", "constraint"]


class State(NamedTuple):
    """Where an answer stands.

    Attributes:
        matcher: llguidance's matcher after the text so far; only copies of it are worked with.
        over: whether the answer was ended; then nothing but an end may follow.
    """

    matcher: Any
    over: bool = False


def constraint(known: Vocabulary, grammar: str, *, of: str) -> Constraint:
    """The constraint of a grammar.

    End ids may come exactly where the grammar accepts what is there. Behind an end (a request with
    ``ignore_eos`` goes on there) only ends may come.

    Args:
        known: of the model.
        grammar: as llguidance's ``LLMatcher`` takes it.
        of: what it was written as, for messages.

    Raises:
        ValueError: llguidance refuses it, it takes too long to build, or no text satisfies it.

    >>> from specdec_fn.grammar import regex
    >>> from specdec_fn.text import Tokenizer
    >>> def decode(ids, skip_special=True):
    ...     return "".join("ab"[i:][:1] for i in ids)
    >>> letters = Tokenizer(lambda text: [ord(sign) - 97 for sign in text], decode, None, (2,), 3)
    >>> from specdec_fn.grammar import vocabulary
    >>> init, mask, advance = regex(vocabulary(letters, 3), "ab*")
    >>> mask(init).tolist(), mask(advance(init, 0)).tolist()
    ([True, False, False], [False, True, True])
    """
    from llguidance import LLMatcher, LLParserLimits

    why = refusal(grammar)
    if not why:
        matcher = LLMatcher(known.tokens, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
        why = said(matcher.get_error())
    if why:
        raise ValueError(f"{of} cannot be followed: {why}; expected one that llguidance can follow")
    made = _Rules(known)
    init = State(matcher)
    try:
        possible = bool(made.mask(init).any())
    except ValueError as error:
        raise ValueError(f"{of} cannot be followed: {error}; expected one that llguidance can follow") from None
    if not possible:
        raise ValueError(f"{of} cannot be followed: no tokens spell what it asks for; expected a text that the model can write")
    return Constraint(init, made.mask, made.advance)


class _Rules(NamedTuple):
    """The two functions, for one vocabulary."""

    known: Vocabulary

    def mask(self, state: State) -> Bool[Tensor, "vocab"]:
        """What may come next; ValueError where llguidance reaches one of its limits."""
        if state.over:
            return self.known.ends.clone()
        matcher = state.matcher.deep_copy()
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            raise ValueError(said(matcher.get_error()))
        mask = torch.from_numpy(np.unpackbits(bits, bitorder="little", count=len(self.known.text))).view(torch.bool)
        mask &= self.known.text
        return mask.logical_or_(self.known.ends) if state.matcher.is_accepting() else mask

    def advance(self, state: State, token: int) -> State:
        """What follows a token; ValueError where the token cannot come."""
        if not 0 <= token < len(self.known.text):
            raise ValueError(f"the token is {token}; expected an id in [0, {len(self.known.text)})")
        if self.known.ends[token]:
            if not state.over and not state.matcher.is_accepting():
                raise ValueError(f"the token is {token}, an end; expected more text, which the grammar needs")
            return state._replace(over=True)
        if state.over or not self.known.text[token]:
            raise ValueError(f"the token is {token}; expected {'an end' if state.over else 'text'}")
        matcher = state.matcher.deep_copy()
        if not matcher.consume_token(token):
            raise ValueError(f"the token is {token}; expected one that may come: {said(matcher.get_error())}")
        return State(matcher)
