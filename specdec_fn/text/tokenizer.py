"""Tokenizers as values: text to ids, ids to text, messages to ids.

A ``Tokenizer`` is a group of functions, so one of your own is as good as one that was read from a file. The two readers here take what a file
says (GGUF metadata, or the text of ``tokenizer.json`` and its neighbours); they open nothing.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from specdec_fn.text import chat as chats
from specdec_fn.text import splits
from specdec_fn.text.pieces import Pieces, byte_level, check, decoder, from_decoder

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Tokenizer", "from_gguf", "from_json"]

_LONG = 1 << 12  # characters that take about as long as another thread waits anyway
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5  # tokenizer.ggml.token_type


class Tokenizer(NamedTuple):
    """Text to ids and back.

    Attributes:
        encode: ``encode(text, *, special=False) -> list[int]``. With ``special=False`` the text is plain: a control text in it, such as
            "<|im_end|>", is spelled out like any other, and a bos id is put in front if the model was trained with one. With ``special=True``
            control texts become control tokens and nothing is added: what is written is what is encoded.
        decode: ``decode(ids, *, skip_special=True) -> str``. Bytes that form no character become U+FFFD; nothing else is changed. An id
            outside [0, size) is a ValueError.
        chat: ``chat(messages) -> list[int]``, messages being mappings with "role" and "content", through the model's template and up to the opening
            of the assistant's turn. No message can write a control token. ValueError where there is no template or it refuses.
        eos_ids: ids that end a text.
        size: number of ids with text; all such ids are below it. A model's vocabulary may be padded beyond it.
        token_bytes: ``token_bytes(id, *, skip_special=True) -> bytes``, where decoding is joining bytes and reading them as UTF-8; else None.
            Whoever replaces ``decode`` replaces or clears this too.

    >>> Tokenizer(lambda text, special=False: list(text.encode()), lambda ids, skip_special=True: bytes(ids).decode(), None, (0,), 256).size
    256
    """

    encode: Callable[..., list[int]]
    decode: Callable[..., str]
    chat: Callable[[Sequence[Mapping[str, Any]]], list[int]]
    eos_ids: tuple[int, ...]
    size: int
    token_bytes: Callable[..., bytes] | None = None


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Builds the tokenizer that a GGUF file describes in its own metadata.

    The eos ids are the file's ``eos``, ``eot`` and ``eom`` token ids. A bos id opens plain texts if ``add_bos_token`` says so, and if it says
    nothing, for the pre-tokenizer llama-bpe only. Token types: 3 (control) and 2 (unknown) are special, 4 (user defined) is recognised in any
    text, 5 (unused) has no text.

    Args:
        metadata: the file's keys and values; sequences may be decoded as they are read.

    Raises:
        ValueError: a key that is needed is missing, a value does not fit the others, or the model or pre-tokenizer is not a known one.

    >>> metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": ["<end>", "a", "b", "ab"],
    ...             "tokenizer.ggml.token_type": [3, 1, 1, 1], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 0}
    >>> tokenizer = from_gguf(metadata)
    >>> tokenizer.encode("abba<end>", special=True), tokenizer.decode([3, 2, 1, 0], skip_special=False), tokenizer.eos_ids
    ([3, 2, 1, 0], 'abba<end>', (0,))
    """
    from tokenizers import AddedToken, models

    def value(key: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}", default)

    for key, known in (("model", ("gpt2",)), ("pre", tuple(splits.SPLITS))):
        if value(key) not in known:
            raise ValueError(f"tokenizer.ggml.{key}: received {value(key)!r}, expected one of {', '.join(known)}")
    split = splits.SPLITS[value("pre")]
    tokens = _texts(value("tokens"), "tokens")
    types = list(value("token_type", [_NORMAL] * len(tokens)))
    if len(types) != len(tokens):
        raise ValueError(f"tokenizer.ggml.token_type: received {len(types)} entries, expected one for each of {len(tokens)} tokens")
    named = {name: value(f"{name}_token_id") for name in ("bos", "eos", "eot", "eom", "unknown", "padding") if value(f"{name}_token_id") is not None}
    for name, i in named.items():
        if not (isinstance(i, int) and 0 <= i < len(tokens)):
            raise ValueError(f"tokenizer.ggml.{name}_token_id: received {i!r}, expected an id from 0 to {len(tokens) - 1}")
    add_bos = value("add_bos_token", split.bos)
    if add_bos and "bos" not in named:
        raise ValueError("tokenizer.ggml.add_bos_token: received true, expected a bos_token_id with it")

    specials = frozenset(i for i, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN))
    # Under its own name a control token could be reached by plain text (a word that is a token is taken whole), so the merges know it by a
    # name that no text has. The library then gives it a new number beyond the vocabulary, which encode turns back.
    vocabulary: dict[str, int] = {}
    for i, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        vocabulary[f"\0{i}" if kind in (_CONTROL, _UNKNOWN, _UNUSED) or token in vocabulary else token] = i
    ranked = _texts(value("merges"), "merges")
    try:
        merges = [(left, right) for left, right in (merge.split(" ", 1) for merge in ranked)]
        bpe = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split.whole_words)
    except Exception as error:
        raise ValueError(
            f"tokenizer.ggml.merges: received merges that do not fit the tokens ({error}), expected two tokens that form a third"
        ) from error
    normalizer, pre_tokenizer = splits.build(split)
    user = [AddedToken(tokens[i], special=False, normalized=False) for i, kind in enumerate(types) if kind == _USER_DEFINED and tokens[i]]

    def backend(added: "list[tokenizers.AddedToken]") -> "tokenizers.Tokenizer":
        return _backend(bpe, normalizer, pre_tokenizer, user + added)

    written = {tokens[i]: i for i in sorted(specials, reverse=True) if tokens[i]}
    controls = [chats.Control(text, i) for text, i in written.items()]
    size = 1 + max((i for i, kind in enumerate(types) if kind != _UNUSED), default=-1)
    table = tuple(_gguf_piece(tokens[i], types[i]) for i in range(size))
    decode, token_bytes = decoder(Pieces(table, specials))
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    render = chats.compile_template(metadata.get("tokenizer.chat_template"), {names[n]: tokens[i] for n, i in named.items() if n in names})
    full = backend([AddedToken(c.text, special=True, normalized=False) for c in controls])
    new_ids = {i: c.id for c in controls if (i := full.token_to_id(c.text)) is not None}
    encode, chat = _encoders(full, backend([]), backend, new_ids, controls, (named["bos"],) if add_bos else (), render)
    eos = tuple(dict.fromkeys(named[name] for name in ("eos", "eot", "eom") if name in named))
    return Tokenizer(encode, decode, chat, eos, size, token_bytes)


def from_json(
    tokenizer_json: str,
    *,
    tokenizer_config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    model_config: Mapping[str, Any] | None = None,
) -> Tokenizer:
    """Builds the tokenizer that a folder in the Hugging Face layout describes.

    The eos ids are those of the generation config and the tokenizer config's eos token; the model config's only where neither names one. Ids
    that no token has are left out. A bos id opens plain texts if ``add_bos_token`` of the tokenizer config says so, and if it says nothing,
    where the tokenizer's own post-processor puts special tokens in front of a text.

    Args:
        tokenizer_json: the text of ``tokenizer.json``.
        tokenizer_config: ``tokenizer_config.json``; its "chat_template" is the template's text (also that of a separate ``chat_template.jinja``),
            or a list of named ones, of which "default" is taken.
        generation_config: ``generation_config.json``.
        model_config: ``config.json``.

    Raises:
        ValueError: the text is not a tokenizer, or no default is among the named templates.

    >>> from tokenizers import Tokenizer as Library, decoders, models
    >>> library = Library(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    >>> library.decoder = decoders.ByteLevel()
    >>> tokenizer = from_json(library.to_str())
    >>> tokenizer.encode("aba"), tokenizer.decode([2, 0]), tokenizer.size
    ([2, 0], 'aba', 3)
    """
    import tokenizers

    settings = dict(tokenizer_config or {})
    try:
        full = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:
        raise ValueError(
            f"tokenizer.json: received text that is no tokenizer ({error}), expected the JSON that the tokenizers library writes"
        ) from error
    full.no_padding()
    full.no_truncation()
    added = dict(sorted(full.get_added_tokens_decoder().items()))
    specials = frozenset(i for i, token in added.items() if token.special)

    def backend(extra: "list[tokenizers.AddedToken]") -> "tokenizers.Tokenizer":
        made = _backend(full.model, full.normalizer, full.pre_tokenizer, [*added.values(), *extra])
        made.encode_special_tokens = True
        return made

    texts = full.get_vocab(with_added_tokens=True)
    size = 1 + max(texts.values(), default=-1)
    tokens: list[str | None] = [None] * size
    for token, i in texts.items():
        tokens[i] = token
    pieces = from_decoder(json.loads(full.decoder.__getstate__()) if full.decoder else None, tokens, frozenset(added), specials)
    decode, token_bytes = decoder(pieces) if pieces is not None else (_library_decode(full, size), None)
    written = {name: text for name in settings if name.endswith("_token") and (text := _token_text(settings[name])) is not None}
    render = chats.compile_template(_template(settings.get("chat_template")), written)
    controls = [chats.Control(token.content, i, token.lstrip, token.rstrip) for i, token in added.items() if token.special]
    encode, chat = _encoders(full, backend([]), backend, {}, controls, _bos(full, settings.get("add_bos_token"), written.get("bos_token")), render)

    candidates = [*_ids((generation_config or {}).get("eos_token_id")), texts.get(written.get("eos_token", ""), -1)]
    eos = tuple(dict.fromkeys(i for i in candidates if 0 <= i < size))
    eos = eos or tuple(dict.fromkeys(i for i in _ids((model_config or {}).get("eos_token_id")) if 0 <= i < size))
    # Where the start of a text is stripped, bytes do not tell the text, so such a tokenizer is streamed through decode.
    return Tokenizer(encode, decode, chat, eos, size, None if pieces is None or pieces.strip else token_bytes)


def _encoders(
    full: "tokenizers.Tokenizer",
    plain: "tokenizers.Tokenizer",
    backend: "Callable[[list[tokenizers.AddedToken]], tokenizers.Tokenizer]",
    new_ids: Mapping[int, int],
    controls: Sequence[chats.Control],
    bos: tuple[int, ...],
    render: Callable[[Sequence[Mapping[str, Any]]], str],
) -> tuple[Callable[..., list[int]], Callable[[Sequence[Mapping[str, Any]]], list[int]]]:
    """Makes ``encode`` and ``chat`` of two backends that differ in whether control texts are control tokens."""

    def encode(text: str, *, special: bool = False) -> list[int]:
        ids = _encode(full if special else plain, text)
        return [new_ids.get(i, i) for i in ids] if special else [*bos, *ids]

    def interleave(texts: list[str], ids: list[int]) -> list[int]:
        from tokenizers import AddedToken

        # One token of a character that occurs nowhere stands for every control token, so that the texts between are cut as the library cuts them.
        guard = next(chats.unused(texts))
        made = backend([AddedToken(guard, special=False, normalized=False)])
        place, following = made.token_to_id(guard), iter(ids)
        return [next(following) if i == place else i for i in _encode(made, guard.join(texts))]

    return encode, chats.encoder(render, controls, lambda text: encode(text, special=True), interleave)


def _encode(backend: "tokenizers.Tokenizer", text: str) -> list[int]:
    if not isinstance(text, str):
        raise TypeError(f"text: received {type(text).__name__}, expected str")
    try:
        if len(text) < _LONG:
            return backend.encode(text, add_special_tokens=False).ids
        return backend.encode_batch([text], add_special_tokens=False)[0].ids  # only a batch lets other threads run meanwhile
    except TypeError as error:  # the library's word for text that has no UTF-8 form
        raise ValueError(f"text: received a lone surrogate in {text[:40]!r}, expected text that can be written as UTF-8") from error


def _backend(
    model: "tokenizers.models.Model",
    normalizer: "tokenizers.normalizers.Normalizer | None",
    pre_tokenizer: "tokenizers.pre_tokenizers.PreTokenizer | None",
    added: "list[tokenizers.AddedToken]",
) -> "tokenizers.Tokenizer":
    import tokenizers

    made = tokenizers.Tokenizer(model)  # shares the model, so a second backend costs next to nothing
    if normalizer is not None:
        made.normalizer = normalizer
    if pre_tokenizer is not None:
        made.pre_tokenizer = pre_tokenizer
    made.add_tokens(added)
    return made


def _gguf_piece(token: str, kind: int) -> bytes:
    if kind == _UNUSED:
        return b""
    return byte_level(token) if kind == _NORMAL else token.encode("utf-8", "replace")


def _texts(values: Any, key: str) -> list[str]:
    if values is None or isinstance(values, (str, bytes)):
        raise ValueError(f"tokenizer.ggml.{key}: received {values!r}, expected a list of texts")
    return list(values)


def _library_decode(backend: "tokenizers.Tokenizer", size: int) -> Callable[..., str]:
    def decode(ids: Sequence[int], *, skip_special: bool = True) -> str:
        return backend.decode(check(ids, size), skip_special_tokens=skip_special)

    return decode


def _token_text(entry: Any) -> str | None:
    text = entry.get("content") if isinstance(entry, Mapping) else entry
    return text if isinstance(text, str) else None


def _template(entry: Any) -> str | None:
    if entry is None or isinstance(entry, str):
        return entry
    named = dict(entry) if isinstance(entry, Mapping) else {each["name"]: each["template"] for each in entry}
    if "default" not in named:
        raise ValueError(f"chat_template: received templates named {sorted(named)}, expected one named default")
    return named["default"]


def _bos(full: "tokenizers.Tokenizer", add: bool | None, bos_token: str | None) -> tuple[int, ...]:
    if add is None:
        probe = full.encode("a", add_special_tokens=True)
        return tuple(probe.ids[: (*probe.special_tokens_mask, 0).index(0)])
    if not add:
        return ()
    found = full.token_to_id(bos_token) if bos_token is not None else None
    if found is None:
        raise ValueError(f"add_bos_token: received true with bos_token {bos_token!r}, expected a bos_token that the tokenizer has")
    return (found,)


def _ids(entry: Any) -> list[int]:
    return [] if entry is None else [entry] if isinstance(entry, int) else list(entry)
