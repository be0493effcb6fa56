"""The dense cache against a list of tokens and a cold forward, against its pure reference, and with poison in what is not state."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch.utils import _pytree as pytree

from specdec_fn.kv import dense
from specdec_fn.models import Config, RopeConfig, llama, logits
from specdec_fn.pytree import DonatedError, checking

CONFIG = Config("llama", vocab_size=11, context=64, width=8, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=6, rope=RopeConfig(base=50.0))
_make = torch.Generator().manual_seed(0)
_shapes = llama.shapes(CONFIG)
MODEL = llama.model(CONFIG, llama.assemble(CONFIG, lambda name: 0.4 * torch.randn(_shapes[name], generator=_make, dtype=torch.float64)))
TOKENS = st.lists(st.integers(0, 10), min_size=1, max_size=6)


def poisoned(cache: dense.DenseCache) -> dense.DenseCache:
    """Slots that are not state hold NaN."""
    for tensor in (*cache.keys, *cache.values):
        tensor[cache.length :] = math.nan
    return cache


class CacheMachine(RuleBasedStateMachine):
    """Random passes, rollbacks and growth; the model of the cache is the list of committed tokens."""

    @initialize(capacity=st.integers(6, 9))
    def empty(self, capacity: int) -> None:
        self.cache = poisoned(dense.init(CONFIG, capacity, dtype=torch.float64))
        self.tokens: list[int] = []

    def window(self, new: list[int], attend: Any) -> None:
        start = len(self.tokens)
        ids, positions = torch.tensor(new), torch.arange(start, start + len(new))
        found, self.cache = MODEL.apply(MODEL.params, ids, positions, self.cache, attend)
        cold = logits(MODEL, [*self.tokens, *new])[start:]
        torch.testing.assert_close(found, cold, atol=1e-10, rtol=1e-10)

    @rule(new=TOKENS, kept=st.integers(0, 6), attend=st.sampled_from([dense.attend, dense.attend_pure, dense.attend_invariant]))
    def run(self, new: list[int], kept: int, attend: Any) -> None:
        room = min(self.cache.capacity, CONFIG.context) - len(self.tokens)
        if not room:
            return
        new = new[:room]
        self.window(new, attend)
        kept = min(kept, len(new))
        self.cache = dense.advance(self.cache, kept)
        self.tokens += new[:kept]

    @rule(first=TOKENS, second=TOKENS)
    def two_passes_without_a_commit(self, first: list[int], second: list[int]) -> None:
        """A window given up altogether, then another of another size in its place."""
        room = min(self.cache.capacity, CONFIG.context) - len(self.tokens)
        for new in (first[:room], second[:room]):
            if new:
                self.window(new, dense.attend)
        self.cache = dense.advance(self.cache, 0)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.tokens)))
        self.cache = dense.truncate(self.cache, length)
        self.tokens = self.tokens[:length]

    @rule(more=st.integers(0, 5))
    def grow(self, more: int) -> None:
        self.cache = poisoned(dense.grow(self.cache, self.cache.capacity + more))

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "tokens"):
            assert self.cache.length == len(self.tokens)
            assert all(tensor.shape == (self.cache.capacity, 2, 4) for tensor in (*self.cache.keys, *self.cache.values))


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(stateful_step_count=20)


@given(st.integers(0, 9), st.integers(1, 7), st.sampled_from([(1, 1), (4, 2), (6, 1), (3, 3)]), st.integers(0, 1), st.integers(0, 10**6))
def test_attend_is_its_pure_reference(length: int, rows: int, heads: tuple[int, int], layer: int, seed: int) -> None:
    make = torch.Generator().manual_seed(seed)
    sizes = SimpleNamespace(layers=2, kv_heads=heads[1], head_dim=6)
    cache = dense.advance(dense.init(sizes, 16, dtype=torch.float64), length)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn(tensor.shape, generator=make, dtype=torch.float64))
    query, key, value = (torch.randn(rows, n, 6, generator=make, dtype=torch.float64) for n in (heads[0], heads[1], heads[1]))
    before = [tensor.clone() for tensor in (*cache.keys, *cache.values)]
    expected, reference = dense.attend_pure(cache, layer, query, key, value)
    assert all(map(torch.equal, before, (*cache.keys, *cache.values)))
    for attend in (dense.attend, dense.attend_invariant):
        given_up = pytree.tree_map(lambda leaf: leaf.clone(), cache)
        out, after = attend(given_up, layer, query, key, value)
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
        assert all(map(torch.equal, (*after.keys, *after.values), (*reference.keys, *reference.values)))


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 33])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("attend", [dense.attend, dense.attend_invariant])
def test_poison_in_unused_slots_is_not_read(length: int, rows: int, attend: Any) -> None:
    """R5: slots past the rows of the pass hold NaN, in keys and in values."""
    tokens = torch.arange(length + rows) % 11
    cache = poisoned(dense.init(CONFIG, 48, dtype=torch.float64))
    if length:
        cache = dense.advance(MODEL.apply(MODEL.params, tokens[:length], torch.arange(length), cache, attend)[1], length)
    found, _ = MODEL.apply(MODEL.params, tokens[length:], torch.arange(length, length + rows), cache, attend)
    torch.testing.assert_close(found, logits(MODEL, tokens)[length:], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("attend", [dense.attend, dense.attend_invariant])
def test_a_donated_cache_raises_when_it_is_used_again(attend: Any) -> None:
    tokens, positions = torch.tensor([1, 2, 3]), torch.arange(3)
    plain, _ = MODEL.apply(MODEL.params, tokens, positions, dense.init(CONFIG, 8, dtype=torch.float64), attend)
    with checking():
        old = dense.init(CONFIG, 8, dtype=torch.float64)
        found, new = MODEL.apply(MODEL.params, tokens, positions, old, attend)
        assert torch.equal(found, plain)
        with pytest.raises(DonatedError):
            MODEL.apply(MODEL.params, tokens, positions, old, attend)
        again, _ = MODEL.apply(MODEL.params, tokens, positions + 3, dense.advance(new, 3), attend)
        assert again.isfinite().all()


def test_writes_are_in_place_and_nothing_is_copied() -> None:
    cache = dense.init(CONFIG, 8, dtype=torch.float64)
    places = [tensor.data_ptr() for tensor in (*cache.keys, *cache.values)]
    _, after = MODEL.apply(MODEL.params, torch.tensor([1, 2]), torch.arange(2), cache, dense.attend)
    assert [tensor.data_ptr() for tensor in (*after.keys, *after.values)] == places
    grown = dense.grow(dense.advance(after, 2), 16)
    assert not set(places) & {tensor.data_ptr() for tensor in (*grown.keys, *grown.values)}


@pytest.mark.parametrize(
    "born", [lambda: dense.init(CONFIG, 8, dtype=torch.float64), lambda: dense.grow(dense.init(CONFIG, 4, dtype=torch.float64), 8)]
)
def test_a_cache_outlives_inference_mode(born: Callable[[], dense.DenseCache]) -> None:
    with torch.inference_mode():
        _, cache = MODEL.apply(MODEL.params, torch.tensor([1]), torch.tensor([0]), born(), dense.attend)
    with torch.no_grad():
        found, _ = MODEL.apply(MODEL.params, torch.tensor([2, 3]), torch.tensor([1, 2]), dense.advance(cache, 1), dense.attend)
    torch.testing.assert_close(found, logits(MODEL, [1, 2, 3])[1:], atol=1e-10, rtol=1e-10)


def test_bounds() -> None:
    cache = dense.advance(dense.init(CONFIG, 4, dtype=torch.float32), 3)
    row = torch.zeros(2, 2, 4)
    for attend in (dense.attend, dense.attend_invariant, dense.attend_pure):
        with pytest.raises(AssertionError, match="2 rows at 3 of 4 slots"):
            attend(cache, 0, torch.zeros(2, 4, 4), row, row)
    with pytest.raises(AssertionError, match="cannot commit 2 rows at 3 of 4"):
        dense.advance(cache, 2)
    with pytest.raises(AssertionError, match="cannot commit -1 rows"):
        dense.advance(cache, -1)
    with pytest.raises(AssertionError, match="cannot truncate 3 slots to 4"):
        dense.truncate(cache, 4)
    with pytest.raises(AssertionError, match="3 committed slots do not fit into 2"):
        dense.grow(cache, 2)
    with pytest.raises(ValueError, match="at least 1 slot, received 0"):
        dense.init(CONFIG, 0, dtype=torch.float32)
