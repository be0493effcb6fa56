"""The C library's random bits are threefry's: the race's uniform numbers, from the library and from torch, against the words in Python integers."""

import pytest
import torch

from specdec_fn import random
from specdec_kernels import native
from specdec_kernels.race_uniform import race_uniform
from specdec_kernels.threefry import threefry2x32_few, threefry2x32_words


@pytest.fixture(autouse=True, scope="module")
def there() -> None:
    assert native.wait(), native.status()


def exact(key: tuple[int, int], column: int) -> float:
    """(k + 1/2) 2**-64 in the order of the definition, each step in float64."""
    word0, word1 = threefry2x32_words(*key, column >> 32, column & 0xFFFFFFFF)
    return word0 * 2.0**-32 + (word1 + 0.5) * 2.0**-64


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("impl", ["torch", "native", "auto"])
def test_the_numbers_of_the_definition(impl: str, columns: int) -> None:
    keys = [(0, 0), (1, 2), (0xFFFFFFFF, 0xFFFFFFFF), (0x13198A2E, 0x03707344), (0x80000000, 0x7FFFFFFF)]
    found = race_uniform(torch.tensor(keys), columns, impl=impl)
    assert found.dtype is torch.float64
    assert found.tolist() == [[exact(key, column) for column in range(columns)] for key in keys]


def test_both_ways_give_the_same_bits_for_many_keys_and_columns() -> None:
    keys = random.key_data(random.split(random.key(7), 20)).reshape(4, 5, 2)
    ours = race_uniform(keys, 3001, impl="native")
    assert ours.shape == (4, 5, 3001)
    assert torch.equal(ours, race_uniform(keys, 3001, impl="torch"))
    for impl in ("native", "torch"):
        assert torch.equal(race_uniform(keys, 3001, negative=True, impl=impl), -ours)
    assert ours.unique().numel() == ours.numel()
    assert 0 < ours.min() < 1e-3
    assert 0.999 < ours.max() <= 1


def test_a_few_words_are_the_same_with_and_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [(0, 0), (0x13198A2E, 0x03707344), (0xFFFFFFFF, 0xFFFFFFFF), (0x80000000, 0x7FFFFFFF)]
    counters = [0, 1, 0x243F6A88, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    assert native.loaded() is not None
    ours = [threefry2x32_few(*key, counters) for key in keys]
    assert ours == [[threefry2x32_words(*key, 0, counter) for counter in counters] for key in keys]
    assert threefry2x32_few(1, 2, []) == []
    monkeypatch.setattr(native._BUILD, "loaded", None)
    assert [threefry2x32_few(*key, counters) for key in keys] == ours


def test_threads_strides_and_nothing() -> None:
    wide = torch.arange(40).reshape(10, 4)
    apart, turned = wide[:, ::2], torch.arange(8).reshape(2, 4).T
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for keys in (apart, turned, wide[:0, :2], wide[:1, :2].expand(3, 2)):
                assert torch.equal(race_uniform(keys, 33, impl="native"), race_uniform(keys, 33, impl="torch"))
    finally:
        torch.set_num_threads(before)
    assert race_uniform(apart, 0, impl="native").shape == (10, 0)


def test_mapped_over_and_compiled() -> None:
    keys = torch.arange(12).reshape(6, 2)
    wanted = race_uniform(keys, 20, impl="native")
    assert torch.equal(torch.func.vmap(lambda key: race_uniform(key, 20))(keys), wanted)
    assert torch.equal(torch.compile(lambda given: race_uniform(given, 20), fullgraph=True, backend="eager")(keys), wanted)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="impl is 'c'; expected 'auto', 'torch' or 'native'"):
        race_uniform(torch.tensor([0, 0]), 1, impl="c")
    with pytest.raises(ValueError, match="impl is 'native', and the library cannot run here"):
        race_uniform(torch.zeros(2, dtype=torch.int64, device="meta"), 1, impl="native")
    wrong = ((torch.zeros(2, 2, dtype=torch.int32), r"torch.int32 \[2, 2\]"), (torch.zeros(3, dtype=torch.int64), r"torch.int64 \[3\]"))
    for keys, received in wrong:
        with pytest.raises(ValueError, match=f"keys are {received}; expected int64"):
            race_uniform(keys, 1)
