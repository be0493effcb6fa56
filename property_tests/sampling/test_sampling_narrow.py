"""The narrowed path of a large vocabulary: the ids found hold what they must, and the law is that of sorting the whole row, bit for bit."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn.sampling import SamplingParams
from specdec_fn.sampling.narrow import at_least_kth, shortest_prefix
from specdec_fn.sampling.truncation import truncated

VALUE = st.one_of(st.sampled_from([-math.inf, 0.0, 1.0, 2.0]), st.floats(-50, 50, width=32))
WEIGHT = st.one_of(st.sampled_from([0.0, 0.125, 0.25]), st.floats(0, 1, width=32))


def real(ids):
    found = [token for token in ids.tolist() if token >= 0]
    assert found == sorted(set(found))
    assert ids.tolist() == found + [-1] * (len(ids) - len(found))
    return found


@given(st.lists(VALUE, min_size=1, max_size=40), st.data())
def test_at_least_kth_holds_every_token_down_to_the_kth_and_its_ties(values, data):
    k = data.draw(st.integers(1, len(values)))
    found = real(at_least_kth(torch.tensor(values, dtype=torch.float64), k))
    least = sorted(values, reverse=True)[k - 1]
    assert {token for token, value in enumerate(values) if value >= least and value > -math.inf} <= set(found)
    assert all(values[token] > -math.inf for token in found)


@given(
    st.lists(st.tuples(WEIGHT, WEIGHT), min_size=1, max_size=40),
    st.floats(0.0, 8.0, exclude_min=True),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_shortest_prefix_holds_the_prefix(pairs, goal, descending, dtype):
    order, mass = (torch.tensor(each, dtype=dtype) for each in zip(*pairs, strict=True))
    found = real(shortest_prefix(order, mass, goal, descending=descending))
    assert all(pairs[token][1] > 0 for token in found)
    ranked = sorted(range(len(pairs)), key=lambda token: (-pairs[token][0] if descending else pairs[token][0], token))
    total = 0.0
    for token in ranked:
        assert token in found or pairs[token][1] == 0
        total += pairs[token][1]
        if total >= goal:
            break


def test_few_ids_are_found_where_few_are_needed():
    """What makes it worth while: 50 of 49,152 for top-k; for top-p about as many as are kept."""
    row = 3 * torch.randn(49152, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert 50 <= len(real(at_least_kth(row, 50))) <= 100
    probs = row.softmax(0)
    kept = int((truncated(row, SamplingParams(top_p=0.9)) > 0).sum())
    assert kept <= len(real(shortest_prefix(probs, probs, 0.9, descending=True))) <= 1.3 * kept


def test_rows_of_a_batch_are_found_as_if_alone():
    rows = torch.randn(3, 4, 200, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    probs = rows.softmax(-1)
    both = torch.func.vmap(torch.func.vmap(lambda row: at_least_kth(row, 5)))(rows)
    mixed = torch.func.vmap(lambda order: shortest_prefix(order, probs[0, 0], 0.5, descending=True))(probs[0])
    for index in range(12):
        assert real(both.view(12, -1)[index]) == real(at_least_kth(rows.view(12, -1)[index], 5))
    for index in range(4):
        assert real(mixed[index]) == real(shortest_prefix(probs[0, index], probs[0, 0], 0.5, descending=True))
    assert torch.equal(at_least_kth(rows, 5), both)
    columns = torch.func.vmap(lambda row: at_least_kth(row, 5), in_dims=1)(rows[0].T.contiguous())
    assert torch.equal(columns, torch.func.vmap(lambda row: at_least_kth(row, 5))(rows[0]))
    columns = torch.func.vmap(lambda order: shortest_prefix(order, probs[0, 0], 0.5, descending=True), in_dims=1)(probs[0].T.contiguous())
    assert torch.equal(columns, mixed)


@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.lists(VALUE, min_size=2, max_size=120),
    st.sampled_from([0, 1, 3, 50]),
    st.sampled_from([1.0, 0.3, 0.5, 0.95]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([1.0, 0.4, 0.9]),
    st.sampled_from([1.0, 0.7]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_narrowing_changes_no_bit_of_the_law(values, top_k, top_p, min_p, typical_p, temperature, dtype):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p)
    logits = torch.tensor(values, dtype=dtype)
    whole, narrowed = truncated(logits, params, wide=1000), truncated(logits, params, wide=1)
    assert torch.equal(whole > 0, narrowed > 0)
    torch.testing.assert_close(narrowed, whole, rtol=2 * torch.finfo(dtype).eps * len(values), atol=0)


@pytest.mark.parametrize("vocab", [5000, 8192, 50257])
@pytest.mark.parametrize(
    "controls",
    [{"top_k": 50}, {"top_k": 1}, {"top_k": 4000, "top_p": 0.9}, {"top_p": 0.99}, {"typical_p": 0.9}, {"min_p": 0.02, "typical_p": 0.5}],
)
def test_narrowing_changes_no_kept_token_at_the_size_of_a_vocabulary(vocab, controls):
    """Rounded logits tie by the hundred; V = 50,257 does not fill its last block."""
    logits = (3 * torch.randn(vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(vocab))).mul(4).round().div(4)
    params = SamplingParams(**controls)
    whole, narrowed = truncated(logits, params, wide=10**9), truncated(logits, params)
    assert torch.equal(whole > 0, narrowed > 0)
    torch.testing.assert_close(narrowed, whole, rtol=1e-12, atol=0)


def test_a_compiled_graph_gives_the_same_law():
    params = SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, typical_p=0.9)
    rows = 3 * torch.randn(4, 5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    law = torch.func.vmap(lambda row: truncated(row, params))
    assert torch.equal(torch.compile(law, backend="eager", fullgraph=True)(rows), law(rows))
