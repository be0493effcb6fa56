"""The proposers, one room each, and the names of those that need no argument but the target.

Those that draft with a model, and ``suffix``, are loaded on first use, since they alone bring in models, caches and persistent maps.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate.proposer import Proposer
from specdec_fn.speculate.proposers import adaptive, first, ngram, ngram_tree, paying, scripted

if TYPE_CHECKING:
    from specdec_fn.models import Model
    from specdec_fn.speculate.proposers import draft_model, early_exit, quantized, suffix

__all__ = [
    "adaptive",
    "draft_model",
    "drafting",
    "early_exit",
    "first",
    "named",
    "names",
    "names_in",
    "ngram",
    "ngram_tree",
    "of_target",
    "paying",
    "quantized",
    "scripted",
    "suffix",
]

LEAST = 1.0  # tokens that the draft of a model must save on average: it costs forwards of its own

_FACTORIES: Mapping[str, Callable[[], Proposer]] = MappingProxyType(
    {
        "ngram": lambda: paying.proposer(ngram.proposer()),
        "ngram_tree": ngram_tree.proposer,
        "suffix": lambda: paying.proposer(import_module(f"{__name__}.suffix").proposer()),
    }
)
of_target: tuple[str, ...] = ("early_exit", "quantized")
names: tuple[str, ...] = (*_FACTORIES, *of_target)


def __getattr__(name: str) -> Any:
    if name not in ("draft_model", "suffix", *of_target):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def named(
    proposer: Any,
    model: "Model | None" = None,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    *,
    made: "Mapping[str, Model]" = MappingProxyType({}),
) -> Proposer:
    """The proposer of a name, or of several joined by "+" (the first that drafts wins), or the proposer itself.

    By name a proposer (all but ngram_tree) comes with ``paying``: it rests where its drafts do not pay. ``ngram.proposer()`` itself always drafts.

    Args:
        proposer: a name, or a Proposer, which is handed on.
        model: the target, for the names in ``of_target``, which draft with its own weights.
        sampling: the controls of those drafts.
        made: drafting models by name: for names in ``of_target`` those that ``drafting`` made before, which are then not made again; for
            "draft_model", which has no model of its own, one with the target's ids.

    Raises:
        ValueError: an unknown name, a name in ``of_target`` without a model, or something that is neither a name nor a Proposer; for the others
            what their rooms raise.

    >>> named("ngram").name, named("ngram+suffix").name
    ('ngram', 'ngram+suffix')
    """
    if isinstance(proposer, Proposer):
        return proposer
    parts = [_of_name(name, model, sampling, made) for name in names_in(proposer)]
    return parts[0] if len(parts) == 1 else first.proposer(*parts)


def names_in(proposer: Any) -> tuple[str, ...]:
    """The names that a name is made of.

    Raises:
        ValueError: an unknown name, something that is none, or "adaptive", which needs more than a name.

    >>> names_in("ngram+quantized")
    ('ngram', 'quantized')
    """
    parts = tuple(proposer.split("+")) if isinstance(proposer, str) else ()
    if "adaptive" in parts:
        hint = "adaptive.proposer(inner, curve), which --k auto of the command line makes"
        raise ValueError(f"proposer is {proposer!r:.80}, and adaptive wraps another proposer and needs a measured curve; expected {hint}")
    if not parts or not set(parts) <= {*names, "draft_model"}:
        known = f"{', '.join(names)}, draft_model (with a second model)"
        raise ValueError(f"proposer is {proposer!r:.80}; expected a Proposer or one of the names {known}, or some of them joined by +")
    return parts


def drafting(name: str, model: "Model") -> "Model":
    """The model that a name in ``of_target`` drafts with.

    Raises:
        ValueError: another name; TypeError, ValueError: a target of which no such model can be made.

    >>> from specdec_fn.models import toy
    >>> from specdec_fn.random import key
    >>> drafting("early_exit", toy.llama(key(0), layers=3)).config.layers
    2
    """
    if name not in of_target:
        raise ValueError(f"the name is {name!r:.80}; expected one of {', '.join(of_target)}")
    made: Model = import_module(f"{__name__}.{name}").drafting(model)
    return made


def _of_name(name: str, model: "Model | None", sampling: SamplingParams, made: "Mapping[str, Model]") -> Proposer:
    if name in _FACTORIES:
        return _FACTORIES[name]()
    if name == "draft_model" and name not in made:
        raise ValueError("proposer 'draft_model' drafts with a second model; expected one with the name, or draft_model.proposer(...)")
    if model is None and name not in made:
        raise ValueError(f"proposer {name!r} drafts with the target's own weights; expected the target with the name")
    own = made[name] if name in made else drafting(name, model)  # type: ignore[arg-type]
    room = import_module(f"{__name__}.draft_model")
    vocab = None if model is None else model.config.vocab_size
    if name == "draft_model":
        guess = room.proposer(own, sampling=sampling, vocab_size=vocab)
    else:
        guess = room.sharing(name, own, sampling=sampling, vocab_size=vocab)
    return paying.proposer(guess, least=LEAST, start=1.5 * LEAST)
