"""Kernels of laws and tokens against `distribution` and `draw`, row by row, in the interpreter."""

import math
from fractions import Fraction

import pytest
import torch

from specdec_fn.sampling import SamplingParams, distribution, draw
from specdec_kernels import laws_triton, sample_triton

NONE = torch.tensor([], dtype=torch.int64)
INF, NAN = math.inf, math.nan
F64 = torch.float64
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def controls(rows):
    """Tensors from (temperature, top_k, top_p, min_p) of each row."""
    columns = list(zip(*rows, strict=True))
    return [torch.tensor(column, dtype=torch.int64 if place == 1 else F64) for place, column in enumerate(columns)]


def expected(logits, rows):
    """The law: `distribution` in float64, a row at a time."""
    params = [SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m) for t, k, p, m in rows]
    return torch.stack([distribution(row.to(F64), one, prompt=NONE, generated=NONE) for row, one in zip(logits, params, strict=True)])


def launched(fenced, logits, rows, block, out=F64):
    """Laws from the very value that ships, all buffers watched, the output poisoned."""
    unit = laws_triton.unit_of(logits)
    made = laws_triton._variant(logits.dtype, unit, out, block)
    given = [fenced(tensor) for tensor in (logits, *controls(rows))]
    probs = fenced(torch.full(logits.shape, NAN, dtype=out))
    sizes = (logits.shape[1] // unit, logits.shape[1] // unit)
    made.kernel[(logits.shape[0],)](probs, *given, *sizes, **made.constants, num_warps=made.warps, num_stages=made.stages)
    return probs.clone()


def drawn(fenced, logits, rows, words, block):
    unit = laws_triton.unit_of(logits)
    made = sample_triton._variant(logits.dtype, unit, block)
    given = [fenced(tensor) for tensor in (words, logits, *controls(rows))]
    tokens = fenced(torch.full((logits.shape[0],), 77777))
    sizes = (logits.shape[1] // unit, logits.shape[1] // unit)
    made.kernel[(logits.shape[0],)](tokens, *given, *sizes, **made.constants, num_warps=made.warps, num_stages=made.stages)
    return tokens.clone()


def hold_equal(fenced, logits, rows, block, seed=0):
    law = expected(logits, rows)
    probs = launched(fenced, logits, rows, block)
    assert ((probs > 0) == (law > 0)).all(), "another set of tokens was kept"
    torch.testing.assert_close(probs, law, rtol=1e-12, atol=1e-300)
    words = torch.randint(-(2**63), 2**63 - 1, (len(rows),), generator=torch.Generator().manual_seed(seed))
    tokens = torch.func.vmap(draw)(((words >> 11) & (2**53 - 1)).to(F64) * 2.0**-53, law)
    assert drawn(fenced, logits, rows, words, block).tolist() == tokens.tolist()


def scattered(generator, count, vocab, dtype):
    """Logits with ties in every second row and forbidden tokens in all."""
    x = 3 * torch.randn(count, vocab, generator=generator)
    x[::2] = x[::2].round()
    x[torch.rand(count, vocab, generator=generator) < 0.2] = -INF
    x[:, vocab // 2] = 0.5
    return x.to(dtype)


@pytest.mark.parametrize(("dtype", "vocab", "block", "step"), [(torch.float32, 21, 16, 3), (torch.float16, 48, 32, 2), (torch.bfloat16, 37, 16, 1)])
def test_mixtures_of_controls(fenced, dtype, vocab, block, step):
    """A float32 row takes up to 22 sweeps in the interpreter, so the types with more keys have fewer of the mixtures."""
    rows = [
        (1.0, 0, 1.0, 0.0),
        (0.7, 5, 1.0, 0.0),
        (1.3, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.1),
        (0.0, 3, 0.5, 0.3),
        (0.9, 7, 0.6, 0.05),
        (2.0, vocab + 5, 0.9, 0.0),
        (1.0, vocab - 1, 0.999, 0.01),
        (1e-30, 4, 0.9, 0.0),
        (1.0, 1, 1e-10, 1.0),
    ][::-step]
    hold_equal(fenced, scattered(torch.Generator().manual_seed(vocab), len(rows), vocab, dtype), rows, block)


def test_a_tie_with_the_kth_stays_and_top_p_then_counts_by_id(fenced):
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0, 2.0, 3.0, -INF]]).repeat(6, 1)
    logits[5] = -INF
    logits[5, 3] = -7.0
    rows = [(1.0, 1, 1.0, 0.0), (1.0, 1, 0.5, 0.0), (1.0, 1, 0.51, 0.0), (1.0, 5, 1.0, 0.0), (1.0, 4, 0.75, 0.9), (1.0, 6, 0.2, 0.0)]
    hold_equal(fenced, logits, rows, 16)


def test_top_p_at_a_sum_and_ties_that_cross_blocks(fenced):
    level = torch.zeros(1, 40, dtype=torch.bfloat16)
    rows = [(1.0, 0, count / 40, 0.0) for count in (1, 16, 17, 33, 39)]
    for count, row in zip((1, 16, 17, 33, 39), launched(fenced, level.repeat(len(rows), 1), rows, 16), strict=True):
        assert row.nonzero().flatten().tolist() == list(range(count))
    halves = torch.tensor([[-3.0, -1.0, -3.0, 0.0, -2.0]], dtype=torch.bfloat16) + 1
    warm = 1 / math.log(2)  # halves: 1/16 + 1/4 + 1/16 + 1/2 + 1/8 = 1, and each step down is a factor of two
    rows = [(warm, 0, share, 0.0) for share in (0.5, 0.5 + 1e-6, 0.75, 0.875, 0.9375)]
    hold_equal(fenced, halves.repeat(len(rows), 1), rows, 16)


def test_keys_apart_of_one_weight_are_one_tie(fenced):
    """A high temperature, or a maximum that swallows small numbers, makes unlike logits equally probable: the lowest ids stay."""
    hot = torch.arange(20.0).repeat(2, 1).to(torch.bfloat16)
    hold_equal(fenced, hot, [(1e300, 0, 0.4, 0.0), (1e18, 6, 0.5, 0.0)], 16)
    swallowed = torch.tensor([[1e-30, 2e-30, 1.0, -0.0, 0.0, 3e-30]])
    hold_equal(fenced, swallowed, [(1.0, 0, 0.6, 0.0)], 16)


def test_rows_without_a_law_give_zeros_and_no_token(fenced):
    logits = torch.zeros(6, 19)
    logits[0, 17], logits[1, 3], logits[2] = NAN, INF, -INF
    logits[3, 0], logits[3, 1] = NAN, INF
    logits[4, 18] = NAN
    plain, cut = (1.0, 0, 1.0, 0.0), (0.5, 3, 0.5, 0.2)
    for rows in ([plain] * 6, [cut] * 6, [(0.0, 0, 1.0, 0.0)] * 6):
        law = launched(fenced, logits, rows, 16)
        assert (law[:5] == 0).all()
        assert law[5].sum() == pytest.approx(1)
        assert drawn(fenced, logits, rows, torch.full((6,), 2**40), 16).tolist() == [-1, -1, -1, -1, -1, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_token(fenced, dtype):
    logits = torch.tensor([[-3.0], [65504.0], [NAN], [-INF]]).to(dtype)
    hold_equal(fenced, logits, [(1.0, 0, 1.0, 0.0), (0.5, 1, 0.5, 0.5), (1.0, 1, 0.5, 0.0), (0.0, 0, 1.0, 0.0)], 16)


def test_the_block_that_ships_and_rows_that_lie_apart():
    """A vocabulary over a block, rows with a gap of NaN between them, controls in float32 and int32, laws in float32."""
    generator = torch.Generator().manual_seed(3)
    vocab = laws_triton.BLOCK + 5
    held = torch.full((3, vocab + 3), NAN)
    held[:, :vocab] = 2 * torch.randn(3, vocab, generator=generator)
    logits, rows = held[:, :vocab], [(1.0, 0, 1.0, 0.0), (0.5, 50, 0.5, 0.0), (1.0, 0, 0.75, 0.0)]
    assert not logits.is_contiguous()
    given = [control.to(torch.int32 if place == 1 else torch.float32) for place, control in enumerate(controls(rows))]
    law = expected(logits, rows)
    probs = laws_triton.laws(logits, *given)
    assert probs.dtype is torch.float32
    assert ((probs > 0) == (law > 0)).all()
    torch.testing.assert_close(probs, law.float(), rtol=1e-6, atol=0)
    last = torch.tensor([-1, -1, -1])  # u just under 1: the last token that has mass, beyond the first block
    assert sample_triton.sample(logits, *given, last).tolist() == [int(row.nonzero()[-1]) for row in law]


@pytest.mark.parametrize("row", [(1.0, 0, 1.0, 0.0), (0.8, 4, 0.95, 0.0)])
def test_exact_cells_of_the_draw(row):
    """How many of the 2**53 uniforms draw each token, counted at the edges: the law within 1e-14, over blocks of two tokens."""
    logits = torch.tensor([0.3, -INF, 1.1, -1.2, 0.7]).to(torch.bfloat16)
    law = expected(logits[None], [row])[0]
    sums = [sum(map(Fraction, law[: token + 1].tolist())) / sum(map(Fraction, law.tolist())) for token in range(5)]
    near, reach = [round(edge * 2**53) for edge in sums[:4]], 3
    steps = [edge + step for edge in near for step in range(-reach, reach + 1) if 0 <= edge + step < 2**53]
    steps = sorted({0, 2**53 - 1, *steps})
    words = torch.tensor([(step - (1 << 53) * (step >= 1 << 52)) << 11 for step in steps]) + 2047  # the 11 lower bits say nothing
    many = [control.expand(len(steps)).contiguous() for control in controls([row])]
    tokens = sample_triton.sample(logits.expand(len(steps), 5), *many, words, block=2).tolist()
    assert tokens == sorted(tokens)
    first = [next((step for step, token in zip(steps, tokens, strict=True) if token > edge), 2**53) for edge in range(5)]
    for edge, (found, wanted) in enumerate(zip(first[:4], near, strict=True)):
        assert abs(found - wanted) < reach, f"edge {edge} lies outside of the window"
    volumes = [(end - start) * 2.0**-53 for start, end in zip([0, *first[:4]], first, strict=True)]
    assert volumes[1] == 0
    assert all(abs(volume - share) <= 1e-14 for volume, share in zip(volumes, law.tolist(), strict=True))


def test_a_uniform_on_an_edge_draws_the_token_behind_it():
    """Sixteen equal tokens, whose edges are uniforms: u = j / 16 draws token j, over blocks of four; of the last ten, u = 0 draws the first."""
    words = torch.tensor([(step << 60) - ((step >= 8) << 64) for step in range(16)])
    many = [control.expand(16).contiguous() for control in controls([(1.0, 0, 1.0, 0.0)])]
    assert sample_triton.sample(torch.zeros(16, 16), *many, words, block=4).tolist() == list(range(16))
    logits = torch.zeros(1, 16)
    logits[0, :6] = -INF
    one = [control[:1] for control in many]
    assert sample_triton.sample(logits, *one, words[:1], block=4).tolist() == [6]


def test_variants_are_what_is_launched():
    made = [*laws_triton.variants(), *sample_triton.variants()]
    assert len({variant.name for variant in made}) == len(made) == 18
    for variant in made:
        assert list(variant.signature) == list(variant.kernel.arg_names)
        assert {name for name, word in variant.signature.items() if word == "constexpr"} == set(variant.constants)


def test_no_rows():
    none = [control[:0] for control in controls([(1.0, 0, 1.0, 0.0)])]
    assert laws_triton.laws(torch.zeros(0, 4), *none).shape == (0, 4)
    assert sample_triton.sample(torch.zeros(0, 4), *none, torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_what_is_refused():
    one = controls([(1.0, 0, 1.0, 0.0)])
    logits, words = torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="the tensors are on cpu and meta; expected one device"):
        sample_triton.sample(logits, *one, words.to("meta"))
    with pytest.raises(ValueError, match="the tensors are on cpu and meta; expected one device"):
        laws_triton.laws(logits.to("meta"), *one)
    for bad, kind, match in (
        (torch.zeros(4), ValueError, "logits has shape"),
        (torch.zeros(1, 0), ValueError, "logits has shape"),
        (torch.zeros(1, 4, dtype=F64), TypeError, "logits is"),
        (torch.zeros(2, 4), ValueError, "temperature has shape"),
    ):
        with pytest.raises(kind, match=match):
            laws_triton.laws(bad, *one)
        with pytest.raises(kind, match=match):
            sample_triton.sample(bad, *one, words)
    with pytest.raises(TypeError, match="top_k is"):
        laws_triton.laws(logits, one[0], one[0], one[2], one[3])
    with pytest.raises(TypeError, match="dtype is"):
        laws_triton.laws(logits, *one, dtype=torch.float16)
    with pytest.raises(TypeError, match="words is"):
        sample_triton.sample(logits, *one, words.int())
    with pytest.raises(ValueError, match="words has shape"):
        sample_triton.sample(logits, *one, words.repeat(2))
    with pytest.raises(ValueError, match="vocabulary of 8193 tokens; expected at most 8192"):
        sample_triton.sample(torch.zeros(1, 8193), *one, words, block=16)
