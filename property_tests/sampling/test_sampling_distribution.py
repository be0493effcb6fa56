"""distribution against a reference in plain Python, and the promises about vmap, batches, purity, gradients and bad rows."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, currently_in_test_context, given, settings
from hypothesis import strategies as st

from specdec_fn.sampling import SamplingParams, distribution

NONE = torch.tensor([], dtype=torch.int64)
INF = math.inf
SLACK = Fraction(1, 10**9)
CLOSE = 1e-11  # a decision within this of its limit is left to rounding, and to nobody's test


# --- the reference: lists, sorted(), exact sums of the rounded exponentials ---------------------------------------------------------------------


def settled(certain):
    """Rejects an example whose outcome hangs on rounding."""
    if currently_in_test_context():
        assume(certain)
    assert certain


def clear(difference):
    settled(difference == 0 or abs(difference) > CLOSE)


def processed(logits, params, prompt, generated, eos_ids, mask):
    x = list(logits)
    for token, bias in params.logit_bias:
        x[token] += bias
    for token in {t for t in prompt + generated if t >= 0}:
        x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
    for token in {t for t in generated if t >= 0}:
        x[token] -= params.presence_penalty + params.frequency_penalty * generated.count(token)
    text = [t for t in prompt + generated if t >= 0]
    for word in params.bad_words:
        word = word if isinstance(word, tuple) else (word,)
        if len(word) == 1 or text[-len(word) + 1 :] == list(word[:-1]):
            x[word[-1]] = -INF
    for token in range(len(x)):
        if (params.allowed_ids is not None and token not in params.allowed_ids) or (mask is not None and not mask[token]):
            x[token] = -INF
        if token in eos_ids and sum(t >= 0 for t in generated) < params.min_tokens:
            x[token] = -INF
    return x


def normalised(law):
    total = sum(law.values())
    return {token: value / total for token, value in law.items()}


def shortest(ranked, law, goal):
    kept, mass = {}, Fraction(0)
    for token in ranked:
        kept[token] = law[token]
        mass += law[token]
        clear(float(mass - (goal - SLACK)))
        if mass >= goal - SLACK:
            break
    return normalised(kept)


def reference(logits, params, prompt=(), generated=(), eos_ids=(), mask=None):
    """The law as a list of floats; zeros for a row that cannot be used."""
    x = processed(logits, params, list(prompt), list(generated), eos_ids, mask)
    best = max(x)
    if any(math.isnan(v) or v == INF for v in x) or best == -INF:
        return [0.0] * len(x)
    if params.temperature == 0:
        return [float(token == x.index(best)) for token in range(len(x))]
    tokens = [token for token in range(len(x)) if x[token] > -INF]
    if params.top_k:
        least = sorted((x[token] for token in tokens), reverse=True)[: params.top_k][-1]
        for token in tokens:
            clear(x[token] - least)
        tokens = [token for token in tokens if x[token] >= least]
    weights = {token: Fraction(math.exp((x[token] - best) / params.temperature)) for token in tokens}
    for weight in weights.values():
        settled(weight == 0 or weight > 1e-290)  # nearer to 0 some exponentials are flushed
    law = normalised({token: weight for token, weight in weights.items() if weight > 0})
    if params.top_p < 1:
        for one in law.values():
            for other in law.values():
                clear(float((one - other) / max(one, other)))
        law = shortest(sorted(law, key=lambda token: (-law[token], token)), law, Fraction(params.top_p))
    if params.min_p > 0:
        limit = Fraction(params.min_p) * max(law.values()) * (1 - SLACK)
        for value in law.values():
            settled(abs(float((value - limit) / limit)) > CLOSE)
        law = normalised({token: value for token, value in law.items() if value >= limit})
    if params.typical_p < 1:
        entropy = -math.fsum(float(value) * math.log(value) for value in law.values())
        distance = {token: abs(-math.log(value) - entropy) for token, value in law.items()}
        for one in law:
            for other in law:
                settled(law[one] == law[other] or abs(distance[one] - distance[other]) > CLOSE)
        ranked = sorted(law, key=lambda token: (distance[token], token))
        law = shortest(ranked, law, Fraction(params.typical_p))
    return [float(law.get(token, 0)) for token in range(len(x))]


# --- examples -----------------------------------------------------------------------------------------------------------------------------------

LOGIT = st.one_of(st.sampled_from([-INF, -1.0, 0.5, 1.0, 2.0]), st.integers(-3, 3).map(float), st.floats(-6, 6, width=32))
UNIT = st.one_of(st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 1.0]), st.floats(0.01, 1.0))


@st.composite
def cases(draw):
    """A row and up to four controls away from their defaults: with all of them at once most laws have a single token left."""
    vocab = draw(st.integers(1, 7))
    ids = st.integers(0, vocab - 1)
    histories = st.lists(st.integers(-1, vocab - 1), max_size=5)
    flags = st.lists(st.sampled_from([True, True, True, False]), min_size=vocab, max_size=vocab)
    controls = {
        "temperature": st.sampled_from([0.0, 0.5, 0.8, 2.0, 1e-3]),
        "top_k": st.integers(1, vocab + 1),
        "top_p": UNIT,
        "min_p": UNIT,
        "typical_p": UNIT,
        "repetition_penalty": st.sampled_from([0.5, 1.2, 2.0]),
        "presence_penalty": st.sampled_from([-0.5, 0.5]),
        "frequency_penalty": st.sampled_from([-0.25, 0.25]),
        "logit_bias": st.dictionaries(ids, st.sampled_from([-2.0, 1.0, -INF]), max_size=3),
        "bad_words": st.lists(st.one_of(ids, st.lists(ids, min_size=1, max_size=3)), max_size=3),
        "allowed_ids": st.lists(ids, min_size=1),
        "min_tokens": st.integers(1, 4),
        "mask": flags,
    }
    chosen = draw(st.lists(st.sampled_from(sorted(controls)), unique=True, max_size=4))
    values = {name: draw(controls[name]) for name in chosen}
    mask = values.pop("mask", None)
    logits = draw(st.lists(LOGIT, min_size=vocab, max_size=vocab))
    return logits, SamplingParams(**values), draw(histories), draw(histories), draw(st.lists(st.integers(0, vocab), max_size=2)), mask


def run(logits, params, prompt=(), generated=(), eos_ids=(), mask=None, dtype=torch.float64):
    return distribution(
        torch.as_tensor(logits, dtype=dtype),
        params,
        prompt=torch.tensor(prompt, dtype=torch.int64),
        generated=torch.tensor(generated, dtype=torch.int64),
        eos_ids=eos_ids,
        mask=None if mask is None else torch.tensor(mask),
    )


@settings(max_examples=10 * settings.default.max_examples)
@given(cases())
def test_law_equals_the_reference(case):
    """Kept sets exactly, probabilities to rounding; D18, D19, D20, D21, L7, L8 and N9 in general form."""
    logits, params, prompt, generated, eos_ids, mask = case
    expected = reference(logits, params, prompt, generated, eos_ids, mask)
    law = run(*case)
    assert law.dtype == torch.float64
    assert [value > 0 for value in law.tolist()] == [value > 0 for value in expected]
    torch.testing.assert_close(law, torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=1e-14)


@settings(max_examples=4 * settings.default.max_examples)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=8), UNIT, UNIT)
def test_ties_at_the_cut_fall_to_the_lowest_ids(logits, top_p, typical_p):
    """Few distinct values, so that nearly every cut goes through a tie."""
    for params in (SamplingParams(top_p=top_p), SamplingParams(typical_p=typical_p), SamplingParams(top_k=2, top_p=top_p)):
        assert [v > 0 for v in run(logits, params).tolist()] == [v > 0 for v in reference(logits, params)]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 10])
def test_a_uniform_law_keeps_the_first_ids_that_reach_the_mass_exactly(n):
    for kept in range(1, n + 1):
        for params in (SamplingParams(top_p=kept / n), SamplingParams(typical_p=kept / n)):
            assert (run([0.0] * n, params) > 0).tolist() == [token < kept for token in range(n)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_types_are_computed_in_float32_and_the_others_as_they_come(dtype):
    logits = torch.tensor([1.0, 0.3, -2.0, 0.7], dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for params in (
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=0.7, top_k=2),
        SamplingParams(temperature=0),
        SamplingParams(top_p=0.5),
    ):
        law = run(logits, params, dtype=dtype)
        assert law.dtype == wide
        assert torch.equal(law, run(logits.to(wide), params, dtype=wide))
        expected = torch.tensor(reference(logits.tolist(), params), dtype=torch.float64)
        torch.testing.assert_close(law.double(), expected, rtol=1e-15 if dtype == torch.float64 else 1e-6, atol=0)


@given(st.integers(0, 2**31), st.integers(0, 60), st.sampled_from([-1, 1]), st.sampled_from([50, 5000]))
def test_sums_of_float32_laws_are_taken_in_float64(seed, last, side, vocab):
    """The cut is put 2e-9 to either side of an exact sum, which a float32 sum cannot tell apart."""
    logits = 3 * torch.randn(vocab, generator=torch.Generator().manual_seed(seed))
    exact = {token: Fraction(value) for token, value in enumerate(run(logits, SamplingParams(), dtype=torch.float32).tolist())}
    ranked = sorted(exact, key=lambda token: (-exact[token], token))[: min(last, vocab - 2) + 1]
    mass = sum(exact[token] for token in ranked)
    assume(mass < 1 - Fraction(1, 10**6) and exact[ranked[-1]] > Fraction(1, 10**7))
    found = run(logits, SamplingParams(top_p=float(mass + SLACK + side * 2 * SLACK)), dtype=torch.float32)
    assert int((found > 0).sum()) == len(ranked) + (side > 0)


def test_penalties_do_not_lose_precision_in_float64():
    law = run([0.0, 0.0], SamplingParams(presence_penalty=0.1, frequency_penalty=0.2), generated=[0])
    assert abs(law[0] / law[1] - math.exp(-0.1 - 0.2)) < 1e-15


# --- rows that cannot be used -------------------------------------------------------------------------------------------------------------------

SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.8, top_k=3, top_p=0.95, min_p=0.05),
    SamplingParams(top_p=0.9),
    SamplingParams(typical_p=0.9),
    SamplingParams(min_p=0.1),
    SamplingParams(top_k=2, top_p=0.7, min_p=0.1, typical_p=0.6, repetition_penalty=1.3, presence_penalty=0.1, frequency_penalty=0.2),
]


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("vocab", [5, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_with_nan_or_inf_or_nothing_finite_gives_zeros_and_spoils_no_other(params, vocab, dtype):
    """D13: the row is told apart, its neighbours are untouched."""
    rows = torch.linspace(-3, 3, 5 * vocab, dtype=dtype).view(5, vocab)[:, torch.randperm(vocab, generator=torch.Generator().manual_seed(1))]
    rows[1, vocab - 1] = torch.nan
    rows[2, 0] = torch.inf
    rows[3] = -torch.inf
    laws = torch.func.vmap(lambda row: distribution(row, params, prompt=NONE, generated=NONE))(rows)
    assert torch.equal(laws.isnan().any(-1), torch.zeros(5, dtype=torch.bool))
    assert (laws[1:4] == 0).all()
    for index in (0, 4):
        torch.testing.assert_close(laws[index].sum(), torch.ones((), dtype=dtype))
    for index in range(5):
        assert torch.equal(laws[index], distribution(rows[index], params, prompt=NONE, generated=NONE))


def test_nan_is_not_hidden_by_a_mask():
    """A forbidden NaN is replaced like any other forbidden logit; one that is allowed makes the row unusable."""
    assert run([math.nan, 0.0], SamplingParams(), mask=[False, True]).tolist() == [0.0, 1.0]
    assert run([math.nan, 0.0], SamplingParams(), mask=[True, True]).tolist() == [0.0, 0.0]
    assert run([math.inf, 0.0], SamplingParams(bad_words=[0])).tolist() == [0.0, 1.0]


@given(st.lists(st.floats(allow_nan=True, width=32), min_size=1, max_size=6), st.sampled_from([0.0, 5e-324, 1e-38, 1e-6, 1.0, 1e6, 1e38, 1e300]))
def test_every_temperature_and_any_float_give_a_law_or_zeros(logits, temperature):
    usable = not any(math.isnan(v) or v == INF for v in logits) and max(logits) > -INF
    for dtype in (torch.float32, torch.float64):
        for params in (SamplingParams(temperature=temperature), SamplingParams(temperature=temperature, top_k=1, top_p=0.5, typical_p=0.5)):
            law = run(logits, params, dtype=dtype)
            assert (law >= 0).all()
            assert abs(law.sum().item() - usable) < 1e-6
            assert all(law[token] == 0 for token, value in enumerate(logits) if value == -INF)


# --- vmap, batches, purity, gradients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("vocab", [6, 5001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vmap_equals_the_stack_of_single_rows_in_every_bit(params, vocab, dtype):
    """D19: batch 1, 3 and 16, the batch axis in any place, kept sets and probabilities alike."""
    generator = torch.Generator().manual_seed(vocab)
    rows = 3 * torch.randn(16, vocab, dtype=dtype, generator=generator)
    rows[::2] = rows[::2].round()
    prompt = torch.randint(-1, vocab, (16, 9), generator=generator)
    generated = torch.randint(-1, vocab, (16, 5), generator=generator)
    mask = torch.rand(16, vocab, generator=generator) < 0.9

    def law(row, before, after, allowed):
        return distribution(row, params, prompt=before, generated=after, eos_ids=(2,), mask=allowed)

    single = torch.stack([law(*each) for each in zip(rows, prompt, generated, mask, strict=True)])
    for size in (1, 3, 16):
        assert torch.equal(torch.func.vmap(law)(rows[:size], prompt[:size], generated[:size], mask[:size]), single[:size])
    flipped = torch.func.vmap(law, in_dims=1, out_dims=1)(rows.T.contiguous(), prompt.T.contiguous(), generated.T.contiguous(), mask.T.contiguous())
    assert torch.equal(flipped.T, single)
    nested = torch.func.vmap(torch.func.vmap(law))(*(each.view(4, 4, -1) for each in (rows, prompt, generated, mask)))
    assert torch.equal(nested.view(16, -1), single)
    arguments = (rows, prompt, generated, mask)
    for batched in range(4):
        given_one = [each if place == batched else each[0] for place, each in enumerate(arguments)]
        together = torch.func.vmap(law, in_dims=tuple(0 if place == batched else None for place in range(4)))(*given_one)
        for index in (0, 7):
            alone = law(*(each[index] if place == batched else each for place, each in enumerate(given_one)))
            assert torch.equal(together[index] if together.dim() == 2 else together, alone)


def test_vmap_at_the_size_of_a_real_vocabulary():
    """Sums over more than 32,768 entries are where a row alone and a row in a batch take different paths inside torch."""
    rows = 3 * torch.randn(3, 49152, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for params in (SamplingParams(temperature=0.8), SETTINGS[3], SamplingParams(min_p=0.01, typical_p=0.9)):
        single = torch.stack([distribution(row, params, prompt=NONE, generated=NONE) for row in rows])
        assert torch.equal(torch.func.vmap(lambda row, params=params: distribution(row, params, prompt=NONE, generated=NONE))(rows), single)


@settings(max_examples=50)
@given(cases())
def test_arguments_are_left_alone_and_results_are_new(case):
    logits, params, prompt, generated, eos_ids, mask = case
    given_ones = [torch.tensor(logits, dtype=torch.float64), torch.tensor(prompt, dtype=torch.int64), torch.tensor(generated, dtype=torch.int64)]
    given_ones.append(torch.tensor(mask if mask is not None else [True] * len(logits)))
    before = [one.clone() for one in given_ones]
    x, p, g, m = given_ones
    first = distribution(x, params, prompt=p, generated=g, eos_ids=eos_ids, mask=m)
    assert all(torch.equal(one, old) for one, old in zip(given_ones, before, strict=True))
    assert first.untyped_storage().data_ptr() not in {one.untyped_storage().data_ptr() for one in given_ones}
    assert torch.equal(first, distribution(x, params, prompt=p, generated=g, eos_ids=eos_ids, mask=m))


@settings(max_examples=2 * settings.default.max_examples)
@given(cases(), st.integers(0, 3))
def test_padding_changes_nothing_wherever_it_stands(case, extra):
    logits, params, prompt, generated, eos_ids, mask = case
    stripped = [[token for token in history if token >= 0] for history in (prompt, generated)]
    spread = [[-1] * extra + [token for real in history for token in (real, -1)] for history in stripped]
    expected = run(logits, params, *stripped, eos_ids, mask)
    assert torch.equal(run(logits, params, *spread, eos_ids, mask), expected)
    assert torch.equal(run(logits, params, prompt, generated, eos_ids, mask), expected)


@pytest.mark.parametrize("vocab", [6, 5000])
@pytest.mark.parametrize("params", [p for p in SETTINGS if not p.greedy and p.repetition_penalty == 1])
def test_gradient_is_that_of_a_softmax_over_the_kept_set(params, vocab):
    """With the kept set fixed, the law is softmax(x / T) there: d(c.p)/dx = p (c - c.p) / T."""
    generator = torch.Generator().manual_seed(3)
    rows, weight = torch.randn(2, vocab, dtype=torch.float64, generator=generator), torch.randn(vocab, dtype=torch.float64, generator=generator)

    def value(row):
        return distribution(row, params, prompt=NONE, generated=NONE) @ weight

    laws = torch.stack([distribution(row, params, prompt=NONE, generated=NONE) for row in rows])
    expected = laws * (weight - laws @ weight[:, None]) / params.temperature
    torch.testing.assert_close(torch.stack([torch.func.grad(value)(row) for row in rows]), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(value))(rows), expected)
    leaf = rows[0].clone().requires_grad_()
    value(leaf).backward()
    torch.testing.assert_close(leaf.grad, expected[0])


# --- bad input ----------------------------------------------------------------------------------------------------------------------------------

ROW = torch.zeros(4)


@pytest.mark.parametrize(
    ("kind", "words", "changes"),
    [
        (TypeError, "logits .*torch.int64", {"logits": torch.zeros(4, dtype=torch.int64)}),
        (TypeError, "logits .* list", {"logits": [0.0, 1.0]}),
        (ValueError, r"\[2, 4\]", {"logits": torch.zeros(2, 4)}),
        (ValueError, r"\[0\]", {"logits": torch.zeros(0)}),
        (TypeError, "params .* dict", {"params": {"top_k": 3}}),
        (TypeError, "prompt .*torch.float32", {"prompt": torch.zeros(2)}),
        (TypeError, "generated .*torch.bool", {"generated": torch.zeros(2, dtype=torch.bool)}),
        (ValueError, r"generated .* \[1, 2\]", {"generated": torch.zeros(1, 2, dtype=torch.int64)}),
        (TypeError, "mask .*torch.int64", {"mask": torch.zeros(4, dtype=torch.int64)}),
        (ValueError, r"mask .* \[4\].* \[5\]", {"mask": torch.ones(5, dtype=torch.bool)}),
        (ValueError, "eos_ids .* -1", {"eos_ids": [-1]}),
        (TypeError, "eos_ids .* True", {"eos_ids": [True]}),
        (ValueError, "logit_bias names id 4, .* 0 to 3", {"params": SamplingParams(logit_bias={4: 1.0})}),
        (ValueError, "bad_words names id 9", {"params": SamplingParams(bad_words=[(9, 1)])}),
        (ValueError, "allowed_ids names id 4", {"params": SamplingParams(allowed_ids=[0, 4])}),
        (ValueError, "below the vocabulary size 4", {"params": SamplingParams(repetition_penalty=2), "prompt": torch.tensor([4])}),
        (ValueError, "below the vocabulary size 4", {"params": SamplingParams(presence_penalty=2), "generated": torch.tensor([0, 7])}),
    ],
)
def test_the_door_says_what_it_received(kind, words, changes):
    arguments = {"logits": ROW, "params": SamplingParams(), "prompt": NONE, "generated": NONE, **changes}
    with pytest.raises(kind, match=words):
        distribution(**arguments)


def test_end_ids_past_the_vocabulary_are_passed_over():
    """A draft model with a smaller vocabulary has no row for the target's stop ids."""
    assert run([0.0, 0.0], SamplingParams(min_tokens=3), eos_ids=[1, 7]).tolist() == [1.0, 0.0]
