"""The pool of pages against a dictionary, against its pure reference, and in check mode."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.kv import store
from specdec_fn.pytree import DonatedError, checking

LAYERS, PAGES, PAGE = 2, 4, 3
SLOTS = PAGES * PAGE
SIZES = SimpleNamespace(layers=LAYERS, kv_heads=2, head_dim=3)


def filled() -> store.Store:
    """A pool in which every number is another."""
    made = store.init(SIZES, PAGES, PAGE, dtype=torch.float64)
    for pool, sign in ((made.keys, 1.0), (made.values, -1.0)):
        pool.copy_(sign * torch.arange(1.0, pool.numel() + 1, dtype=torch.float64).view(pool.shape))
    return made


def read(made: store.Store) -> dict[tuple[int, int], list[list[float]]]:
    """What lies at each (layer, slot), read a number at a time by the rule that the docstring states."""
    keys, values = made.keys.tolist(), made.values.tolist()
    return {
        (layer, page * PAGE + offset): [*keys[layer * PAGES + page][offset], *values[layer * PAGES + page][offset]]
        for layer in range(LAYERS)
        for page in range(PAGES)
        for offset in range(PAGE)
    }


@given(st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 1))
def test_write_is_a_dictionary_and_its_pure_reference(slots: list[int], skip: list[bool], layer: int) -> None:
    places = [-1 if left_out else slot for slot, left_out in zip(slots, skip, strict=False)]
    key, value = (offset + torch.arange(6.0 * len(slots), dtype=torch.float64).view(-1, 2, 3) for offset in (1000, 2000))
    expected = read(filled())
    for row, slot in enumerate(places):
        if slot != -1:
            expected[layer, slot] = [*key[row].tolist(), *value[row].tolist()]
    given_up, kept = filled(), filled()
    pure = store.write_pure(kept, layer, key, value, torch.tensor(places, dtype=torch.int64))
    written = store.write(given_up, layer, key, value, torch.tensor(places, dtype=torch.int64))
    assert read(written) == read(pure) == expected
    assert read(kept) == read(filled())
    if -1 not in places:
        assert read(store.write(filled(), layer, key, value, torch.tensor(places, dtype=torch.int64), whole=True)) == expected


def test_rows_may_be_views_of_a_larger_tensor() -> None:
    """A model hands over parts of one product, which do not lie in one piece."""
    wide = torch.arange(30.0, dtype=torch.float64).view(2, 5, 3)
    key, value = wide[:, 1:3], wide[:, 3:]
    found = read(store.write(filled(), 1, key, value, torch.tensor([11, 0])))
    assert found[1, 11] == [[3.0, 4.0, 5.0], [6.0, 7.0, 8.0], [9.0, 10.0, 11.0], [12.0, 13.0, 14.0]]
    assert found[1, 0] == [[18.0, 19.0, 20.0], [21.0, 22.0, 23.0], [24.0, 25.0, 26.0], [27.0, 28.0, 29.0]]


@given(st.data())
def test_copies_are_dictionaries_in_all_layers(data: st.DataObject) -> None:
    """Sources and targets overlap: everything is read before anything is written."""
    for copy, places, each in ((store.copy_pages, PAGES, PAGE), (store.move, SLOTS, 1)):
        targets = data.draw(st.lists(st.integers(0, places - 1), unique=True))
        sources = data.draw(st.lists(st.integers(0, places - 1), min_size=len(targets), max_size=len(targets)))
        before = read(filled())
        expected = dict(before)
        for layer in range(LAYERS):
            for source, target in zip(sources, targets, strict=True):
                for offset in range(each):
                    expected[layer, target * each + offset] = before[layer, source * each + offset]
        assert read(copy(filled(), sources, tuple(targets))) == expected


CHANGES: tuple[Callable[[store.Store], store.Store], ...] = (
    lambda made: store.write(made, 0, torch.ones(1, 2, 3).double(), torch.ones(1, 2, 3).double(), torch.tensor([1])),
    lambda made: store.copy_pages(made, [0], [2]),
    lambda made: store.move(made, [0, 5], [4, 1]),
)


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_in_place(change: Callable[[store.Store], store.Store]) -> None:
    made = filled()
    changed = change(made)
    assert (changed.keys.data_ptr(), changed.values.data_ptr()) == (made.keys.data_ptr(), made.values.data_ptr())


@pytest.mark.parametrize("change", CHANGES)
def test_a_donated_store_raises_when_it_is_used_again(change: Callable[[store.Store], store.Store]) -> None:
    expected = read(change(change(filled())))
    with checking():
        old = filled()
        new = change(old)
        with pytest.raises(DonatedError):
            change(old)
        assert read(change(new)) == expected


def test_a_clone_owns_what_it_holds() -> None:
    made = dataclasses.replace(filled(), scratch=(torch.zeros(3),))
    copy = store.clone(made)
    assert read(copy) == read(made)
    assert copy.scratch == ()
    store.copy_pages(made, [0], [1])
    assert read(copy) == read(filled())


def test_a_store_outlives_inference_mode() -> None:
    with torch.inference_mode():
        made, copy = store.init(SIZES, PAGES, PAGE, dtype=torch.float64), store.clone(filled())
    for one in (made, copy):
        row = torch.ones(1, 2, 3, dtype=torch.float64)
        assert read(store.write(one, 1, row, row, torch.tensor([7])))[1, 7] == torch.ones(4, 3).tolist()


def test_a_pool_of_no_layers() -> None:
    made = store.init(SimpleNamespace(layers=0, kv_heads=2, head_dim=3), PAGES, PAGE, dtype=torch.float32)
    assert made.nbytes == 0
    made = store.move(store.copy_pages(made, [0], [1]), [0, 4], [1, 2])
    assert store.clone(made).keys.shape == (0, PAGE, 2, 3)
    assert store.copy_pages(store.init(SimpleNamespace(layers=0, kv_heads=0, head_dim=0), 1, 1, dtype=torch.float32), [], []).nbytes == 0


def test_bytes() -> None:
    assert store.init(SIZES, PAGES, PAGE, dtype=torch.float16).nbytes == 2 * 2 * LAYERS * PAGES * PAGE * 2 * 3
    assert not store.init(SIZES, PAGES, PAGE, dtype=torch.float32).values.any()


def test_bounds() -> None:
    for pages, page_size, said in ((0, 3, "pages is 0; expected at least 1"), (3, -1, "page_size is -1; expected at least 1")):
        with pytest.raises(ValueError, match=said):
            store.init(SIZES, pages, page_size, dtype=torch.float32)
    places: tuple[tuple[Any, list[int], list[int]], ...] = (
        (store.copy_pages, [0], [PAGES]),
        (store.copy_pages, [-1], [0]),
        (store.move, [SLOTS], [0]),
        (store.move, [0], [-1]),
    )
    for copy, sources, targets in places:
        made = filled()
        with pytest.raises(AssertionError, match="are not all among the"):
            copy(made, sources, targets)
        assert read(made) == read(filled())
    with pytest.raises(AssertionError, match="1 places to read and 2 to write"):
        store.move(filled(), [0], [1, 2])
    with pytest.raises(IndexError):  # a slot of the next layer
        store.write(filled(), 0, torch.ones(1, 2, 3).double(), torch.ones(1, 2, 3).double(), torch.tensor([SLOTS]))
