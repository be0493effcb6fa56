"""The prefix cache over a pool of a few pages: beside a list that is searched from end to end, and with hashes that collide on purpose."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specdec_fn.kv import pages, prefix, table
from specdec_fn.kv.pages import PagePool
from specdec_fn.kv.prefix import PrefixCache, Tip
from specdec_fn.kv.table import Table

WHICH = st.integers(0, 9)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=7)
SALTS = st.sampled_from([b"", b"a"])


@dataclass(eq=False)
class Kept:
    """A cached page of the model; two are the same only if they are one object."""

    page: int
    whole: tuple[bytes, tuple[int, ...]]  # salt and every token from the start
    parent: "Kept | bytes"


@dataclass
class Sequence:
    """A sequence of the model and what the rooms under test gave it."""

    table: Table
    tip: Tip
    tokens: list[int]
    salt: bytes
    last: "Kept | bytes"  # what the next page hangs under


class CacheMachine(RuleBasedStateMachine):
    """Requests that start, compute with drafts behind them, fork, are preempted and end, with evictions where pages are lacking.

    What is written into a slot is the salt and every token up to it, so that a wrong hit, or a page overwritten while someone counts on it, is
    seen at once, whatever the cache says.
    """

    hashing: Callable[[bytes, tuple[int, ...]], bytes] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        if self.hashing:
            self.patch.setattr(prefix, "_hash", type(self).hashing)

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(num_pages=st.integers(4, 10), page_size=st.integers(1, 3), first=TOKENS)
    def empty(self, num_pages: int, page_size: int, first: list[int]) -> None:
        self.size = page_size
        self.pool = pages.init(num_pages)
        self.cache = prefix.init()
        self.memory: dict[int, Any] = {}
        self.sequences: list[Sequence] = []
        self.kept: list[Kept] = []
        self.idle: list[int] = []  # least recently used first
        self.texts: list[tuple[list[int], bytes]] = []  # what was computed before
        self.begin(first, b"")

    def holders(self, page: int) -> int:
        return sum(page in one.table.pages for one in self.sequences)

    def expected(self, tokens: list[int], salt: bytes) -> list[Kept]:
        """The longest chain, looked for among all pages, that leaves a token to compute."""
        chain: list[Kept] = []
        parent: Kept | bytes = salt
        while (len(chain) + 1) * self.size < len(tokens):
            whole = (salt, tuple(tokens[: (len(chain) + 1) * self.size]))
            found = [one for one in self.kept if one.whole == whole and (one.parent is parent or one.parent == parent)]
            if not found:
                break
            assert len(found) == 1
            parent = found[0]
            chain.append(parent)
        return chain

    def check_contents(self, ids: tuple[int, ...], tokens: list[int], salt: bytes) -> None:
        for place, page in enumerate(ids):
            for offset in range(self.size):
                read = self.memory[page * self.size + offset]
                assert read == (salt, tuple(tokens[: place * self.size + offset + 1])), "a hit on a page that holds something else"

    def begin(self, tokens: list[int], salt: bytes) -> None:
        looked = prefix.lookup(self.cache, tokens, page_size=self.size, salt=salt)
        self.cache, self.pool, held, tip = prefix.hold(self.cache, self.pool, tokens, page_size=self.size, salt=salt)
        assert held == Table(looked, len(looked) * self.size)
        assert tip.pages == len(looked)
        assert held.length < len(tokens), "nothing is left to compute"
        self.check_contents(held.pages, tokens, salt)
        chain: list[Kept] = []
        if not self.hashing:
            chain = self.expected(tokens, salt)
            assert held.pages == tuple(one.page for one in chain)
        self.idle = [page for page in self.idle if page not in held.pages]
        self.sequences.append(Sequence(held, tip, tokens, salt, chain[-1] if chain else salt))

    @rule(tokens=TOKENS, salt=SALTS)
    def start(self, tokens: list[int], salt: bytes) -> None:
        if len(self.sequences) == 3:
            self.leave(0)
        self.begin(tokens, salt)

    @rule(which=WHICH, cut=st.integers(1, 9), more=st.lists(st.integers(0, 1), max_size=3))
    def start_like_an_earlier_one(self, which: int, cut: int, more: list[int]) -> None:
        if self.texts:
            text, salt = self.texts[-1 - which % len(self.texts)]
            self.start(text[:cut] + more, salt)

    @rule(which=WHICH, more=st.lists(st.integers(0, 1), max_size=3), drafts=st.integers(0, 4))
    def compute(self, which: int, more: list[int], drafts: int) -> None:
        """A pass over all that is not computed yet and some drafts, which are refused; what is full is published."""
        one = self.sequences[which % len(self.sequences)]
        one.tokens = one.tokens + more if len(one.tokens) < 8 else one.tokens
        start, stop = one.table.length, len(one.tokens)
        room = table.reserve(self.pool, one.table, stop + drafts - start, page_size=self.size)
        while room is None:
            if not prefix.idle_count(self.cache):
                return
            self.evict(1)
            room = table.reserve(self.pool, one.table, stop + drafts - start, page_size=self.size)
        self.pool, one.table, copies = room
        for old, new in copies:
            self.memory.update({new * self.size + i: self.memory.get(old * self.size + i) for i in range(self.size)})
        slots = table.slots(one.table, start, stop + drafts, page_size=self.size)
        for position, slot in enumerate(slots, start):
            assert slot // self.size not in self.cache.hashes, "a published page is written"
            self.memory[slot] = (one.salt, tuple(one.tokens[: position + 1])) if position < stop else "draft"
        one.table = table.append(one.table, stop - start, page_size=self.size)
        self.pool, one.table = table.truncate(self.pool, one.table, stop, page_size=self.size)
        done = one.tip.pages
        self.cache, self.pool, one.tip = prefix.publish(self.cache, self.pool, one.table, one.tokens, one.tip, page_size=self.size)
        assert one.tip.pages == stop // self.size == len(one.table.pages) - (stop % self.size > 0)
        self.texts = [*self.texts[-9:], (one.tokens, one.salt)]
        if not self.hashing:
            self.publish_in_the_model(one, done)

    def publish_in_the_model(self, one: Sequence, done: int) -> None:
        if isinstance(one.last, Kept) and one.last not in self.kept:
            return
        for place in range(done, one.tip.pages):
            whole = (one.salt, tuple(one.tokens[: (place + 1) * self.size]))
            same = [kept for kept in self.kept if kept.whole == whole]
            if same and (same[0].parent is one.last or same[0].parent == one.last):
                one.last = same[0]
                continue
            for kept in same:  # it hung under a page that was evicted
                self.kept.remove(kept)
                self.idle = [page for page in self.idle if page != kept.page]
            one.last = Kept(one.table.pages[place], whole, one.last)
            self.kept.append(one.last)

    @rule(which=WHICH)
    def fork(self, which: int) -> None:
        one = self.sequences[which % len(self.sequences)]
        self.pool, twin = table.fork(self.pool, one.table)
        self.sequences.append(Sequence(twin, one.tip, list(one.tokens), one.salt, one.last))
        if len(self.sequences) > 3:
            self.leave(0)

    def leave(self, which: int) -> Sequence:
        one = self.sequences.pop(which % len(self.sequences))
        self.cache, self.pool = prefix.release(self.cache, self.pool, one.table)
        self.idle += [page for page in reversed(one.table.pages) if page in self.cache.hashes and not self.holders(page)]
        return one

    @rule(which=WHICH)
    def end(self, which: int) -> None:
        if len(self.sequences) > 1:
            self.leave(which)

    @rule(which=WHICH)
    def preempt_and_begin_again(self, which: int) -> None:
        one = self.leave(which)
        self.begin(one.tokens, one.salt)

    @rule(count=st.integers(0, 5))
    def evict(self, count: int) -> None:
        free, alone = pages.free_count(self.pool), sum(not self.holders(page) for page in self.cache.hashes)
        self.cache, self.pool = prefix.evict(self.cache, self.pool, count)
        assert pages.free_count(self.pool) == free + min(count, alone)
        if not self.hashing:
            gone, self.idle = self.idle[:count], self.idle[count:]
            assert not any(pages.references(self.pool, page) for page in gone), "not the least recently used"
            self.kept = [kept for kept in self.kept if kept.page not in gone]

    @invariant()
    def every_reference_is_a_sequence_or_the_cache(self) -> None:
        for page in range(self.pool.num_pages):
            assert pages.references(self.pool, page) == self.holders(page) + (page in self.cache.hashes)
            if not pages.references(self.pool, page):
                for slot in range(page * self.size, (page + 1) * self.size):
                    self.memory.pop(slot, None)

    @invariant()
    def idle_pages_are_those_that_only_the_cache_holds(self) -> None:
        alone = {page for page in self.cache.hashes if not self.holders(page)}
        assert prefix.idle_count(self.cache) == len(alone)
        assert set(self.cache.idle) == alone
        held = {page for one in self.sequences for page in one.table.pages}
        assert pages.free_count(self.pool) + len(alone) + len(held) == self.pool.num_pages

    @invariant()
    def the_table_of_hashes_holds_cached_pages_only(self) -> None:
        assert {node.page: key for key, node in self.cache.nodes.items()} == dict(self.cache.hashes.items())
        if not self.hashing:
            assert set(self.cache.hashes) == {kept.page for kept in self.kept}

    @invariant()
    def nothing_is_found_that_is_something_else(self) -> None:
        for one in self.sequences:
            for salt in (b"", b"a"):
                ids = prefix.lookup(self.cache, one.tokens, page_size=self.size, salt=salt)
                self.check_contents(ids, one.tokens, salt)


class CollidingMachine(CacheMachine):
    """The same with a hash of two values: hits may be missed, and none is wrong."""

    @staticmethod
    def hashing(parent: bytes, tokens: tuple[int, ...]) -> bytes:  # type: ignore[override]
        return bytes([(sum(parent) + sum(tokens)) % 2])


TestCache = CacheMachine.TestCase
TestCollidingCache = CollidingMachine.TestCase


def compute(
    cache: PrefixCache, pool: PagePool, tokens: list[int], *, page_size: int = 4, salt: bytes = b""
) -> tuple[PrefixCache, PagePool, Table, Tip, int]:
    """Runs a request's prompt: what it found, room for the rest (evicting for it), publish. The last value is how many tokens it did not compute."""
    cache, pool, one, tip = prefix.hold(cache, pool, tokens, page_size=page_size, salt=salt)
    hit = one.length
    wanted = table.pages_for(len(tokens), page_size=page_size) - len(one.pages)
    cache, pool = prefix.evict(cache, pool, max(0, wanted - pages.free_count(pool)))
    room = table.reserve(pool, one, len(tokens) - hit, page_size=page_size)
    assert room is not None
    pool, one = room[0], table.append(room[1], len(tokens) - hit, page_size=page_size)
    cache, pool, tip = prefix.publish(cache, pool, one, tokens, tip, page_size=page_size)
    return cache, pool, one, tip, hit


def filled(pool: PagePool, count: int) -> tuple[PagePool, Table]:
    """A table of ``count`` slots that count, in pages of four."""
    room = table.reserve(pool, Table(), count, page_size=4)
    assert room is not None
    return room[0], table.append(room[1], count, page_size=4)


def finished(cache: PrefixCache, pool: PagePool, tokens: list[int], **how: Any) -> tuple[PrefixCache, PagePool]:
    """The same, and the request's end."""
    cache, pool, one, _, _ = compute(cache, pool, tokens, **how)
    return prefix.release(cache, pool, one)


def test_an_evicted_page_is_not_found_by_its_hash() -> None:
    first, second = list(range(13)), list(range(100, 113))
    cache, pool = finished(prefix.init(), pages.init(4), first)
    assert len(prefix.lookup(cache, first, page_size=4)) == 3
    cache, pool, one, _, _ = compute(cache, pool, second)  # all four pages: nothing of the first request is left
    assert prefix.lookup(cache, first, page_size=4) == ()
    assert set(cache.hashes) == set(one.pages[:3])
    assert {node.page for node in cache.nodes.values()} == set(one.pages[:3])


def test_a_prompt_that_is_cached_whole_leaves_a_page_to_compute() -> None:
    prompt = list(range(8))
    cache, pool, _, tip, _ = compute(prefix.init(), pages.init(8), prompt)
    assert tip.pages == 2  # both are cached
    cache, pool, one, tip, hit = compute(cache, pool, prompt)
    assert hit == 4
    assert one.length == 8
    assert tip.pages == 2
    assert prefix.lookup(cache, [], page_size=4) == prefix.lookup(cache, [0], page_size=4) == ()
    assert len(prefix.lookup(cache, [*prompt, 8], page_size=4)) == 2


@pytest.mark.parametrize(("mine", "other"), [(b"", b"a"), (b"a", b""), (b"a", b"b"), (b"a", b"aa"), (b"ab", b"a")])
def test_another_salt_shares_nothing(mine: bytes, other: bytes) -> None:
    tokens = list(range(9))
    cache, _ = finished(prefix.init(), pages.init(8), tokens, salt=mine)
    assert len(prefix.lookup(cache, tokens, page_size=4, salt=mine)) == 2
    assert prefix.lookup(cache, tokens, page_size=4, salt=other) == ()


def test_a_salt_is_compared_and_not_only_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "_hash", lambda parent, tokens: b"same")
    cache, _ = finished(prefix.init(), pages.init(8), list(range(5)), salt=b"a")
    assert len(prefix.lookup(cache, list(range(5)), page_size=4, salt=b"a")) == 1
    assert prefix.lookup(cache, list(range(5)), page_size=4, salt=b"b") == ()


def test_salt_and_tokens_cannot_be_taken_for_one_another() -> None:
    # The root of one chain, given as a salt, is not a page of another.
    digest = prefix._hash(prefix.root(b"").hash, (1, 2))
    assert prefix.root(digest).hash != prefix._hash(digest, ())
    assert prefix.root(b"").hash not in (digest, b"")


def test_equal_hashes_are_a_miss_if_tokens_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "_hash", lambda parent, tokens: b"same")
    cache, _ = finished(prefix.init(), pages.init(8), [1, 1, 1, 1, 1])
    assert len(prefix.lookup(cache, [1, 1, 1, 1, 1], page_size=4)) == 1
    assert prefix.lookup(cache, [2, 2, 2, 2, 2], page_size=4) == ()


def test_equal_hashes_and_tokens_are_a_miss_behind_another_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    # The second page has the hash of its tokens alone, so it collides behind every parent.
    monkeypatch.setattr(prefix, "_hash", lambda parent, tokens: bytes(tokens))
    cache, pool = finished(prefix.init(), pages.init(8), [1, 1, 7, 7, 0], page_size=2)
    cache, pool = finished(cache, pool, [2, 2, 0], page_size=2)
    assert len(prefix.lookup(cache, [1, 1, 7, 7, 0], page_size=2)) == 2
    assert len(prefix.lookup(cache, [2, 2, 7, 7, 0], page_size=2)) == 1


def test_a_page_behind_an_evicted_parent_is_not_found_behind_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    # [1, 1] and [2, 2] collide, and so do the pages behind them: only the serial number tells the second page's parents apart.
    monkeypatch.setattr(prefix, "_hash", lambda parent, tokens: b"first" if len(set(tokens)) == 1 and tokens[0] < 5 else bytes(tokens))
    cache, pool, one, _, _ = compute(prefix.init(), pages.init(8), [1, 1, 7, 8], page_size=2)
    cache, pool, _, _, _ = compute(cache, pool, [2, 2, 0], page_size=2)  # takes the place of [1, 1]
    assert prefix.lookup(cache, [1, 1, 7, 8, 0], page_size=2) == ()
    assert len(prefix.lookup(cache, [2, 2, 7, 8, 0], page_size=2)) == 1
    assert one.pages[0] not in cache.hashes
    assert pages.references(pool, one.pages[0]) == 1  # its sequence goes on with it


def test_published_pages_are_the_full_pages_of_verified_tokens_with_drafts_behind_them() -> None:
    tokens = list(range(100, 140))
    for page_size in (1, 3, 4):
        cache, pool, one, tip = prefix.hold(prefix.init(), pages.init(60), tokens[:2], page_size=page_size)
        length = 0
        for kept, drafted in ((2, 0), (1, 4), (5, 0), (1, 7), (3, 4), (2, 6), (8, 1), (1, 1)):
            room = table.reserve(pool, one, kept + drafted, page_size=page_size)
            assert room is not None
            length += kept
            pool, one = table.truncate(room[0], table.append(room[1], kept, page_size=page_size), length, page_size=page_size)
            cache, pool, tip = prefix.publish(cache, pool, one, tokens, tip, page_size=page_size)
            assert tip.pages == length // page_size == len(cache.nodes)
            assert set(cache.hashes) == set(one.pages[: length // page_size])


def test_publishing_again_enters_nothing_twice() -> None:
    tokens = list(range(9))
    cache, pool, one, tip, _ = compute(prefix.init(), pages.init(8), tokens)
    assert prefix.publish(cache, pool, one, tokens, tip, page_size=4) == (cache, pool, tip)
    again = prefix.publish(cache, pool, one, tokens, prefix.root(), page_size=4)
    assert again[1:] == (pool, tip)
    assert again[0].nodes == cache.nodes


def test_two_that_computed_the_same_keep_one_page_cached() -> None:
    tokens = list(range(9))
    pool = pages.init(8)
    tip = prefix.root()
    pool, first = filled(pool, 9)
    pool, second = filled(pool, 9)
    cache, pool, one_tip = prefix.publish(prefix.init(), pool, first, tokens, tip, page_size=4)
    cache, pool, other_tip = prefix.publish(cache, pool, second, tokens, tip, page_size=4)
    assert one_tip == other_tip
    assert set(cache.hashes) == set(first.pages[:2])
    cache, pool = prefix.release(cache, pool, second)
    assert pages.free_count(pool) == 8 - 3  # its copies are free at once
    cache, pool = prefix.release(cache, pool, first)
    assert (pages.free_count(pool), prefix.idle_count(cache)) == (6, 2)


def test_a_chain_is_published_anew_where_its_first_page_was_evicted_under_a_second() -> None:
    tokens = list(range(14))
    pool = pages.init(20)
    tip = prefix.root()
    pool, first = filled(pool, 5)
    pool, second = filled(pool, 9)  # both were computed at once, so the second found nothing
    cache, pool, _ = prefix.publish(prefix.init(), pool, first, tokens, tip, page_size=4)
    cache, pool, tip = prefix.publish(cache, pool, second, tokens, tip, page_size=4)
    cache, pool = prefix.evict(*prefix.release(cache, pool, first), 1)
    assert prefix.lookup(cache, tokens, page_size=4) == ()  # its successor is left, and nothing leads to it
    cache, pool, third, _, _ = compute(cache, pool, tokens)
    assert prefix.lookup(cache, tokens, page_size=4) == third.pages[:3]
    assert set(cache.hashes) == set(third.pages[:3])
    assert [pages.references(pool, page) for page in second.pages] == [1, 1, 1]


def test_nothing_is_entered_behind_a_page_that_left_the_cache() -> None:
    tokens = list(range(14))
    pool, first = filled(pages.init(20), 9)
    pool, second = filled(pool, 9)
    cache, pool, _ = prefix.publish(prefix.init(), pool, first, tokens, prefix.root(), page_size=4)
    cache, pool, tip = prefix.publish(cache, pool, second, tokens, prefix.root(), page_size=4)
    cache, pool = prefix.evict(*prefix.release(cache, pool, first), 2)
    room = table.reserve(pool, second, 4, page_size=4)
    assert room is not None
    pool, second = room[0], table.append(room[1], 4, page_size=4)
    assert prefix.publish(cache, pool, second, tokens, tip, page_size=4) == (cache, pool, Tip(3, tip.hash, tip.node))
    cache, pool, _, _, _ = compute(cache, pool, tokens)  # the same tokens on other pages do not wake it
    later = prefix.publish(cache, pool, second, tokens, tip, page_size=4)
    assert later[0].nodes == cache.nodes


def test_a_preempted_request_computes_what_it_does_not_find() -> None:
    tokens = list(range(10))
    cache, pool, one, _, _ = compute(prefix.init(), pages.init(8), tokens)
    cache, pool = prefix.release(cache, pool, one)
    for length, hit in ((10, 8), (9, 8), (8, 4), (5, 4), (4, 0)):  # never beyond its length, never all of it
        _, _, one, tip = prefix.hold(cache, pool, tokens[:length], page_size=4)
        assert (one.length, tip.pages) == (hit, hit // 4)


def test_a_hit_is_what_the_cache_holds_when_it_is_held() -> None:
    tokens = list(range(13))
    cache, pool = finished(prefix.init(), pages.init(8), tokens)
    assert len(prefix.lookup(cache, tokens, page_size=4)) == 3
    cache, pool = prefix.evict(cache, pool, 2)
    _, _, one, _ = prefix.hold(cache, pool, tokens, page_size=4)
    assert len(one.pages) == 1


def test_tails_are_evicted_before_their_parents_and_the_oldest_request_first() -> None:
    old, new = list(range(13)), list(range(50, 59))
    cache, pool = finished(prefix.init(), pages.init(20), old)
    cache, pool = finished(cache, pool, new)
    for left in ((2, 2), (1, 2), (0, 2), (0, 1), (0, 0), (0, 0)):
        cache, pool = prefix.evict(cache, pool, 1)
        assert (len(prefix.lookup(cache, old, page_size=4)), len(prefix.lookup(cache, new, page_size=4))) == left
    assert pages.free_count(pool) == 20


def test_what_was_held_again_is_evicted_last() -> None:
    first, second = list(range(5)), list(range(50, 55))
    cache, pool = finished(prefix.init(), pages.init(8), first)
    cache, pool = finished(cache, pool, second)
    cache, pool = finished(cache, pool, first)
    cache, pool = prefix.evict(cache, pool, 1)
    assert len(prefix.lookup(cache, first, page_size=4)) == 1
    assert prefix.lookup(cache, second, page_size=4) == ()


def test_pages_in_use_are_not_evicted() -> None:
    cache, pool, one, _, _ = compute(prefix.init(), pages.init(8), list(range(9)))
    assert prefix.evict(cache, pool, 5) == (cache, pool)
    assert all(pages.references(pool, page) for page in one.pages)


def test_a_shared_prefix_is_unchanged_by_those_who_go_on_from_it() -> None:
    shared = list(range(8))
    cache, pool, first, _, _ = compute(prefix.init(), pages.init(16), [*shared, 8])
    before = [cache.nodes[cache.hashes[page]] for page in first.pages[:2]]
    for tail in ([20, 21, 22, 23, 24], [30, 31, 32, 33, 34]):
        cache, pool, one, _, hit = compute(cache, pool, [*shared, *tail])
        assert hit == 8
        assert one.pages[:2] == first.pages[:2]
        written = {slot // 4 for slot in table.slots(one, hit, 13, page_size=4)}
        assert not written & set(first.pages), "a shared page is written"
    assert [cache.nodes[cache.hashes[page]] for page in first.pages[:2]] == before
    assert prefix.lookup(cache, [*shared, 8], page_size=4) == first.pages[:2]


def test_many_rounds_without_an_eviction_leave_nothing_behind() -> None:
    tokens = list(range(17))
    cache, pool = finished(prefix.init(), pages.init(8), tokens)
    for _ in range(2000):
        cache, pool, one, _ = prefix.hold(cache, pool, tokens, page_size=4)
        cache, pool = prefix.release(cache, pool, one)
    assert (len(cache.nodes), len(cache.hashes), len(cache.idle)) == (4, 4, 4)
    assert len(cache.queue) <= 100
    assert len(pool.held) == 4
    cache, pool = prefix.evict(cache, pool, 8)
    assert pages.free_count(pool) == 8


def test_an_old_cache_still_answers_as_it_did() -> None:
    tokens = list(range(9))
    cache, pool, one, _, _ = compute(prefix.init(), pages.init(8), tokens)
    past = prefix.release(cache, pool, one)
    later = prefix.evict(*past, 2)
    assert prefix.lookup(later[0], tokens, page_size=4) == ()
    assert prefix.lookup(past[0], tokens, page_size=4) == one.pages[:2]
    assert (pages.free_count(past[1]), pages.free_count(later[1])) == (6, 8)
    assert (prefix.idle_count(cache), prefix.idle_count(past[0])) == (0, 2)


def test_bad_input_is_refused_and_the_cache_stays() -> None:
    tokens = list(range(9))
    cache, pool, one, tip, _ = compute(prefix.init(), pages.init(8), tokens)
    with pytest.raises(ValueError, match="page_size is 0; expected at least 1 slot"):
        prefix.lookup(cache, tokens, page_size=0)
    with pytest.raises(ValueError, match="page_size is 0; expected at least 1 slot"):
        prefix.hold(cache, pool, tokens, page_size=0)
    with pytest.raises(ValueError, match="page_size is 0; expected at least 1 slot"):
        prefix.publish(cache, pool, one, tokens, tip, page_size=0)
    with pytest.raises(ValueError, match="tokens has 8 ids; expected at least 9"):
        prefix.publish(cache, pool, one, tokens[:8], prefix.root(), page_size=4)
    with pytest.raises(ValueError, match="page 0 is cached with other contents"):
        prefix.publish(cache, pool, one, tokens[::-1], prefix.root(), page_size=4)
    with pytest.raises(ValueError, match="count is -1; expected 0 or more pages"):
        prefix.evict(cache, pool, -1)
    cache, pool = prefix.release(cache, pool, one)
    with pytest.raises(ValueError, match="page 2, which is free"):
        prefix.release(cache, pool, one)
