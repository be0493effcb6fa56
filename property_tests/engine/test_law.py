"""The laws of a pass: each row at its own prefix, and nothing but ``distribution`` row by row."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.engine.law import law
from specdec_fn.sampling import SamplingParams, distribution

CONTROLS = [
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1),
    SamplingParams(presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.3),
    SamplingParams(bad_words=[(1, 2), 4], min_tokens=4),
]


@pytest.mark.parametrize("params", CONTROLS, ids=str)
@given(
    seed=st.integers(0, 1000),
    prompt=st.lists(st.integers(0, 5), max_size=3),
    generated=st.lists(st.integers(0, 5), max_size=4),
    drafted=st.lists(st.integers(0, 5), max_size=4),
)
def test_every_row_is_the_distribution_at_its_own_prefix(params, seed, prompt, generated, drafted):
    logits = 3 * torch.randn(len(drafted) + 1, 6, generator=torch.Generator().manual_seed(seed))
    rows = law(params, prompt, ends=[5])(logits, generated, drafted)
    assert rows.dtype is torch.float64
    for i, row in enumerate(rows):
        prefix = torch.tensor([*generated, *drafted[:i]], dtype=torch.int64)
        alone = distribution(logits[i].double(), params, prompt=torch.tensor(prompt, dtype=torch.int64), generated=prefix, eos_ids=(5,))
        assert row.equal(alone)


@pytest.mark.parametrize("params", CONTROLS, ids=str)
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_row_without_a_law_is_zeros_and_spares_the_others(params, value):
    logits = torch.zeros(3, 6)
    logits[1] = value
    rows = law(params)(logits, [], [0, 1])
    assert rows.sum(-1).tolist() == pytest.approx([1, 0, 1])


def test_the_logits_are_left_alone():
    logits = torch.randn(2, 6, dtype=torch.float64)
    before = logits.clone()
    law(SamplingParams())(logits, [], [0])
    assert logits.equal(before)
