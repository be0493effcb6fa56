"""Buffers whose surroundings are watched: an interpreter lets a kernel write past its tensors in silence. And a quicker interpreter."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

GUARD = 64  # numbers before and after
PATTERN = 0x5A


@pytest.fixture
def fenced() -> Iterator[Callable[[Tensor], Tensor]]:
    """Gives a contiguous copy of a tensor that lies between guard words; the test fails if one of them has changed when it ends."""
    fences: list[tuple[Tensor, int]] = []

    def fence(tensor: Tensor) -> Tensor:
        size = tensor.element_size()
        raw = torch.full(((tensor.numel() + 2 * GUARD) * size,), PATTERN, dtype=torch.uint8)
        fences.append((raw, tensor.numel() * size))
        inner = raw.view(tensor.dtype)[GUARD : GUARD + tensor.numel()].view(tensor.shape)
        inner.copy_(tensor)
        return inner

    yield fence
    for raw, size in fences:
        first = GUARD * ((raw.numel() - size) // (2 * GUARD))
        assert (raw[:first] == PATTERN).all(), "the words before a buffer were written"
        assert (raw[first + size :] == PATTERN).all(), "the words after a buffer were written"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device functions called from a kernel make triton's interpreter patch its language anew, at half a millisecond each; once is enough."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        languages = [value for value in self.fn.__globals__.values() if value is tl or value is tl.core]
        if any(tl.core.is_builtin(language.arange) for language in languages):
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)
