"""draw: its exact law, counted on the grid of uniforms, and its behaviour at the ends."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn.sampling import draw

BITS = {torch.float32: 24, torch.float64: 53}
DTYPES = pytest.mark.parametrize("dtype", list(BITS))


def draws(u, probs):
    return torch.func.vmap(draw, in_dims=(0, None))(u, probs)


def counts(probs):
    """How many of the 2**bits uniforms draw each token: for every token, bisection for the first k that draws a later one."""
    bits, vocab = BITS[probs.dtype], probs.shape[0]
    tokens = torch.arange(vocab)
    low, high = torch.zeros(vocab, dtype=torch.int64), torch.full((vocab,), 2**bits)
    while (low < high).any():
        middle = (low + high) // 2
        later = draws(middle.to(probs.dtype) / 2**bits, probs) > tokens
        high, low = torch.where(later, middle, high), torch.where(later, low, torch.minimum(middle + 1, high))
    return torch.diff(low, prepend=torch.zeros(1, dtype=torch.int64))


@DTYPES
@pytest.mark.parametrize("vocab", [2, 3, 7, 40, 300])
@pytest.mark.parametrize("scale", [1.0, 0.3, 17.0])
def test_exact_law_on_the_grid(dtype, vocab, scale):
    """Total variation within V (2^-B + (V + 1) eps) of the weights read as rationals; unnormalised weights, as a residual is, included."""
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        probs = (3 * torch.randn(vocab, dtype=torch.float64, generator=generator)).softmax(0).to(dtype) * scale
        probs[torch.rand(vocab, generator=generator) < 0.2] = 0
        if probs.sum() == 0:
            probs[0] = 1
        exact = [Fraction(value) for value in probs.tolist()]
        found = [Fraction(count, 2 ** BITS[dtype]) for count in counts(probs).tolist()]
        assert sum(found) == 1
        assert all(count == 0 for count, weight in zip(found, exact, strict=True) if weight == 0)
        distance = sum(abs(count - weight / sum(exact)) for count, weight in zip(found, exact, strict=True)) / 2
        assert distance <= vocab * (2.0 ** -BITS[dtype] + (vocab + 1) * torch.finfo(dtype).eps / 2)


@DTYPES
def test_tail_tokens_are_reachable(dtype):
    tail = 2.0**-20 if dtype == torch.float32 else 2.0**-45
    probs = torch.full((64,), tail, dtype=dtype)
    probs[31] = 1 - 63 * tail
    found = counts(probs)
    assert (found > 0).all()
    for count in found[torch.arange(64) != 31].tolist():
        assert abs(count - tail * 2 ** BITS[dtype]) <= 1


@st.composite
def weights(draw_from):
    one = st.one_of(st.just(0.0), st.floats(0, 1, width=32), st.sampled_from([1e-30, 1.1754943508222875e-38, 1e-45, 0.5, 1.0, 3.0]))
    return draw_from(st.lists(one, min_size=1, max_size=8))


@settings(max_examples=8 * settings.default.max_examples)
@given(weights(), st.floats(0, 1, width=32), st.sampled_from(list(BITS)))
def test_a_token_of_probability_zero_is_never_drawn(values, anywhere, dtype):
    probs = torch.tensor(values, dtype=dtype)
    u = torch.tensor([0.0, anywhere, 2.0 ** -BITS[dtype], 1 - 2.0 ** -BITS[dtype], 1.0], dtype=dtype)
    found = draws(u, probs).tolist()
    if max(values) == 0:
        assert found == [-1] * 5
    else:
        assert all(probs[token] > 0 and token >= 0 for token in found)
        positive = [token for token, value in enumerate(probs.tolist()) if value > 0]
        assert found[0] == positive[0]
        assert found[1] <= found[4]


@given(weights(), st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=6))
def test_draw_is_the_inverse_of_the_sums_and_grows_with_u(values, heights):
    probs, u = torch.tensor(values, dtype=torch.float64), torch.tensor(sorted(heights), dtype=torch.float64)
    found = draws(u, probs).tolist()
    assert found == sorted(found)
    exact = [Fraction(value) for value in values]
    total = sum(exact)
    for height, token in zip(u.tolist(), found, strict=True):
        if total == 0:
            continue
        below, upto = sum(exact[:token]), sum(exact[: token + 1])
        slack = Fraction(8, 2**53) * total
        assert below - slack <= Fraction(height) * total < upto + slack


@pytest.mark.parametrize("values", [[0.0, 0.0], [math.nan, 1.0], [1.0, math.nan], [math.inf, 1.0], [0.0]])
def test_no_token_is_minus_one(values):
    for u in (0.0, 0.5, 1.0):
        assert draw(torch.tensor(u), torch.tensor(values)).item() == -1


@DTYPES
def test_vmap_equals_single_calls_in_any_place_of_the_batch_axis(dtype):
    probs = torch.rand(6, 5000, dtype=dtype, generator=torch.Generator().manual_seed(0)) ** 8
    u = torch.rand(6, dtype=dtype, generator=torch.Generator().manual_seed(1))
    single = torch.stack([draw(*each) for each in zip(u, probs, strict=True)])
    assert single.dtype == torch.int64
    assert torch.equal(torch.func.vmap(draw)(u, probs), single)
    assert torch.equal(torch.func.vmap(draw, in_dims=(0, 1))(u, probs.T.contiguous()), single)
    assert torch.equal(torch.func.vmap(draw, in_dims=(None, 0))(u[0], probs)[0], single[0])


def test_arguments_are_left_alone():
    u, probs = torch.tensor(0.3), torch.tensor([0.5, 0.5])
    draw(u, probs)
    assert (u.item(), probs.tolist()) == (torch.tensor(0.3).item(), [0.5, 0.5])


@pytest.mark.parametrize(
    ("kind", "words", "u", "probs"),
    [
        (TypeError, "float64 and torch.float32", torch.tensor(0.5, dtype=torch.float64), torch.ones(3)),
        (TypeError, "float and torch.float32", 0.5, torch.ones(3)),
        (TypeError, "int64", torch.tensor(1), torch.tensor([1, 2])),
        (ValueError, r"\[\] and \[2, 3\]", torch.tensor(0.5), torch.ones(2, 3)),
        (ValueError, r"\[1\] and \[3\]", torch.tensor([0.5]), torch.ones(3)),
        (ValueError, r"\[0\]", torch.tensor(0.5), torch.ones(0)),
    ],
)
def test_the_door_says_what_it_received(kind, words, u, probs):
    with pytest.raises(kind, match=words):
        draw(u, probs)
