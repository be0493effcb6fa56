"""A server put together from a model and settings, ready to be run on a socket."""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NamedTuple

from starlette.types import ASGIApp

from specdec_fn.engine import Config, Request
from specdec_fn.engine.identity import identity
from specdec_fn.models import Model, toy
from specdec_fn.random import key
from specdec_fn.sampling import SamplingParams
from specdec_fn.serve import choices
from specdec_fn.serve.access import LOOPBACK, Access
from specdec_fn.serve.app import application
from specdec_fn.serve.asked import Served
from specdec_fn.serve.desk import Desk
from specdec_fn.serve.journal import Journal
from specdec_fn.serve.limits import Limits
from specdec_fn.serve.metrics import Metrics
from specdec_fn.serve.refusal import Refusal
from specdec_fn.serve.speculating import settled
from specdec_fn.speculate import proposers, verifiers
from specdec_fn.text import Tokenizer

__all__ = ["Assembly", "Settings", "assembled", "example"]


@dataclass(frozen=True)
class Settings:
    """How a server serves.

    Attributes:
        name: what clients call the model.
        proposer, verifier, k: how a request speculates that does not say.
        limits: of requests.
        keys: what clients must say; none lets everybody in.
        hosts: names that requests may be sent to, besides this machine's own; None for any.
        state: the file of the log; None for none.
        draft: a model that drafts, for the proposer "draft_model".
        prompts: whether prompts are printed.
    """

    name: str
    proposer: str = "ngram"
    verifier: str = "token"
    k: int = 5
    limits: Limits = Limits()  # noqa: RUF009 (frozen)
    keys: Sequence[str] = ()
    hosts: Sequence[str] | None = ()
    state: str | None = None
    draft: Model | None = None
    prompts: bool = False


class Assembly(NamedTuple):
    """A server.

    Attributes:
        app: its application of ASGI.
        desk: takes its requests; to be opened before the application is asked, and closed after.
        unfinished: ids of the requests that its log holds, which go on when it opens.
    """

    app: ASGIApp
    desk: Desk
    unfinished: tuple[str, ...]


def assembled(model: Model, tokenizer: Tokenizer, config: Config, settings: Settings, *, log: Callable[[str], None] = lambda line: None) -> Assembly:
    """Puts a server together.

    Args:
        model, tokenizer: the target.
        config: the engine's; how requests speculate is said by ``settings``.
        settings: the server's.
        log: told a line of every request.

    Raises:
        OSError, ValueError: settings that cannot be: what was received and what was expected.

    >>> example().desk.load().free_pages
    16
    """
    _check(settings)
    sizes, limits = model.config, settings.limits
    context = min(sizes.context if config.context is None else config.context, config.num_pages * config.page_size)
    vocabulary = _vocabulary(tokenizer, sizes.vocab_size)
    how = settings.proposer, settings.verifier, settings.k
    served = Served(settings.name, tokenizer, context, sizes.vocab_size, limits, *how, vocabulary=vocabulary, longest=choices.longest(tokenizer))
    _check_default(served)
    journal = None if settings.state is None else Journal(settings.state, f"{identity(model)} {config.invariant}", kept=limits.kept)
    try:
        desk = Desk(served, model, config, Metrics(settings.name), journal=journal, drafting=_drafting(settings.draft, model))
    except BaseException:
        if journal is not None:
            journal.close()
        raise
    if journal is not None and journal.skipped:
        log(f"{journal.skipped} torn line(s) of {settings.state} were left out")
    hosts = None if settings.hosts is None else (*LOOPBACK, *settings.hosts)
    access = Access(settings.keys, secrets.token_bytes(32) if journal is None else journal.secret, hosts=hosts)
    unfinished = () if journal is None else tuple(entry.id for entry in journal.unfinished)
    return Assembly(application(desk, access, log=log, prompts=settings.prompts), desk, unfinished)


def example() -> Assembly:
    """A server of a tiny model with random weights, whose ids are bytes: for a look at how one behaves.

    >>> example().desk.served.model
    'toy'
    """
    tokenizer = Tokenizer(
        lambda text, special=False: list(text.encode()),
        lambda ids, skip_special=True: bytes(ids).decode("utf-8", "replace"),
        lambda messages: [byte for one in messages for byte in f"{one['role']}: {one['content']}\n".encode()],
        (),
        256,
        lambda id, skip_special=True: bytes([id]),
    )
    return assembled(toy.llama(key(0), vocab_size=256), tokenizer, Config(num_pages=16, invariant=True), Settings("toy"))


def _check(settings: Settings) -> None:
    """Says at once what would otherwise be said to every client."""
    rule = verifiers.all.get(settings.verifier)
    if rule is None:
        raise ValueError(f"verifier is {settings.verifier!r:.80}; expected one of {', '.join(verifiers.all)}")
    if not rule.lossless and not settings.limits.lossy:
        raise ValueError(f"verifier is {settings.verifier!r}, which does not keep the target's law; expected a lossless one, or Limits(lossy=True)")
    known = ("none", *proposers.names, *(() if settings.draft is None else ("draft_model",)))
    for name in (settings.proposer, *settings.limits.proposers):
        if not set(name.split("+")) <= set(known) or "adaptive" in name.split("+"):
            raise ValueError(f"proposer is {name!r:.80}; expected one of {', '.join(known)}, or some of them joined by +")


def _check_default(served: Served) -> None:
    """The same of settings that do not go together; at temperature 0, which every verifier takes."""
    try:
        settled({}, served, SamplingParams(temperature=0.0))
    except Refusal as refusal:
        raise ValueError(refusal.message.removeprefix("speculation.")) from None


def _drafting(draft: Model | None, target: Model) -> Callable[[Request], Request]:
    """Gives a request the second model's proposer, where the name of its own says so."""

    def drafting(request: Request) -> Request:
        name = request.proposer
        if draft is None or not isinstance(name, str) or "draft_model" not in name.split("+"):
            return request
        return replace(request, proposer=proposers.named(name, target, request.sampling, made={"draft_model": draft}))

    return drafting


def _vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Callable[[], Any] | None:
    """Makes the vocabulary of grammars once, when it is first asked for; None where llguidance is not installed."""
    if find_spec("llguidance") is None:
        return None
    guard, made = threading.Lock(), list[Any]()

    def vocabulary() -> Any:
        from specdec_fn import grammar

        with guard:
            if not made:
                made.append(grammar.vocabulary(tokenizer, vocab_size))
        return made[0]

    return vocabulary
