"""The first layers as a model, against the whole model whose later layers are made to add nothing."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import models
from specdec_fn.models import toy
from specdec_fn.models.truncate import first_layers
from specdec_fn.random import key

TOKENS = [5, 9, 2, 2, 31, 0]


def silenced(model: models.Model, count: int) -> models.Model:
    """The model whose layers from ``count`` on write zeros into the stream."""
    layers = [
        layer if i < count else dataclasses.replace(layer, output=torch.zeros_like(layer.output), down=torch.zeros_like(layer.down))
        for i, layer in enumerate(model.params.layers)
    ]
    return models.llama.model(model.config, dataclasses.replace(model.params, layers=tuple(layers)))


@given(st.integers(1, 4), st.sampled_from([torch.float32, torch.float64]), st.booleans())
def test_it_says_what_the_whole_says_without_its_later_layers(count: int, dtype: torch.dtype, invariant: bool) -> None:
    whole = toy.llama(key(count), layers=4, dtype=dtype)
    short, silent = first_layers(whole, count), silenced(whole, count)
    if invariant:
        short, silent = models.invariant(short), models.invariant(silent)
    assert torch.equal(models.logits(short, TOKENS), models.logits(silent, TOKENS))


def test_all_layers_are_the_model() -> None:
    whole = toy.llama(key(1), layers=3)
    assert torch.equal(models.logits(first_layers(whole, 3), TOKENS), models.logits(whole, TOKENS))
    assert not torch.equal(models.logits(first_layers(whole, 2), TOKENS), models.logits(whole, TOKENS))


def test_parameters_are_shared() -> None:
    whole = toy.llama(key(1), layers=3)
    short = first_layers(whole, 2)
    assert short.config == dataclasses.replace(whole.config, layers=2)
    assert all(one is other for one, other in zip(short.params.layers, whole.params.layers, strict=False))
    assert (short.params.embedding is whole.params.embedding, short.params.head is whole.params.head) == (True, True)
    assert len(whole.params.layers) == 3


@pytest.mark.parametrize(
    ("model", "count", "words"),
    [
        (toy.llama(key(0)), 0, "the number of layers is 0; expected a whole number from 1 to 2"),
        (toy.llama(key(0)), 3, "the number of layers is 3; expected a whole number from 1 to 2"),
        (toy.llama(key(0)), 1.5, "the number of layers is 1.5; expected a whole number from 1 to 2"),
        (toy.bigram(torch.eye(3)), 1, "the model is a toy model without blocks; expected one of the Llama family"),
        ("gpt", 1, "model is 'gpt'; expected a Model"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_one_sentence(model: Any, count: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        first_layers(model, count)
