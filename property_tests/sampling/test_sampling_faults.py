"""Small cases of faults that users of such engines have reported; the id of each is in its docstring."""

import math

import pytest
import torch

from specdec_fn.sampling import SamplingParams, distribution, draw

NONE = torch.tensor([], dtype=torch.int64)


def law(logits, generated=(), prompt=(), eos_ids=(), mask=None, dtype=torch.float64, **controls):
    return distribution(
        torch.as_tensor(logits, dtype=dtype),
        SamplingParams(**controls),
        prompt=torch.tensor(prompt, dtype=torch.int64),
        generated=torch.tensor(generated, dtype=torch.int64),
        eos_ids=eos_ids,
        mask=mask,
    )


def log(*probs, dtype=torch.float64):
    return torch.tensor(probs, dtype=dtype).log()


def every_draw(probs, grid=257):
    """The tokens drawn by uniforms spread over (0, 1]; at 0 itself the first token with any mass is drawn, 1e-44 or not."""
    u = torch.cat([torch.arange(1, grid, dtype=probs.dtype) / grid, torch.tensor([2**-24, 1 - 2**-24, 1.0], dtype=probs.dtype)])
    return set(torch.func.vmap(draw, in_dims=(0, None))(u, probs).tolist())


def close(found, *expected):
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype))


def test_truncated_laws_are_renormalised_for_target_and_draft_alike():
    """D2: raw rows in place of these give TV .1875."""
    close(law(log(0.5, 0.3, 0.15, 0.05), top_k=2), 5 / 8, 3 / 8, 0, 0)
    close(law(log(0.4, 0.2, 0.3, 0.1), top_k=2), 4 / 7, 0, 3 / 7, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_hot_row_of_a_large_vocabulary_is_always_its_token(dtype):
    """D15."""
    row = torch.full((32000,), -math.inf, dtype=dtype)
    row[1] = 0.0
    for controls in ({"top_k": 2**30, "top_p": 1.0}, {"top_k": 50}, {"top_p": 0.9}, {"typical_p": 0.5}, {"min_p": 1.0}, {"temperature": 0}):
        found = law(row, dtype=dtype, **controls)
        assert found[1] == 1
        assert found.sum() == 1
        assert every_draw(found) == {1}


def test_a_forbidden_token_stays_forbidden_at_temperature_zero():
    """D16: no sign of the temperature turns -inf into +inf, no NaN."""
    rows = torch.tensor([[-math.inf, 1.0], [1.0, -math.inf]], dtype=torch.float64)
    for temperature in (0.0, 1e-6, 0.7, 1.0):
        found = torch.func.vmap(lambda row, t=temperature: distribution(row, SamplingParams(temperature=t), prompt=NONE, generated=NONE))(rows)
        assert found.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert law([3.0, 1.0], bad_words=[0], temperature=0).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-38, 1e-45, 5e-324])
def test_a_tiny_temperature_is_one_hot_on_the_largest(temperature, dtype):
    """D17; equal largest logits share at a tiny temperature, the lowest id takes all at 0."""
    for controls in ({}, {"top_k": 2}, {"top_p": 0.5}, {"typical_p": 0.5}):
        assert law([200.0, 100.0, 0.0], dtype=dtype, temperature=temperature, **controls).tolist() == [1.0, 0.0, 0.0]
    shared = [1.0, 0.0, 0.0] if temperature == 0 else [0.5, 0.5, 0.0]
    assert law([7.0, 7.0, 0.0], dtype=dtype, temperature=temperature).tolist() == shared


def test_a_bias_holds_at_every_row_of_a_pass():
    """D18: id 0 is favoured everywhere, biased away everywhere."""
    rows = torch.tensor([[5.0, 0.0, 1.0]] * 5, dtype=torch.float64)
    params = SamplingParams(logit_bias={0: -100.0})
    found = torch.func.vmap(lambda row: distribution(row, params, prompt=NONE, generated=NONE))(rows)
    assert (found[:, 0] < 1e-40).all()
    assert all(0 not in every_draw(row) for row in found)


@pytest.mark.parametrize("filler", [0, 5000])
def test_ties_with_the_kth_stay_whatever_the_batch(filler):
    """D19: the same kept set alone and in a batch of 16, for a small row and for one with many more tokens."""
    row = torch.cat([torch.tensor([3.0, 2.0, 2.0, 2.0, 1.0]), torch.full((filler,), -1.0)])
    params = SamplingParams(top_k=3)
    alone = distribution(row, params, prompt=NONE, generated=NONE)
    assert (alone > 0).tolist() == [True] * 4 + [False] * (1 + filler)
    batch = torch.func.vmap(lambda each: distribution(each, params, prompt=NONE, generated=NONE))(row.expand(16, -1))
    assert torch.equal(batch, alone.expand(16, -1))


def test_top_p_stops_where_the_sum_is_exact_and_acts_on_the_renormalised_law():
    """D20."""
    assert (law(log(0.3, 0.1, 0.1, 0.5), top_p=0.8) > 0).tolist() == [True, False, False, True]
    assert law(log(0.4, 0.3, 0.3), top_k=1, top_p=0.8).tolist() == [1.0, 0.0, 0.0]


def test_repetition_penalty_lowers_negative_logits_and_acts_once():
    """D21: logits (-1, 2), history [0, 0, 0], penalty 2 -> (-2, 2)."""
    for where in ({"prompt": [0, 0, 0]}, {"generated": [0, 0, 0]}, {"prompt": [0, -1], "generated": [-1, 0]}):
        close(law([-1.0, 2.0], repetition_penalty=2, **where), *torch.tensor([-2.0, 2.0], dtype=torch.float64).softmax(0).tolist())
    close(law([-1.0, 2.0], repetition_penalty=2, generated=[1]), *torch.tensor([-1.0, 1.0], dtype=torch.float64).softmax(0).tolist())


def test_min_tokens_holds_at_every_row_of_a_pass():
    """L7: EOS 3 is favoured; rows behind drafts [3, 3, 3, 3] count the tokens before each of them."""
    logits, controls = [1.0, 0.0, 0.0, 2.0], {"min_tokens": 3, "eos_ids": (3,), "temperature": 0}
    text = []
    for _ in range(4):
        text.append(law(logits, generated=text, **controls).argmax().item())
    assert text == [0, 0, 0, 3]
    for committed in range(4):  # a pass of 5 rows, each with its own prefix, padded to one length
        prefixes = torch.tensor([[0] * committed + [3] * drafted + [-1] * (4 - drafted) for drafted in range(5)])
        params = SamplingParams(min_tokens=3, temperature=0)
        rows = torch.tensor([logits] * 5)
        found = torch.func.vmap(lambda row, prefix, params=params: distribution(row, params, prompt=NONE, generated=prefix, eos_ids=(3,)))(
            rows, prefixes
        )
        assert found.argmax(-1).tolist() == [0 if committed + drafted < 3 else 3 for drafted in range(5)]


def test_presence_penalty_in_the_greedy_text():
    """L8: presence .5 and logits (2, 1.9, 0, -1) everywhere give 0, 1, 0, 0, ..."""
    text = []
    for _ in range(8):
        text.append(law([2.0, 1.9, 0.0, -1.0], generated=text, presence_penalty=0.5, temperature=0).argmax().item())
    assert text == [0, 1, 0, 0, 0, 0, 0, 0]


def test_ids_without_text_have_probability_zero():
    """N9: rows padded past the tokenizer's size, masked."""
    mask = torch.arange(8) < 6
    for controls in ({}, {"temperature": 0}, {"top_k": 3}, {"top_p": 0.9}, {"typical_p": 0.9}, {"min_p": 0.1}):
        found = law([0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 9.0, 9.0], mask=mask, **controls)
        assert found[6:].tolist() == [0.0, 0.0]
        assert every_draw(found) <= set(range(6))


def test_a_bad_sequence_forbids_its_last_id_after_its_beginning_only():
    controls = {"bad_words": [(1, 2, 3)]}
    assert law([0.0] * 4, prompt=[1], generated=[2], **controls)[3] == 0
    assert law([0.0] * 4, prompt=[1, -1], generated=[-1, 2, -1], **controls)[3] == 0
    assert law([0.0] * 4, generated=[1, 2, 0], **controls)[3] == 0.25
    assert law([0.0] * 4, generated=[2], **controls)[3] == 0.25


def test_bad_sequences_of_different_lengths_are_told_apart():
    controls = {"bad_words": [(1, 2, 3), (2, 0), (4, 4, 4, 4), 5]}
    for text, forbidden in (([1, 2], {0, 3, 5}), ([4, 2], {0, 5}), ([2], {0, 5}), ([4, 4], {5}), ([4, 4, 4], {4, 5}), ([], {5})):
        found = law([0.0] * 6, prompt=text[:1], generated=text[1:], **controls)
        assert {token for token in range(6) if found[token] == 0} == forbidden
