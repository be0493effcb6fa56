"""The books of the pages beside a dictionary of counts, with double frees in every form, and pasts that one can go back to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specdec_fn.kv import pages
from specdec_fn.kv.pages import PagePool

IDS = st.lists(st.integers(0, 5), max_size=6)


def books(pool: PagePool) -> tuple[int, dict[int, int]]:
    """What can be seen of a pool from outside: its free count and the references of every page."""
    return pages.free_count(pool), {page: pages.references(pool, page) for page in range(pool.num_pages)}


class PoolMachine(RuleBasedStateMachine):
    """Random calls, right and wrong ones, on a pool of a few pages; the model is one list of references."""

    @initialize(num_pages=st.integers(1, 6))
    def empty(self, num_pages: int) -> None:
        self.pool = pages.init(num_pages)
        self.counts = [0] * num_pages
        self.pasts: list[tuple[PagePool, list[int]]] = []

    @rule(n=st.integers(0, 7))
    def alloc(self, n: int) -> None:
        free = self.counts.count(0)
        before = self.pool
        self.pool, ids = pages.alloc(self.pool, n)
        if n > free:
            assert ids is None
            assert self.pool is before
            return
        assert ids is not None
        assert len(ids) == len(set(ids)) == n
        for page in ids:
            assert self.counts[page] == 0, "a page that is held was handed out"
            self.counts[page] = 1

    @rule(ids=IDS)
    def retain(self, ids: list[int]) -> None:
        if all(page < len(self.counts) and self.counts[page] for page in ids):
            self.pool = pages.retain(self.pool, ids)
            for page in ids:
                self.counts[page] += 1
        else:
            before = books(self.pool)
            with pytest.raises(ValueError, match="which is free"):
                pages.retain(self.pool, ids)
            assert books(self.pool) == before

    @rule(ids=IDS)
    def release(self, ids: list[int]) -> None:
        if all(page < len(self.counts) and ids.count(page) <= self.counts[page] for page in ids):
            self.pool = pages.release(self.pool, ids)
            for page in ids:
                self.counts[page] -= 1
        else:
            before = books(self.pool)
            with pytest.raises(ValueError, match="which is free"):
                pages.release(self.pool, ids)
            assert books(self.pool) == before

    def among_the_held(self, picks: list[int]) -> list[int]:
        held = [page for page, count in enumerate(self.counts) if count]
        return [held[pick % len(held)] for pick in picks] if held else []

    @rule(picks=IDS)
    def retain_held_pages(self, picks: list[int]) -> None:
        self.retain(self.among_the_held(picks))

    @rule(picks=IDS)
    def release_held_pages(self, picks: list[int]) -> None:
        self.release(self.among_the_held(picks))

    @rule()
    def remember(self) -> None:
        self.pasts.append((self.pool, list(self.counts)))

    @rule(which=st.integers(0, 9))
    def go_back(self, which: int) -> None:
        if self.pasts:
            self.pool, counts = self.pasts[which % len(self.pasts)]
            self.counts = list(counts)

    @invariant()
    def the_books_are_right(self) -> None:
        assert books(self.pool) == (self.counts.count(0), dict(enumerate(self.counts)))

    @invariant()
    def every_page_is_free_once_or_held(self) -> None:
        free = [*self.pool.free, *range(self.pool.virgin, self.pool.num_pages)]
        assert sorted([*free, *self.pool.held]) == list(range(self.pool.num_pages))
        assert len(list(self.pool.free)) == self.pool.freed


TestPool = PoolMachine.TestCase


# Page 0 is an ordinary page; the last one of the pool too.
@pytest.mark.parametrize("page", [0, 3])
def test_a_page_freed_twice_is_refused_and_the_free_count_stays(page: int) -> None:
    pool, _ = pages.alloc(pages.init(4), 4)
    once = pages.release(pool, [page])
    with pytest.raises(ValueError, match=f"page {page}, which is free"):
        pages.release(once, [page])
    assert pages.free_count(once) == 1
    assert pages.references(once, page) == 0


def test_a_page_twice_in_one_free_call_is_refused_where_it_has_one_reference() -> None:
    pool, _ = pages.alloc(pages.init(4), 2)
    with pytest.raises(ValueError, match="page 1, which is free"):
        pages.release(pool, [0, 1, 1])
    assert books(pool) == (2, {0: 1, 1: 1, 2: 0, 3: 0})  # nor was page 0 freed on the way
    shared = pages.retain(pool, [1])
    assert pages.free_count(pages.release(shared, [1, 1])) == 3
    with pytest.raises(ValueError, match="page 1, which is free"):
        pages.release(shared, [1, 1, 1])


@pytest.mark.parametrize("page", [-1, 2, 3, 4, 1000])
def test_a_page_that_was_never_handed_out_or_is_not_there_cannot_be_freed_or_shared(page: int) -> None:
    pool, _ = pages.alloc(pages.init(4), 2)
    for call in (pages.release, pages.retain):
        with pytest.raises(ValueError, match=f"page {page}, which is free"):
            call(pool, [page])
    assert pages.free_count(pool) == 2
    assert pages.references(pool, page) == 0


def test_every_page_is_handed_out_page_zero_among_them() -> None:
    pool, ids = pages.alloc(pages.init(4), 4)
    assert ids is not None
    assert sorted(ids) == [0, 1, 2, 3]
    assert pages.free_count(pool) == 0
    assert pages.alloc(pool, 0) == (pool, ())
    assert pages.alloc(pool, 1) == (pool, None)
    assert pages.alloc(pages.release(pool, [0]), 1)[1] == (0,)


@given(sizes=st.lists(st.integers(0, 4), max_size=5))
def test_virgin_pages_go_out_in_ascending_order(sizes: list[int]) -> None:
    pool, seen = pages.init(20), []
    for n in sizes:
        pool, ids = pages.alloc(pool, n)
        assert ids is not None
        seen += ids
    assert seen == list(range(sum(sizes)))


@given(kept=st.integers(1, 5), rows=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_what_a_rollback_gives_back_its_sequence_gets_again(kept: int, rows: list[int]) -> None:
    pool, mine = pages.alloc(pages.init(100), kept)
    assert mine is not None
    for n in rows:
        pool, drafted = pages.alloc(pool, n)
        assert drafted == tuple(range(kept, kept + n))
        pool = pages.release(pool, drafted)


@pytest.mark.parametrize("num_pages", [0, -1])
def test_a_pool_without_pages_is_refused(num_pages: int) -> None:
    with pytest.raises(ValueError, match=f"num_pages is {num_pages}; expected at least 1"):
        pages.init(num_pages)
    with pytest.raises(TypeError, match=r"2\.5"):
        pages.init(2.5)  # type: ignore[arg-type]


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="n is -1; expected 0 or more pages"):
        pages.alloc(pages.init(4), -1)


def test_the_books_of_a_large_pool_hold_only_what_is_held() -> None:
    pool, ids = pages.alloc(pages.init(1_000_000), 3)
    assert ids is not None
    pool = pages.release(pool, ids[:1])
    assert len(pool.held) == 2
    assert len(list(pool.free)) == 1
    assert pages.free_count(pool) == 999_998
