"""A safetensors checkpoint: which file of a folder holds which tensor, and which numbers are taken as weights.

The files themselves are opened in ``specdec_fn.load`` with the ``safetensors`` package, which is its format's own reader.
"""

from collections.abc import Collection
from pathlib import PurePath
from typing import Any

__all__ = ["check_number", "shards", "single"]

# The names that the format gives to numbers that are weights as they stand; integers and 8-bit floats would need scales that nobody reads here.
NUMBERS = ("F64", "F32", "F16", "BF16")


def single(files: Collection[str]) -> str | None:
    """The one file that holds everything, if a folder has one: ``model.safetensors``, or the only file of that kind.

    Args:
        files: names of the folder's files.

    >>> single(["config.json", "weights.safetensors"])
    'weights.safetensors'
    >>> single(["a.safetensors", "b.safetensors"]) is None
    True
    """
    if "model.safetensors" in files:
        return "model.safetensors"
    found = [name for name in files if name.endswith(".safetensors")]
    return found[0] if len(found) == 1 else None


def shards(index: Any, files: Collection[str]) -> dict[str, str]:
    """Maps each tensor to the file that holds it, for a checkpoint in several files.

    Args:
        index: the value of ``model.safetensors.index.json``.
        files: names of the folder's files.

    Raises:
        ValueError: the index has no ``weight_map`` of names to file names, or names a file that is not in the folder.

    >>> shards({"weight_map": {"norm.weight": "model-00001-of-00001.safetensors"}}, ["model-00001-of-00001.safetensors"])
    {'norm.weight': 'model-00001-of-00001.safetensors'}
    """
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not all(isinstance(file, str) and PurePath(file).name == file for file in where.values()):
        raise ValueError("the safetensors index has no weight_map from tensor names to names of files in the same folder")
    lacking = sorted(set(where.values()) - set(files))
    if lacking:
        raise ValueError(
            f"the safetensors index names {lacking[0]!r}, which is not in the folder; {len(lacking)} of {len(set(where.values()))} files are missing"
        )
    return dict(where)


def check_number(name: str, number: str) -> None:
    """Refuses a tensor whose numbers are not plain floats.

    Args:
        name: the tensor's name, for the message.
        number: the format's name of its type, for example ``"BF16"``.

    Raises:
        ValueError: another type than F64, F32, F16, BF16.

    >>> check_number("norm.weight", "BF16")
    """
    if number not in NUMBERS:
        raise ValueError(f"tensor {name!r} has the type {number}, which is not supported; expected one of {', '.join(NUMBERS)}")
