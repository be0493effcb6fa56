"""Answers in OpenAI's shapes, whole and in chunks. The chunks of a request, joined, say what the whole says."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from specdec_fn.engine.event import Event
from specdec_fn.engine.generation import Generation
from specdec_fn.serve import logprobs as rows
from specdec_fn.serve import whys as passes
from specdec_fn.serve.asked import Asked
from specdec_fn.serve.usage import usage
from specdec_fn.speculate.explain import Explained
from specdec_fn.text import Tokenizer, detokenizer

__all__ = ["State", "begin", "chunks", "closing", "opening", "whole"]


class State(NamedTuple):
    """What streaming keeps of a request; only where offsets or pieces of text are told.

    Attributes:
        spelling: for each choice the detokenizer of its text, once it has begun.
        at: for each choice the characters of its text so far.
    """

    spelling: tuple[detokenizer.Detokenizer | None, ...]
    at: tuple[int, ...]


def begin(asked: Asked) -> State:
    """The state before the first token.

    >>> from specdec_fn.engine import Request
    >>> begin(Asked("text_completion", (Request([1], 4),), 1, ((1,),), ("ab",), 0, True, False, True, 0, False, False)).at
    (2,)
    """
    return State((None,) * len(asked.requests), tuple([len(_echoed(asked, index)) for index in range(len(asked.requests))]))


def opening(asked: Asked, id: str, created: int, model: str) -> list[dict[str, Any]]:
    """The chunks before the first token: who speaks, or the prompts that are echoed.

    Args:
        asked: the request.
        id, created, model: of the answer.

    >>> from specdec_fn.engine import Request
    >>> asked = Asked("chat.completion", (Request([1], 4),), 1, ((1,),), (), 7, True, False, False, 0, False, False)
    >>> opening(asked, "a", 0, "m")[0]["choices"][0]["delta"]
    {'role': 'assistant', 'content': ''}
    """
    if asked.kind == "chat.completion":
        first: list[dict[str, Any]] = [
            {"index": i, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None} for i in _places(asked)
        ]
    elif asked.texts:
        first = [{"index": i, "text": _echoed(asked, i), "logprobs": None, "finish_reason": None} for i in _places(asked)]
    else:
        first = []
    return [_chunk(asked, id, created, model, [choice]) for choice in first]


def chunks(
    asked: Asked, state: State, index: int, event: Event, id: str, created: int, model: str, tokenizer: Tokenizer
) -> tuple[State, list[dict[str, Any]]]:
    """The chunks of an event: one, or none where it says nothing yet.

    Where a prompt is echoed with log-probabilities, which the engine tells when it is done, those of the choice come with its last chunk.

    Args:
        asked: the request.
        state: what ``begin`` or the last call gave.
        index: of the choice.
        event: the engine's; not one of an error.
        id, created, model: of the answer.
        tokenizer: the model's.

    >>> from specdec_fn.engine import Request
    >>> asked = Asked("text_completion", (Request([1], 4),), 1, ((1,),), (), 7, True, False, False, 0, False, False)
    >>> _, made = chunks(asked, begin(asked), 0, Event(0, [5], [-0.5], "stop", text="x"), "a", 0, "m", None)
    >>> made[0]["choices"], made[0]["seed"]
    ([{'index': 0, 'text': 'x', 'logprobs': None, 'finish_reason': 'stop'}], 7)
    """
    chat, reason = asked.kind == "chat.completion", event.finish_reason
    offsets: list[int] = []
    added: list[str] = []
    told: dict[str, Any] | None = None
    if asked.explain or (asked.logprobs and not chat):
        state, offsets, added = _spelled(asked, state, index, event.tokens, tokenizer)
    if asked.logprobs and asked.texts:
        told = None if event.generation is None else _scored(asked, index, event.generation, tokenizer)
    elif asked.logprobs and event.tokens:
        told = _rows(asked, event.tokens, event.logprobs, event.likeliest, offsets, tokenizer)
    if not event.text and told is None and reason is None and not (asked.explain and event.why):
        return state, []
    choice: dict[str, Any] = {"index": index}
    if chat:
        choice["delta"] = {"content": event.text} if event.text else {}
    else:
        choice["text"] = event.text
    choice["logprobs"], choice["finish_reason"] = told, reason
    if asked.explain and event.why is not None:
        choice["speculation"] = passes.told(tokenizer, event.why, added)
    return state, [_chunk(asked, id, created, model, [choice])]


def closing(asked: Asked, generations: Sequence[Generation], id: str, created: int, model: str) -> list[dict[str, Any]]:
    """The chunk with the usage, where it was asked for.

    >>> from specdec_fn.engine import Request
    >>> asked = Asked("text_completion", (Request([1], 4),), 1, ((1,),), (), 7, True, True, False, 0, False, False)
    >>> closing(asked, [], "a", 0, "m")[0]["usage"]["prompt_tokens"]
    1
    """
    return [{**_chunk(asked, id, created, model, []), "usage": usage(asked, generations)}] if asked.usage else []


def whole(
    asked: Asked,
    generations: Sequence[Generation],
    whys: Sequence[Sequence[Explained]],
    id: str,
    created: int,
    model: str,
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """The answer that is not streamed.

    Args:
        asked: the request.
        generations: of its choices, in their order.
        whys: of each choice, pass by pass, how its tokens came to be; read where that was asked for.
        id, created, model: of the answer.
        tokenizer: the model's.

    >>> from specdec_fn.engine import Request
    >>> from specdec_fn.engine.generation import Stats
    >>> asked = Asked("text_completion", (Request([1], 4),), 1, ((1,),), ("so",), 7, False, False, False, 0, False, False)
    >>> whole(asked, [Generation([5], " it", "stop", [-0.5], Stats())], [[]], "a", 0, "m", None)["choices"][0]["text"]
    'so it'
    """
    choices = []
    for index, done in enumerate(generations):
        choice: dict[str, Any] = {"index": index}
        if asked.kind == "chat.completion":
            choice["message"] = {"role": "assistant", "content": done.text, "refusal": None}
        else:
            choice["text"] = _echoed(asked, index) + done.text
        choice["logprobs"] = _scored(asked, index, done, tokenizer) if asked.logprobs else None
        choice["finish_reason"] = done.finish_reason
        if asked.explain:
            choice["speculation"] = _passes(asked, index, done, whys[index], tokenizer)
        choices.append(choice)
    about = {"id": id, "object": asked.kind, "created": created, "model": model}
    return {**about, "choices": choices, "usage": usage(asked, generations), "seed": asked.seed}


def _chunk(asked: Asked, id: str, created: int, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    kind = "chat.completion.chunk" if asked.kind == "chat.completion" else asked.kind
    made = {"id": id, "object": kind, "created": created, "model": model, "choices": choices, "seed": asked.seed}
    if asked.usage:
        made["usage"] = None  # as OpenAI has it in all chunks but the last
    return made


def _places(asked: Asked) -> range:
    return range(len(asked.requests))


def _echoed(asked: Asked, index: int) -> str:
    return asked.texts[index // asked.n] if asked.texts else ""


def _spelled(asked: Asked, state: State, index: int, tokens: Sequence[int], tokenizer: Tokenizer) -> tuple[State, list[int], list[str]]:
    """Where each token begins in the text of its choice, and what it adds to it."""
    spelling = state.spelling[index] or detokenizer.init(tokenizer, asked.prompts[index // asked.n])
    spelling, added = rows.pieces(spelling, tokens)
    offsets, at = _running(state.at[index], added)
    spellings, ats = list(state.spelling), list(state.at)
    spellings[index], ats[index] = spelling, at
    return State(tuple(spellings), tuple(ats)), offsets, added


def _running(at: int, added: Sequence[str]) -> tuple[list[int], int]:
    offsets = []
    for piece in added:
        offsets.append(at)
        at += len(piece)
    return offsets, at


def _rows(
    asked: Asked, tokens: Sequence[int], logprobs: Sequence[float], likeliest: Any, offsets: Sequence[int], tokenizer: Tokenizer
) -> dict[str, Any]:
    likeliest = likeliest if asked.top else None
    if asked.kind == "chat.completion":
        return rows.entries(tokenizer, tokens, logprobs, likeliest)
    return rows.lists(tokenizer, tokens, logprobs, likeliest, offsets)


def _scored(asked: Asked, index: int, done: Generation, tokenizer: Tokenizer) -> dict[str, Any]:
    """The log-probabilities of a whole choice, and before them those of its prompt, if that is echoed; its first token has none."""
    _, offsets, _ = _spelled(asked, begin(asked), index, done.tokens, tokenizer)
    told = _rows(asked, done.tokens, done.logprobs, done.likeliest, offsets, tokenizer)
    if not asked.texts:
        return told
    prompt, most = asked.prompts[index // asked.n], len(_echoed(asked, index))
    places, _ = _running(0, rows.pieces(detokenizer.init(tokenizer), prompt)[1])
    scores = [0.0, *(done.prompt_logprobs or ())]
    before = rows.lists(tokenizer, prompt, scores, None, [min(place, most) for place in places])
    before["token_logprobs"][0] = None
    if asked.top:
        before["top_logprobs"] = [None] * len(prompt)  # the engine tells the prompt's own tokens alone
    return {name: None if told[name] is None else [*before[name], *told[name]] for name in told}


def _passes(asked: Asked, index: int, done: Generation, whys: Sequence[Explained], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    _, _, added = _spelled(asked, begin(asked), index, done.tokens, tokenizer)
    before = len(asked.prompts[index // asked.n])
    return [passes.told(tokenizer, why, added[why.base - before :][: passes.emitted(why)]) for why in whys]
