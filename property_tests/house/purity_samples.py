"""Sample arguments for the public functions of the pieces: the alphabet, models, caches, weights, text, sampling and speculation.

``test_purity`` calls every function on them; ``purity_samples_engine`` beside this file has those of the scheduler and the engine.
"""

import dataclasses
import functools
import itertools
import struct
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import specdec_fn.text
from specdec_fn import pytree, random
from specdec_fn.kv import branching, dense
from specdec_fn.models import Config, RopeConfig, llama, model, product, rope, toy
from specdec_fn.sampling import SamplingParams, distribution, draw, narrow, params, processors, truncation
from specdec_fn.speculate import (
    Draft,
    Proposer,
    Tape,
    draft,
    expected,
    follow,
    overlaps,
    proposers,
    race,
    recover,
    registry,
    rows,
    tape,
    tree,
    verdict,
    verifier,
    verifiers,
)
from specdec_fn.text import Tokenizer, chat, detokenizer, pieces, splits, stop
from specdec_fn.weights import gguf, gguf_quants, names, safetensors
from specdec_kernels import threefry

# ``specdec_fn.text.tokenizer`` is a room, but a wildcard of names here would hide it behind the fixture-like word.
tokenizers = specdec_fn.text.tokenizer


class Call(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Sample(NamedTuple):
    """A function and a way to make arguments for it, fresh each time; ``raises``: the call is a refusal.

    ``donated``: the arguments that it takes as its docstring says, where no decorator can: ``specdec_kernels`` knows nothing of ``@donates``.
    """

    function: Callable[..., Any]
    make: Callable[[], Call]
    raises: type[Exception] | None = None
    donated: tuple[str, ...] = ()


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


def table(*shape: int) -> Tensor:
    """Numbers that look like weights, the same each time."""
    count = int(np.prod(shape))
    return ((torch.arange(count, dtype=torch.float32) * 0.37).sin() * 0.5).reshape(shape)


def laws(*shape: int) -> Tensor:
    return table(*shape).double().softmax(-1)


def ids(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def cache(length: int = 2) -> dense.DenseCache:
    """A cache of two layers and six slots, with something in every slot."""
    made = dense.init(sizes("llama"), 6, dtype=torch.float32)
    for layer in range(2):
        made = dense.attend(made, layer, table(6, 2, 4), table(6, 1, 4) + layer, table(6, 1, 4) - layer)[1]
    return dense.truncate(dense.advance(made, 6), length)


def sizes(architecture: str, **more: Any) -> Config:
    fit = dict(vocab_size=5, context=16, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, ffn=6)  # noqa: C408
    return Config(architecture, **fit, qkv_bias=architecture == "qwen2", qk_norm=architecture == "qwen3", **more)


def weights_of(config: Config) -> llama.Params:
    shapes = llama.shapes(config)
    return llama.assemble(config, lambda name: table(*shapes[name]))


def tiny(architecture: str = "llama", **more: Any) -> model.Model:
    config = sizes(architecture, **more)
    return llama.model(config, weights_of(config))


def bigram() -> model.Model:
    return toy.bigram(laws(4, 4))


METADATA = types.MappingProxyType(
    {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<end>", "a", "b", "ab"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}<end>{% endfor %}",
    }
)
HF = types.MappingProxyType(
    {"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}
)
GGUF_SIZES = types.MappingProxyType(
    {
        "general.architecture": "qwen2",
        "qwen2.block_count": 1,
        "qwen2.context_length": 64,
        "qwen2.embedding_length": 4,
        "qwen2.feed_forward_length": 6,
        "qwen2.attention.head_count": 2,
        "qwen2.vocab_size": 8,
    }
)


def library_json(*, byte_level: bool) -> str:
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models

    library = Library(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    if byte_level:
        library.decoder = decoders.ByteLevel()
    return library.to_str()


def words() -> Tokenizer:
    return tokenizers.from_gguf(dict(METADATA))


def bytewise() -> Tokenizer:
    """A tokenizer that only decodes, so that the detokenizer's slower way is taken."""
    return Tokenizer(
        lambda text, special=False: list(text.encode()), lambda ids, skip_special=True: bytes(ids).decode("utf-8", "replace"), None, (), 256
    )


def said(text: str = "ab<end>a") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def gguf_file() -> bytearray:
    """One key and one F32 tensor of two numbers."""

    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a.key") + struct.pack("<II", 4, 7)
    head += text("weight") + struct.pack("<IQIQ", 1, 2, 0, 0)
    return bytearray(head.ljust(-(-len(head) // 32) * 32, b"\0") + struct.pack("<2f", 1.5, -2.0))


def blocks(kind: str) -> bytearray:
    form = gguf_quants.formats[kind]
    return bytearray((7 * i + 3) % 60 for i in range(2 * form.size * (32 // form.weights if form.weights == 1 else 1)))


def chain_of(*tokens: int, k: int = 3, soft: bool = False) -> Draft:
    return draft.chain(list(tokens), k, laws(len(tokens), 4) if soft else None)


def declared(size: int) -> Any:
    """``@state`` on a class of one's own: a declaration works on the class it stands at, so each call makes a new one."""
    box = type("Box", (), {"__annotations__": {"content": Tensor, "size": int}, "__module__": __name__})
    return pytree.state(static=("size",))(box)(table(2), size)


def put(pool: Tensor, value: float) -> Tensor:
    return pool.fill_(value)


def freed() -> Tensor:
    tensor = torch.zeros(2)
    tensor.untyped_storage().resize_(0)
    return tensor


def put_while_checking(pool: Tensor) -> Tensor:
    """A donating call inside ``checking``: what it was given is freed, what it gives is new."""
    with pytree.checking():
        return pytree.donates("pool")(put)(pool, 7.0)


put_while_checking.donated = ("pool",)  # type: ignore[attr-defined]
FIXED = SamplingParams(0.7, 3, 0.9, 0.01, 0.9, 1.2, 0.1, 0.2, {1: 0.5}, [2, (1, 0)], [0, 1, 2, 3], 1)


def alphabet() -> Iterator[Sample]:
    keys = random.split(random.key(3), 3)
    yield Sample(pytree.state, lambda: call(static=("size",)))
    yield Sample(declared, lambda: call(3))
    yield Sample(pytree.donates, lambda: call("pool"))
    yield Sample(pytree.donates("pool"), lambda: call(put))
    yield Sample(put_while_checking, lambda: call(torch.zeros(2)))
    yield Sample(pytree.enforced, call)
    yield Sample(pytree.alive, lambda: call({"a": torch.zeros(2)}, "pool"))
    yield Sample(pytree.alive, lambda: call([freed()], "pool"), pytree.DonatedError)
    yield Sample(random.key, lambda: call(-5))
    yield Sample(random.key, lambda: call(2**63), ValueError)
    for given in (random.key(3), keys):
        yield Sample(random.key_data, lambda given=given: call(random.Key(given.words.clone())))
        yield Sample(random.split, lambda given=given: call(random.Key(given.words.clone()), 20))
        yield Sample(random.fold_in, lambda given=given: call(random.Key(given.words.clone()), 7))
        yield Sample(random.fold_in, lambda given=given: call(random.Key(given.words.clone()), ids(7)))
        yield Sample(random.bits, lambda given=given: call(random.Key(given.words.clone()), [4, 5], 64))
        for dtype in (torch.float64, torch.float32):
            yield Sample(random.uniform, lambda given=given, dtype=dtype: call(random.Key(given.words.clone()), [2], dtype=dtype))
    for member in (random.Key.shape.fget, random.Key.__len__, random.Key.__iter__):
        yield Sample(member, lambda: call(random.split(random.key(3), 3)))
    yield Sample(random.Key.__getitem__, lambda: call(random.split(random.key(3), 3), 1))
    yield Sample(random.Key.__getitem__, lambda: call(random.split(random.key(3), 3), slice(1, 3)))
    yield Sample(threefry.threefry2x32, lambda: call(ids(1, 2), ids(3, 4), ids(5, 6), ids(7, 8)))
    yield Sample(threefry.threefry2x32_words, lambda: call(1, 2, 3, 4))
    yield Sample(threefry.threefry2x32_few, lambda: call(1, 2, [3, 4]))


def model_rooms() -> Iterator[Sample]:
    yield Sample(Config.from_hf, lambda: call({**HF, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}))
    yield Sample(Config.from_gguf, lambda: call(dict(GGUF_SIZES), tied=True, rope_divisors=[1.0]))
    for scaling in ("none", "linear", "llama3", "yarn"):
        given = RopeConfig(scaling=scaling, factor=4.0, original_context=8)
        yield Sample(rope.frequencies, lambda given=given: call(given, 8))
        yield Sample(rope.attention_factor, lambda given=given: call(given))
    for factor in (1.0, 1.5):
        yield Sample(rope.rotation, lambda factor=factor: call(ids(0, 3), table(4).double(), factor, torch.float64, (2, 1, 1)))
    yield Sample(rope.rotate, lambda: call(table(2, 3, 4), table(2, 3, 4), table(2, 3, 4)))
    for count in (1, 5, 8):
        yield Sample(product.product, lambda count=count: call(table(count, 4), table(32, 4)))
        yield Sample(product.tiled, lambda count=count: call(table(count, 4), table(32, 4)))
    yield Sample(llama.shapes, lambda: call(sizes("qwen2")))
    yield Sample(llama.assemble, lambda: call(sizes("qwen2"), lambda name: table(*llama.shapes(sizes("qwen2"))[name])))
    yield Sample(llama.assemble, lambda: call(sizes("qwen3", tied=True), one_of_each(sizes("qwen3", tied=True))))
    yield Sample(llama.model, lambda: call(sizes("llama"), weights_of(sizes("llama"))))
    yield Sample(model.causal, lambda: call(None, 0, table(3, 2, 4), table(3, 1, 4), table(3, 1, 4)))
    yield Sample(toy.bigram, lambda: call(laws(4, 4)))
    yield Sample(toy.llama, lambda: call(random.key(2), vocab_size=5, layers=1, width=4, heads=1, head_dim=4, ffn=3))
    for made in (bigram(), tiny("llama"), tiny("qwen2", tied=True), tiny("qwen3")):
        yield Sample(model.invariant, lambda made=made: call(made))
        yield Sample(model.parameter, lambda made=made: call(made))
        yield Sample(model.logits, lambda made=made: call(made, [1, 0, 3]))
        yield Sample(model.logits, lambda made=made: call(made, ids(1, 0, 3)))
        for form in (made, made.invariant):
            for step in (form.apply, form.prefill):
                yield Sample(step, lambda made=made: call(made.params, ids(1, 0, 3), ids(2, 3, 4), cache(), dense.attend_pure))
                yield Sample(step, lambda made=made: call(made.params, ids(1), ids(0), None, model.causal))
            if form.apply_at is not None:
                for asked in (ids(2, 0), ids()):
                    yield Sample(
                        form.apply_at,
                        lambda made=made, asked=asked: call(made.params, ids(1, 0, 3), ids(2, 3, 4), cache(), dense.attend_pure, asked),
                    )


def one_of_each(config: Config) -> Callable[[str], Tensor]:
    """Hands out the same tensor each time it is asked for a name, as a mapped file does."""
    held = {name: table(*shape) for name, shape in llama.shapes(config).items()}
    return lambda name: held[name]


def cache_rooms() -> Iterator[Sample]:
    yield Sample(dense.init, lambda: call(sizes("llama"), 4, dtype=torch.float64))
    yield Sample(dense.advance, lambda: call(cache(), 2))
    yield Sample(dense.truncate, lambda: call(cache(), 1))
    yield Sample(dense.grow, lambda: call(cache(), 9))
    for attend in (dense.attend, dense.attend_invariant, dense.attend_pure):
        for count, length in ((1, 2), (3, 2), (3, 0)):
            rows = lambda count, heads: table(count, heads, 4)  # noqa: E731
            yield Sample(attend, lambda n=count, at=length, rows=rows: call(cache(length=at), 1, rows(n, 2), rows(n, 1), rows(n, 1)))
    seen = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    three = lambda: (table(3, 2, 4), table(3, 1, 4), table(3, 1, 4))  # noqa: E731
    for build in (branching.attend, branching.attend_invariant):
        yield Sample(build, lambda: call(seen.clone()))
        yield Sample(build(seen), lambda: call(cache(), 1, *three()))
    for kept in (ids(0, 2), ids(0, 1)):
        yield Sample(branching.keep, lambda kept=kept: call(cache(), kept))
    yield Sample(dense.write, lambda: call(cache(), 1, *three()[1:]))
    yield Sample(dense.over, lambda: call(cache(), 1, table(1, 2, 4), 2))
    yield Sample(dense.over, lambda: call(cache(), 1, table(3, 2, 4), 2, table(3, 2)))


def weight_rooms() -> Iterator[Sample]:
    yield Sample(gguf.parse, lambda: call(gguf_file()))
    yield Sample(gguf.parse, lambda: call(gguf_file()[:40]), ValueError)
    yield Sample(gguf.tensor, lambda: call(gguf_file(), gguf.parse(gguf_file()).entries["weight"]))
    for heads in (2, 1):
        yield Sample(gguf.unpermute, lambda heads=heads: call(table(8, 3), heads))
        yield Sample(gguf.unpermute, lambda heads=heads: call(np.arange(8), heads))
    for kind, form in gguf_quants.formats.items():
        yield Sample(gguf_quants.byte_count, lambda form=form: call(form, (2, 256)))
        for dtype in (torch.float32, torch.bfloat16):
            yield Sample(
                gguf_quants.dequantize,
                lambda kind=kind, form=form, dtype=dtype: call(blocks(kind), kind, (2, max(form.weights, 32)), dtype),
            )
    yield Sample(names.from_gguf, lambda: call(["blk.3.attn_k.bias", "other"]))
    yield Sample(names.from_transformers, lambda: call(["model.norm.weight", "other"]))
    yield Sample(names.to_gguf, lambda: call("layers.3.q"))
    yield Sample(names.to_transformers, lambda: call("layers.3.q"))
    yield Sample(safetensors.single, lambda: call(["config.json", "a.safetensors"]))
    yield Sample(safetensors.shards, lambda: call({"weight_map": {"x": "a.safetensors"}}, ["a.safetensors"]))
    yield Sample(safetensors.check_number, lambda: call("x", "BF16"))


def text_rooms() -> Iterator[Sample]:
    template = METADATA["tokenizer.chat_template"]
    yield Sample(chat.compile_template, lambda: call(template, {"bos_token": "<s>"}))
    yield Sample(chat.compile_template(template, {}), lambda: call(said()))
    yield Sample(chat.compile_template(None, {}), lambda: call(said()), ValueError)
    controls = [chat.Control("<end>", 0)]
    yield Sample(chat.encoder, lambda: call(chat.compile_template(template, {}), controls, lambda text: [1], lambda texts, ids: [2, *ids]))
    yield Sample(chat.shield, lambda: call(said(), ["<end>"]))
    yield Sample(chat.unused, lambda: call(["a", "\U000f0000"]))
    yield Sample(tokenizers.from_gguf, lambda: call(dict(METADATA)))
    for byte_level in (True, False):
        settings = {"tokenizer_config": {"eos_token": "ab", "chat_template": template}, "model_config": {"eos_token_id": [0]}}
        yield Sample(tokenizers.from_json, lambda byte_level=byte_level, settings=settings: call(library_json(byte_level=byte_level), **settings))
        made = tokenizers.from_json(library_json(byte_level=byte_level))
        yield Sample(made.encode, lambda: call("abba", special=True))
        yield Sample(made.decode, lambda: call([2, 0]))
    made = words()
    yield Sample(made.encode, lambda: call("abba<end>"))
    yield Sample(made.decode, lambda: call([3, 0, 1], skip_special=False))
    yield Sample(made.chat, lambda: call(said("ab")))
    yield Sample(made.chat, lambda: call(said()))
    yield Sample(made.token_bytes, lambda: call(3))
    yield Sample(splits.build, lambda: call(splits.SPLITS["qwen2"]))
    yield Sample(pieces.byte_level, lambda: call("ĠcafÃ©"))
    yield Sample(pieces.check, lambda: call([1, 2], 3))
    yield Sample(pieces.decoder, lambda: call(pieces.Pieces((b"a", b"\xc3"), frozenset({0}))))
    yield Sample(pieces.from_decoder, lambda: call({"type": "ByteLevel"}, ["Ġa", "é"], frozenset({1}), frozenset()))
    for spelled, given in ((words(), [3, 1]), (bytewise(), [0xC3, 0xA9, 0xF0])):
        yield Sample(detokenizer.init, lambda spelled=spelled, given=given: call(spelled, given))
        yield Sample(detokenizer.feed, lambda spelled=spelled, given=given: call(detokenizer.init(spelled, given[:1]), given))
        yield Sample(detokenizer.finish, lambda spelled=spelled, given=given: call(detokenizer.feed(detokenizer.init(spelled), given)[0]))
    yield Sample(stop.init, lambda: call(["</s>", "User:"]))
    yield Sample(stop.feed, lambda: call(stop.init(["abc", "bd"]), "xab"))
    yield Sample(stop.finish, lambda: call(stop.feed(stop.init(["abc"]), "xab")[0]))


def sampling_rooms() -> Iterator[Sample]:
    none = ids()
    for settings in (SamplingParams(), FIXED, SamplingParams(0.0), SamplingParams(top_k=2), SamplingParams(min_tokens=9)):
        for member in (SamplingParams.greedy.fget, SamplingParams.history.fget):
            yield Sample(member, lambda settings=settings: call(settings))
        for row in (table(6), table(6).double().requires_grad_(), torch.full((6,), torch.nan)):
            yield Sample(
                distribution,
                lambda row=row, settings=settings: call(row, settings, prompt=ids(1, -1), generated=ids(0, 0), eos_ids=[5], mask=torch.ones(6) > 0),
            )
        yield Sample(processors.biased, lambda settings=settings: call(table(6), settings))
        yield Sample(processors.checked_ids, lambda settings=settings: call(settings, 6))
        yield Sample(processors.penalised, lambda settings=settings: call(table(6), settings, ids(1, -1), ids(0, 0)))
        yield Sample(processors.forbidden, lambda settings=settings: call(6, settings, ids(1), none, [5], torch.ones(6) > 0))
        for wide in (4096, 2):
            yield Sample(truncation.truncated, lambda settings=settings, wide=wide: call(table(6), warm(settings), wide))
    yield Sample(truncation.one_hot, lambda: call(table(6)))
    for temperature in (1.0, 0.3, 1e-38):
        yield Sample(truncation.tempered, lambda temperature=temperature: call(table(6), temperature))
    yield Sample(draw, lambda: call(torch.tensor(0.5), table(6).softmax(0)))
    yield Sample(narrow.at_least_kth, lambda: call(table(100), 2))
    yield Sample(narrow.shortest_prefix, lambda: call(table(100).softmax(0), table(100).softmax(0), 0.7, descending=True))
    yield Sample(params.ids_of, lambda: call("eos_ids", [2, 0]))


def warm(settings: SamplingParams) -> SamplingParams:
    return settings if settings.temperature > 0 else dataclasses.replace(settings, temperature=0.5)


def speculation_rooms() -> Iterator[Sample]:
    yield Sample(draft.chain, lambda: call([5, 7], 3, laws(2, 9)))
    yield Sample(draft.chain, lambda: call([5, 7], 2, laws(2, 9)))
    for count in (3, 2, 0):
        yield Sample(draft.first, lambda count=count: call(chain_of(1, 2, 3, soft=True)._replace(parents=ids(-1, 0, 0)), count))
    yield Sample(recover.residual, lambda: call(laws(4), laws(2, 4)[1]))
    yield Sample(recover.residual, lambda: call(laws(4), laws(4)))
    yield Sample(recover.without, lambda: call(laws(4), torch.tensor(1)))
    yield Sample(tape.address, lambda: call(random.key(1), tape.ACCEPT, 12))
    yield Sample(tape.tape, lambda: call(random.key(1), 3, 100, position=12, dtype=torch.float32))
    yield Sample(verdict.of_chain, lambda: call(chain_of(1, 2, k=2), torch.tensor(1), torch.tensor(3)))
    yield Sample(verifier.check, lambda: call(laws(4, 4), chain_of(1, 2, 3, soft=True)))
    yield Sample(verifier.check, lambda: call(laws(4, 4) * 2, chain_of(1, 2, 3)), ValueError)
    yield Sample(verifier.check_draft, lambda: call(chain_of(1, 2, 3, soft=True), 4, chain=True))
    yield Sample(verifier.check_draft, lambda: call(chain_of(1, 2, 3), 3), ValueError)
    for rule in verifiers.values():
        yield Sample(rule.tape, lambda: call(random.key(1), 3, 4, position=5))
        yield Sample(verifier.batched, lambda rule=rule: call(rule.decide))
        yield Sample(verifier.door, lambda rule=rule: call(rule.tape, rule.decide, trees=rule.trees))
        branching = chain_of(1, 2, 3, soft=True)._replace(parents=ids(-1, -1, 0))
        for given in (chain_of(1, 2, 3), chain_of(1, soft=True), chain_of(2, 1, 0, soft=True), chain_of(k=0), *([branching] if rule.trees else [])):
            k = given.tokens.shape[0]
            numbers = functools.partial(rule.tape, random.key(2), k, 4)
            yield Sample(rule.decide, lambda k=k, given=given, numbers=numbers: call(numbers(), laws(k + 1, 4), given))
            yield Sample(rule.verify, lambda k=k, given=given: call(random.key(1), laws(k + 1, 4), given, position=7))
        if rule.bias is not None:
            yield Sample(rule.bias, lambda: call(laws(4), laws(2, 4)[1]))
        yield Sample(
            verifier.batched(rule.decide),
            lambda rule=rule: call(
                torch.func.vmap(lambda key: rule.tape(key, 3, 4))(random.split(random.key(2))),
                laws(2, 4, 4),
                Draft(ids(1, 2, 3, 0, 1, 2).view(2, 3), None, ids(3, 2)),
            ),
        )
    for seen in (ids(1, 2, 0), ids(1, -1, 0)):
        yield Sample(follow.follow, lambda seen=seen: call(seen, chain_of(1, 2, k=2)))
        yield Sample(follow.follow, lambda seen=seen: call(seen, chain_of(1, 2, k=2)._replace(parents=ids(-1, -1))))
    yield Sample(verdict.of_path, lambda: call(chain_of(1, 2, k=2)._replace(parents=ids(-1, -1)), torch.tensor([False, True]), torch.tensor(3)))
    yield Sample(race.noise, lambda: call(random.key(1), ids(3, 4), 5))
    yield Sample(race.tape, lambda: call(random.key(1), 2, 5, position=3, dtype=torch.float32))
    yield Sample(race.exponential, lambda: call(ids(3, 4)))
    yield Sample(race.winner, lambda: call(laws(4), laws(2, 4)[1]))
    for shape in (ids(-1, -1, 0, 2), ids()):
        for function in (tree.ancestors, tree.depths, tree.mask):
            yield Sample(function, lambda shape=shape: call(shape))
        yield Sample(tree.positions, lambda shape=shape: call(shape, 7))
        yield Sample(verifiers.traversal.postorder, lambda shape=shape: call(shape, shape < 2))
    yield Sample(tree.parents_of, lambda: call(chain_of(1, 2, k=2)))
    yield Sample(tree.parents_of, lambda: call(chain_of(1, 2, k=2)._replace(parents=ids(-1, -1))))
    yield Sample(tree.merge, lambda: call([[1, 2], [1, 3]], 4))
    for function in (verifiers.tree.descend, verifiers.tree.decide, verifiers.multi_draft.decide, verifiers.multi_draft.decide_without_replacement):
        yield Sample(function, lambda: call(Tape(laws(3), laws(1)[0]), laws(4, 4), chain_of(1, 2, 3, soft=True)._replace(parents=ids(-1, -1, 0))))
    yield Sample(verifiers.k_seq.scale, lambda: call(laws(4), laws(2, 4)[1], torch.tensor(2), 3))
    yield Sample(verifiers.lossy.typical, lambda: call(0.1, 0.2))
    yield Sample(verifiers.lossy.lenient, lambda: call(0.9))
    yield Sample(verifiers.lossy.lenient, lambda: call(2.0), ValueError)
    yield Sample(registry.Registry.__getitem__, lambda: call(verifiers, "token"))
    yield Sample(registry.Registry.__getitem__, lambda: call(verifiers, "blok"), KeyError)
    yield Sample(registry.Registry.__iter__, lambda: call(verifiers))
    yield Sample(registry.Registry.__len__, lambda: call(verifiers))
    yield Sample(proposers.named, lambda: call("ngram"))
    yield Sample(proposers.ngram.match, lambda: call([1, 2, 3, 1, 2], k=2))
    yield Sample(proposers.ngram.proposer, lambda: call(3, 1))
    yield Sample(proposers.paying.proposer, lambda: call(proposers.ngram.proposer()))
    yield Sample(proposers.scripted.proposer, lambda: call(lambda context: [context[-1]] * 9))
    yield Sample(proposers.ngram.matches, lambda: call([1, 2, 3, 1, 2, 1, 2], k=2))
    yield Sample(proposers.ngram_tree.candidates, lambda: call([1, 2, 3, 1, 2, 1, 2], 2, 1, 2, 3))
    yield Sample(proposers.ngram_tree.proposer, lambda: call(3, 1, 2))
    ngram, scripted = proposers.ngram.proposer(), proposers.scripted.proposer(lambda context: [context[-1]] * 9)
    for guess in (ngram, scripted, proposers.paying.proposer(scripted), proposers.named("ngram"), proposers.ngram_tree.proposer()):
        yield Sample(guess.init, lambda: call([1, 2, 1]))
        yield Sample(guess.propose, lambda guess=guess: call(random.key(0), guess.init([1, 2, 1]), [1, 2, 1], 3, position=3))
    yield Sample(proposers.draft_model.proposer, lambda: call(tiny(), sampling=FIXED, vocab_size=7))
    for made, settings in ((bigram(), SamplingParams(0.7)), (tiny(), FIXED), (model.invariant(tiny()), SamplingParams(0.0))):
        guess = proposers.draft_model.proposer(made, sampling=settings)
        yield Sample(guess.init, lambda: call([1, 2, 1]))
        yield Sample(guess.propose, lambda guess=guess: call(random.key(0), guess.init([1, 2, 1]), [1, 2, 1], 3, position=3))
        yield Sample(guess.propose, lambda guess=guess: call(random.key(0), held(guess), [1, 2, 1, 3, 0], 3, position=5))
    yield Sample(guess.propose, lambda: call(random.key(0), guess.init([1]), [1], -1, position=1), ValueError)
    watched = proposers.paying.proposer(scripted)
    later = watched.propose(random.key(0), watched.init([1]), [1], 3, position=1)[0]
    yield Sample(watched.propose, lambda: call(random.key(0), later, [1, 2, 2], 3, position=3))


def held(guess: Proposer) -> Any:
    """The state of a proposer that has drafted once."""
    return guess.propose(random.key(0), guess.init([1, 2, 1]), [1, 2, 1], 2, position=3)[0]


def estimator_rooms() -> Iterator[Sample]:
    half = torch.tensor([0.5, 0.5])
    for q in (laws(2, 3, 4).flip(-1), None):
        yield Sample(expected.of_draft, lambda q=q: call(laws(2, 4, 4), q, ids(1, 2, 3, 0, 1, 2).view(2, 3), ids(3, 1)))
        yield Sample(overlaps.of_siblings, lambda q=q: call(laws(2, 4), None if q is None else q[:, 0].clone(), ids(1, 2, 0, -1).view(2, 2)))
    yield Sample(expected.of_draft, lambda: call(laws(3, 4), laws(2, 4), ids(1, 4)), ValueError)
    for k in (1, 2):
        yield Sample(expected.of_tables, lambda k=k: call([laws(4), laws(4, 4)], [laws(4).flip(0), laws(4, 4).flip(1)][:k]))
    for function in (overlaps.overlap, overlaps.coupled_overlap, overlaps.same_winner):
        yield Sample(function, lambda: call(laws(2, 4), laws(2, 4).flip(-1)))
    for function in (overlaps.multi_draft, overlaps.multi_draft_without_replacement, overlaps.k_seq, overlaps.transport):
        yield Sample(function, lambda: call(laws(2, 4), laws(2, 4).flip(-1), 2))
        yield Sample(function, lambda: call(laws(4), laws(4), 1))
    yield Sample(rows.divide, lambda: call(half, torch.tensor([2.0, 0.0])))
    for weights in (half, torch.zeros(2)):
        yield Sample(rows.normalised, lambda weights=weights: call(weights, half))
        yield Sample(rows.check_laws, lambda weights=weights: call("p", weights), None if weights is half else ValueError)
    yield Sample(rows.traced, lambda: call(half, None))
    yield Sample(rows.check_floats, lambda: call(p=half, q=None))
    yield Sample(rows.check_ids, lambda: call("tokens", ids(0, 1), 2))
    yield Sample(rows.check_ids, lambda: call("tokens", ids(0, -1), 2), ValueError)


def samples() -> Iterator[Sample]:
    return itertools.chain(
        alphabet(), model_rooms(), cache_rooms(), weight_rooms(), text_rooms(), sampling_rooms(), speculation_rooms(), estimator_rooms()
    )
