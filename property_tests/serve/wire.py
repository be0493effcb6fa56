"""What the tests of the wire share: a tokenizer whose characters come in parts, a small model, and a run of the engine that keeps its events."""

from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from specdec_fn import engine
from specdec_fn.engine import Config, EngineState
from specdec_fn.engine.event import Event
from specdec_fn.models import Model, toy
from specdec_fn.random import key
from specdec_fn.serve import answers, openapi
from specdec_fn.serve.asked import Asked, Served
from specdec_fn.serve.limits import Limits
from specdec_fn.text import Tokenizer

PIECES = (
    *(letter.encode() for letter in "abcdefgh \n.?"),
    b"al",
    b"pha b",
    b"eta ga",
    b"mma de",
    *(bytes([one]) for one in "é한".encode()),
    b"\xff",
    b"<end>",
)
END, SIZE, VOCAB, CONTEXT = len(PIECES) - 1, len(PIECES), len(PIECES) + 2, 96
ABOUT = ("id-1", 1700000000, "toy")


def tokenizer() -> Tokenizer:
    """Letters, words that overlap a stop string, characters of two and three parts, a byte that is none, and an end."""

    def encode(text: str, *, special: bool = False) -> list[int]:
        return [PIECES.index(part) if part in PIECES else PIECES.index(b"?") for letter in text for part in _parts(letter)]

    def token_bytes(id: int, *, skip_special: bool = True) -> bytes:
        if not 0 <= id < SIZE:
            raise ValueError(f"id {id}; expected one below {SIZE}")
        return b"" if id == END and skip_special else PIECES[id]

    def decode(ids: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(token_bytes(id, skip_special=skip_special) for id in ids).decode("utf-8", "replace")

    def chat(messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return [id for one in messages for id in [*encode(f"{one['role'][0]} {one['content']}"), END]]

    return Tokenizer(encode, decode, chat, (END,), SIZE, token_bytes)


def _parts(letter: str) -> list[bytes]:
    whole = letter.encode("utf-8", "replace")
    return [whole] if whole in PIECES else [bytes([one]) for one in whole]


def served(**changes: Any) -> Served:
    """What a server of it serves."""
    limits = changes.pop("limits", Limits(stop=4, stop_length=12, logit_bias=8, top_logprobs=5, choices=6, k=8))
    return Served("toy", tokenizer(), CONTEXT, VOCAB, limits, "ngram", "token", 3)._replace(**changes)


def model() -> Model:
    """A tiny Llama over those pieces."""
    return toy.llama(key(3), vocab_size=VOCAB, context=CONTEXT)


def state(target: Model) -> EngineState:
    """An engine of it."""
    return engine.init(target, Config(page_size=4, num_pages=256, max_batch=8, prefill_chunk=32), tokenizer())


def ran(target: Model, asked: Asked) -> list[tuple[int, Event]]:
    """The events of a request, each with the index of its choice."""
    now, numbers = state(target), []
    for request in asked.requests:
        now, number = engine.submit(now, request)
        numbers.append(number)
    told = []
    while now.records:
        now, events = engine.step(target, now)
        told += [(numbers.index(event.request_id), event) for event in events]
    return told


def streamed(asked: Asked, told: Sequence[tuple[int, Event]], tell: Served) -> list[dict[str, Any]]:
    """The chunks of some events, each checked."""
    kept, made = answers.begin(asked), answers.opening(asked, *ABOUT)
    for index, event in told:
        kept, more = answers.chunks(asked, kept, index, event, *ABOUT, tell.tokenizer)
        made += more
    done = {index: event.generation for index, event in told if event.generation is not None}
    made += answers.closing(asked, [done[index] for index in sorted(done)], *ABOUT)  # type: ignore[misc]
    for chunk in made:
        check(chunk, tell, chunk=True)
    return made


def check(answer: Mapping[str, Any], tell: Served, *, chunk: bool = False) -> Any:
    """Holds an answer against the published schema, and gives it as OpenAI's client reads it."""
    chat = answer["object"].startswith("chat")
    name = ("ChatCompletion" if chat else "Completion") + ("Chunk" if chunk else "")
    schemas = openapi.description(tell, keys=False)["components"]
    Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": schemas}).validate(answer)
    if chat:
        return (ChatCompletionChunk if chunk else ChatCompletion).model_validate(answer)
    # OpenAI sends nulls in these places too, which the client's own types do not know; its parser, which does not look, is what reads them.
    choices = []
    for choice in answer["choices"]:
        rows = choice["logprobs"] and {
            **choice["logprobs"],
            "token_logprobs": [0.0 if one is None else one for one in choice["logprobs"]["token_logprobs"]],
            "top_logprobs": choice["logprobs"]["top_logprobs"] and [one or {} for one in choice["logprobs"]["top_logprobs"]],
        }
        choices.append({**choice, "logprobs": rows, "finish_reason": choice["finish_reason"] or ("stop" if chunk else None)})
    return Completion.model_validate({**answer, "choices": choices})
