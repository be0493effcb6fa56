"""How a request speculates: an extension that changes its speed, and never what its tokens mean, unless the server lets that be."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from specdec_fn.sampling import SamplingParams
from specdec_fn.serve import fields
from specdec_fn.serve.asked import Served
from specdec_fn.serve.fields import Field, refused
from specdec_fn.speculate import Verifier, verifiers

__all__ = ["Speculation", "proposers_of", "settled", "speculation", "verifiers_of"]


class Speculation(NamedTuple):
    """How a request speculates.

    Attributes:
        proposer: a name, or several joined by "+".
        verifier: a name, or the rule itself where it does not keep the target's law.
        k: drafted tokens a pass.
        explain: whether to tell of every token how it came to be.
    """

    proposer: str
    verifier: Verifier | str
    k: int
    explain: bool


def proposers_of(served: Served) -> tuple[str, ...]:
    """The proposers that a request may name, and join.

    >>> from specdec_fn.serve.limits import Limits
    >>> proposers_of(Served("m", None, 8, 4, Limits(proposers=("none", "suffix")), "ngram", "token", 5))
    ('ngram', 'none', 'suffix')
    """
    return tuple(dict.fromkeys([*served.proposer.split("+"), *served.limits.proposers]))


def verifiers_of(served: Served) -> tuple[str, ...]:
    """The verifiers that a request may name.

    >>> from specdec_fn.serve.limits import Limits
    >>> "typical" in verifiers_of(Served("m", None, 8, 4, Limits(), "ngram", "token", 5))
    False
    """
    return tuple(name for name, rule in verifiers.all.items() if rule.lossless or served.limits.lossy or name == served.verifier)


def speculation(served: Served) -> Field:
    """The field.

    >>> from specdec_fn.serve.limits import Limits
    >>> speculation(Served("m", None, 8, 4, Limits(), "ngram", "token", 5)).kind.read("speculation", {"k": 3})
    {'k': 3}
    """
    names = proposers_of(served)
    joined = [re.escape(name) for name in names if name != "none"]
    one = f"({'|'.join(joined)})"
    form = "|".join((["none"] if "none" in names else []) + ([f"{one}(\\+{one}){{0,{len(joined) - 1}}}"] if joined else []))
    known = f"one of {', '.join(names)}" + (", or some of them joined by +, each once" if len(joined) > 1 else "")
    inner = (
        Field("proposer", _each_once(fields.pattern(form, known), known), f"Who drafts: {known}."),
        Field("verifier", fields.choice(*verifiers_of(served)), "The rule that accepts drafted tokens."),
        Field("k", fields.integer(0, max(served.limits.k, served.k)), "Most drafted tokens of a pass."),
        Field("explain", fields.flag(), "Tell of every token how it came to be."),
    )
    return Field("speculation", fields.record(inner), "How the request speculates; what it does not say is the server's own setting.")


def _each_once(kind: fields.Kind, expected: str) -> fields.Kind:
    def read(path: str, value: Any) -> str:
        names = kind.read(path, value).split("+")
        if len(set(names)) < len(names):
            raise refused(path, value, expected)
        return "+".join(names)

    return kind._replace(read=read)


def settled(given: Mapping[str, Any], served: Served, sampling: SamplingParams) -> Speculation:
    """What the field comes to, with the server's settings for what it leaves open.

    Args:
        given: the fields of the request, as they were read.

    Raises:
        Refusal: settings that do not go together.

    >>> from specdec_fn.serve.limits import Limits
    >>> settled({}, Served("m", None, 8, 4, Limits(), "ngram", "token", 5), SamplingParams())
    Speculation(proposer='ngram', verifier='token', k=5, explain=False)
    """
    said = given.get("speculation", {})
    proposer, name = said.get("proposer", served.proposer), said.get("verifier", served.verifier)
    rule = verifiers.all[name]
    if name == "greedy" and not sampling.greedy:
        raise refused("temperature", sampling.temperature, "0 under the verifier greedy, or another verifier, such as token")
    if "ngram_tree" in proposer.split("+") and not rule.trees:
        takes = ", ".join(one for one in verifiers_of(served) if verifiers.all[one].trees)
        path = "speculation.proposer" if "proposer" in said else "speculation.verifier"
        raise refused(path, proposer if "proposer" in said else name, f"a proposer without trees, or one of the verifiers {takes}")
    return Speculation(proposer, name if rule.lossless else rule, said.get("k", served.k), said.get("explain", False))
