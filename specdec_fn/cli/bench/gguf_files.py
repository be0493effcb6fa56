"""The files that llama.cpp is given: the embedded model's own, and the same weights written out as F32 or BF16."""

import importlib.util
import math
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
import torch

from specdec_fn.weights import gguf

__all__ = ["KINDS", "file_of", "rewritten"]

KINDS = ("F32", "BF16")
CONTENT_KEYS = ("general.file_type", "general.quantization_version")  # they describe the tensors, which change


def file_of(model: str) -> Path:
    """The GGUF file of an embedded name, or the path itself.

    Raises:
        ValueError: the model is no GGUF file.
    """
    from specdec_fn.load import embedded

    path = Path(model)
    if model in embedded:
        found = importlib.util.find_spec(embedded[model].module)
        folders = list(found.submodule_search_locations or ()) if found else []
        files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
        if not files:
            raise ValueError(f"the embedded model {model!r} is not installed; install it with: {embedded[model].install}")
        path = files[0]
    if not path.is_file():
        raise ValueError(f"{model!r} is no file; expected an embedded name or a GGUF file to compare with llama.cpp")
    return path


def rewritten(source: Path, folder: Path, kind: str) -> Path:
    """Writes a GGUF file with the same metadata, and every tensor in another type; one that is there already stays.

    Tensors of one axis (norms, biases) are F32 in either. The rows of queries and keys stay in the order in which the file has them.

    Args:
        source: a GGUF file of any types that we read.
        folder: where the new file goes, ``NAME.KIND.gguf``; it is made if need be.
        kind: "F32" or "BF16".

    Raises:
        ValueError: an unknown kind; the package gguf is not installed; a source that cannot be read.
    """
    if kind not in KINDS:
        raise ValueError(f"the kind of the file is {kind!r}; expected one of {', '.join(KINDS)}")
    try:
        import gguf as package
    except ImportError:
        raise ValueError("the package gguf is not installed; pip install gguf to write files for llama.cpp") from None
    path = folder / f"{source.stem}.{kind}.gguf"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    begun = path.with_suffix(".part")
    with open(source, "rb") as file:
        data = mmap(file.fileno(), 0, access=ACCESS_READ)  # closed by its last reader
    head, types = gguf.parse(data), package.GGMLQuantizationType
    writer = package.GGUFWriter(begun, head.metadata["general.architecture"])
    for name, field in package.GGUFReader(source).fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", *CONTENT_KEYS):
            inner = field.types[-1] if field.types[0] is package.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(package.LlamaFileType.ALL_F32 if kind == "F32" else package.LlamaFileType.MOSTLY_BF16)
    short = {name: kind == "BF16" and len(entry.shape) > 1 for name, entry in head.entries.items()}
    for name, entry in head.entries.items():
        width, type_ = (2, types.BF16) if short[name] else (4, types.F32)
        writer.add_tensor_info(name, entry.shape, np.dtype(np.float32), width * math.prod(entry.shape), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, entry in head.entries.items():  # one at a time: the whole may be large
        values = gguf.tensor(data, entry, torch.bfloat16 if short[name] else torch.float32)
        writer.write_tensor_data((values.view(torch.int16) if short[name] else values).numpy())
    writer.close()
    begun.rename(path)
    return path
