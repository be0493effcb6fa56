"""The strategies give what they say, hard cases included."""

import torch
from hypothesis import Phase, find, given, settings

from specdec_fn import random
from specdec_fn.speculate import Draft
from specdec_fn.speculate.verifier import check
from specdec_proofs import strategies
from specdec_proofs.worlds import Law, World


@given(strategies.laws(5))
def test_laws_are_laws(law: Law) -> None:
    assert len(law) == 5
    assert sum(law) == 1
    assert min(law) >= 0


@given(strategies.laws(4, zeros=False))
def test_laws_without_zeros(law: Law) -> None:
    assert min(law) > 0


def test_laws_hold_hard_cases() -> None:
    assert max(find(strategies.laws(4), lambda law: max(law) == 1)) == 1
    assert len(set(find(strategies.laws(4), lambda law: len(set(law)) == 1))) == 1
    assert find(strategies.laws(4), lambda law: 0 < min(law) < max(law) / 10**5)


@given(strategies.drafts(3, 4))
def test_drafts_are_valid_and_possible(draft: Draft) -> None:
    check(torch.full((4, 4), 0.25, dtype=torch.float64), draft)
    length = int(draft.length)
    assert (draft.tokens[length:] == -1).all()
    if draft.probs is not None:
        assert all(draft.probs[i, draft.tokens[i]] > 0 for i in range(length))


@given(strategies.rows(3, 5, torch.float32))
def test_rows_have_their_dtype_and_sum_to_one(rows: torch.Tensor) -> None:
    assert rows.dtype is torch.float32
    assert rows.shape == (3, 5)
    assert torch.allclose(rows.sum(1), torch.ones(3))


@given(strategies.keys())
def test_keys_are_single_keys(key: random.Key) -> None:
    assert random.key_data(key).shape == (2,)


def test_worlds_come_soft_and_one_hot_and_with_stops() -> None:
    quick = settings(phases=[Phase.generate], max_examples=1000, derandomize=True, database=None)
    assert find(strategies.worlds(), lambda world: world.soft, settings=quick).soft
    assert not find(strategies.worlds(), lambda world: not world.soft, settings=quick).soft
    stopped: World = find(strategies.worlds(), lambda world: world.stop(()), settings=quick)
    assert stopped.stop(())
