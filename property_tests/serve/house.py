"""A small model that spells, and servers of it: what the tests of the server share."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from openai import OpenAI

from specdec_fn import SamplingParams, generate, serve
from specdec_fn.engine import Config
from specdec_fn.engine.generation import Generation
from specdec_fn.models import Model, toy
from specdec_fn.random import key
from specdec_fn.serve import Assembly, Limits, Settings
from specdec_fn.text import Tokenizer

LETTERS = 'abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?\n0123456789é한{}[]":-_'
END = len(LETTERS)  # ends a text, and has none
CONTEXT = 160
NAME = "toy"


def tokenizer() -> Tokenizer:
    """A letter an id, and an end; letters that it does not have are question marks."""
    unknown = LETTERS.index("?")

    def encode(text: str, *, special: bool = False) -> list[int]:
        return [LETTERS.find(letter) if letter in LETTERS else unknown for letter in text]

    def token_bytes(id: int, *, skip_special: bool = True) -> bytes:
        if not 0 <= id <= END:
            raise ValueError(f"id {id}; expected one in [0, {END}]")
        return LETTERS[id].encode() if id < END else b"" if skip_special else b"<end>"

    def decode(ids: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(token_bytes(id, skip_special=skip_special) for id in ids).decode()

    def chat(messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return [id for one in messages for id in [*encode(f"{one['role'][0].upper()} {one['content']}"), END]]

    return Tokenizer(encode, decode, chat, (END,), END + 1, token_bytes)


def model() -> Model:
    """A tiny Llama over those letters; its ends come by chance."""
    return toy.llama(key(5), vocab_size=END + 3, context=CONTEXT)  # two ids pad the vocabulary


class House(NamedTuple):
    """A server that runs.

    Attributes:
        url: where.
        assembly: what it is made of, for a look at its engine.
        client: OpenAI's own.
    """

    url: str
    assembly: Assembly
    client: OpenAI

    def load(self) -> Any:
        """The engine's requests and pages."""
        return self.assembly.desk.load()


@contextmanager
def house(limits: Limits = Limits(), *, config: Config | None = None, key: str = "", grace: float = 5.0, **settings: Any) -> Iterator[House]:  # noqa: B008
    """A server of the small model on a free port, and a client of it."""
    config = config or Config(page_size=8, num_pages=400, max_batch=8, prefill_chunk=64, invariant=True)
    assembly = serve.assembled(model(), tokenizer(), config, Settings(NAME, limits=limits, **settings))
    with serve.in_thread(assembly, grace=grace) as url, OpenAI(base_url=f"{url}/v1", api_key=key or "none", max_retries=0) as client:
        yield House(url, assembly, client)


def alone(prompt: str | Sequence[int], *, seed: int, max_tokens: int, sampling: SamplingParams | None = None, **how: Any) -> Generation:
    """The same request without a server and without neighbours."""
    how = {"proposer": "ngram", "verifier": "token", "k": 5, **how}
    how["proposer"] = None if how["proposer"] == "none" else how["proposer"]
    ids = tokenizer().encode(prompt) if isinstance(prompt, str) else prompt
    common = {"tokenizer": tokenizer(), "seed": seed, "max_tokens": max_tokens, "invariant": True}
    return generate(model(), ids, sampling=sampling or SamplingParams(), **common, **how)
