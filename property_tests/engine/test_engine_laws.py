"""The laws of many requests at once are, bit for bit, those of each alone; and a constraint's masks along a draft."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec_fn import SamplingParams
from specdec_fn.engine import Constraint, grammar
from specdec_fn.engine.law import Controls, law, prefixes
from specdec_fn.engine.laws import Ask, laws
from specdec_fn.sampling import distribution
from specdec_fn.speculate import Draft, tree
from specdec_fn.speculate.draft import chain

VOCAB = 6
CONTROLS = (
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1),
    SamplingParams(typical_p=0.6, logit_bias={1: 2.0, 3: -math.inf}),
    SamplingParams(presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.3),
    SamplingParams(temperature=0, repetition_penalty=1.7, min_tokens=3),
    SamplingParams(bad_words=[(1, 2), 4, (0, 0, 5)], min_tokens=4),
    SamplingParams(allowed_ids=[0, 2, 5]),
)
tokens = st.integers(0, VOCAB - 1)


def noise(seed: int, *shape: int) -> Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype is other.dtype is torch.float64 and one.shape == other.shape and one.view(torch.int64).equal(other.view(torch.int64))


def line(parents: Sequence[int], drafted: Sequence[int], row: int) -> list[int]:
    """The drafted ids on the way to a row, by walking up."""
    found: list[int] = []
    while row > 0:
        found.insert(0, drafted[row - 1])
        row = parents[row - 1] + 1
    return found


@st.composite
def asks(draw: Any) -> Ask:
    drafted = draw(st.lists(tokens, max_size=4))
    size, seed = len(drafted), draw(st.integers(0, 1000))
    parents = draw(st.none() | st.tuples(*(st.integers(-1, node - 1) for node in range(size))).map(lambda it: torch.tensor(it, dtype=torch.int64)))
    logits = noise(seed, size + 1, VOCAB).to(draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])))
    broken = draw(st.sets(st.integers(0, size), max_size=2))
    logits[list(broken)] = draw(st.sampled_from([math.nan, -math.inf]))
    mask = draw(st.none() | st.just(noise(seed + 1, VOCAB) < 2))
    allowed = draw(st.none() | st.just(noise(seed + 2, size + 1, VOCAB) < 1))
    ends = draw(st.sampled_from([(), (5,), (2, 5)]))
    controls = Controls(draw(st.sampled_from(CONTROLS)), tuple(draw(st.lists(tokens, max_size=4))), ends, mask)
    return Ask(logits, controls, draw(st.lists(tokens, max_size=4)), drafted, parents, allowed)


@given(st.lists(asks(), min_size=1, max_size=6))
def test_each_has_the_laws_that_it_has_alone(together: list[Ask]) -> None:
    for ask, found in zip(together, laws(together), strict=True):
        if ask.allowed is None:
            assert same_bits(found, law(*ask.controls)(ask.logits, ask.generated, ask.drafted, ask.parents))
        assert same_bits(found, laws([ask])[0])
        assert found.sum(-1).tolist() == pytest.approx([float(row.sum() > 0.5) for row in found])


@given(st.lists(asks(), min_size=1, max_size=4))
def test_every_row_is_the_distribution_at_its_own_prefix(together: list[Ask]) -> None:
    """Of each row by itself: its own logits, the ids on the way to it, and what is allowed there."""
    for ask, found in zip(together, laws(together), strict=True):
        params, prompt, ends, mask = ask.controls
        parents = range(-1, len(ask.drafted) - 1) if ask.parents is None else ask.parents.tolist()
        for place, row in enumerate(found):
            before = torch.tensor([*ask.generated, *line(parents, ask.drafted, place)], dtype=torch.int64)
            allowed = torch.ones(VOCAB, dtype=torch.bool) if mask is None else mask
            allowed = allowed if ask.allowed is None else allowed & ask.allowed[place]
            context = {"prompt": torch.tensor(prompt, dtype=torch.int64), "generated": before}
            assert same_bits(row, distribution(ask.logits[place].double(), params, **context, eos_ids=ends, mask=allowed))


@pytest.mark.parametrize("params", CONTROLS, ids=str)
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_row_without_a_law_is_zeros_and_spares_its_neighbours(params: SamplingParams, value: float) -> None:
    whole = [Ask(torch.zeros(2, VOCAB), Controls(params), [], [0]) for _ in range(3)]
    broken = whole[1].logits.clone()
    broken[1] = value
    found = laws([whole[0], whole[1]._replace(logits=broken), whole[2]])
    assert [rows.sum(-1).tolist() for rows in found] == [pytest.approx(sums) for sums in ([1, 1], [1, 0], [1, 1])]
    assert same_bits(found[0], found[2])


def test_nothing_allowed_at_one_row() -> None:
    allowed = torch.ones(3, VOCAB, dtype=torch.bool)
    allowed[1] = False
    found = laws([Ask(torch.zeros(3, VOCAB), Controls(SamplingParams()), [], [0, 1], None, allowed)])[0]
    assert found.sum(-1).tolist() == pytest.approx([1, 0, 1])
    assert found[0].tolist() == pytest.approx([1 / VOCAB] * VOCAB)


@pytest.mark.parametrize("vocab", [33, 4200])
def test_large_vocabularies(vocab: int) -> None:
    """Where only a part of a row is looked at, how large a part is decided by the rows together."""
    controls = [SamplingParams(), SamplingParams(top_k=7), SamplingParams(top_p=0.8, temperature=0.4), SamplingParams(typical_p=0.5, min_p=0.001)]
    controls.append(SamplingParams(top_k=40, presence_penalty=1.0))
    together = [
        Ask(scale * noise(seed, 3, vocab), Controls(params, (1, 2)), [3], [seed, 4]) for seed, scale in enumerate((0.01, 5.0)) for params in controls
    ]
    for ask, found in zip(together, laws(together), strict=True):
        assert same_bits(found, law(*ask.controls)(ask.logits, ask.generated, ask.drafted))


def test_nobody_asks() -> None:
    assert laws([]) == []


@pytest.mark.parametrize("params", CONTROLS, ids=str)
def test_what_was_asked_with_is_left_alone(params: SamplingParams) -> None:
    rows, mask, allowed = noise(1, 3, VOCAB).double(), torch.ones(VOCAB) > 0, torch.ones(3, VOCAB) > 0
    kept = [tensor.clone() for tensor in (rows, mask, allowed)]
    tied = Ask(rows, Controls(params, (1,), (5,), mask), [1], [0, 2], torch.tensor([-1, -1]), allowed)
    for made in laws([tied, Ask(rows, Controls(params), [], [0, 2])]):
        made.zero_()
    assert [tensor.equal(before) for tensor, before in zip((rows, mask, allowed), kept, strict=True)] == [True] * 3


def test_prefixes_of_a_tree() -> None:
    assert prefixes([7], [8, 9, 4], torch.tensor([-1, 0, -1])).tolist() == [[7, -1, -1, -1], [7, 8, -1, -1], [7, 8, 9, -1], [7, -1, -1, 4]]


# Constraints


def automaton(size: int, seed: int) -> Constraint:
    """Four states, in each of which some ids may come; each id leads to a state. Asked what follows a forbidden id, it fails."""
    ways = torch.randint(0, 4, (4, size), generator=torch.Generator().manual_seed(seed))
    open_to = torch.randint(0, 3, (4, size), generator=torch.Generator().manual_seed(seed + 1)) > 0

    def advance(state: int, token: int) -> int:
        if not open_to[state, token]:
            raise RuntimeError(f"{token} may not come in state {state}")
        return int(ways[state, token])

    return Constraint(0, lambda state: open_to[state].clone(), advance)


@given(st.integers(0, 1000), st.integers(0, 3), st.lists(tokens, max_size=5), st.data())
def test_masks_along_a_draft(seed: int, state: int, drafted: list[int], data: st.DataObject) -> None:
    """Each row has the mask of the state that its own line leads to; behind a forbidden id everything is open, and nobody asks the grammar."""
    rule = automaton(VOCAB, seed)
    draft = chain(drafted, len(drafted))
    if data.draw(st.booleans()):
        parents = [data.draw(st.integers(-1, node - 1)) for node in range(len(drafted))]
        draft = draft._replace(parents=torch.tensor(parents, dtype=torch.int64))
    found = grammar.allowed(rule, state, draft, VOCAB)
    assert found.dtype is torch.bool
    assert found.shape == (1 + len(drafted), VOCAB)
    parents = tree.parents_of(draft).tolist()
    for row, mask in enumerate(found):
        here, blocked = state, False
        for token in line(parents, drafted, row):
            blocked = blocked or not rule.mask(here)[token]
            here = here if blocked else rule.advance(here, token)
        assert mask.tolist() == ([True] * VOCAB if blocked else rule.mask(here).tolist())


@given(st.integers(0, 1000), st.lists(tokens, max_size=6))
def test_the_state_after_some_tokens(seed: int, wanted: list[int]) -> None:
    rule, here, said = automaton(VOCAB, seed), 0, []
    for token in wanted:
        if rule.mask(here)[token]:
            here, said = rule.advance(here, token), [*said, token]
    assert grammar.advanced(rule, 0, said) == here


@pytest.mark.parametrize(
    ("mask", "received"),
    [
        (torch.ones(5) > 0, r"torch.bool \[5\]"),
        (torch.ones(1, 6) > 0, r"torch.bool \[1, 6\]"),
        (torch.ones(6), r"torch.float32 \[6\]"),
        ([True] * 6, r"\[True, True, True, True, True, True\]"),
        (None, "None"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_mask_of_another_kind_is_refused(mask: Any, received: str, first: bool) -> None:
    rule = Constraint(0, lambda place: mask if bool(place) is not first else torch.ones(VOCAB) > 0, lambda place, token: place + 1)
    with pytest.raises(ValueError, match=rf"^the constraint's mask is {received}; expected bool \[6\]$"):
        grammar.allowed(rule, 0, Draft(torch.tensor([1]), None, torch.tensor(1)), VOCAB)
