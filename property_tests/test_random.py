"""Keys and bits against Random123's known answers and jax.random; the float maps against their grids."""

import os

os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import random
from specdec_fn.random import bits, fold_in, key, key_data, split, uniform
from specdec_kernels.threefry import threefry2x32, threefry2x32_words

SEEDS = st.integers(-(2**63), 2**63 - 1)
KNOWN_ANSWERS = [  # Random123, tests/kat_vectors: counter, key, output
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.fixture(scope="module")
def jax_random():
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax.random


@pytest.mark.parametrize(("counter", "words", "output"), KNOWN_ANSWERS)
def test_threefry_known_answers(counter, words, output):
    assert threefry2x32_words(*words, *counter) == output
    assert tuple(int(word) for word in threefry2x32(*map(torch.tensor, (*words, *counter)))) == output


def test_threefry_of_tensors_is_elementwise():
    gen = torch.Generator().manual_seed(1)
    words = torch.randint(0, 2**32, (4, 50), generator=gen)
    together = torch.stack(threefry2x32(*words), 1).tolist()
    assert together == [list(threefry2x32_words(*column)) for column in words.T.tolist()]


@given(seed=SEEDS, data=st.integers(0, 2**32 - 1), count=st.sampled_from([0, 1, 3, 16, 17, 40]))
def test_keys_and_bits_are_jax_s(jax_random, seed, data, count):
    ours, theirs = key(seed), jax_random.key(seed)
    as_words = lambda keys: np.asarray(jax_random.key_data(keys)).astype(np.int64).tolist()  # noqa: E731
    assert key_data(ours).tolist() == as_words(theirs)
    assert key_data(fold_in(ours, data)).tolist() == as_words(jax_random.fold_in(theirs, data))
    assert key_data(split(ours, count)).tolist() == as_words(jax_random.split(theirs, count))
    assert bits(ours, (count,)).tolist() == np.asarray(jax_random.bits(theirs, (count,), np.uint32)).astype(np.int64).tolist()
    assert bits(ours, (count,), 64).tolist() == np.asarray(jax_random.bits(theirs, (count,), np.uint64)).view(np.int64).tolist()


@given(seed=SEEDS, rows=st.integers(0, 6), columns=st.integers(0, 6), width=st.sampled_from([32, 64]))
def test_bits_depend_on_the_index_alone(seed, rows, columns, width):
    flat = bits(key(seed), (60,), width)
    assert bits(key(seed), (rows, columns), width).flatten().equal(flat[: rows * columns])


@given(seed=SEEDS, count=st.integers(1, 30), size=st.sampled_from([1, 5, 20]))
def test_batches_of_keys_equal_single_keys(seed, count, size):
    keys = split(key(seed), count)
    alone = torch.stack([uniform(one, (size,)) for one in keys])
    assert uniform(keys, (size,)).equal(alone)
    assert torch.func.vmap(lambda one: uniform(one, (size,)))(keys).equal(alone)
    folded = torch.stack([key_data(fold_in(one, 9)) for one in keys])
    assert key_data(fold_in(keys, 9)).equal(folded)
    assert key_data(torch.func.vmap(lambda one, data: fold_in(one, data))(keys, torch.full((count,), 9))).equal(folded)


@given(seed=SEEDS)
def test_uniform_grids(seed):
    double, single = uniform(key(seed), (40,)), uniform(key(seed), (40,), torch.float32)
    for values, digits in ((double, 53), (single, 24)):
        assert ((values >= 0) & (values < 1)).all()
        scaled = values.double() * 2.0**digits
        assert scaled.equal(scaled.round())
    words = bits(key(seed), (40,), 64).tolist()
    assert double.tolist() == [((word % 2**64) >> 11) / 2**53 for word in words]
    assert single.tolist() == [(word >> 8) / 2**24 for word in bits(key(seed), (40,)).tolist()]


def test_uniform_is_uniform():
    counts = torch.histc(uniform(key(5), (200_000,)), 20, 0, 1)
    assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 63.2  # chi-squared, 19 degrees of freedom, alpha 1e-6


@given(a=SEEDS, b=SEEDS)
def test_seeds_give_distinct_keys(a, b):
    assert (a == b) == key_data(key(a)).equal(key_data(key(b)))


def test_compiled_and_eager_agree():
    draw = torch.compile(lambda words: random.uniform(random.Key(words), (5,)), backend="eager", fullgraph=True)
    assert draw(key_data(key(3))).equal(uniform(key(3), (5,)))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: key(2**63), ValueError, "9223372036854775808; expected an integer in"),
        (lambda: key(1.5), TypeError, "1.5; expected an integer"),
        (lambda: fold_in(key(0), -1), ValueError, "-1; expected an integer in"),
        (lambda: fold_in(key(0), 2**32), ValueError, "4294967296; expected"),
        (lambda: fold_in(key(0), torch.tensor([1, -1])), ValueError, "-1 to 1; expected"),
        (lambda: fold_in(key(0), torch.tensor(1.0)), TypeError, "float32; expected integers"),
        (lambda: fold_in(key(0), "a"), TypeError, "'a'; expected"),
        (lambda: bits(key(0), (2,), 16), ValueError, "16; expected 32 or 64"),
        (lambda: bits(key(0), (-1,)), ValueError, "expected dimensions"),
        (lambda: split(key(0), -1), ValueError, "-1; expected"),
        (lambda: uniform(key(0), (), torch.float16), ValueError, "float16; expected"),
        (lambda: key(0)[0], TypeError, "single key"),
        (lambda: len(key(0)), TypeError, "single key"),
    ],
)
def test_bad_input_says_what_was_expected(call, error, words):
    with pytest.raises(error, match=words):
        call()
