"""Rows with controls in tensors: the reference against `distribution` and `draw` a row at a time, and what a captured step asks of it."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from specdec_fn.sampling import SamplingParams, distribution, draw, rows

NONE = torch.tensor([], dtype=torch.int64)
INF, NAN = math.inf, math.nan
F64 = torch.float64
OFF = (1.0, 0, 1.0, 0.0)


def controls(asked):
    """Tensors from (temperature, top_k, top_p, min_p) of each row."""
    columns = list(zip(*asked, strict=True))
    return [torch.tensor(column, dtype=torch.int64 if place == 1 else F64) for place, column in enumerate(columns)]


def one_by_one(logits, asked):
    params = [SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m) for t, k, p, m in asked]
    return torch.stack([distribution(row.to(F64), one, prompt=NONE, generated=NONE) for row, one in zip(logits, params, strict=True)])


def uniforms(words):
    return ((words >> 11) & (2**53 - 1)).to(F64) * 2.0**-53


def hold_equal(logits, asked, seed=0):
    law, given = one_by_one(logits, asked), controls(asked)
    probs = rows.laws(logits, *given)
    assert ((probs > 0) == (law > 0)).all(), "another set of tokens was kept"
    torch.testing.assert_close(probs, law, rtol=1e-12, atol=1e-300)
    words = torch.randint(-(2**63), 2**63 - 1, (len(asked),), generator=torch.Generator().manual_seed(seed))
    assert rows.sample(logits, *given, words).tolist() == torch.func.vmap(draw)(uniforms(words), law).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 2, 7, 60])
def test_every_mixture_of_controls(dtype, vocab):
    generator = torch.Generator().manual_seed(vocab)
    asked = [
        (t, k, p, m)
        for t in (0.0, 1e-30, 0.7, 1.0, 3.0, 1e300)
        for k in (0, 1, 3, vocab, vocab + 4)
        for p in (1.0, 0.9, 0.5, 1e-10)
        for m in (0.0, 0.05, 1.0)
    ]
    logits = 3 * torch.randn(len(asked), vocab, generator=generator, dtype=F64)
    logits[::2] = logits[::2].round()  # ties
    logits[torch.rand(len(asked), vocab, generator=generator) < 0.2] = -INF
    hold_equal(logits.to(dtype), asked)


def test_ties_and_sums():
    level = torch.zeros(40).repeat(39, 1)
    shares = [(1.0, 0, count / 40, 0.0) for count in range(1, 40)]
    hold_equal(level, shares)
    assert (rows.laws(level, *controls(shares)) > 0).sum(-1).tolist() == list(range(1, 40))
    tied = torch.tensor([[1.0, 3.0, 3.0, -0.0, 0.0, 3.0]]).repeat(4, 1)
    hold_equal(tied, [(1.0, 1, 1.0, 0.0), (1.0, 2, 0.5, 0.0), (1.0, 5, 1.0, 0.0), (0.0, 0, 0.5, 0.5)])
    halves = (torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=F64).log()).repeat(4, 1)
    hold_equal(halves, [(1.0, 0, share, 0.0) for share in (0.5, 0.75, 0.875, 0.75 + 1e-8)])


def test_rows_without_a_law():
    logits = torch.zeros(5, 6)
    logits[0, 5], logits[1, 2], logits[2], logits[3, 0], logits[3, 1] = NAN, INF, -INF, INF, NAN
    for asked in ([OFF] * 5, [(0.5, 2, 0.5, 0.2)] * 5, [(0.0, 0, 1.0, 0.0)] * 5):
        hold_equal(logits, asked)
        assert (rows.laws(logits, *controls(asked))[:4] == 0).all()
        assert rows.sample(logits, *controls(asked), torch.full((5,), 3)).tolist() == [-1, -1, -1, -1, 0]


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_both_implementations_behind_one_door(impl):
    logits = torch.tensor([[0.3, 2.0, -1.0, 2.0], [1.0, -INF, 0.5, 0.25]])
    asked = [(0.8, 2, 0.5, 0.0), (1.0, 0, 0.9, 0.5)]
    probs = rows.laws(logits, *controls(asked), impl=impl)
    assert probs.dtype is F64
    torch.testing.assert_close(probs, one_by_one(logits, asked), rtol=1e-12, atol=0)
    assert rows.laws(logits, *controls(asked), dtype=torch.float32, impl=impl).dtype is torch.float32
    assert rows.sample(logits, *controls(asked), torch.tensor([2**62, -1]), impl=impl).tolist() == [1, 2]


def test_words_at_the_ends():
    logits, given = torch.zeros(2, 5), controls([OFF] * 2)
    assert rows.sample(logits, *given, torch.tensor([0, -1])).tolist() == [0, 4]


def test_no_shape_and_no_wait_depends_on_data():
    """Fake tensors have no values: looking at one, or a shape that hangs on one, raises."""
    with FakeTensorMode():
        given = [*controls([OFF] * 3), torch.zeros(3, dtype=torch.int64)]
        logits = torch.zeros(3, 11, dtype=torch.bfloat16)
        assert rows.laws(logits, *given[:4]).shape == (3, 11)
        assert rows.sample(logits, *given).shape == (3,)


def test_a_traced_step_gives_the_same():
    class Step(torch.nn.Module):
        def forward(self, logits, temperature, top_k, top_p, min_p, words):
            given = temperature, top_k, top_p, min_p
            return rows.laws(logits, *given), rows.sample(logits, *given, words)

    generator = torch.Generator().manual_seed(1)
    asked = [(0.8, 3, 0.7, 0.0), OFF, (0.0, 0, 1.0, 0.0), (1.5, 0, 0.9, 0.1)]
    logits, words = torch.randn(4, 9, generator=generator), torch.randint(-(2**63), 2**63 - 1, (4,), generator=generator)
    exported = torch.export.export(Step(), (torch.zeros(4, 9), *controls([OFF] * 4), torch.zeros_like(words))).module()
    probs, tokens = exported(logits, *controls(asked), words)
    assert torch.equal(probs, rows.laws(logits, *controls(asked)))
    assert torch.equal(tokens, rows.sample(logits, *controls(asked), words))


def test_what_is_refused():
    given, logits, words = controls([OFF] * 2), torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)
    for place, bad, kind, match in (
        (0, torch.zeros(4), ValueError, "logits has shape"),
        (0, torch.zeros(2, 0), ValueError, "logits has shape"),
        (0, torch.zeros(2, 4, dtype=torch.int64), TypeError, "logits is"),
        (1, given[1], TypeError, "temperature is"),
        (1, given[0][:1], ValueError, "temperature has shape"),
        (1, torch.tensor([1.0, -0.5]), ValueError, r"temperature holds -0.5; expected finite numbers of at least 0"),
        (1, torch.tensor([1.0, NAN]), ValueError, "temperature holds nan"),
        (1, torch.tensor([1.0, INF]), ValueError, "temperature holds inf"),
        (2, given[0], TypeError, "top_k is"),
        (2, torch.tensor([0, -1]), ValueError, "top_k holds -1"),
        (3, torch.tensor([0.0, 1.0]), ValueError, r"top_p holds 0.0; expected numbers in \(0, 1\]"),
        (3, torch.tensor([1.1, 1.0]), ValueError, "top_p holds 1.1"),
        (4, torch.tensor([0.0, 1.5]), ValueError, "min_p holds 1.5"),
        (4, torch.zeros(2, 1), ValueError, "min_p has shape"),
        (5, words.int(), TypeError, "words is"),
        (5, words[:1], ValueError, "words has shape"),
    ):
        arguments = [logits, *given, words]
        arguments[place] = bad
        with pytest.raises(kind, match=match):
            rows.sample(*arguments)
        if place < 5:
            with pytest.raises(kind, match=match):
                rows.laws(*arguments[:5])
    with pytest.raises(TypeError, match="dtype is"):
        rows.laws(logits, *given, dtype=torch.float16)
    with pytest.raises(ValueError, match="impl is 'cuda'"):
        rows.laws(logits, *given, impl="cuda")
    with pytest.raises(TypeError, match="logits is"):
        rows.laws(logits.double(), *given, impl="triton")
