"""The threefry kernel: bit for bit the reference, and Random123's known answers."""

import pytest
import torch

from specdec_kernels.threefry import threefry2x32
from specdec_kernels.threefry_triton import BLOCK

KNOWN_ANSWERS = [  # Random123, tests/kat_vectors: counter, key, output
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "words", "output"), KNOWN_ANSWERS)
def test_random123_s_known_answers(counter, words, output) -> None:
    assert tuple(int(word) for word in threefry2x32(*map(torch.tensor, (*words, *counter)), impl="triton")) == output


@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 1])
def test_every_bit_is_the_reference_s(count, fenced) -> None:
    random = torch.randint(0, 2**32, (4, count), generator=torch.Generator().manual_seed(count))
    random[:, 0] = 2**32 - 1
    given = [fenced(words) for words in random]
    kernel, reference = threefry2x32(*given, impl="triton"), threefry2x32(*random, impl="torch")
    assert all(ours.equal(theirs) for ours, theirs in zip(kernel, reference, strict=True))
    assert all(ours.equal(theirs) for ours, theirs in zip(given, random, strict=True))


def test_operands_broadcast() -> None:
    key0, key1 = torch.tensor([[3], [5]]), torch.tensor([[7], [2**32 - 1]])
    count0, count1 = torch.tensor(1), torch.arange(10).expand(2, 10)[:, ::2]
    kernel, reference = threefry2x32(key0, key1, count0, count1, impl="triton"), threefry2x32(key0, key1, count0, count1)
    assert kernel[0].shape == (2, 5)
    assert all(ours.equal(theirs) for ours, theirs in zip(kernel, reference, strict=True))


def test_nothing_is_nothing() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert [word.shape for word in threefry2x32(empty, empty, empty, empty, impl="triton")] == [(0,), (0,)]


def test_what_no_kernel_takes_is_refused() -> None:
    word = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"count0 has dtype torch.int32; expected int64"):
        threefry2x32(word, word, word.int(), word, impl="triton")
    with pytest.raises(ValueError, match=r"impl is 'cuda'; expected 'auto', 'torch' or 'triton'"):
        threefry2x32(word, word, word, word, impl="cuda")
    with pytest.raises(ValueError, match=r"the words are traced; expected impl='torch' or 'auto'"):
        torch.func.vmap(lambda w: threefry2x32(w, w, w, w, impl="triton"))(word)
