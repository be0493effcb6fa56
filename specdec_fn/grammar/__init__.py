"""Grammars for answers: JSON schemas, regular expressions, Lark grammars and lists of texts become an engine's ``Constraint``.

llguidance does the parsing (the extra ``grammar``); here it is made into values: a state is never changed once it is there, so a draft is rolled back
by keeping the state before it.
"""

from specdec_fn.grammar.vocabulary import Vocabulary, vocabulary
from specdec_fn.grammar.written import choice, json_object, json_schema, lark, regex

__all__ = ["Vocabulary", "choice", "json_object", "json_schema", "lark", "regex", "vocabulary"]
