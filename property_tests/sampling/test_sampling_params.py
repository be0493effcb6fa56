"""SamplingParams: what it accepts, what it refuses and in which words, and that equal settings are one value."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.sampling import SamplingParams

ORDER = ["temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
ORDER += ["logit_bias", "bad_words", "allowed_ids", "min_tokens"]
DEFAULTS = (1.0, 0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, (), (), None, 0)
NAN, INF = math.nan, math.inf


def test_fields_stand_in_the_agreed_order_with_the_agreed_defaults():
    assert [field.name for field in dataclasses.fields(SamplingParams)] == ORDER
    assert tuple(getattr(SamplingParams(), name) for name in ORDER) == DEFAULTS


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-1, -1e-300, NAN, INF, -INF]),
        ("top_k", [-1]),
        ("top_p", [0, -0.1, 1.0000001, NAN, INF]),
        ("min_p", [-1e-9, 1.1, NAN]),
        ("typical_p", [0, 1.5, NAN, -1]),
        ("repetition_penalty", [0, -1, NAN, INF]),
        ("presence_penalty", [NAN, INF, -INF]),
        ("frequency_penalty", [NAN, INF, -INF]),
        ("logit_bias", [{-1: 0.0}, {0: NAN}, {0: INF}, [(1, 0.5), (1, 0.5)]]),
        ("bad_words", [[-1], [(1, -2)], [()]]),
        ("allowed_ids", [[], [-3], ()]),
        ("min_tokens", [-1]),
    ],
)
def test_values_out_of_range_are_refused_in_one_sentence_that_names_the_field(name, values):
    for value in values:
        with pytest.raises(ValueError, match=rf"^[^.\n]*{name}[^\n]*received") as caught:
            SamplingParams(**{name: value})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *[
            (name, [True, False, "1", None, [1]])
            for name in ("temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        ],
        ("top_k", [True, 2.0, "2", None]),
        ("min_tokens", [False, 1.5, None]),
        ("logit_bias", [3, "ab", [3], {True: 1.0}, {1: True}, {"1": 1.0}, [(1, 2, 3)], None]),
        ("bad_words", [5, "word", ["word"], [1.0], [True], [(1, False)], None]),
        ("allowed_ids", [5, "12", [1.0], [True]]),
    ],
)
def test_values_of_another_kind_are_refused(name, values):
    for value in values:
        with pytest.raises(TypeError, match=rf"{name}[^\n]*received"):
            SamplingParams(**{name: value})


def test_limits_of_the_ranges_are_accepted():
    SamplingParams(
        temperature=0, top_k=0, top_p=1, min_p=0, typical_p=1, repetition_penalty=1e-9, presence_penalty=-2, frequency_penalty=-2, min_tokens=0
    )
    SamplingParams(temperature=5e-324, top_p=5e-324, min_p=1, typical_p=5e-324, logit_bias={0: -INF})


@given(st.dictionaries(st.integers(0, 9), st.floats(-100, 100)), st.randoms())
def test_equal_settings_are_one_value_whatever_they_were_given_in(bias, random):
    pairs = list(bias.items())
    random.shuffle(pairs)
    made = [SamplingParams(logit_bias=bias), SamplingParams(logit_bias=pairs), SamplingParams(logit_bias=tuple([key, value] for key, value in pairs))]
    assert made[0] == made[1] == made[2]
    assert len({hash(one) for one in made}) == 1
    assert made[0].logit_bias == tuple(sorted(bias.items()))


def test_numbers_and_collections_are_kept_in_plain_hashable_form():
    made = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(3), top_p=Fraction(1, 2), allowed_ids={4, 2}, bad_words=[7, [1, 2]], logit_bias={np.int32(3): 1}
    )
    assert made == SamplingParams(temperature=0.5, top_k=3, top_p=0.5, allowed_ids=(2, 4, 4), bad_words=(7, (1, 2)), logit_bias=((3, 1.0),))
    assert (made.allowed_ids, made.bad_words, made.logit_bias) == ((2, 4), (7, (1, 2)), ((3, 1.0),))
    assert [type(value) for value in (made.temperature, made.top_k, made.top_p, made.logit_bias[0][0])] == [float, int, float, int]
    assert hash(SamplingParams(temperature=-0.0)) == hash(SamplingParams(temperature=0))


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().top_k = 3


@pytest.mark.parametrize(
    ("changes", "history"),
    [
        ({}, False),
        (
            {
                "temperature": 0,
                "top_k": 5,
                "top_p": 0.5,
                "min_p": 0.1,
                "typical_p": 0.5,
                "logit_bias": {1: 2},
                "allowed_ids": [1],
                "bad_words": [3, (4,)],
            },
            False,
        ),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"min_tokens": 1}, True),
        ({"bad_words": [3, (4, 5)]}, True),
    ],
)
def test_history_says_whether_earlier_tokens_matter(changes, history):
    assert SamplingParams(**changes).history is history


def test_greedy_is_temperature_zero():
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-300).greedy
